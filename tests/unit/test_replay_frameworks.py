"""Replays into frameworks that are not installed here, on small doubles of the same names.

The names and signatures are those of verl's tags v0.6.1 to v0.9.0, TRL 1.16 and MindSpeed-RL's
master; where there is a checkout of MindSpeed-RL, the last test holds the names against it.
"""

from __future__ import annotations

import ast
import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="drivers look at torch's tensors")

import numpy as np
import torch

from align.core.rollout_record import RolloutRecord
from align.frameworks.mindspeed_rl_replay import HOOKS as MINDSPEED_RL_HOOKS
from dumps.inject.drivers import mindspeed_rl as mindspeed_rl_driver
from dumps.inject.drivers import verl_begin, verl_trainer
from dumps.inject.drivers.verl_state import State
from dumps.inject.install import hook_points, put_in
from dumps.inject.launch import prepare
from dumps.inject.plan import ReplayPlan, Source
from dumps.inject.problem import ReplayRefused
from dumps.inject.proof import prove
from dumps.inject.replay import Replay

EOS, PAD, N = 9, 8, 2


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State()
    for driver in (verl_begin, verl_trainer):
        monkeypatch.setattr(driver, "state", state)
    monkeypatch.setattr(mindspeed_rl_driver, "_now", [])
    monkeypatch.setattr(mindspeed_rl_driver, "_checked", [])


def rows(step: int = 1, asks: tuple[int, ...] = (1, 2)) -> list[RolloutRecord]:
    return [
        RolloutRecord(
            prompt=f"{ask} 7",
            prompt_ids=(ask, 7),
            response_ids=(ask, 3 + sample, EOS),
            log_probs=(-1.0, -2.0, -float(ask)),
            score=10.0 * ask + sample,
            step=step,
            dataset_index=ask,
            sample_index=sample,
            uid=f"r{step}-{ask}",
            extras={"reward/acc": 1.0},
        )
        for ask in asks
        for sample in range(N)
    ]


def replay(tmp_path: Path, recorded: list[RolloutRecord] | None = None, **plan: Any) -> Replay:
    made = ReplayPlan(tmp_path / "run", **plan)
    prepare(made, rows() if recorded is None else recorded, [], None)
    return Replay(made)


def drive(replay: Replay, package: str, version: tuple[int, int], *modules: ModuleType) -> None:
    by_name = {module.__name__: module for module in modules}
    for point in hook_points():
        if point.package == package and point.module in by_name and point.fits(version):
            put_in(replay, by_name[point.module], point)


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(content)
    return made


class Config(dict):
    """Stands for OmegaConf's: keys as attributes."""

    __getattr__ = dict.__getitem__


class Tokenizer:
    eos_token_id, pad_token_id = EOS, PAD

    def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
        return [int(messages[0]["content"]), 7]

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return " ".join(str(i) for i in ids if i != EOS)


class TokenOutput(SimpleNamespace):
    model_fields = dict.fromkeys(["token_ids", "log_probs", "stop_reason", "extra_fields"])


def verl(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], prompts: list[int], **settings: Any
) -> tuple[list[ModuleType], Any]:
    """Return doubles of verl's V0 trainer, agent loops and engine client, and the trainer."""
    replica = module("verl.workers.rollout.replica", TokenOutput=TokenOutput)
    monkeypatch.setitem(__import__("sys").modules, replica.__name__, replica)

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


