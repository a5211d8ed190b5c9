"""Replays into verl, on small doubles of its names and signatures in the tags v0.5.0 to v0.9.0."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="drivers look at torch's tensors")

import numpy as np
import torch

from dumps.inject.drivers import verl_begin, verl_trainer
from dumps.inject.drivers.verl_state import State
from dumps.inject.plan import Source
from dumps.inject.problem import ReplayRefused
from dumps.inject.proof import prove
from tests.unit.replay_runs import EOS, Config, N, Tokenizer, drive, module, replay, rows


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    """Give what the driver knows of a run, anew for each test."""
    fresh = State()
    for driver in (verl_begin, verl_trainer):
        monkeypatch.setattr(driver, "state", fresh)
    return fresh


class TokenOutput(SimpleNamespace):
    model_fields = dict.fromkeys(["token_ids", "log_probs", "stop_reason", "extra_fields"])


def verl(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], prompts: list[int], **settings: Any
) -> tuple[list[ModuleType], Any]:
    """Return doubles of verl's V0 trainer, agent loops and engine client, and the trainer."""
    replica = module("verl.workers.rollout.replica", TokenOutput=TokenOutput)
    monkeypatch.setitem(sys.modules, replica.__name__, replica)

    class Client:
        async def generate(
            self, request_id: Any, *, prompt_ids: Any, sampling_params: Any, **kwargs: Any
        ) -> Any:
            return TokenOutput(token_ids=[5, 5, EOS], log_probs=[0.0, 0.0, 0.0])

    class Worker:
        client_class = "LLMServerClient"

        async def _run_agent_loop(
            self, sampling_params: Any, trajectory: Any, *, agent_name: str, **kwargs: Any
        ) -> Any:
            client = getattr(server, client_name)()
            prompt = Tokenizer().apply_chat_template(kwargs["raw_prompt"])
            output = await client.generate("x", prompt_ids=prompt, sampling_params=sampling_params)
            assert ("align_replay" not in kwargs) or settings.get("is_bare")
            made = SimpleNamespace(prompt=prompt, out=output, reward_score=None, extra_fields={})
            await self._compute_score([made], kwargs=kwargs)
            return made

        async def _compute_score(self, outputs: Any, kwargs: Any) -> None:
            if outputs[-1].reward_score is None:
                outputs[-1].reward_score = 0.25

    class AgentLoopManager:
        def generate_sequences(self, prompts: Any) -> Any:
            facts = prompts.non_tensor_batch
            worker = getattr(loop, worker_name)()

            async def run() -> list[Any]:
                every = [
                    worker._run_agent_loop(
                        {"logprobs": True},
                        {},
                        agent_name="a",
                        **{k: v[i] for k, v in facts.items()},
                    )
                    for i in range(len(facts["uid"]))
                ]
                return await asyncio.gather(*every)

            made = asyncio.run(run())
            width = max(len(m.out.token_ids) for m in made)
            responses = torch.tensor([m.out.token_ids for m in made])
            ids = torch.cat([torch.tensor([m.prompt for m in made]), responses], 1)
            scores = torch.zeros(len(made), width)
            scores[:, -1] = torch.tensor([m.reward_score for m in made])
            tensors = {"input_ids": ids, "responses": responses, "token_level_scores": scores}
            tensors["attention_mask"] = torch.ones_like(ids)
            return Batch(tensors, {**facts}, [m.out.log_probs for m in made])

    class Batch:
        def __init__(self, batch: Any, facts: Any, log_probs: Any) -> None:
            self.batch, self.non_tensor_batch, self.log_probs = batch, facts, log_probs

        def __len__(self) -> int:
            return len(self.batch["input_ids"])

        def reorder(self, order: Any) -> None:
            self.batch = {k: v[order] for k, v in self.batch.items()}
            self.non_tensor_batch = {
                k: np.asarray(v, dtype=object)[order.numpy()]
                for k, v in self.non_tensor_batch.items()
            }
            self.log_probs = [self.log_probs[i] for i in order.tolist()]

    class RayPPOTrainer:
        tokenizer = Tokenizer()
        config = Config(
            algorithm=Config(filter_groups=settings.get("filter_groups")),
            actor_rollout_ref=Config(
                rollout=Config(n=settings.get("n", N), calculate_log_probs=True),
                model=Config(path="gone"),
            ),
            data=Config(train_batch_size=len(prompts), max_prompt_length=4, max_response_length=3),
            trainer=Config(resume_mode="disable"),
        )
        total_training_steps = settings.get("steps", 1)
        global_steps = 0
        train_dataloader = SimpleNamespace(sampler=object())

        def fit(self) -> Any:
            for step in range(1, self.total_training_steps + 1):
                self.global_steps = step
                asked = [prompt for prompt in prompts for _ in range(N)]
                facts = {
                    "uid": np.array([f"u{p}" for p in asked], dtype=object),
                    "index": np.array(asked, dtype=object),
                    "raw_prompt": np.array([None] * len(asked), dtype=object),
                }
                for i, prompt in enumerate(asked):
                    facts["raw_prompt"][i] = [{"content": str(prompt)}]
                meta = {"global_steps": self.global_steps}
                batch = SimpleNamespace(non_tensor_batch=facts, meta_info=meta)
                self.batch = loop.AgentLoopManager().generate_sequences(batch)
                for _ in range(settings.get("calls", 1) - 1):
                    loop.AgentLoopManager().generate_sequences(batch)
                self._balance_batch(self.batch, metrics={})
                trainer.compute_data_metrics(self.batch)

        def _balance_batch(self, batch: Any, metrics: Any) -> None:
            batch.reorder(torch.arange(len(batch) - 1, -1, -1))

        def _create_dataloader(
            self, train_dataset: Any, val_dataset: Any, collate_fn: Any, train_sampler: Any
        ) -> None:
            """Make nothing."""

    worker_name = "AgentLoopWorkerBase" if version < (0, 7) else "AgentLoopWorker"
    client_name = "LLMServerClient" if version >= (0, 8) else "AsyncLLMServerManager"
    loop = module("verl.experimental.agent_loop.agent_loop", AgentLoopManager=AgentLoopManager)
    setattr(loop, worker_name, Worker)
    server = loop if version < (0, 8) else module("verl.workers.rollout.llm_server")
    setattr(server, client_name, Client)
    trainer = module(
        "verl.trainer.ppo.ray_trainer",
        RayPPOTrainer=RayPPOTrainer,
        compute_data_metrics=lambda batch, use_critic=True: {},
    )
    return [loop, trainer, *([server] if server is not loop else [])], trainer.RayPPOTrainer()


