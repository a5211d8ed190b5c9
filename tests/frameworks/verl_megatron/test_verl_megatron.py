"""verl's real Megatron engine under capture: against transformers, and against itself without."""

from __future__ import annotations

import functools
import math
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="verl needs torch")
pytest.importorskip("transformers", reason="the other side is a transformers model")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")
pytest.importorskip("verl", reason="verl is not installed")

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from align.core.rung import RungStatus
from align.layers import backward_rung, forward_rung, weight_sync_rung
from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.capture.plan import CapturePlan, What, write_plan
from dumps.readers import captured_step
from dumps.readers.captured_step import CapturedStep as CapturedPart
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.frameworks.megatron.ranks import run
from tests.frameworks.verl_megatron import hugging_face
from tests.frameworks.verl_megatron.batch import sequences
from tests.unit.weight_models import save_model

START = Path(__file__).parents[1] / "start.py"
MODULE = "tests.frameworks.verl_megatron.real_engine"
LIMIT = 2e-6  # relative error of an address in float32
LIMITS = {
    Phase.SECOND_MOMENT: 2 * LIMIT,  # of squares
    Phase.UPDATE: 2e-5,  # 0.005 of weights near 1, whose own rounding is 6e-8
}
HALVES = {Phase.PARAMETER: 2**-8}
# what TransformerEngine's fused layers do not put out
_FUSED = ("input_layernorm", "post_attention_layernorm")
_ALONE = (*_FUSED, "act_fn", "rotary_emb", "position_ids")


class Case(NamedTuple):
    """A model, and how the engine cuts it.

    Args:
        first_step: of this case in the run of all.
        data: data-parallel ranks.
        context: ranks that share each sequence.
        chunks: of the model on every pipeline rank.
        packed: sequences one after the other, else padded rows.
        planted: parameter that is wrong on the last rank.
        skipped: parameter that the rollout engine is given once only.
    """

    first_step: int
    model: str = "qwen2"
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    chunks: int = 1
    packed: bool = True
    dtype: str = "float32"
    planted: str = ""
    skipped: str = ""

    @property
    def label(self) -> str:
        sizes = {"tp": self.tensor, "pp": self.pipeline, "vpp": self.chunks, "cp": self.context}
        cut = "".join(f"-{name}{n}" for name, n in {**sizes, "dp": self.data}.items() if n > 1)
        return f"{self.model}{cut or '-alone'}-{'packed' if self.packed else 'padded'}"

    @property
    def world(self) -> int:
        return self.tensor * self.pipeline * self.context * self.data

    def job(self, root: Path) -> dict[str, Any]:
        return {
            **self._asdict(),
            "is_done_plainly": self in PLAIN,
            "folder": str(root / self.model),
            "plan": str(root / "all" / "capture.json"),
            "out": str(root / f"done-{self.first_step}"),
        }


