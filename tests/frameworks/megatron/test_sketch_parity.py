"""Sketches of the real Megatron-core agree with those of transformers, address by address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("transformers", reason="the other side is a transformers model")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import torch
from transformers import AutoModelForCausalLM

from align.core.rung import RungStatus
from align.layers import backward_rung, forward_rung
from align.layers.captured import CapturedStep, captured_steps
from align.layers.measure import difference
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import record_gradients, record_parameters
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase
from tests.frameworks.megatron.rows import VOCAB, padded
from tests.frameworks.megatron.test_layout_parity import convert, run
from tests.unit.weight_models import save_model

SCRIPT = Path(__file__).with_name("real_step.py")
MULTIPLE = 40  # pads 96 rows to 120 on one rank, to 160 on two
LIMIT = 2e-6  # relative error of an address in float32
CANCELLING = 4e-6  # of a sum that is small beside its terms: softmax ignores most of a key's bias


class Case(NamedTuple):
    """A model; tensor, pipeline, expert ranks and virtual chunks; and how it is trained.

    Args:
        micro_batches: of the four rows.
        data: data-parallel ranks.
        distributed: the gradients are reduced in parts, as for Megatron's distributed optimizer.
    """

    name: str
    ranks: tuple[int, int, int, int] = (1, 1, 1, 1)
    sequence: bool = False
    micro_batches: int = 2
    data: int = 1
    grouped: bool = False
    distributed: bool = False

    @property
    def world(self) -> int:
        return self.ranks[0] * self.ranks[1] * self.data

    @property
    def label(self) -> str:
        tensor, pipeline, expert, chunks = self.ranks
        sizes = f"tp{tensor}-pp{pipeline}-ep{expert}-vpp{chunks}-dp{self.data}"
        tags = ("-sp" if self.sequence else "") + ("-grouped" if self.grouped else "")
        tags += "-do" if self.distributed else ""
        return f"{self.name}-{sizes}{tags}-{self.micro_batches}"


CASES = (
    Case("qwen2"),
    Case("qwen2", (2, 1, 1, 1), micro_batches=1),
    Case("qwen2", (2, 1, 1, 1), sequence=True),
    Case("qwen2", (1, 2, 1, 1)),
    Case("qwen2", (2, 2, 1, 1), sequence=True),
    Case("qwen2", (1, 2, 1, 2)),
    Case("qwen2", data=2),
    Case("qwen2", data=2, distributed=True),
    Case("qwen2_tied", (1, 2, 1, 1)),
    Case("qwen2_tied", (2, 1, 1, 1), sequence=True),
    Case("llama", (2, 1, 1, 1)),
    Case("qwen3", (2, 1, 1, 1), sequence=True),
    Case("qwen3_moe"),
    Case("qwen3_moe", grouped=True),
    Case("qwen3_moe", (2, 1, 1, 1), sequence=True),
    Case("qwen3_moe", (1, 1, 2, 1), data=2),
)


def job(case: Case, root: Path) -> dict[str, Any]:
    names = ("tp", "pp", "ep", "vpp")
    sizes = [f"--{n}={r}" for n, r in zip(names, case.ranks, strict=True)]
    spec = "local-grouped" if case.grouped else "local"
    folder = root / f"{case.label}-weights"
    convert(
        root / case.name,
        folder,
        *("--to=megatron", f"--spec={spec}", f"--vocab-multiple={MULTIPLE}", *sizes),
    )
    multiple = MULTIPLE * case.ranks[0]
    return {
        "folder": str(folder),
        "out": str(root / case.label),
        "rows": -(-VOCAB // multiple) * multiple,
        "ranks": case.ranks,
        "grouped": case.grouped,
        "sequence": case.sequence,
        "distributed": case.distributed,
        "micro_batches": case.micro_batches,
    }


def hugging_face_step(source: Path, folder: Path, side: str = "left") -> CapturedStep:
    """Sketch a step of the transformers model on the same rows, padded on the other side."""
    model = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager")
    ids, attended = padded(side)
    positions = (attended.cumsum(-1) - 1).clamp(min=0)
    with sketched_step(model, folder, 1, FailureLog(folder, "test")) as recorder:
        record_parameters(recorder, model, Phase.PARAMETER)
        output = model(input_ids=ids, attention_mask=attended, position_ids=positions)
        mask = attended.bool()
        torch.nn.functional.cross_entropy(output.logits[mask], ids[mask]).backward()
        record_gradients(recorder, model)
    return step_of(folder)


def run_of(folder: Path) -> RunData:
    log = folder / "capture.log"
    assert not log.exists(), log.read_text(encoding="utf-8")[-3000:]
    return RunData(discover([folder]))


def step_of(folder: Path) -> CapturedStep:
    return captured_steps(run_of(folder))[1]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train every case in Megatron, in as few processes as possible."""
    root = tmp_path_factory.mktemp("sketches")
    for name in {case.name for case in CASES}:
        save_model(name, root / name)
    for world in sorted({case.world for case in CASES}):
        run([job(case, root) for case in CASES if case.world == world], root, world, SCRIPT)
    return root


@pytest.fixture(scope="module")
def references(done: Path) -> Iterator[dict[str, CapturedStep]]:
    names = sorted({case.name for case in CASES})
    yield {name: hugging_face_step(done / name, done / f"{name}-hf") for name in names}


# modules of transformers that megatron-core computes in functions, or for all experts at once
_ALONE = ("act_fn", "rotary_emb", "mlp.gate", "mlp.experts")


def errors(reference: CapturedStep, candidate: CapturedStep, phase: str) -> dict[str, float]:
    """Return the relative error of every address; nothing may be missing on either side."""
    own, other = reference.of(phase), candidate.of(phase)
    missing = [name for name, _ in own.keys() - other.keys() if not name.endswith(_ALONE)]
    assert not missing and not other.keys() - own.keys(), (missing, other.keys() - own.keys())
    both = own.keys() & other.keys()
    apart = [name for name, u in both if own[name, u].digest != other[name, u].digest]
    assert not apart
    return {name: difference(own[name, u], other[name, u]).relative for name, u in both}


@pytest.mark.parametrize("phase", [Phase.PARAMETER, Phase.FORWARD, Phase.INPUT, Phase.GRADIENT,
                                   Phase.PARAMETER_GRADIENT])  # fmt: skip
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_every_address_agrees_with_transformers(
    done: Path, references: dict[str, CapturedStep], case: Case, phase: str
) -> None:
    found = errors(references[case.name], step_of(done / case.label), phase)
    worst = max(found, key=found.__getitem__)
    limits = {name: CANCELLING if name.endswith("k_proj.bias") else LIMIT for name in found}
    print(f"{case.label} {phase}: {len(found)} addresses, worst {found[worst]:.2g} at {worst}")
    assert not {name: error for name, error in found.items() if error > limits[name]}


@pytest.mark.parametrize("rung", [forward_rung, backward_rung], ids=["forward", "backward"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_a_clean_pair_gives_no_finding(
    done: Path, references: dict[str, CapturedStep], case: Case, rung: Any
) -> None:
    result = rung.compare(run_of(done / f"{case.name}-hf"), run_of(done / case.label))
    assert not [(each.id, each.title.en) for each in result.findings]
    assert result.status is RungStatus.ALIGNED, result.summary.en
