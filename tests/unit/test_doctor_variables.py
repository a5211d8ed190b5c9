"""Environment variables that harm a run are named; sound ones are left alone."""

from __future__ import annotations

import pytest

from align.core.environment import EnvironmentFact
from align.core.finding import Evidence, Side
from align.environment.variables import MEANINGS, Surroundings, findings, variables_of

ARM = Surroundings(machine="aarch64")
X86 = Surroundings(machine="x86_64")
SLOW = Surroundings(longest_generation_s=700.0)
JEMALLOC = "/usr/local/lib/libjemalloc.so.2"


def found(variables: dict[str, str], around: Surroundings) -> list[str]:
    facts = {
        f"env.{name}": EnvironmentFact(f"env.{name}", value, Evidence("run.sh", Side.BOTH, 1))
        for name, value in variables.items()
    }
    return [finding.id for finding in findings(variables_of(facts), around)]


@pytest.mark.parametrize(
    ("variables", "around", "expected"),
    [
        ({"ASCEND_LAUNCH_BLOCKING": "1"}, ARM, "launch_blocking"),
        ({"HCCL_EXEC_TIMEOUT": "600"}, SLOW, "hccl_exec_timeout"),
        ({"LD_PRELOAD": JEMALLOC}, X86, "jemalloc_on_x86"),
    ],
)
def test_a_variable_that_harms_is_named(
    variables: dict[str, str], around: Surroundings, expected: str
) -> None:
    assert found(variables, around) == [f"environment.{expected}"]


@pytest.mark.parametrize(
    ("variables", "around"),
    [
        ({}, SLOW),
        ({"ASCEND_LAUNCH_BLOCKING": "0"}, ARM),
        ({"HCCL_EXEC_TIMEOUT": "3600"}, SLOW),
        ({"HCCL_EXEC_TIMEOUT": "0"}, SLOW),  # waits for ever
        ({"HCCL_EXEC_TIMEOUT": "600"}, ARM),  # no time is logged
        ({"LD_PRELOAD": JEMALLOC}, ARM),
        ({"LD_PRELOAD": JEMALLOC}, Surroundings()),
        ({"LD_PRELOAD": "/usr/lib/libother.so"}, X86),
    ],
)
def test_sound_variables_are_left_alone(variables: dict[str, str], around: Surroundings) -> None:
    assert found(variables, around) == []


def test_each_shown_variable_has_a_meaning_in_both_languages() -> None:
    assert {"TASK_QUEUE_ENABLE", "HCCL_BUFFSIZE", "PYTORCH_NPU_ALLOC_CONF"} <= MEANINGS.keys()
    assert all(text.en and text.zh for text in MEANINGS.values())
