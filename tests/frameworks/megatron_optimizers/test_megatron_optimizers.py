"""Gradients, updates and moments of the real Megatron-core's optimizers, against Adam's formulas.

Each optimizer keeps them elsewhere: beside the parameters, beside float32 copies of them, in flat
shards of either; under float16 gradients are scaled. Whatever holds them, the first step is

    exp_avg = (1 - 0.9) g,  exp_avg_sq = (1 - 0.999) g²,  update = -lr g / (|g| + 1e-8)

of the clipped gradient g. Sketches are sums, so the first holds of them too.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.frameworks.megatron.ranks import run
from tests.frameworks.megatron_optimizers.cases import CASES, CLIP, LEARNING_RATE, PLAIN, Case

START = Path(__file__).resolve().parents[1] / "start.py"
SCRIPT = "tests.frameworks.megatron_optimizers.one_step"
LIMIT = 2e-6  # relative error of an address in float32
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("optimizers")
    jobs = {
        data: [
            {**case._asdict(), "out": str(root / case.label)} for case in CASES if case.data == data
        ]
        for data in {case.data for case in CASES}
    }
    run(jobs, root, str(START), SCRIPT)
    return root


def step_of(folder: Path) -> CapturedStep:
    log = folder / "capture.log"
    assert not log.exists(), log.read_text(encoding="utf-8")[-3000:]
    return captured_steps(RunData(discover([folder])))[1]


def clipping(folder: Path) -> float:
    """Return the factor that Megatron clips gradients with, from the norm that it reports."""
    return min(1.0, CLIP / (float((folder / "norm_0").read_text(encoding="utf-8")) + 1e-6))


@EVERY_CASE
def test_every_phase_has_each_element_of_each_parameter_once(stepped: Path, case: Case) -> None:
    plain, step = step_of(stepped / PLAIN.label), step_of(stepped / case.label)
    phases = (Phase.PARAMETER_GRADIENT, Phase.UPDATE, Phase.FIRST_MOMENT, Phase.SECOND_MOMENT)
    for phase in phases:
        own = plain.of(Phase.PARAMETER_GRADIENT)
        assert own.keys() == step.of(phase).keys() and len(own) == 51
        for address, record in step.of(phase).items():
            assert record.digest == own[address].digest, address
            assert record.num_elements == own[address].num_elements
            assert record.dtype == "float32"


@EVERY_CASE
def test_gradients_add_up_to_the_norm_that_megatron_reports(stepped: Path, case: Case) -> None:
    """float16's are divided by the scale of the loss, as Megatron divides its copies of them."""
    gradients = step_of(stepped / case.label).of(Phase.PARAMETER_GRADIENT).values()
    reported = float((stepped / case.label / "norm_0").read_text(encoding="utf-8"))
    assert math.sqrt(sum(g.l2**2 for g in gradients)) == pytest.approx(reported, rel=1e-5)
    assert reported > CLIP


@EVERY_CASE
def test_moments_are_adams_of_the_clipped_gradient(stepped: Path, case: Case) -> None:
    step, factor = step_of(stepped / case.label), clipping(stepped / case.label)
    gradients = step.of(Phase.PARAMETER_GRADIENT)
    for address, moment in step.of(Phase.FIRST_MOMENT).items():
        found = difference(gradients[address], moment)
        assert found.gain == pytest.approx((1 - 0.9) * factor, rel=1e-4), address
        assert found.residual / found.gain < LIMIT, address
    for address, moment in step.of(Phase.SECOND_MOMENT).items():
        square = (factor * gradients[address].l2) ** 2
        assert moment.total == pytest.approx((1 - 0.999) * square, rel=1e-4), address


@EVERY_CASE
def test_updates_are_adams_steps_of_what_the_optimizer_holds(stepped: Path, case: Case) -> None:
    """Not what 16 bits leave of them: where a weight is 0.2, one rounding is a dozen steps."""
    step = step_of(stepped / case.label)
    for address, update in step.of(Phase.UPDATE).items():
        moment = step.of(Phase.FIRST_MOMENT)[address]  # 0 for tokens that do not occur
        each = update.l2 / math.sqrt(update.num_elements - moment.zeros)
        assert each == pytest.approx(LEARNING_RATE, rel=2e-2), address
        assert max(update.maximum, -update.minimum) < 1.01 * LEARNING_RATE, address


@pytest.mark.parametrize("case", [c for c in CASES if c.dtype == "float32"], ids=lambda c: c.label)
def test_ranks_and_shards_give_what_one_rank_has(stepped: Path, case: Case) -> None:
    plain, step = step_of(stepped / PLAIN.label), step_of(stepped / case.label)
    phases = (Phase.GRADIENT, Phase.PARAMETER_GRADIENT, Phase.FIRST_MOMENT)
    for phase in phases:
        for address, own in plain.of(phase).items():
            limit = 2 * LIMIT if address[0].endswith("k_proj.bias") else LIMIT
            assert difference(own, step.of(phase)[address]).relative < limit, address


@pytest.mark.parametrize("case", [c for c in CASES if c.dtype == "float16"], ids=lambda c: c.label)
def test_gradients_of_activations_are_without_the_scale_of_the_loss(
    stepped: Path, case: Case
) -> None:
    plain, step = step_of(stepped / PLAIN.label), step_of(stepped / case.label)
    for address, own in plain.of(Phase.GRADIENT).items():
        assert step.of(Phase.GRADIENT)[address].l2 == pytest.approx(own.l2, rel=0.05), address
