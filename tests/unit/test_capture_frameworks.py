"""Hook points of frameworks that are not installed here, on small doubles of the same names.

The names and signatures are those of verl's tags v0.5.0 to v0.7.1 and of MindSpeed-RL's master, as
`mindspeed_rl_signatures` has them recorded.
"""

from __future__ import annotations

import inspect
import json
from operator import attrgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")

import torch
from torch import nn

from align.core.rollout_record import RolloutRecord
from align.frameworks.mindspeed_rl_hooks import HOOKS as MINDSPEED_RL_HOOKS
from dumps.capture.failures import RunStopped
from dumps.capture.install import hook_points, put_in
from dumps.capture.plan import CapturePlan
from dumps.capture.session import Session
from dumps.capture.taps import mindspeed_rl as mindspeed_rl_tap
from dumps.capture.taps import verl_driver, verl_rank, verl_worker
from dumps.readers import captured_step
from dumps.readers.rollout_store import read_store
from dumps.readers.trainer_inputs import read as read_inputs
from dumps.store.verify import verify
from tests.unit.mindspeed_rl_signatures import signature


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_worker, "_worker", verl_rank.Rank())
    monkeypatch.setattr(verl_driver, "_driver", None)
    monkeypatch.setattr(mindspeed_rl_tap, "_worker", mindspeed_rl_tap._Worker())


def hooked(session: Session, package: str, version: tuple[int, int], *modules: ModuleType) -> None:
    by_name = {module.__name__: module for module in modules}
    for point in hook_points():
        if point.package == package and point.module in by_name and point.fits(version):
            put_in(session, by_name[point.module], point)


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(content)
    return made


def verl_actor(version: tuple[int, int]) -> tuple[ModuleType, ModuleType]:
    """Return doubles of dp_actor and fsdp_workers of verl 0.5 to 0.7."""

    class DataParallelPPOActor:
        def __init__(self) -> None:
            self.actor_module = nn.Linear(2, 3)

        def _optimizer_step(self) -> torch.Tensor:
            return nn.utils.clip_grad_norm_(self.actor_module.parameters(), 1.0)

        def update_policy(self, data: Any) -> list[float]:
            norms = []
            for x in data:
                self.actor_module.zero_grad()
                log_prob = self.actor_module(x).log_softmax(-1)
                arguments = {
                    "old_log_prob": log_prob.detach(),
                    "log_prob": log_prob,
                    "advantages": torch.ones_like(log_prob),
                    "response_mask": torch.ones_like(log_prob),
                }
                if version == (0, 5):
                    loss = dp_actor.compute_policy_loss(**arguments)[0]
                else:
                    loss = dp_actor.get_policy_loss_fn("vanilla")(**arguments)[0]
                loss.backward()
                norms.append(float(self._optimizer_step()))
            return norms

    def loss_of(
        old_log_prob: Any, log_prob: Any, advantages: Any, response_mask: Any, **_: Any
    ) -> Any:
        return -((log_prob - old_log_prob).exp() * advantages).mean(), {}

    class ActorRolloutRefWorker:
        def __init__(self) -> None:
            self.actor = dp_actor.DataParallelPPOActor()

        def update_actor(self, data: Any) -> list[float]:
            return self.actor.update_policy(data)

        def load_checkpoint(self, local_path: Any, hdfs_path: Any = None) -> None:
            """Load nothing."""

    dp_actor = module(
        "verl.workers.actor.dp_actor",
        DataParallelPPOActor=DataParallelPPOActor,
        get_policy_loss_fn=lambda name: loss_of,
        compute_policy_loss=loss_of,
    )
    return dp_actor, module(
        "verl.workers.fsdp_workers", ActorRolloutRefWorker=ActorRolloutRefWorker
    )


@pytest.mark.parametrize("version", [(0, 5), (0, 6), (0, 7)])
def test_workers_of_older_verl_are_recorded_update_by_update(
    tmp_path: Path, version: tuple[int, int]
) -> None:
    dp_actor, workers = verl_actor(version)
    hooked(Session(CapturePlan(tmp_path)), "verl", version, dp_actor, workers)
    worker = workers.ActorRolloutRefWorker()
    norms = [worker.update_actor([torch.ones(1, 2), torch.zeros(1, 2)]) for _ in range(2)]
    assert not (tmp_path / "capture.log").exists()
    assert verify(tmp_path).whole_steps == (1, 2)
    part = captured_step.read(tmp_path / "steps/000002/actor-0.safetensors")
    squares = [sum(part.gradient_squares(update).values()) for update in range(part.num_updates)]
    assert [s**0.5 for s in squares] == pytest.approx(norms[1], rel=1e-6)
    assert {f"update.{u}.micro.0.log_probs" for u in (0, 1)} <= part.tensors.keys()


