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


_COURSE = Text("The learning rate takes another course over the steps.", "学习率随步数的变化不同。")
_KL_COURSE = Text(
    "The pull towards the reference model has another strength or place.",
    "向参考模型的约束强度或所在位置不同。",
)
_BATCH = ("data.train_batch_size", "actor.mini_batch_size", "actor.ppo_epochs", "rollout.n")
_SHARDS = (
    "trainer.world_size",
    "actor.tensor_parallel_size",
    "actor.pipeline_parallel_size",
    "actor.context_parallel_size",
)
_MICRO = ("actor.micro_batch_size", "actor.dynamic_batch", "actor.max_tokens_per_micro_batch")
_LENGTHS = ("data.max_prompt_length", "data.max_response_length")
_LONG = ("trainer.total_steps", "trainer.total_epochs")
_SCHEDULE = (
    "actor.lr",
    "actor.lr_schedule",
    "actor.min_lr",
    "actor.lr_warmup_steps",
    "actor.lr_warmup_fraction",
    *(
        f"actor.lr_options.{name}"
        for name in (
            *("num_cycles", "zero_indexed_step", "decay_steps", "warmup_init"),
            *("wsd_decay_steps", "wsd_decay_style"),
        )
    ),
    *_LONG,
    "actor.lr_advances",
    "loss.options.definitions",
)
_KL = (
    "loss.use_kl",
    "loss.kl_coef",
    "reward.use_kl_in_reward",
    "reward.kl_coef",
    "reward.kl_control",
    "reward.kl_target",
    "reward.kl_horizon",
)


def _derived(
    name: str, en: str, zh: str, kind: ValueKind = ValueKind.NUMBER, unit: str = ""
) -> Field:
    return Field(f"derived.{name}", Rung.LOSS, Text(en, zh), kind, unit, follows=_BATCH)


def _split(name: str, en: str, zh: str, unit: str, follows: tuple[str, ...]) -> Field:
    return Field(
        f"derived.{name}",
        Rung.FORWARD,
        Text(en, zh),
        unit=unit,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_SPLIT,
        follows=follows,
    )


def _training(name: str, en: str, zh: str, unit: str, *more: str) -> Field:
    return Field(
        f"derived.{name}",
        Rung.OPTIMIZER,
        Text(en, zh),
        unit=unit,
        severity=Severity.WARNING,
        why=Text(
            "Training has another length: step for step the runs are the same, their ends are not.",
            "训练长度不同：逐步对比时两次运行一致，但终点不同。",
        ),
        follows=(*_LONG, *_BATCH, *more),
    )


FIELDS: tuple[Field, ...] = (
    Field(
        "derived.learning_rate_course",
        Rung.OPTIMIZER,
        Text("learning rate over the steps", "各步的学习率"),
        ValueKind.ANY,
        why=Text(
            "The same settings give other learning rates: what one training step advances the "
            "scheduler by differs.",
            "相同的配置给出不同的学习率：每个训练步对调度器的推进量不同。",
        ),
        follows=(*_SCHEDULE, *_BATCH),
    ),
    *(
        Field(
            f"derived.{name}",
            Rung.OPTIMIZER,
            Text(en, zh),
            unit="steps",
            why=_COURSE,
            follows=(*_SCHEDULE, *_BATCH, "derived.learning_rate_course"),
        )
        for name, en, zh in (
            ("warmup_steps", "warmup in training steps", "预热的训练步数"),
            ("decay_steps", "training steps until the decay ends", "衰减结束时的训练步数"),
        )
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
    _split(
        "sequences_per_rank",
        "sequences per optimizer step and data parallel rank",
        "每个数据并行 rank 每次更新的序列数",
        "sequences",
        (*_BATCH, *_SHARDS, "derived.data_parallel_size"),
    ),
    _split(
        "tokens_per_rank",
        "most tokens per optimizer step and data parallel rank",
        "每个数据并行 rank 每次更新的最大 token 数",
        "tokens",
        (*_BATCH, *_SHARDS, *_LENGTHS, "derived.data_parallel_size"),
    ),
    _split(
        "micro_batches",
        "micro-batches whose gradients are summed",
        "梯度累积的 micro-batch 数",
        "micro-batches",
        (*_BATCH, *_SHARDS, *_MICRO, "derived.data_parallel_size"),
    ),
    _split(
        "tokens_per_micro_batch",
        "most tokens of one micro-batch",
        "单个 micro-batch 的最大 token 数",
        "tokens",
        (*_MICRO, *_LENGTHS, "actor.context_parallel_size", "actor.strategy"),
    ),
    Field(
        "derived.rollout_sequences_per_engine",
        Rung.ROLLOUT,
        Text("sequences each engine generates per training step", "每个推理引擎每步生成的序列数"),
        unit="sequences",
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=Text(
            "It bounds the useful max_num_seqs and decides which requests share a batch.",
            "它是 max_num_seqs 的有效上限，并决定哪些请求同批计算。",
        ),
        follows=(*_BATCH, "trainer.world_size", "rollout.tensor_parallel_size"),
    ),
    _training("total_steps", "training steps", "训练总步数", "steps"),
    _training("epochs", "passes over the data", "训练轮数", "epochs", "derived.total_steps"),
    _training(
        "optimizer_steps",
        "optimizer steps of the whole run",
        "整个训练的优化器更新次数",
        "steps",
        "derived.total_steps",
    ),
    Field(
        "derived.rows_kept",
        Rung.DATA,
        Text("rows kept by the length filter", "长度过滤后保留的行数"),
        unit="rows",
        why=Text(
            "Other rows are kept, and every later index of the shuffle moves.",
            "保留的行不同，shuffle 之后的索引都会移动。",
        ),
        follows=("data.length_filter", "data.max_prompt_length"),
    ),
    Field(
        "derived.kl_placement",
        Rung.REWARD,
        Text("where the KL to the reference model is paid", "与参考模型的 KL 所在的位置"),
        ValueKind.NAME,
        why=_KL_COURSE,
        follows=_KL,
    ),
    Field(
        "derived.kl_coefficient",
        Rung.REWARD,
        Text("coefficient of that KL over training", "该 KL 的系数及其变化"),
        ValueKind.ANY,
        why=_KL_COURSE,
        follows=(*_KL, "derived.kl_placement"),
    ),
    Field(
        "derived.length_limit",
        Rung.ROLLOUT,
        Text("longest sequence that can be generated", "可生成的最大序列长度"),
        unit="tokens",
        follows=(*_LENGTHS, "rollout.max_model_len"),
    ),
    Field(
        "derived.data_parallel_size",
        Rung.FORWARD,
        Text("data parallel size", "数据并行度"),
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_SPLIT,
        follows=_SHARDS,
    ),
    Field(
        "derived.nonstandard_loss",
        Rung.LOSS,
        Text("policy loss other than PPO's", "非标准策略损失"),
        ValueKind.FLAG,
        follows=("loss.mode",),
    ),
)
