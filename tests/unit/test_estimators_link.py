"""The referee's link from rewards to advantages, for every estimator that is recomputed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the referee computes with torch")

from align.referee.link import Link, LinkVerdict
from align.referee.referee import rule
from align.rollout.estimators import ESTIMATORS
from dumps.store.run_data import RunData
from tests.unit.test_estimators_named import computed, estimated_run


def link(run: RunData) -> Link:
    return next(link for link in rule(run, 1).links if link.name == "advantages")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_advantages_as_configured_are_as_declared(tmp_path: Path, name: str) -> None:
    found = link(estimated_run(tmp_path, name, computed(name)))
    assert found.verdict is LinkVerdict.AS_DECLARED
    assert name in found.declared.en


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "opo"])
def test_another_formula_is_named_beside_the_link(tmp_path: Path, name: str) -> None:
    found = link(estimated_run(tmp_path, name, computed("opo")))
    assert found.verdict is LinkVerdict.DIFFERS
    assert found.note is not None and "computes opo" in found.note.en


def test_an_estimator_that_is_not_recomputed_is_left_open(tmp_path: Path) -> None:
    assert link(estimated_run(tmp_path, "remax", computed("grpo"))).verdict is LinkVerdict.UNKNOWN