def test_a_resumed_run_of_older_verl_goes_on_with_its_step(tmp_path: Path) -> None:
    dp_actor, workers = verl_actor((0, 7))
    hooked(Session(CapturePlan(tmp_path)), "verl", (0, 7), dp_actor, workers)
    worker = workers.ActorRolloutRefWorker()
    worker.load_checkpoint("/ckpt/global_step_20/actor")
    worker.update_actor([torch.ones(1, 2)])
    assert verify(tmp_path).whole_steps == (21,)


class Config(dict):
    """Stands for OmegaConf's: keys as attributes."""

    __getattr__ = dict.__getitem__


class Tokenizer:
    eos_token_id, pad_token_id = 9, 0

    def batch_decode(self, rows: Any, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [" ".join(str(i) for i in row if i != 9) for row in rows]


def driver(step_batches: list[Any]) -> tuple[ModuleType, ModuleType]:
    """Return doubles of ray_trainer and tracking: a V0 trainer that is given its batches."""

    class Tracking:
        def log(self, data: Any, step: int, backend: Any = None) -> None:
            """Log nowhere."""

    class RayPPOTrainer:
        tokenizer = Tokenizer()
        config = Config(
            actor_rollout_ref=Config(rollout=Config(n=2), model=Config(path="gone")),
            data=Config(max_response_length=2),
        )

        def fit(self) -> None:
            for self.global_steps, batch in enumerate(step_batches, 1):
                metrics = trainer.compute_data_metrics(batch=batch, use_critic=False)
                Tracking().log(data=metrics, step=self.global_steps)

    def compute_data_metrics(batch: Any, use_critic: bool = True) -> dict[str, Any]:
        return {"critic/score/mean": float(batch.batch["token_level_scores"].sum()), "name": "x"}

    trainer = module(
        "verl.trainer.ppo.ray_trainer",
        RayPPOTrainer=RayPPOTrainer,
        compute_data_metrics=compute_data_metrics,
    )
    return trainer, module("verl.utils.tracking", Tracking=Tracking)


def step_batch(*, uids: tuple[str, ...] = ("a", "a"), last: int = 9) -> Any:
    """Two responses to one prompt: prompt (1, 2), responses (3, last) and (4,) cut by nothing."""
    tensors = {
        "input_ids": torch.tensor([[0, 1, 2, 3, last], [0, 1, 2, last, 0]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1], [0, 1, 1, 1, 0]]),
        "position_ids": torch.tensor([[0, 0, 1, 2, 3], [0, 0, 1, 2, 2]]),
        "responses": torch.tensor([[3, last], [last, 0]]),
        "response_mask": torch.tensor([[1, 1], [1, 0]]),
        "rollout_log_probs": torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]),
        "token_level_scores": torch.tensor([[0.0, 1.0], [0.5, 0.0]]),
        "advantages": torch.zeros(2, 2),
    }
    info = [{"index": 7, "split": "train"}] * 2
    facts = {"uid": list(uids), "extra_info": info, "data_source": ["tiny", "tiny"]}
    return SimpleNamespace(batch=tensors, non_tensor_batch=facts)


