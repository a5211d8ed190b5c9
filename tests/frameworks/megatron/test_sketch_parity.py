"""Sketches of the real Megatron-core agree with those of transformers, address by address."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("transformers", reason="the other side is a transformers model")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from align.core.rung import RungStatus
from align.layers import backward_rung, forward_rung, update_rung
from align.layers.captured import CapturedStep
from align.layers.measure import difference
from dumps.store.tensor_records import Phase
from tests.frameworks.megatron.cases import CASES, Case
from tests.frameworks.megatron.sketched import run_of, step_of

LIMIT = 2e-6  # relative error of an address in float32
UNIT = 2.0**-24  # the largest relative error of rounding to float32
RUNGS = (forward_rung, backward_rung, update_rung)
WELL_CONDITIONED = [case for case in CASES if case.epsilon > 1e-8]

# modules of transformers that megatron-core computes in functions, or for all experts at once
_ALONE = ("act_fn", "rotary_emb", "mlp.gate", "mlp.experts", "mlp.shared_experts")


def errors(reference: CapturedStep, candidate: CapturedStep, phase: str) -> dict[str, float]:
    """Return the relative error of every address; nothing may be missing on either side."""
    own, other = reference.of(phase), candidate.of(phase)
    missing = [name for name, _ in own.keys() - other.keys() if not name.endswith(_ALONE)]
    further = {name for name, _ in other.keys() - own.keys()}
    if any(name.endswith(".kv_b_proj") for name, _ in own):  # DeepSeek's router puts out logits
        further = {name for name in further if not name.endswith(".mlp.gate.routing")}
    assert not missing and not further, (missing, further)
    both = own.keys() & other.keys()
    apart = [name for name, u in both if own[name, u].digest != other[name, u].digest]
    assert not apart
    return {name: difference(own[name, u], other[name, u]).relative for name, u in both}


def agree(
    case: Case,
    steps: tuple[CapturedStep, CapturedStep],
    phase: str,
    limit_of: Callable[[str], float] = lambda name: LIMIT,
) -> None:
    found = errors(*steps, phase)
    worst = max(found, key=found.__getitem__)
    print(f"{case.label} {phase}: {len(found)} addresses, worst {found[worst]:.2g} at {worst}")
    assert not {name: error for name, error in found.items() if error > limit_of(name)}


def steps_of(case: Case, trained: Path, step: int = 1) -> tuple[CapturedStep, CapturedStep]:
    return step_of(trained / case.reference, step), step_of(trained / case.label, step)


@pytest.mark.parametrize("phase", [Phase.PARAMETER, Phase.FORWARD, Phase.INPUT, Phase.GRADIENT])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_every_address_agrees_with_transformers(trained: Path, case: Case, phase: str) -> None:
    agree(case, steps_of(case, trained), phase)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_gradients_agree_by_the_size_of_what_they_sum(trained: Path, case: Case) -> None:
    """The gradient of a bias is the sum of its output's gradients; of a key's, most cancel."""
    steps = steps_of(case, trained)
    terms, sums = steps[0].of(Phase.GRADIENT), steps[0].of(Phase.PARAMETER_GRADIENT)

    def limit(name: str) -> float:
        module = name.removesuffix(".bias")
        return LIMIT if module == name else LIMIT * max(1, terms[module, 0].l2 / sums[name, 0].l2)

    agree(case, steps, Phase.PARAMETER_GRADIENT, limit)


@pytest.mark.parametrize("case", WELL_CONDITIONED, ids=lambda case: case.label)
def test_the_updates_of_megatrons_optimizer_agree_up_to_the_rounding_of_parameters(
    trained: Path, case: Case
) -> None:
    steps = steps_of(case, trained)
    before, update = (steps[0].of(phase) for phase in (Phase.PARAMETER, Phase.UPDATE))

    def limit(name: str) -> float:  # each side rounds the new parameter once
        return LIMIT + 2 * UNIT * before[name, 0].l2 / update[name, 0].l2

    agree(case, steps, Phase.UPDATE, limit)
    agree(case, steps_of(case, trained, 2), Phase.PARAMETER)


@pytest.mark.parametrize("rung", RUNGS, ids=["forward", "backward", "update"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_a_clean_pair_gives_no_finding(trained: Path, case: Case, rung: Any) -> None:
    result = rung.compare(run_of(trained / case.reference), run_of(trained / case.label))
    assert not [(each.id, each.title.en) for each in result.findings]
    assert result.status is RungStatus.ALIGNED, result.summary.en
