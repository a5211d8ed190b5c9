"""Runs of the real verl that several test files look at: each is made once a session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.frameworks.verl.runs import PLUGIN, SKIPPED, TWO_RANKS, V0, Pair, Ran, run


@pytest.fixture(scope="session")
def recipe(shared: Path) -> Path:
    folder = shared / "reference" / "verl_cpu"
    if not (folder / "run_v1.sh").is_file():
        pytest.skip("the recipe for verl on CPU is not there")
    return folder


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory, recipe: Path, reference_runs: Path) -> Path:
    """Give a folder with model, data, plugins and the recipe's script, ready for a prefix."""
    folder = tmp_path_factory.mktemp("verl")
    (folder / "tiny").symlink_to(reference_runs / "tiny_model_tokenizer_data")
    shutil.copytree(recipe / "plugin", folder / "plugin")
    shutil.copytree(PLUGIN, folder / "plugin", dirs_exist_ok=True)
    script = (recipe / "run_v1.sh").read_text()
    assert "exec timeout" in script
    shutil.copy(reference_runs / "agentloop_dump_tokens.jsonl", folder / "rollouts.jsonl")
    (folder / "run_v1.sh").write_text(script.replace("exec timeout", "exec $PREFIX timeout"))
    return folder


@pytest.fixture(scope="session")
def v1(work: Path) -> Pair:
    return Pair(run(work, "v1-plain"), run(work, "v1-captured", captures=True))


@pytest.fixture(scope="session")
def two_ranks(work: Path) -> Ran:
    """Give a run like that of `v1` on two ranks of FSDP2, whose engine is never given a weight."""
    return run(work, "v1-two-captured", *TWO_RANKS, captures=True, skipped=SKIPPED)


@pytest.fixture(scope="session")
def v0(work: Path) -> Pair:
    return Pair(run(work, "v0-plain", V0), run(work, "v0-captured", V0, captures=True))