@pytest.mark.parametrize("version", [(0, 5), (0, 6), (0, 7), (0, 8), (0, 9)])
def test_the_v0_driver_of_every_verl_gives_rollouts_batch_and_metrics(
    tmp_path: Path, version: tuple[int, int]
) -> None:
    trainer, tracking = driver([step_batch()])
    plan = CapturePlan(
        tmp_path, tuple(k for k in CapturePlan(tmp_path).what if k.value != "config")
    )
    hooked(Session(plan), "verl", version, trainer, tracking)
    trainer.RayPPOTrainer().fit()
    assert not (tmp_path / "capture.log").exists()
    assert list(read_store(tmp_path / "rollout/step=000001.parquet")) == [
        RolloutRecord(
            "1 2",
            "3",
            (1, 2),
            (3, 9),
            (-1.0, -2.0),
            1.0,
            1,
            7,
            0,
            "stop",
            None,
            "a",
            {"data_source": "tiny"},
        ),
        RolloutRecord(
            "1 2",
            "",
            (1, 2),
            (9,),
            (-3.0,),
            0.5,
            1,
            7,
            1,
            "stop",
            None,
            "a",
            {"data_source": "tiny"},
        ),
    ]
    batch = read_inputs(tmp_path / "trainer_inputs/000001.safetensors", lambda _: None)
    assert batch.shapes["advantages"] == (2, 2) and batch.step == 1
    logged = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert logged == {"step": 1, "data": {"critic/score/mean": 1.5}}


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        (step_batch(uids=("a", "b")), "another number of responses than n = 2"),
        (step_batch(last=5), "eos has vanished"),
    ],
)
def test_stop_on_error_ends_the_run_and_names_the_invariant(
    tmp_path: Path, batch: Any, named: str
) -> None:
    trainer, tracking = driver([step_batch(), batch, step_batch()])
    plan = CapturePlan(
        tmp_path,
        tuple(k for k in CapturePlan(tmp_path).what if k.value != "config"),
        stops_on_error=True,
    )
    hooked(Session(plan), "verl", (0, 9), trainer, tracking)
    with pytest.raises(RunStopped, match=named) as stopped:
        trainer.RayPPOTrainer().fit()
    assert "step 2" in str(stopped.value)
    assert verify(tmp_path).whole_steps == (1, 2)
    assert named in (tmp_path / "capture.log").read_text()


def test_without_stop_on_error_the_same_run_goes_on(tmp_path: Path) -> None:
    trainer, tracking = driver([step_batch(uids=("a", "b")), step_batch()])
    plan = CapturePlan(
        tmp_path, tuple(k for k in CapturePlan(tmp_path).what if k.value != "config")
    )
    hooked(Session(plan), "verl", (0, 9), trainer, tracking)
    trainer.RayPPOTrainer().fit()
    assert verify(tmp_path).whole_steps == (1, 2)


def mindspeed_rl() -> tuple[ModuleType, ...]:
    """Return doubles of MindSpeed-RL's modules with the hooked names and their signatures."""

    class BaseWorker:
        def collect_transfer_dock_data(
            self,
            output: Any,
            index: Any,
            use_vllm: bool = False,
            is_generate: bool = False,
            sync: bool = False,
        ) -> None:
            """Put nothing anywhere."""

        def dispatch_transfer_dock_data(
            self,
            experience_consumer_stage: str,
            experience_columns: Any,
            experience_count: int,
            tp_size: int = 1,
            cp_size: int = 1,
            cp_algo: Any = None,
            use_vllm: bool = False,
            indexes: Any = None,
            get_n_samples: bool = True,
            enable_partial_rollout: bool = False,
            is_generate: bool = False,
        ) -> Any:
            return {}, []

    class GRPOActorLossFunc:
        @staticmethod
        def _compute_grpo_policy_loss(
            old_log_prob: Any,
            log_prob: Any,
            ref_log_prob: Any,
            advantages: Any,
            entropy: Any,
            eos_mask: Any,
            cliprange: Any,
            kl_ctrl: Any,
            kl_penalty: Any,
            entropy_coeff: Any,
        ) -> Any:
            zero = torch.zeros(())
            return (-(log_prob - old_log_prob).exp() * advantages).mean(), zero, zero, zero, zero

    class Optimizer:
        def step(self) -> tuple[bool, float, None]:
            return True, 5.0, None

    class BaseTrainingEngine:
        role = "actor"

        def __init__(self) -> None:
            self.model = [nn.Linear(2, 1, bias=False)]
            self.optimizer = Optimizer()

        def _get_forward_batch_info(self, batch_iter: Any) -> Any:
            """Make nothing of a micro-batch."""

        def update(self, data: Any, kl_ctrl: Any = None) -> Any:
            for _ in range(2):
                self.model[0].weight.grad = torch.tensor([[3.0, 4.0]])
                self.loss()
                norm = self.optimizer.step()[1]
            return norm

        def loss(self) -> None:
            log_prob = torch.tensor([[-1.0, -2.0]])
            loss.GRPOActorLossFunc._compute_grpo_policy_loss(
                old_log_prob=log_prob,
                log_prob=log_prob,
                ref_log_prob=log_prob,
                advantages=torch.ones(1, 2),
                entropy=None,
                eos_mask=torch.ones(1, 2),
                cliprange=0.2,
                kl_ctrl=None,
                kl_penalty="k3",
                entropy_coeff=0.0,
            )

    class ActorHybridWorkerBase(BaseWorker):
        args = SimpleNamespace(iteration=0)  # where training began; it never counts on
        iteration = 0
        rl_config = SimpleNamespace(n_samples_per_prompt=2)

        def __init__(self) -> None:
            self.engine = engines.BaseTrainingEngine()

        def generate_sequences(self) -> None:
            """Answer nothing."""

        def enter_infer_mode(self) -> None:
            """Give no weights."""

        def update(self, kl_ctrl: Any = None, skip_actor_log_prob: bool = False) -> None:
            self.engine.update({}, kl_ctrl)
            self.iteration += 1

    base = module("mindspeed_rl.workers.base_worker", BaseWorker=BaseWorker)
    loss = module(
        "mindspeed_rl.models.loss.grpo_actor_loss_func", GRPOActorLossFunc=GRPOActorLossFunc
    )
    engines = module(
        "mindspeed_rl.models.base.base_training_engine", BaseTrainingEngine=BaseTrainingEngine
    )
    worker = module(
        "mindspeed_rl.workers.actor_hybrid_worker", ActorHybridWorkerBase=ActorHybridWorkerBase
    )
    return base, loss, engines, worker


