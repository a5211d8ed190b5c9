"""Quantities that follow from other fields."""

from __future__ import annotations

from align.config.schema.field import Field, ValueKind
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_SPLIT = Text(
    "The same sums are computed in another order: rounding differs, no more.",
    "同样的求和以不同顺序计算：只有舍入不同。",
)


_BATCH = ("data.train_batch_size", "actor.mini_batch_size", "actor.ppo_epochs", "rollout.n")


def _derived(
    name: str, en: str, zh: str, kind: ValueKind = ValueKind.NUMBER, unit: str = ""
) -> Field:
    return Field(f"derived.{name}", Rung.LOSS, Text(en, zh), kind, unit, follows=_BATCH)


FIELDS: tuple[Field, ...] = (
    Field(
        "derived.warmup_steps",
        Rung.OPTIMIZER,
        Text("warmup in steps", "预热步数"),
        unit="steps",
        why=Text(
            "The learning rate takes another course over the steps.", "学习率随步数的变化不同。"
        ),
        follows=("actor.lr_warmup_steps", "actor.lr_warmup_fraction"),
    ),
    _derived(
        "sequences_per_optimizer_step",
        "sequences per optimizer step",
        "每次优化器更新的序列数",
        unit="sequences",
    ),
    _derived(
        "optimizer_steps_per_iteration",
        "optimizer steps per training step",
        "每个训练步的优化器更新次数",
    ),
    _derived(
        "on_policy",
        "one optimizer step per batch of responses",
        "每批回复只更新一次（on-policy）",
        ValueKind.FLAG,
    ),
    _derived(
        "sequences_per_iteration",
        "sequences per training step",
        "每个训练步的序列数",
        unit="sequences",
    ),
    Field(
        "derived.length_limit",
        Rung.ROLLOUT,
        Text("longest sequence that can be generated", "可生成的最大序列长度"),
        unit="tokens",
        follows=(
            "data.max_prompt_length",
            "data.max_response_length",
            "rollout.max_model_len",
        ),
    ),
    Field(
        "derived.data_parallel_size",
        Rung.FORWARD,
        Text("data parallel size", "数据并行度"),
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_SPLIT,
        follows=(
            "trainer.world_size",
            "actor.tensor_parallel_size",
            "actor.pipeline_parallel_size",
            "actor.context_parallel_size",
        ),
    ),
    Field(
        "derived.nonstandard_loss",
        Rung.LOSS,
        Text("policy loss other than PPO's", "非标准策略损失"),
        ValueKind.FLAG,
        follows=("loss.mode",),
    ),
)
