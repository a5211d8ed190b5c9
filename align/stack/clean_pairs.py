"""Pairs of runs that differ in nothing but noise, spelling or layout: a report must stay silent.

Another device's rounding is planted like a fault of the code, so that both configurations say the
same: a declared other dtype would be a difference worth reporting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from align.stack.config import StackConfig
    from align.stack.pipeline import Model, Pipeline, Tokenizer
    from align.stack.prompts import RenderedPrompt
    from align.stack.rollout import Response

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_PROFILE = "stack.numerics.profile"


class Interrupted(Exception):
    """The run was killed on purpose."""


@dataclass(frozen=True, slots=True)
class CleanPair:
    """Two runs of one training.

    Args:
        name: as `--only` takes it.
        what: what differs, as a noun phrase.
        overrides: configuration of the candidate alone.
        change: the candidate's pipeline.
        setting: configuration of both runs.
        killed_at: training step in which the candidate is killed, to be resumed; 0 for never.
        num_ranks: processes the candidate is sharded over with FSDP2; its ``change`` is not used.
    """

    name: str
    what: str
    overrides: tuple[str, ...] = ()
    change: Callable[[Pipeline], Pipeline] | None = None
    setting: tuple[str, ...] = ()
    killed_at: int = 0
    num_ranks: int = 1


def clean_pairs() -> Mapping[str, CleanPair]:
    """Return all clean pairs by name."""
    return {pair.name: pair for pair in PAIRS}


def computing_in(pipeline: Pipeline, profile: str) -> Pipeline:
    """Round as another device does, whatever profile the configuration names."""

    def apply_numerics(stated: str, model: nn.Module) -> None:
        pipeline.apply_numerics(profile, model)

    return replace(pipeline, apply_numerics=apply_numerics)


def in_float64(pipeline: Pipeline) -> Pipeline:
    """Compute in float64."""
    return computing_in(pipeline, "float64")


def in_float32_split_k(pipeline: Pipeline) -> Pipeline:
    """Sum matrix products in another order, in float32."""
    return computing_in(pipeline, "float32_split_k")


def in_bfloat16_split_k(pipeline: Pipeline) -> Pipeline:
    """Sum matrix products in another order, each part rounded to bfloat16."""
    return computing_in(pipeline, "bfloat16_split_k")


def with_bfloat16_all_reduce(pipeline: Pipeline) -> Pipeline:
    """Sum two ranks' parts of row-parallel layers, rounded to bfloat16."""
    return computing_in(pipeline, "float32_bfloat16_all_reduce")


def engine_in_split_k(pipeline: Pipeline) -> Pipeline:
    """Have the rollout engine alone sum matrix products in another order."""

    def build_rollout_model(config: StackConfig, tokenizer: Tokenizer) -> Model:
        model = pipeline.build_rollout_model(config, tokenizer)
        pipeline.apply_numerics("float32_split_k", model)
        return model

    return replace(pipeline, build_rollout_model=build_rollout_model)


def killed_in_step(pipeline: Pipeline, last: int) -> Pipeline:
    """Stop the run while it generates for a step."""

    def generate(
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[RenderedPrompt],
        config: StackConfig,
        step: int,
    ) -> list[Response]:
        if step == last:
            raise Interrupted
        return pipeline.generate(model, tokenizer, prompts, config, step)

    return replace(pipeline, generate=generate)


PAIRS = (
    CleanPair("repeat", "nothing: the same run again"),
    CleanPair("float64", "float32 against float64", change=in_float64),
    CleanPair("float32_split_k", "float32 sums in another order", change=in_float32_split_k),
    CleanPair(
        "bfloat16_split_k",
        "bfloat16 on two devices: sums in another order",
        change=in_bfloat16_split_k,
        setting=(f"{_PROFILE}=bfloat16",),
    ),
    CleanPair(
        "bfloat16_all_reduce",
        "the all-reduce of row-parallel layers in bfloat16",
        change=with_bfloat16_all_reduce,
    ),
    CleanPair(
        "engine_rounding",
        "a rollout engine that sums in another order than the trainer, in bfloat16",
        change=engine_in_split_k,
        setting=(f"{_PROFILE}=bfloat16",),
    ),
    CleanPair("sampling_seed", "seed of the rollout engine", (f"{_ROLLOUT}.seed=7",)),
    CleanPair(
        "sampling_seed_and_device",
        "seed of the rollout engine, and bfloat16 on another device",
        (f"{_ROLLOUT}.seed=8",),
        in_bfloat16_split_k,
        (f"{_PROFILE}=bfloat16",),
    ),
    CleanPair(
        "padded", "padded against packed", ("actor_rollout_ref.model.use_remove_padding=false",)
    ),
    CleanPair(
        "micro_batches",
        "micro-batches of another size, with a loss normalised over the mini-batch",
        (
            f"{_ACTOR}.ppo_micro_batch_size_per_gpu=8",
            f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu=16",
        ),
    ),
    CleanPair(
        "spelling",
        "paths, names, logging and spelling of equal values",
        (
            "trainer.project_name=npu_team",
            "trainer.experiment_name=grpo-on-npu",
            "trainer.save_freq=5",
            f"{_ACTOR}.optim.lr_warmup_steps=10",
            f"{_ACTOR}.optim.lr_warmup_steps_ratio=0.0",
            f"{_ACTOR}.clip_ratio=0.3",
        ),
    ),
    CleanPair(
        "resumed",
        "a run that was killed and resumed",
        setting=("trainer.save_freq=4",),
        killed_at=27,
    ),
    CleanPair(
        "loader_workers",
        "one loader process against two",
        ("data.dataloader_num_workers=2",),
        setting=("data.dataloader_num_workers=1",),
    ),
    CleanPair("threads", "one thread against two", ("stack.num_threads=2",)),
    CleanPair(
        "two_ranks",
        "one process against two, sharded with FSDP2",
        ("trainer.n_gpus_per_node=2",),
        num_ranks=2,
    ),
    CleanPair(
        "gradient_checkpointing",
        "activations kept against computed again",
        ("actor_rollout_ref.model.enable_gradient_checkpointing=true",),
    ),
    CleanPair(
        "ppo_sampling_seed",
        "PPO with a critic: seed of the rollout engine",
        (f"{_ROLLOUT}.seed=9",),
        setting=("stack.algorithm=ppo",),
    ),
    CleanPair(
        "dapo_device",
        "DAPO: sums in another order",
        change=in_float32_split_k,
        setting=("stack.algorithm=dapo",),
    ),
    CleanPair(
        "moe_device",
        "a mixture of experts: sums in another order, so that close routings flip",
        change=in_float32_split_k,
        setting=("actor_rollout_ref.model.path=tiny-qwen3-moe",),
    ),
    CleanPair(
        "qwen3_sampling_seed",
        "Qwen3: seed of the rollout engine",
        (f"{_ROLLOUT}.seed=10",),
        setting=("actor_rollout_ref.model.path=tiny-qwen3",),
    ),
    CleanPair(
        "padded_on_another_device",
        "padded against packed, in bfloat16 on another device, with another seed",
        ("actor_rollout_ref.model.use_remove_padding=false", f"{_ROLLOUT}.seed=11"),
        in_bfloat16_split_k,
        (f"{_PROFILE}=bfloat16",),
    ),
)
