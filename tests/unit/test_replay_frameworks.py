"""Replays into TRL and MindSpeed-RL, on small doubles of the same names.

The names and signatures are those of TRL 1.16 and MindSpeed-RL's master, the latter as
`mindspeed_rl_signatures` has them recorded.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="drivers look at torch's tensors")

import torch

from align.frameworks.mindspeed_rl_replay import HOOKS as MINDSPEED_RL_HOOKS
from dumps.inject.drivers import mindspeed_rl as mindspeed_rl_driver
from dumps.inject.plan import Source
from dumps.inject.problem import ReplayRefused
from dumps.inject.proof import prove
from tests.unit.mindspeed_rl_signatures import signature
from tests.unit.replay_runs import EOS, PAD, N, Tokenizer, drive, module, replay, rows


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mindspeed_rl_driver, "_now", [])
    monkeypatch.setattr(mindspeed_rl_driver, "_checked", [])


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
        reward_func_names, reward_weights = ["acc"], torch.tensor([2.0])
        model = SimpleNamespace(training=True)
        state = SimpleNamespace(global_step=0)
        accelerator = SimpleNamespace(num_processes=1, process_index=0)

        def train(self) -> None:
            self.output = self._generate_and_score_completions(None)

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            raise AssertionError("the double draws no rows")

        def _calculate_rewards(
            self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
        ) -> Any:
            return torch.full((len(completions), len(self.reward_func_names)), 0.5)

        def _generate_single_turn(
            self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: Any
        ) -> Any:
            return [[5, 5, EOS] for _ in prompt_ids], [[0.0] * 3 for _ in prompt_ids]

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            asked = [[prompt, 7] for prompt in prompts for _ in range(N)]
            completions, self.log_probs = self._generate_single_turn(asked, None, {}, N)
            self.rewards = self._calculate_rewards(None, asked, completions, completions)
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


def test_trls_rewards_are_its_own_or_the_recorded_ones(tmp_path: Path) -> None:
    for source, expected, num_other in (
        (Source.RECOMPUTED, [0.5, 0.5, 0.5, 0.5], 4),
        (Source.RECORDED, [10.0, 10.5, 5.0, 5.5], 0),  # half of the scores, as its weight is two
    ):
        trl = trl_trainer([2, 1])
        ours = replay(tmp_path / source.value, rewards=source)
        drive(ours, "trl", (1, 16), trl)
        trainer = trl.GRPOTrainer()
        trainer.train()
        assert trainer.rewards[:, 0].tolist() == expected
        assert prove(ours.plan).scores_differ == num_other


def test_rewards_that_trl_weighs_apart_are_taken_by_name_or_refused(tmp_path: Path) -> None:
    for kept, recorded in (
        (True, [replace(r, extras={"score/acc": 1.0, "score/form": None}) for r in rows()]),
        (False, rows()),
    ):
        trl = trl_trainer([2, 1])
        trl.GRPOTrainer.reward_func_names = ["acc", "form"]
        trl.GRPOTrainer.reward_weights = torch.tensor([2.0, 3.0])
        drive(replay(tmp_path / str(kept), recorded, rewards=Source.RECORDED), "trl", (1, 16), trl)
        trainer = trl.GRPOTrainer()
        if kept:
            trainer.train()
            assert trainer.rewards[:, 0].tolist() == [1.0] * 4
            assert trainer.rewards[:, 1].isnan().all()
        else:
            with pytest.raises(ReplayRefused, match=r"this run weighs 2 \(acc, form\)"):
                trainer.train()


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
        iteration = 0
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


@pytest.mark.parametrize("pad", [PAD, EOS, 0])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_response_that_was_cut_at_its_limit_gains_no_eos(
    tmp_path: Path, is_async: bool, pad: int
) -> None:
    """Where pad is eos, MindSpeed-RL keeps the first pad that it finds behind a response."""
    first, *others = rows()
    cut = replace(first, response_ids=(1, 2, 3, 4), log_probs=None, finish_reason="length")
    modules, ours = mindspeed_rl(pad, is_async=is_async), replay(tmp_path, [cut, *others])
    drive(ours, "mindspeed_rl", (2, 3), *modules)
    worker = modules[2].ActorHybridWorkerBase()
    worker.generate_sequences()
    assert worker.dock[6].tolist() == [1, 2, 3, 4]
    assert prove(ours.plan).holds


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


def test_a_tensor_parallel_rank_that_fills_no_dock_consumes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, ours = mindspeed_rl(PAD), replay(tmp_path)
    vars(modules[0]).update(
        is_pipeline_last_stage=lambda state, use_vllm: use_vllm,
        get_tensor_model_parallel_rank=lambda state, use_vllm: state,
    )
    monkeypatch.setitem(sys.modules, modules[0].__name__, modules[0])
    drive(ours, "mindspeed_rl", (2, 3), *modules)
    for rank in (0, 1):
        worker = modules[2].ActorHybridWorkerBase()
        worker.parallel_state = rank
        ours._given.clear()  # another process
        worker.generate_sequences()
    assert prove(ours.plan).rows == 4


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"guarantee_order": False}, "guarantee_order is false"), ({"n": 3}, "n has changed")],
)
def test_what_does_not_fit_stops_mindspeed_rl(tmp_path: Path, settings: Any, named: str) -> None:
    modules = mindspeed_rl(PAD, **settings)
    drive(replay(tmp_path), "mindspeed_rl", (2, 3), *modules)
    with pytest.raises(ReplayRefused, match=named):
        modules[2].ActorHybridWorkerBase().generate_sequences()


def test_the_double_of_mindspeed_rl_has_the_recorded_signatures() -> None:
    doubles = {module.__name__: module for module in mindspeed_rl(PAD)}
    for point in MINDSPEED_RL_HOOKS:
        double = inspect.signature(attrgetter(point.attribute)(doubles[point.module]))
        names = [str(p).partition(":")[0].partition("=")[0] for p in double.parameters.values()]
        assert [name.strip() for name in names] == signature(point.name, "master")