def trl_trainer(prompts: list[int]) -> ModuleType:
    """Return a double of TRL's trainer module."""

    class GRPOTrainer:
        args = SimpleNamespace(
            steps_per_generation=1,
            num_iterations=1,
            gradient_accumulation_steps=1,
            max_steps=1,
        )
        processing_class = Tokenizer()
        num_generations, max_completion_length, use_vllm = N, 3, True
        model = SimpleNamespace(training=True)
        state = SimpleNamespace(global_step=0)
        accelerator = SimpleNamespace(num_processes=1, process_index=0)

        def train(self) -> None:
            self.output = self._generate_and_score_completions(None)

        def _generate_single_turn(
            self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: Any
        ) -> Any:
            return [[5, 5, EOS] for _ in prompt_ids], [[0.0] * 3 for _ in prompt_ids]

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            asked = [[prompt, 7] for prompt in prompts for _ in range(N)]
            completions, self.log_probs = self._generate_single_turn(asked, None, {}, N)
            ids, answers = torch.tensor(asked), torch.tensor(completions)
            return {
                "prompt_ids": ids,
                "prompt_mask": torch.ones_like(ids),
                "completion_ids": answers,
                "completion_mask": torch.ones_like(answers),
            }

    return module("trl.trainer.grpo_trainer", GRPOTrainer=GRPOTrainer)


def test_trl_trains_on_recorded_responses(tmp_path: Path) -> None:
    trl, ours = trl_trainer([2, 1]), replay(tmp_path)
    drive(ours, "trl", (1, 16), trl)
    trainer = trl.GRPOTrainer()
    trainer.train()
    assert trainer.output["completion_ids"].tolist() == [
        *[[2, 3, EOS], [2, 4, EOS], [1, 3, EOS], [1, 4, EOS]]
    ]
    assert trainer.log_probs[0] == [-1.0, -2.0, -2.0]
    proof = prove(ours.plan)
    assert (proof.identical, proof.holds, proof.out_of_order) == (4, True, 1)


def test_trl_stops_where_a_prompt_is_not_recorded(tmp_path: Path) -> None:
    trl = trl_trainer([2, 4])
    drive(replay(tmp_path), "trl", (1, 16), trl)
    with pytest.raises(ReplayRefused, match="a prompt is not recorded: '4 7'"):
        trl.GRPOTrainer().train()


def mindspeed_rl(given: int, *, is_async: bool = False, **settings: Any) -> tuple[ModuleType, ...]:
    """Return doubles of MindSpeed-RL's modules; the cut at the first pad is the worker's own.

    Args:
        given: the tokenizer's pad; MindSpeed-RL takes 0 for none.
    """
    pad = given if given else EOS

    class BaseWorker:
        dock: dict[int, Any]

        def collect_transfer_dock_data(
            self,
            output: Any,
            index: Any,
            use_vllm: bool = False,
            is_generate: bool = False,
            sync: bool = False,
        ) -> None:
            self.dock.update(zip(index, output["responses"], strict=True))

    class ActorRolloutHybrid:
        def generate_sequences(
            self,
            prompts_list: Any,
            indexes: Any = None,
            async_engine: bool = False,
            stop_singal_func: Any = None,
            **kwargs: Any,
        ) -> Any:
            raise AssertionError("the engine is not to be asked")

    class ActorHybridWorkerBase(BaseWorker):
        args = SimpleNamespace(iteration=0)
        megatron_config = SimpleNamespace(train_iters=1)
        rl_config = SimpleNamespace(
            n_samples_per_prompt=settings.get("n", N),
            guarantee_order=settings.get("guarantee_order", True),
        )
        generate_config = SimpleNamespace(sampling_config={"max_tokens": 4})
        tokenizer = SimpleNamespace(pad=given, eod=EOS, tokenizer=Tokenizer())

        def __init__(self) -> None:
            self.dock = {}
            self.actor_hybrid = models.ActorRolloutHybrid()

        def generate_sequences(self) -> None:
            index = [4, 5, 6, 7]
            prompts = [[2, 7], [1, 7]]
            if is_async:
                repeated = [ids for ids in prompts for _ in range(N)]
                made = self.actor_hybrid.generate_sequences(
                    repeated, indexes=index, n=1, async_engine=True
                )
                for (asked, responses, _), places in made:
                    self.put(asked, split(responses, pad), places)
            else:
                padded = self.actor_hybrid.generate_sequences(prompts, extra_info={})
                asked = [torch.tensor(ids) for ids in prompts for _ in range(N)]
                self.put(asked, split(padded, pad), index)

        def put(self, prompts: Any, responses: Any, index: Any) -> None:
            whole = [torch.cat(both) for both in zip(prompts, responses, strict=True)]
            output = {"responses": responses, "input_ids": whole}
            self.collect_transfer_dock_data(output, index, use_vllm=True, is_generate=True)

    base = module("mindspeed_rl.workers.base_worker", BaseWorker=BaseWorker)
    models = module(
        "mindspeed_rl.models.actor_rollout_hybrid", ActorRolloutHybrid=ActorRolloutHybrid
    )
    worker = module(
        "mindspeed_rl.workers.actor_hybrid_worker", ActorHybridWorkerBase=ActorHybridWorkerBase
    )
    return base, models, worker


