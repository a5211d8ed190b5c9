"""A configuration printed as YAML is found in a log, behind prefixes and between other lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from align.core.errors import AlignError, ConfigError
from dumps.readers.printed_yaml import READER, read_printed_yaml
from dumps.readers.reader import Glimpse, no_progress

YAML = """data:
  train_files: /d/x.parquet
  seed: null
actor_rollout_ref:
  actor:
    optim:
      lr: 1.0e-06
    betas:
    - 0.9
    - 0.999
  rollout:
    n: 5
    prompt_length: ${data.seed}
trainer:
  nnodes: 1
"""
EXPECTED = {
    "data.train_files": "/d/x.parquet",
    "data.seed": None,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.betas": (0.9, 0.999),
    "actor_rollout_ref.rollout.n": 5,
    "actor_rollout_ref.rollout.prompt_length": None,
    "trainer.nnodes": 1,
}


def weave(prefix: str) -> list[str]:
    lines = ["hello", "(raylet) starts"]
    for line in YAML.splitlines():
        lines += [prefix + line, "\x1b[36m(WorkerDict pid=9)\x1b[0m   lr: 3"]
    return [*lines, f"{prefix}step:1 - actor/lr:1e-06"]


@pytest.mark.parametrize("prefix", ["", "\x1b[36m(TaskRunner pid=17)\x1b[0m "])
def test_printed_yaml_gives_every_value_with_its_line(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "run.log"
    lines = weave(prefix)
    path.write_text("\n".join(lines) + "\n")
    assert READER.sniff(Glimpse(path, path.stat().st_size))
    config = read_printed_yaml(path, no_progress)
    assert {key: value.value for key, value in config.values.items()} == EXPECTED
    assert (config.framework, config.truncated_at) == ("verl", None)
    for key, value in config.values.items():
        assert key.rpartition(".")[2] + ":" in lines[(value.provenance.line or 0) - 1]


def test_a_cut_block_gives_a_part_of_the_truth(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    for end in range(len(YAML)):
        path.write_text("x\n" + YAML[:end])
        try:
            config = read_printed_yaml(path, no_progress)
        except AlignError:
            continue
        # Of a cut text no interpolation is resolved: what it refers to may be missing.
        whole = {key: value.value for key, value in config.values.items()}
        found = {key: value for key, value in whole.items() if "${" not in str(value)}
        assert found.items() <= EXPECTED.items()


def test_a_log_without_such_a_block_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    for path in (corpus / "verl_logs").iterdir():
        assert not READER.sniff(Glimpse(path, path.stat().st_size)), path.name
    path = tmp_path / "x.log"
    path.write_text("data:\n  1\n")
    with pytest.raises(ConfigError, match="prints no YAML"):
        read_printed_yaml(path, no_progress)
