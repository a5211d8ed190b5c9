"""Runs of verl beside the other tests, and how far our objective and the frameworks' differ."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.frameworks.verl.runs import Runs, surroundings
from tests.frameworks.verl.warm.warm_python import warm_python
from tests.frameworks.verl.work import SCRIPT, lay_out


@pytest.fixture(scope="session", autouse=True)
def begun_runs(request: pytest.FixtureRequest) -> None:
    """Have verl's runs begin with the first test, as they take longer than all other tests.

    A file of tests names the runs it looks at in NEEDS.
    """
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    needs = [getattr(item.module, "NEEDS", ()) for item in items]
    if any(needs):
        with suppress(pytest.skip.Exception):  # the tests that need them say so again
            runs: Runs = request.getfixturevalue("runs")
            runs.begin(dict.fromkeys(name for names in needs for name in names))


@pytest.fixture(scope="session")
def runs(work: Path, python: Path | None) -> Iterator[Runs]:
    runs = Runs(work, python)
    yield runs
    runs.close()


@pytest.fixture(scope="session")
def python(work: Path) -> Iterator[Path | None]:
    """Give a `python` with torch and its like imported, where the system can make one."""
    if not hasattr(os, "pidfd_open"):
        yield None
        return
    folder = work / "warm"
    folder.mkdir()
    with warm_python(folder, surroundings(work)) as path:
        yield path


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory, shared: Path, reference_runs: Path) -> Path:
    """Give a folder with models, data, plugins and the recipe's script, ready for a prefix."""
    recipe = shared / "reference" / "verl_cpu"
    if not (recipe / SCRIPT).is_file():
        pytest.skip("the recipe for verl on CPU is not there")
    folder = tmp_path_factory.mktemp("verl")
    lay_out(folder, recipe, reference_runs)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    parity = sys.modules.get("tests.frameworks.parity")
    if parity is None or not parity.TABLE.rows:
        return
    terminalreporter.section("parity with the installed frameworks")
    for line in parity.TABLE.lines():
        terminalreporter.write_line(line)
