"""From the real verl to the real MindSpeed-RL: capture, translate, convert, replay, report.

verl trains two steps on FSDP2; MindSpeed-RL's integrated worker is replayed its rollouts on
Megatron-core, with settings and weights that npu-align makes of verl's. The two are held against
each other as a user would, clean and with faults in MindSpeed-RL's code.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")
pytest.importorskip("megatron.core", reason="Megatron-core is not installed")
pytest.importorskip("verl", reason="verl is not installed")

from align.core.finding import Severity
from align.core.report import Report
from align.core.rung import Rung, RungStatus
from align.core.verdict import VerdictStatus
from align.ladder import climb
from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.store.discover import discover
from dumps.store.manifest import read_manifest
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase, TensorRecord
from tests.frameworks.mindspeed_rl.runs import SOURCE
from tests.frameworks.mindspeed_rl.verl_pair import RECIPE, prepare, replay, run_verl

pytestmark = [
    pytest.mark.skipif(SOURCE is None, reason="needs a checkout of MindSpeed-RL"),
    pytest.mark.skipif(not RECIPE.is_dir(), reason="the recipe for verl on CPU is not there"),
]
LIMIT = 2e-6  # relative error of an address in float32
ROWS = 64
NOT_SETTLED = {
    Rung.CONFIG,  # MindSpeed-RL has no dual clip, and takes its rule of reward by another name
    Rung.CURVES,  # two steps have no shape
    Rung.EVALS,
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verl_to_mindspeed_rl")


@pytest.fixture(scope="module")
def reference(work: Path) -> Path:
    """Capture verl."""
    return run_verl(work / "verl")


Replayed = tuple[Path, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def one(work: Path, reference: Path) -> Replayed:
    """MindSpeed-RL on one rank."""
    return replayed(work, reference, 1)


@pytest.fixture(scope="module")
def two(work: Path, reference: Path) -> Replayed:
    """MindSpeed-RL on two tensor-parallel ranks."""
    return replayed(work, reference, 2)


@pytest.fixture(params=["one", "two"])
def clean(request: pytest.FixtureRequest) -> Replayed:
    return request.getfixturevalue(request.param)


def replayed(work: Path, reference: Path, ranks: int) -> Replayed:
    folder = work / f"mindspeed-rl-{ranks}"
    prepare(reference, work / "verl", folder, ranks)
    done = replay(reference, folder, "clean", ranks)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return folder / "clean-run", done


def data_of(run: Path) -> RunData:
    return RunData(discover([run]))


@functools.cache
def report_of(reference: Path, candidate: Path) -> Report:
    return climb(data_of(reference), data_of(candidate))


def test_every_recorded_row_was_trained_on_and_nothing_failed(clean: Replayed) -> None:
    run, done = clean
    assert not (run / "capture.log").exists(), (run / "capture.log").read_text(encoding="utf-8")
    assert f"{ROWS} identical to recorded ones, 0 not, 0 generated" in done.stderr
    assert read_manifest(run).replay["holds"] is True


def test_the_candidate_records_what_the_reference_recorded(clean: Replayed) -> None:
    """Sketches too, which nothing but the reference's own capture asks for."""
    run, _ = clean
    for what in ("sketches", "trainer_inputs", "rollout", "steps", "metrics.jsonl", "config.yaml"):
        assert (run / what).exists(), what


@pytest.mark.parametrize(
    "phase", [Phase.FORWARD, Phase.INPUT, Phase.GRADIENT, Phase.PARAMETER_GRADIENT]
)
def test_both_frameworks_compute_the_same_up_to_rounding(
    reference: Path, clean: Replayed, phase: str
) -> None:
    """Of the first update; what neither has under its name is a function on the other side."""
    steps = [captured_steps(data_of(run))[1] for run in (reference, clean[0])]
    own, other = (addresses(step, phase) for step in steps)
    alone = {name for name in own ^ other.keys() if not name.endswith(("act_fn", "rotary_emb"))}
    assert not alone - {"position_ids"}
    errors = {name: difference(own[name], other[name]).relative for name in own & other.keys()}
    worst = max(errors, key=errors.__getitem__)
    print(f"{phase}: {len(errors)} addresses, worst {errors[worst]:.2g} at {worst}")
    assert errors[worst] <= LIMIT


def addresses(step: CapturedStep, phase: str) -> dict[str, TensorRecord]:
    """Return what was recorded of the first update."""
    first = min(update for _, update in step.of(phase))
    return {name: record for (name, update), record in step.of(phase).items() if update == first}


def test_no_rung_of_a_clean_pair_is_blamed(reference: Path, clean: Replayed) -> None:
    report = report_of(reference, clean[0])
    errors = [f.id for rung in report.rungs for f in rung.findings if f.severity is Severity.ERROR]
    assert not errors
    assert report.verdict.status is not VerdictStatus.DIVERGED
    open_ = {rung.name: rung.summary.en for rung in report.rungs
             if rung.status is not RungStatus.ALIGNED and rung.name not in NOT_SETTLED}  # fmt: skip
    assert not open_


def test_what_the_captured_worker_says_is_what_its_files_say(
    reference: Path, clean: Replayed
) -> None:
    """Its launcher has multiplied one size, its configuration class another."""
    (config,) = (rung for rung in report_of(reference, clean[0]).rungs if rung.name is Rung.CONFIG)
    found = {finding.id for finding in config.findings if finding.severity is Severity.WARNING}
    assert found == {"config.reward.rules", "config.loss.dual_clip"}


FAULTS = {
    "wrong_groups": ("advantage.groups", ""),
    "weak_extraction": ("reward.same_response_other_score", ""),
    "kl_sign": ("loss.kl_sign", ""),
    "one_norm_eps": ("forward.first_divergence", "layers.1.post_attention_layernorm"),
    "loss_doubled": ("backward.scale", ""),
    "rate_halved": ("optimizer.lr_schedule", ""),
    "stale_weights": ("weight_sync.stale", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_mindspeed_rl_is_what_the_report_names(
    work: Path, reference: Path, one: Replayed, fault: str
) -> None:
    folder = one[0].parent
    done = replay(reference, folder, fault, 1, fault)
    assert done.returncode == 0, done.stderr[-3000:]
    report = climb(data_of(reference), data_of(folder / f"{fault}-run"))
    shutil.rmtree(folder / f"{fault}-run")
    found, place = FAULTS[fault]
    titles = {f.id: f.title.en for rung in report.rungs for f in rung.findings}
    assert report.verdict.finding_id == found, report.verdict.sentence.en
    assert place in titles[found]