ALL = (
    Case(11),
    Case(21, tensor=2),
    Case(31, pipeline=2),
    Case(41, data=2),
    Case(81, context=2),
    Case(91, pipeline=2, chunks=2),
    Case(51, "qwen3", tensor=2, packed=False),
    Case(61, "qwen2_tied", pipeline=2, packed=False),
)
# verl 0.9 asks chunks of a stage what 0.12 does not say
IS_OLD = tuple(map(int, version("megatron-core").split(".")[:2])) < (0, 13)
CLEAN = tuple(case for case in ALL if case.chunks == 1 or not IS_OLD)
PLAIN = CLEAN[:4]
WRONG = Case(
    71,
    tensor=2,
    planted="decoder.layers.2.mlp.linear_fc2.weight",
    skipped="model.layers.1.self_attn.k_proj.weight",
)
HALF = Case(101, tensor=2, dtype="bfloat16")
CASES = (*CLEAN, WRONG, HALF)
EACH = pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.label)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train every case, plainly and under capture; give each case a run folder of its own."""
    if find_spec("mbridge") is None:
        pytest.skip("mbridge, with which verl builds Megatron's models, is not installed")
    root = tmp_path_factory.mktemp("verl_megatron")
    for name in {case.model for case in CASES}:
        hugging_face.save_old_log_probs(save_model(name, root / name))
    what = (What.SKETCHES, What.LOG_PROBS, What.INPUTS, What.GRAD_NORMS, What.RNG)
    write_plan(CapturePlan(root / "all", what, steps=((1, 200),)))
    by_world = {
        w: [c.job(root) for c in CASES if c.world == w] for w in sorted({c.world for c in CASES})
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than all else here
        run(by_world, root, str(START), MODULE)
    log = root / "all" / "capture.log"
    assert not log.exists(), log.read_text(encoding="utf-8")[-3000:]
    for case in CASES:
        steps = range(case.first_step, case.first_step + 3)
        for file in (root / "all" / "sketches").glob("*/*.safetensors"):
            if int(file.stem) in steps:
                own = root / f"run-{case.first_step}" / file.relative_to(root / "all")
                own.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, own)
        hugging_face.record(root / case.model, root / f"hf-{case.first_step}", case.first_step)
    return root


def run_of(root: Path, case: Case, kind: str = "run") -> RunData:
    return RunData(discover([root / f"{kind}-{case.first_step}"]))


@functools.cache
def step_of(root: Path, case: Case, kind: str = "run") -> CapturedStep:
    return captured_steps(run_of(root, case, kind))[case.first_step]


PHASES = (
    *(Phase.PARAMETER, Phase.FORWARD, Phase.INPUT, Phase.GRADIENT, Phase.PARAMETER_GRADIENT),
    *(Phase.UPDATE, Phase.FIRST_MOMENT, Phase.SECOND_MOMENT),
)


@pytest.mark.parametrize("phase", PHASES)
@EACH
def test_every_address_agrees_with_transformers(root: Path, case: Case, phase: str) -> None:
    own, other = (step_of(root, case, kind).of(phase) for kind in ("hf", "run"))
    missing = [name for name, _ in own.keys() - other.keys() if not name.endswith(_ALONE)]
    assert not missing and not other.keys() - own.keys(), (missing, other.keys() - own.keys())
    both = own.keys() & other.keys()
    assert not [name for name, u in both if own[name, u].digest != other[name, u].digest]
    found = {name: difference(own[name, u], other[name, u]).relative for name, u in both}
    worst = max(found, key=found.__getitem__)
    print(f"{case.label} {phase}: {len(found)} addresses, worst {found[worst]:.2g} at {worst}")
    assert found[worst] <= LIMITS.get(phase, LIMIT)


@pytest.mark.parametrize("rung", [forward_rung, backward_rung], ids=["forward", "backward"])
@EACH
def test_a_clean_pair_gives_no_finding(root: Path, case: Case, rung: Any) -> None:
    result = rung.compare(run_of(root, case, "hf"), run_of(root, case))
    assert not [(each.id, each.title.en) for each in result.findings]
    assert result.status is RungStatus.ALIGNED, result.summary.en


@EACH
def test_weights_are_recorded_under_the_names_that_verl_sends_them_by(
    root: Path, case: Case
) -> None:
    _, captured = done(root, case, 0)
    for step, names in enumerate(captured["sent"], case.first_step):
        recorded = captured_steps(run_of(root, case))[step].of(Phase.PARAMETER)
        assert sorted(name for name, _ in recorded) == names


@pytest.mark.parametrize("phase", PHASES)
def test_sixteen_bits_are_recorded_of_the_same_tokens_and_elements(root: Path, phase: str) -> None:
    """Parameters and activations are bfloat16; gradients, moments and updates are float32."""
    own, other = (step_of(root, HALF, kind).of(phase) for kind in ("hf", "run"))
    assert [name for name, _ in own.keys() - other.keys() if not name.endswith(_ALONE)] == []
    is_half = phase in (Phase.PARAMETER, Phase.FORWARD, Phase.INPUT, Phase.GRADIENT)
    for address, record in other.items():
        assert record.digest == own[address].digest
        assert record.dtype == ("bfloat16" if is_half else "float32")
        limit = HALVES.get(phase, 0.06)
        assert difference(own[address], record).relative < limit, address


def test_an_engine_of_sixteen_bits_has_the_trainers_weights(root: Path) -> None:
    own = run_of(root, HALF)
    result = weight_sync_rung.compare(own, own)
    assert result.status is RungStatus.ALIGNED and "3 and 3 steps" in result.summary.en


def done(root: Path, case: Case, rank: int) -> Any:
    """Return what a rank did plainly, and under capture."""
    return torch.load(root / f"done-{case.first_step}.{rank}", weights_only=False)


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.label)
def test_a_capture_changes_no_bit_of_training(root: Path, case: Case) -> None:
    for rank in range(case.world):
        plain, captured = (list(leaves(each)) for each in done(root, case, rank))
        assert len(plain) > 100 and [name for name, _ in plain] == [name for name, _ in captured]
        for (name, own), (_, other) in zip(plain, captured, strict=True):
            same = torch.equal(own, other) if isinstance(own, Tensor) else own == other
            assert same, name


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{name}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from leaves(each, f"{name}.{number}")
    else:
        yield name, value


def test_a_weight_that_is_wrong_on_one_rank_is_named(root: Path) -> None:
    reference, candidate = run_of(root, WRONG, "hf"), run_of(root, WRONG)
    first = forward_rung.compare(reference, candidate).findings[0]
    print(first)
    assert "model.layers.2.mlp.down_proj" in first.title.en


@EACH
def test_an_engine_that_is_given_every_weight_has_the_trainers(root: Path, case: Case) -> None:
    own = run_of(root, case)
    result = weight_sync_rung.compare(own, own)
    assert result.status is RungStatus.ALIGNED and "3 and 3 steps" in result.summary.en


def test_a_weight_that_the_engine_is_not_given_again_is_named(root: Path) -> None:
    (finding,) = weight_sync_rung.compare(run_of(root, CLEAN[1]), run_of(root, WRONG)).findings
    print(finding)
    assert finding.id == "weight_sync.not_synced"
    assert WRONG.skipped in str(finding.evidence)


@EACH
def test_rows_losses_and_gradients_are_counted_once(root: Path, case: Case) -> None:
    folder = root / "all" / f"steps/{case.first_step:06d}"
    parts = [captured_step.read(folder / f"actor-{rank}.safetensors") for rank in range(case.world)]
    rows = [row for part in parts for row in rows_of(part)]
    assert sorted(rows) == sorted(tuple(row.tolist()) for row in sequences())
    losses = [own for part in parts if (own := losses_of(part))]
    assert len(losses) == case.data
    model = AutoModelForCausalLM.from_pretrained(root / case.model, attn_implementation="eager")
    expected = hugging_face.loss_of(model, root / case.model).item()
    assert sum(map(sum, losses)) / len(losses) == pytest.approx(expected, rel=1e-5)
    squares = sum(sum(part.gradient_squares(0).values()) for part in parts)
    assert math.sqrt(squares) == pytest.approx(done(root, case, 0)[1]["norms"][0], rel=1e-6)


def rows_of(part: CapturedPart) -> Iterator[tuple[int, ...]]:
    for name, ends in part.tensors.items():
        if name.startswith("update.0.") and name.endswith(".cu_seqlens"):
            ids = part.tensors[name.replace("cu_seqlens", "input_ids")].tolist()
            yield from (tuple(ids[a:b]) for a, b in pairwise(ends.tolist()))


def losses_of(part: CapturedPart) -> list[float]:
    return [
        float(value)
        for name, value in part.tensors.items()
        if name.startswith("update.0.") and name.endswith(".policy_loss")
    ]
