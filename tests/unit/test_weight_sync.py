"""The rollout engine's weights against the trainer's: fused, cut and rounded as vLLM has them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch
from torch import Tensor, nn

from align.core.rung import RungStatus
from align.layers import weight_sync_rung
from align.layers.weight_sync_findings import Sync
from dumps.capture.device import copied
from dumps.capture.engine_weights import record_engine
from dumps.capture.failures import FailureLog
from dumps.capture.install import hook_points, put_in
from dumps.capture.plan import CapturePlan, What
from dumps.capture.session import Session
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.write import stacked, write_file
from dumps.capture.step_sketches import StepSketches
from dumps.capture.sync_step import announce_step, announced_step
from dumps.capture.taps import verl_engine
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import engine_path
from tests.unit.layer_runs import tiny_qwen2

STEPS = (1, 2, 3)
VOCABULARY, PADDED = 100, 128  # vLLM pads a vocabulary to a multiple of 64
LEARNING_RATE = 1e-5
State = dict[str, Tensor]
Fault = Callable[[int, list[State]], State]


class Engine(nn.Module):
    """Parameters under names with dots in them, as `named_parameters` gives them."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return iter(self.state.items())


def fused(state: State, rank: int, ranks: int) -> State:
    """Return what a vLLM worker holds, by vLLM's own loaders written down once more."""

    def rows(name: str) -> Tensor:
        return state[name].chunk(ranks, 0)[rank]

    made: State = {}
    for name, tensor in state.items():
        kind = name.rsplit(".", 1)[-1]
        if ".q_proj." in name:
            parts = [rows(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
            made[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        elif ".gate_proj." in name:
            parts = [rows(name), rows(name.replace("gate_proj", "up_proj"))]
            made[name.replace("gate_proj", "gate_up_proj")] = torch.cat(parts)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            made[name] = tensor.chunk(ranks, 1)[rank]
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            padding = tensor.new_zeros(PADDED - len(tensor), tensor.shape[1])
            made[name] = torch.cat([tensor, padding]).chunk(ranks)[rank]
        elif not any(f".{part}_proj.{kind}" in name for part in ("k", "v", "up")):
            made[name] = tensor
    return made


def correct(step: int, given: list[State]) -> State:
    return given[-1]


def run_of(
    folder: Path,
    fault: Fault = correct,
    *,
    ranks: int = 1,
    dtype: torch.dtype = torch.float32,
    is_fused: bool = True,
) -> RunData:
    """Record three syncs of a model that changes by 1e-5 between them, on both sides."""
    model = tiny_qwen2(vocab_size=VOCABULARY)
    config = model.config.to_dict()
    sketches = StepSketches(FailureLog(folder, "test"))
    given: list[State] = []
    generator = torch.Generator().manual_seed(5)
    for step in STEPS:
        given.append({n: p.detach().clone() for n, p in model.named_parameters()})
        sketches.record_sync(model, dtype)
        for part in sketches.end(step - 1, 0):
            for name, write in part.writes(copied(part.tensors())).items():
                written(folder / name, write)
        held = {n: t.to(dtype) for n, t in fault(step, given).items()}
        for rank in range(ranks):
            recorder = Recorder()
            engine = Engine(fused(held, rank, ranks) if is_fused else held)
            record_engine(recorder, engine, config, rank=rank, ranks=ranks)
            assert not recorder.problems
            host = copied(stacked(recorder))
            path = engine_path(folder, step, rank)
            written(
                path,
                functools.partial(
                    write_file, on_host=host, step=step, rank=rank, recorder=recorder
                ),
            )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += LEARNING_RATE * torch.randn(parameter.shape, generator=generator)
    return RunData(discover([folder]))


def written(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return run_of(tmp_path_factory.mktemp("clean"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_fused_and_cut_engine_in_step_with_its_trainer_is_aligned(
    tmp_path: Path, clean: RunData, ranks: int, dtype: torch.dtype
) -> None:
    result = weight_sync_rung.compare(clean, run_of(tmp_path, ranks=ranks, dtype=dtype))
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())


def test_an_engine_with_hugging_faces_names_is_aligned_too(tmp_path: Path, clean: RunData) -> None:
    result = weight_sync_rung.compare(clean, run_of(tmp_path, is_fused=False))
    assert result.status is RungStatus.ALIGNED


ONE = "model.layers.1.mlp.down_proj.weight"


def late(step: int, given: list[State]) -> State:
    return given[-2] if step > 1 else given[-1]


def never(step: int, given: list[State]) -> State:
    return given[0]


def one_skipped(step: int, given: list[State]) -> State:
    return {**given[-1], ONE: given[0][ONE]}


def one_late(step: int, given: list[State]) -> State:
    return {**given[-1], ONE: given[max(0, step - 2)][ONE]}


def one_never_sent(step: int, given: list[State]) -> State:
    noise = torch.randn(given[0][ONE].shape, generator=torch.Generator().manual_seed(1))
    return {**given[-1], ONE: 0.02 * noise}


def one_scaled(step: int, given: list[State]) -> State:
    return {**given[-1], ONE: given[-1][ONE] * 1.02}


def all_scaled(step: int, given: list[State]) -> State:
    return {name: tensor * 0.5 for name, tensor in given[-1].items()}


def queries_turned(step: int, given: list[State]) -> State:
    name = "model.layers.0.self_attn.q_proj.weight"
    return {**given[-1], name: given[-1][name].roll(16, 0)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (late, Sync.STALE, "39/39 parameters at step 3, those of step 2"),
        (never, Sync.NOT_SYNCED, "39/39 parameters at step 3, those of step 1"),
        (one_skipped, Sync.NOT_SYNCED, "1/39 parameters at step 3, those of step 1"),
        (one_late, Sync.STALE, "1/39 parameters at step 3, those of step 2"),
        (one_never_sent, Sync.OTHER, "1/39 parameters at step 1"),
        (one_scaled, Sync.SCALED, "1/39 parameters at step 1, 1.02 times"),
        (all_scaled, Sync.SCALED, "39/39 parameters at step 1, 0.5 times"),
        (queries_turned, Sync.PERMUTED, "1/39 parameters at step 1"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_sync_is_told_what_the_engine_holds_instead(
    tmp_path: Path, clean: RunData, fault: Fault, kind: Sync, said: str, dtype: torch.dtype
) -> None:
    result = weight_sync_rung.compare(clean, run_of(tmp_path, fault, ranks=2, dtype=dtype))
    (finding,) = result.findings
    assert finding.id == f"weight_sync.{kind.value}"
    if dtype is torch.bfloat16:  # in which the norms do not move
        said = said.removeprefix("39/39 ")
    assert said in finding.title.en
    if "1/39" in said and fault is not queries_turned:
        assert ONE in str(finding.evidence[0].text)


def test_a_tensor_that_the_engine_lacks_is_missing_and_a_tied_one_is_not(
    tmp_path: Path, clean: RunData
) -> None:
    def without_head(step: int, given: list[State]) -> State:
        return {n: t for n, t in given[-1].items() if n != "lm_head.weight"}

    other = run_of(tmp_path / "a", without_head, is_fused=False)
    (finding,) = weight_sync_rung.compare(clean, other).findings
    assert finding.id == "weight_sync.missing"
    assert "1/39" in finding.title.en and "lm_head.weight" in str(finding.evidence[0].text)


def test_a_rank_of_the_engine_that_is_not_there_leaves_parts_missing(
    tmp_path: Path, clean: RunData
) -> None:
    run_of(tmp_path, ranks=2)
    for step in STEPS:
        engine_path(tmp_path, step, 1).unlink()
    (finding,) = weight_sync_rung.compare(clean, RunData(discover([tmp_path]))).findings
    assert finding.id == "weight_sync.missing"
    assert "norm" not in str(finding.evidence[0].text)  # every rank has all of those


class Extension:
    """With the names and the signature of verl's extension of a vLLM worker."""

    def __init__(self, rank: int, model: Engine, config: Any) -> None:
        self.rank = rank
        settings = SimpleNamespace(
            parallel_config=SimpleNamespace(tensor_parallel_size=2),
            model_config=SimpleNamespace(hf_config=config),
        )
        self.model_runner = SimpleNamespace(model=model, vllm_config=settings)

    def update_weights_from_ipc(
        self, peft_config: Any = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> str:
        return "loaded"


def test_every_rank_of_a_vllm_engine_is_recorded_once_it_has_loaded(tmp_path: Path) -> None:
    model = tiny_qwen2(vocab_size=VOCABULARY)
    state = {n: p.detach() for n, p in model.named_parameters()}
    session = Session(CapturePlan(tmp_path, (What.WEIGHTS,)))
    module = ModuleType("verl.workers.rollout.vllm_rollout.utils")
    module.vLLMColocateWorkerExtension = Extension  # type: ignore[attr-defined]
    for point in hook_points():
        if point.module == module.__name__:
            put_in(session, module, point)
    announce_step(tmp_path, 12)
    for rank in range(2):
        worker = Extension(rank + 2, Engine(fused(state, rank, 2)), model.config)
        assert worker.update_weights_from_ipc(use_shm=True) == "loaded"
        assert worker.update_weights_from_ipc({"r": 8}, base_sync_done=True) == "loaded"
    assert not (tmp_path / "capture.log").exists()
    files = RunData(discover([tmp_path])).sketches
    assert [(file.step, file.rank) for file in files] == [(12, 0), (12, 1)]
    assert {record.name for record in files[0].records} == state.keys()


def test_a_step_is_announced_to_the_engine_on_the_same_node(tmp_path: Path) -> None:
    assert announced_step(tmp_path) is None
    announce_step(tmp_path, 7)
    assert announced_step(tmp_path) == 7


@pytest.mark.parametrize(
    ("step", "replica", "files"), [(1, 0, 1), (4, 0, 0), (1, 1, 0)], ids=["", "late", "replica"]
)
def test_an_engine_is_recorded_at_the_first_syncs_of_its_first_replica(
    tmp_path: Path, step: int, replica: int, files: int
) -> None:
    session = Session(CapturePlan(tmp_path, (What.SKETCHES,)))
    announce_step(tmp_path, step)
    model = tiny_qwen2()
    verl_engine.record_loaded(session, model, model.config.to_dict(), replica=replica)
    assert len(list(tmp_path.rglob("*.safetensors"))) == files