def test_mindspeed_rl_is_recorded_by_its_rows_in_the_dock(tmp_path: Path) -> None:
    modules = mindspeed_rl()
    hooked(Session(CapturePlan(tmp_path)), "mindspeed_rl", (2, 3), *modules)
    worker = modules[-1].ActorHybridWorkerBase()
    for _ in range(2):
        output = {
            "responses": [torch.tensor([3, 9]), torch.tensor([4, 9])],
            "input_ids": [torch.tensor([1, 2, 3, 9]), torch.tensor([1, 2, 4, 9])],
        }
        worker.collect_transfer_dock_data(output, [4, 5], use_vllm=True, is_generate=True)
        worker.collect_transfer_dock_data({"old_log_prob": torch.zeros(1)}, [4])
        worker.update()
    assert not (tmp_path / "capture.log").exists()
    assert verify(tmp_path).whole_steps == (1, 2)
    rows = list(read_store(tmp_path / "rollout/rank=0/step=000002.parquet"))
    assert [(r.prompt_ids, r.response_ids, r.sample_index, r.uid) for r in rows] == [  # type: ignore[union-attr]
        ((1, 2), (3, 9), 0, "2-2"),
        ((1, 2), (4, 9), 1, "2-2"),
    ]
    part = captured_step.read(tmp_path / "steps/000001/actor-0.safetensors")
    assert float(part.tensors["update.0.micro.0.policy_loss"]) == -1.0
    assert part.tensors["update.0.micro.0.ref_log_prob"].tolist() == [[-1.0, -2.0]]
    assert [part.gradient_squares(update) for update in (0, 1)] == [{"weight": 25.0}] * 2
    assert float(part.tensors["update.1.grad_norm"]) == 5.0
    assert not vars(worker.engine.optimizer)  # no hook is left behind


def test_responses_of_a_second_generation_in_a_step_are_prompts_of_their_own(
    tmp_path: Path,
) -> None:
    """DAPO generates again for groups it drops, into the same rows of the dock."""
    modules = mindspeed_rl()
    hooked(Session(CapturePlan(tmp_path)), "mindspeed_rl", (2, 3), *modules)
    worker = modules[-1].ActorHybridWorkerBase()
    for prompt in (1, 2):
        ids = [torch.tensor([prompt, 3, 9]), torch.tensor([prompt, 4, 9])]
        output = {"responses": [row[1:] for row in ids], "input_ids": ids}
        worker.collect_transfer_dock_data(output, [0, 1], use_vllm=True, is_generate=True)
    worker.update()
    rows = list(read_store(tmp_path / "rollout/rank=0/step=000001.parquet"))
    assert [(r.prompt_ids, r.sample_index, r.uid) for r in rows] == [  # type: ignore[union-attr]
        *[((1,), 0, "1-0"), ((1,), 1, "1-0"), ((2,), 0, "1-0-again-1"), ((2,), 1, "1-0-again-1")]
    ]


def test_the_double_of_mindspeed_rl_has_the_recorded_signatures() -> None:
    doubles = {made.__name__: made for made in mindspeed_rl()}
    for point in MINDSPEED_RL_HOOKS:
        if point.module in doubles:
            double = attrgetter(point.attribute)(doubles[point.module])
            assert list(inspect.signature(double).parameters) == signature(point.name, "master")
