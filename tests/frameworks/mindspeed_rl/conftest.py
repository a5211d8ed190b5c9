"""Captured runs of the real MindSpeed-RL's worker that several files look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.mindspeed_rl.runs import SKETCHES, Ran, run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mindspeed_rl")


@pytest.fixture(scope="session")
def one(folder: Path) -> Ran:
    """One rank."""
    return run(folder, "one", 1, *SKETCHES)


@pytest.fixture(scope="session")
def two(folder: Path) -> Ran:
    """Two tensor-parallel ranks."""
    return run(folder, "two", 2, *SKETCHES)
