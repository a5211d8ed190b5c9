"""Faults in verl's own code, which no configuration shows: a report names them first.

All of them, and clean pairs: `python tests/frameworks/start.py benchmarks.verl_faults FOLDER`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("transfer_queue", reason="verl's V1 trainer needs TransferQueue")

from benchmarks.fault_table import judge
from benchmarks.verl_faults import FAULTS
from tests.frameworks.verl.runs import IN_CODE, Runs

PPO_RUN = Path(__file__).resolve().parents[2] / "data" / "verl_ppo_run"
NEEDS = ("v1_captured", *(f"v1_{fault}" for fault in IN_CODE), "ppo_gradient_doubled")


@pytest.mark.parametrize("fault", IN_CODE)
def test_a_fault_in_the_code_is_the_first_thing_a_report_names(runs: Runs, fault: str) -> None:
    sides = (runs.get(name).capture for name in ("v1_captured", f"v1_{fault}"))
    judged = judge(fault, FAULTS[fault], *sides)
    assert judged.is_right, judged.text


def test_a_critic_that_learns_from_twice_its_gradient_is_named_beside_a_recorded_run(
    runs: Runs,
) -> None:
    capture = runs.get("ppo_gradient_doubled").capture
    judged = judge("value_loss_doubled", FAULTS["value_loss_doubled"], PPO_RUN, capture)
    assert judged.is_right, judged.text