@pytest.mark.parametrize("version", [(0, 6), (0, 7), (0, 8), (0, 9)])
def test_verls_permuted_prompts_get_their_responses_in_the_recorded_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]
) -> None:
    modules, trainer = verl(monkeypatch, version, [2, 1])
    ours = replay(tmp_path)
    drive(ours, "verl", version, *modules)
    trainer.fit()
    recorded = rows()
    assert trainer.batch.batch["responses"].tolist() == [
        list(r.response_ids or ()) for r in recorded
    ]
    assert trainer.batch.log_probs == [list(r.log_probs or ()) for r in recorded]
    proof = prove(ours.plan)
    assert (proof.identical, proof.holds, proof.out_of_order) == (4, True, 0)


def test_verl_computes_rewards_anew_unless_the_recorded_ones_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rewards, scores in ((Source.RECOMPUTED, [0.25] * 4), (Source.RECORDED, [10, 11, 20, 21])):
        modules, trainer = verl(monkeypatch, (0, 9), [1, 2])
        ours = replay(tmp_path / rewards.value, rewards=rewards)
        drive(ours, "verl", (0, 9), *modules)
        trainer.fit()
        assert trainer.batch.batch["token_level_scores"].sum(-1).tolist() == scores
        assert prove(ours.plan).scores_differ == (4 if rewards is Source.RECOMPUTED else 0)


