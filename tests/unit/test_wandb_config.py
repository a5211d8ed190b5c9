"""wandb's config.yaml gives the configuration without its wrappers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from align.core.config_value import ProvenanceKind
from align.core.errors import AlignError
from dumps.readers.reader import Glimpse, no_progress
from dumps.readers.wandb_config import READER, read_wandb_config

TEXT = """_wandb:
    value:
        cli_version: 0.24.0
        python_version: 3.10.19
actor_rollout_ref:
    desc: null
    value:
        actor:
            optim:
                lr: 1e-06
            value: 3
seed:
    value: 1
"""


def glimpse(path: Path) -> Glimpse:
    return Glimpse(path, path.stat().st_size)


def test_wrappers_are_removed_and_wandbs_own_facts_left_out(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text(TEXT)
    config = read_wandb_config(path, no_progress)
    assert {key: (v.value, v.provenance.line) for key, v in config.values.items()} == {
        "actor_rollout_ref.actor.optim.lr": (1e-6, 10),
        "actor_rollout_ref.actor.value": (3, 11),
        "seed": (1, 13),
    }
    assert config.framework == "verl"
    assert config.values["seed"].provenance.kind is ProvenanceKind.PRINTED


def test_the_rl_run_of_the_corpus_gives_every_value(corpus: Path) -> None:
    path = corpus / "metrics/wandb_rl/config.yaml"
    assert READER.sniff(glimpse(path))
    config = read_wandb_config(path, no_progress)
    document = yaml.safe_load(path.read_text())
    wrapped = {key: item["value"] for key, item in document.items() if key != "_wandb"}
    assert config.framework == "verl"
    assert len(config.values) == count(wrapped) == 320
    assert config.values["trainer.n_gpus_per_node"].value == 8
    # PyYAML reads 1e-06 as text, the run had a float.
    rate = wrapped["actor_rollout_ref"]["actor"]["optim"]["lr"]
    assert config.values["actor_rollout_ref.actor.optim.lr"].value == float(rate)


def count(value: Any) -> int:
    if isinstance(value, dict) and value:
        return sum(map(count, value.values()))
    return 1


def test_a_run_that_gave_wandb_no_configuration_says_so(corpus: Path) -> None:
    path = corpus / "metrics/wandb_sft/config.yaml"
    assert READER.sniff(glimpse(path))
    config = read_wandb_config(path, no_progress)
    assert not config.values
    assert [note.en for note in config.notes] == ["the run handed no configuration to wandb"]


def test_other_yaml_is_left_alone(corpus: Path) -> None:
    for path in [*corpus.glob("verl_configs/*/.hydra/*.yaml"), *corpus.glob("mindspeed_rl/*.yaml")]:
        assert not READER.sniff(glimpse(path))


@given(st.integers(0, len(TEXT)), st.binary(max_size=40))
def test_a_cut_file_raises_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, end: int, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("cut") / "config.yaml"
    path.write_bytes(TEXT.encode()[:end] + tail)
    READER.sniff(glimpse(path))
    try:
        read_wandb_config(path, no_progress)
    except AlignError:
        return
