"""Errors as workers and users meet them."""

from __future__ import annotations

import pickle

import pytest

from align.core.errors import AlignError, ConfigError, DumpError, MissingPackageError, RunError


@pytest.mark.parametrize(
    "kind", [AlignError, ConfigError, DumpError, MissingPackageError, RunError]
)
def test_an_error_crosses_from_a_worker_process_whole(kind: type[AlignError]) -> None:
    error = kind(where="a.yaml", key="lr", problem="is a word", fix="write a number")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert vars(again) == vars(error)
    assert str(again) == "a.yaml: lr: is a word; write a number"