@pytest.mark.parametrize(
    ("settings", "prompts", "named"),
    [
        ({"n": 4}, [1, 2], "n has changed"),
        ({"steps": 3}, [1, 2], "2 steps of this run are not recorded: 2, 3"),
        ({"calls": 2}, [1, 2], "asked more often than recorded"),
        ({"filter_groups": Config(enable=True)}, [1, 2], "pass --order"),
        ({}, [1, 4], "a prompt is not recorded: data set row 4: '4 7'"),
    ],
)
def test_what_does_not_fit_stops_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, prompts: Any, named: str
) -> None:
    modules, trainer = verl(monkeypatch, (0, 9), prompts, **settings)
    ours = replay(tmp_path)
    drive(ours, "verl", (0, 9), *modules)
    with pytest.raises(ReplayRefused, match=named):
        trainer.fit()


@pytest.mark.parametrize(
    ("mode", "log_probs", "named"),
    [
        ("separate_async", Source.RECORDED, "trainer_mode is separate_async"),
        ("sync", Source.RECOMPUTED, "add actor_rollout_ref.rollout.calculate_log_probs=false"),
    ],
)
def test_settings_of_verls_v1_trainer_that_no_replay_fits_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, log_probs: Source, named: str
) -> None:
    modules, trainer = verl(monkeypatch, (0, 9), [1, 2])
    trainer.parameter_sync_step = 1  # V1 has it
    trainer.config.trainer["v1"] = Config(trainer_mode=mode)
    drive(replay(tmp_path, log_probs=log_probs), "verl", (0, 9), *modules)
    with pytest.raises(ReplayRefused, match=named):
        trainer.fit()


def test_verl_generates_what_is_missing_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, trainer = verl(monkeypatch, (0, 9), [1, 4])
    ours = replay(tmp_path, rows(asks=(1,)), allows_missing=True)
    drive(ours, "verl", (0, 9), *modules)
    trainer.fit()
    assert trainer.batch.batch["responses"].tolist()[2:] == [[5, 5, EOS]] * 2
    proof = prove(ours.plan)
    assert (proof.identical, proof.generated, proof.holds) == (2, 2, True)


def test_a_worker_that_was_not_hooked_is_found_before_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without npu-align would generate, and nobody would notice."""
    modules, trainer = verl(monkeypatch, (0, 9), [1, 2], is_bare=True)
    bare = modules[0].AgentLoopWorker._run_agent_loop
    ours = replay(tmp_path)
    drive(ours, "verl", (0, 9), *modules)
    modules[0].AgentLoopWorker._run_agent_loop = bare
    with pytest.raises(ReplayRefused, match=r"another response .* on every node\?"):
        trainer.fit()


class Queued:
    """A batch of the V1 trainer: keys into its TransferQueue."""

    partition_id = "train"

    def __init__(self, keys: list[str], num_padding: int = 0) -> None:
        self.keys = [*(f"pad{i}_0_0" for i in range(num_padding)), *keys]
        self.tags = [{"is_padding": key.startswith("pad")} for key in self.keys]

    def reorder(self, order: list[int]) -> None:
        self.keys = [self.keys[i] for i in order]
        self.tags = [self.tags[i] for i in order]


def v1_trainer(monkeypatch: pytest.MonkeyPatch, state: State, changed: str = "") -> tuple[Any, Any]:
    """Return a double of V1's trainer module, whose prompts were dealt out, and the trainer."""
    state.uids.update({"a": (1, 0), "b": (1, 1)})
    recorded = {f"{'ab'[i // N]}_{i % N}_0": row for i, row in enumerate(rows())}

    def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        given = [(recorded[key].prompt_ids, recorded[key].response_ids) for key in keys]
        answers = [(1, 1, 1) if k == changed else r for k, (_, r) in zip(keys, given, strict=True)]
        return {
            "prompts": torch.tensor([p for p, _ in given]),
            "responses": torch.tensor(answers),
            "rm_scores": torch.ones(len(keys), 3),
        }

    queue = module("transfer_queue", kv_batch_get=kv_batch_get)
    monkeypatch.setitem(sys.modules, queue.__name__, queue)

    class PPOTrainer:
        global_steps, parameter_sync_step = 1, 1
        config = Config(data=Config(train_batch_size=2))

        def fit(self) -> None:
            """Do nothing."""

        def _balance_batch(self, batch: Any, metrics: Any) -> Any:
            return Queued(batch.keys, num_padding=1)

        def _compute_metrics(self, batch: Any, metrics: Any) -> None:
            """Compute nothing."""

    v1 = module(
        "verl.trainer.ppo.v1.trainer_base", PPOTrainer=PPOTrainer, create_rl_sampler=lambda *_: None
    )
    return v1, PPOTrainer()