def split(responses: torch.Tensor, pad: int) -> list[torch.Tensor]:
    """Cut each row at its first pad, which stays where pad is eos, as MindSpeed-RL does."""
    cut = []
    for row in responses:
        at = (row == pad).nonzero().flatten().tolist()
        cut.append(row if not at else row[: at[0] + (1 if pad == EOS else 0)])
    return cut


@pytest.mark.parametrize("pad", [PAD, EOS, 0])
@pytest.mark.parametrize("is_async", [False, True])
def test_mindspeed_rl_puts_recorded_responses_into_the_dock(
    tmp_path: Path, is_async: bool, pad: int
) -> None:
    modules, ours = mindspeed_rl(pad, is_async=is_async), replay(tmp_path)
    drive(ours, "mindspeed_rl", (2, 3), *modules)
    worker = modules[2].ActorHybridWorkerBase()
    worker.generate_sequences()
    assert {row: ids.tolist() for row, ids in worker.dock.items()} == {
        **{4: [2, 3, EOS], 5: [2, 4, EOS], 6: [1, 3, EOS], 7: [1, 4, EOS]}
    }
    proof = prove(ours.plan)
    assert (proof.identical, proof.holds) == (4, True)


def test_a_response_that_mindspeed_rl_cuts_at_a_pad_never_reaches_the_dock(tmp_path: Path) -> None:
    first, *others = rows()
    with_pad = replace(first, response_ids=(1, PAD, 3, EOS), log_probs=None)
    modules, ours = mindspeed_rl(PAD), replay(tmp_path, [with_pad, *others])
    drive(ours, "mindspeed_rl", (2, 3), *modules)
    worker = modules[2].ActorHybridWorkerBase()
    with pytest.raises(ReplayRefused, match="row 2 reaches training with another response"):
        worker.generate_sequences()
    assert not worker.dock
    proof = prove(ours.plan)
    assert (proof.identical, proof.mismatches, proof.holds) == (3, 1, False)
    assert "another response" in proof.first[0]


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"guarantee_order": False}, "guarantee_order is false"), ({"n": 3}, "n has changed")],
)
def test_what_does_not_fit_stops_mindspeed_rl(tmp_path: Path, settings: Any, named: str) -> None:
    modules = mindspeed_rl(PAD, **settings)
    drive(replay(tmp_path), "mindspeed_rl", (2, 3), *modules)
    with pytest.raises(ReplayRefused, match=named):
        modules[2].ActorHybridWorkerBase().generate_sequences()


@pytest.mark.skipif("MINDSPEED_RL_SRC" not in os.environ, reason="set MINDSPEED_RL_SRC")
def test_the_double_of_mindspeed_rl_has_the_sources_names_and_signatures() -> None:
    source = Path(os.environ["MINDSPEED_RL_SRC"])
    doubles = {module.__name__: module for module in mindspeed_rl(PAD)}
    for point in MINDSPEED_RL_HOOKS:
        path = source.joinpath(*point.module.split(".")).with_suffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owner, _, name = point.attribute.partition(".")
        (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner)
        (method,) = (n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == name)
        theirs = [argument.arg for argument in method.args.args]
        ours = getattr(getattr(doubles[point.module], owner), name)
        assert list(ours.__code__.co_varnames[: ours.__code__.co_argcount]) == theirs
