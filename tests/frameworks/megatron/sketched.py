"""Steps of one model in Megatron-core, spread in many ways, and in transformers, both sketched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from align.layers.captured import CapturedStep, captured_steps
from dumps.capture.device import start_copy
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.step import sketched_step
from dumps.capture.sketch.weights import (
    parameters_of,
    record_gradients,
    record_moments,
    record_parameters,
    record_update,
)
from dumps.capture.sketch.write import stacked, write_file
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase, engine_path
from tests.frameworks.megatron.cases import CASES, DISTURBED, PLANTED, UNMENDED, Case
from tests.frameworks.megatron.ranks import run
from tests.frameworks.megatron.rows import (
    EPSILON,
    LEARNING_RATE,
    VOCAB,
    WEIGHT_DECAY,
    WHOLE,
    padded,
)
from tests.frameworks.megatron.test_layout_parity import convert
from tests.unit.weight_models import save_model

SCRIPT = Path(__file__).with_name("real_step.py")
MULTIPLE = 40  # pads 96 rows to 120 on one rank, to 160 on two


def train(root: Path) -> None:
    """Train every case in Megatron, in as few processes as possible, and in transformers."""
    cases = [*CASES, *(each.case for each in (*PLANTED, UNMENDED)), DISTURBED]
    for name in {case.name for case in cases}:
        save_model(name, root / name)
    worlds = sorted({case.world for case in cases})
    jobs = {world: [job(case, root) for case in cases if case.world == world] for world in worlds}
    run(jobs, root, str(SCRIPT))
    for name, epsilon, reference in {(c.name, c.epsilon, c.reference) for c in cases}:
        hugging_face_step(root / name, root / reference, epsilon)


def job(case: Case, root: Path) -> dict[str, Any]:
    """Return what `real_step` is to do."""
    multiple = MULTIPLE * case.ranks[0]
    return {
        "folder": str(weights(case, root)),
        "out": str(root / case.label),
        "rows": -(-VOCAB // multiple) * multiple,
        "ranks": case.ranks,
        "grouped": case.grouped,
        "sequence": case.sequence,
        "distributed": case.distributed,
        "epsilon": case.epsilon,
        "fault": case.fault,
        "micro_batches": case.micro_batches,
    }


def weights(case: Case, root: Path) -> Path:
    """Convert a case's model for its ranks, once."""
    names = ("tp", "pp", "ep", "vpp")
    sizes = [f"--{n}={r}" for n, r in zip(names, case.ranks, strict=True)]
    spec = "local-grouped" if case.grouped else "local"
    folder = root / "-".join((case.name, spec, *map(str, case.ranks)))
    options = ("--to=megatron", f"--spec={spec}", f"--vocab-multiple={MULTIPLE}", *sizes)
    return folder if folder.exists() else convert(root / case.name, folder, *options)


def hugging_face_step(source: Path, folder: Path, epsilon: float = EPSILON) -> None:
    """Sketch a step of the transformers model on the same rows, padded on the other side.

    The model is its own rollout engine.
    """
    model = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager")
    optimizer = adam(model, epsilon)
    ids, attended = padded("left")
    positions = (attended.cumsum(-1) - 1).clamp(min=0)
    log = FailureLog(folder, "test")
    record_engine(model, folder, 1)
    with sketched_step(model, folder, 1, log, whole=WHOLE) as recorder:
        record_parameters(recorder, model, Phase.PARAMETER)
        output = model(input_ids=ids, attention_mask=attended, position_ids=positions)
        mask = attended.bool()
        nn.functional.cross_entropy(output.logits[mask], ids[mask]).backward()
        record_gradients(recorder, model)
        before = parameters_of(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        record_update(recorder, model, before)
        record_moments(recorder, model, optimizer)
    with sketched_step(model, folder, 2, log) as recorder:
        record_parameters(recorder, model, Phase.PARAMETER)
    record_engine(model, folder, 2)


def adam(model: nn.Module, epsilon: float) -> torch.optim.Optimizer:
    """Return what Megatron-core makes of its defaults: vectors are exempt from weight decay."""
    kinds = [[p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False)]
    decays = [WEIGHT_DECAY, 0.0]
    groups = [{"params": k, "weight_decay": d} for k, d in zip(kinds, decays, strict=True)]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.999), eps=epsilon)


def record_engine(model: nn.Module, folder: Path, step: int) -> None:
    """Write down weights as those of a run's rollout engine."""
    recorder, path = Recorder(), engine_path(folder, step, 0)
    record_parameters(recorder, model, Phase.ENGINE)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, start_copy(stacked(recorder))(), step, 0, recorder)


def run_of(folder: Path) -> RunData:
    """Open a folder as a run; the capture had nothing to complain about."""
    log = folder / "capture.log"
    assert not log.exists(), log.read_text(encoding="utf-8")[-3000:]
    return RunData(discover([folder]))


def step_of(folder: Path, step: int = 1) -> CapturedStep:
    """Return one step of a run, its ranks added up."""
    return captured_steps(run_of(folder))[step]