def test_verls_v1_trainer_gets_the_recorded_order_whatever_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    ours = replay(tmp_path)
    v1, trainer = v1_trainer(monkeypatch, state)
    drive(ours, "verl", (0, 9), v1)
    batch = trainer._balance_batch(Queued(["b_1_0", "a_1_0", "b_0_0", "a_0_0"]), {})
    assert batch.keys == ["a_0_0", "a_1_0", "b_0_0", "b_1_0", "pad0_0_0"]
    trainer._compute_metrics(batch, {})
    proof = prove(ours.plan)
    assert (proof.identical, proof.holds, proof.out_of_order) == (4, True, 0)
    assert proof.scores_differ == 4


@pytest.mark.parametrize(
    ("keys", "changed", "named"),
    [
        (["a_0_0", "a_1_0"], "", "1 of 2 prompts came through"),
        (["a_0_0", "a_1_0", "b_1_0"], "", "1 of 2 responses to a prompt came through"),
        (["a_0_0", "a_1_0", "b_0_0", "b_1_0"], "b_0_0", "row 2 reaches training with another"),
    ],
)
def test_what_verls_v1_workers_failed_at_is_not_trained_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    keys: list[str],
    changed: str,
    named: str,
) -> None:
    """verl pads the batch and goes on."""
    v1, trainer = v1_trainer(monkeypatch, state, changed)
    drive(replay(tmp_path), "verl", (0, 9), v1)
    with pytest.raises(ReplayRefused, match=named):
        trainer._balance_batch(Queued(keys), {})


def test_a_worker_class_that_ray_has_a_copy_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl 0.6.0 decorates the class itself."""
    loop, *_ = verl(monkeypatch, (0, 7), [1, 2])[0]
    loop.AgentLoopWorker.__ray_metadata__ = object()
    with pytest.raises(ReplayRefused, match="this version is not known"):
        drive(replay(tmp_path), "verl", (0, 6), loop)


def test_a_version_of_verl_without_the_names_is_refused(tmp_path: Path) -> None:
    empty = module("verl.workers.rollout.llm_server")
    with pytest.raises(ReplayRefused, match="this version is not known"):
        drive(replay(tmp_path), "verl", (0, 9), empty)


def test_verls_engine_inside_a_worker_gives_recorded_responses(tmp_path: Path) -> None:
    """verl 0.5 and 0.6 with rollout.mode=sync."""

    class vLLMRollout:  # verl's own name
        config = SimpleNamespace(n=N)
        inference_engine = SimpleNamespace(generate=lambda **_: [])

        def generate_sequences(self, prompts: Any, **kwargs: Any) -> Any:
            inputs = [{"prompt_token_ids": ids} for ids in prompts.ids]
            outputs = self.inference_engine.generate(prompts=inputs, sampling_params=None)
            return [
                (o.token_ids, [v[i].logprob for i, v in zip(o.token_ids, o.logprobs, strict=True)])
                for output in outputs
                for o in output.outputs
            ]

    spmd = module("verl.workers.rollout.vllm_rollout.vllm_rollout_spmd", vLLMRollout=vLLMRollout)
    ours = replay(tmp_path)
    drive(ours, "verl", (0, 5), spmd)
    worker, meta = spmd.vLLMRollout(), {"global_steps": 1}
    asked = SimpleNamespace(ids=[[2, 7], [2, 7]], meta_info=meta)
    assert worker.generate_sequences(asked) == [
        ([2, 3, EOS], [-1.0, -2.0, -2.0]),
        ([2, 4, EOS], [-1.0, -2.0, -2.0]),
    ]
    with pytest.raises(ReplayRefused, match="part of a prompt's responses"):
        worker.generate_sequences(SimpleNamespace(ids=[[1, 7]], meta_info=meta))
