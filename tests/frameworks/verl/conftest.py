"""Pairs of runs of the real verl that several test files look at."""

from __future__ import annotations

import pytest

from tests.frameworks.verl.runs import Pair, Runs


@pytest.fixture(scope="session")
def v1(runs: Runs) -> Pair:
    return Pair(runs.get("v1_plain"), runs.get("v1_captured"))


@pytest.fixture(scope="session")
def v0(runs: Runs) -> Pair:
    return Pair(runs.get("v0_plain"), runs.get("v0_captured"))
