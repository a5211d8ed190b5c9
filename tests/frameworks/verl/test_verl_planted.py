"""Faults in verl's own code, which no configuration shows: a report names them first.

All of them, and clean pairs: `python tests/frameworks/start.py benchmarks.verl_faults FOLDER`.
"""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("transfer_queue", reason="verl's V1 trainer needs TransferQueue")

from benchmarks.fault_table import judge
from benchmarks.verl_faults import FAULTS
from tests.frameworks.verl.runs import IN_CODE, Runs

NEEDS = ("v1_captured", *(f"v1_{fault}" for fault in IN_CODE))


@pytest.mark.parametrize("fault", IN_CODE)
def test_a_fault_in_the_code_is_the_first_thing_a_report_names(runs: Runs, fault: str) -> None:
    sides = (runs.get(name).capture for name in ("v1_captured", f"v1_{fault}"))
    judged = judge(fault, FAULTS[fault], *sides)
    assert judged.is_right, judged.text
