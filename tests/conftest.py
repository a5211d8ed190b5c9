"""Fixtures and settings that every test folder shares."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parents[1]
CHROMIUM = Path("/usr/bin/chromium")

settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# what the parity tests need; each of them skips without it, unless ALIGN_REQUIRE_FRAMEWORKS=1
FRAMEWORKS = (
    "torch",
    "verl.trainer.ppo.core_algos",
    "trl.trainer.grpo_trainer",
    "megatron.core.optimizer_param_scheduler",
)


def pytest_sessionstart() -> None:
    """Fail at once where a framework is missing that ALIGN_REQUIRE_FRAMEWORKS=1 asks for."""
    if os.environ.get("ALIGN_REQUIRE_FRAMEWORKS") != "1":
        return
    for name in FRAMEWORKS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            pytest.exit(f"ALIGN_REQUIRE_FRAMEWORKS=1, but no {name}: {error}", returncode=1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Give the folder of real logs and recorded runs, which is not part of the repository."""
    folder = Path(os.environ.get("ALIGN_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"needs the corpus of real runs: no folder {folder} (set ALIGN_SHARED)")
    return folder


@pytest.fixture(scope="session")
def corpus(shared: Path) -> Path:
    """Give the real logs, configs and rollouts described in its INDEX.md."""
    return _part_of_corpus(shared / "corpus")


@pytest.fixture(scope="session")
def reference_runs(shared: Path) -> Path:
    """Give the recorded runs of verl on CPU."""
    return _part_of_corpus(shared / "reference" / "verl_runs")


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Give the browser; its absence fails the test where ALIGN_REQUIRE_CHROMIUM=1."""
    if CHROMIUM.exists():
        return CHROMIUM
    message = f"needs a browser: no {CHROMIUM} (Debian: apt-get install chromium)"
    if os.environ.get("ALIGN_REQUIRE_CHROMIUM") == "1":
        pytest.fail(message)
    pytest.skip(message)


def _part_of_corpus(folder: Path) -> Path:
    if not folder.is_dir():
        pytest.skip(f"this corpus of real runs has no folder {folder}")
    return folder
