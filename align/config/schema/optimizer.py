"""Optimizer, learning rate, precision and length of training."""

from __future__ import annotations

from align.config.schema.field import Field, ValueKind
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_UPDATE = Text(
    "The same gradient becomes another update of the weights.", "同样的梯度产生不同的权重更新。"
)
_SCHEDULE = Text(
    "The learning rate takes another course over the steps.", "学习率随步数的变化不同。"
)
_WARMUP = Text(
    "The frameworks name it differently, so it is easily lost: MindSpeed-RL's lr_warmup_fraction "
    "is verl's lr_warmup_steps_ratio. Without warmup the first updates have the full learning "
    "rate.",
    "两种框架的名称不同：MindSpeed-RL 的 lr_warmup_fraction 即 verl 的 lr_warmup_steps_ratio，"
    "迁移时容易遗漏。没有预热时，最初的更新就使用完整的学习率。",
)


def _update(name: str, en: str, zh: str, kind: ValueKind = ValueKind.NUMBER) -> Field:
    return Field(f"actor.{name}", Rung.OPTIMIZER, Text(en, zh), kind, why=_UPDATE)


def _schedule(name: str, en: str, zh: str, kind: ValueKind = ValueKind.NUMBER) -> Field:
    return Field(f"actor.{name}", Rung.OPTIMIZER, Text(en, zh), kind, why=_SCHEDULE)


FIELDS: tuple[Field, ...] = (
    _update("lr", "learning rate", "学习率"),
    _schedule("lr_schedule", "shape of the learning rate", "学习率曲线", ValueKind.NAME),
    Field(
        "actor.lr_warmup_steps",
        Rung.OPTIMIZER,
        Text("warmup in steps", "预热步数"),
        unit="steps",
        why=_WARMUP,
    ),
    Field(
        "actor.lr_warmup_fraction",
        Rung.OPTIMIZER,
        Text("warmup as a fraction of training", "预热占比"),
        why=_WARMUP,
    ),
    _schedule("min_lr", "lowest learning rate", "最小学习率"),
    _schedule("lr_options.*", "option of the schedule", "学习率曲线选项", ValueKind.ANY),
    _update("optimizer", "optimizer", "优化器", ValueKind.NAME),
    Field(
        "actor.optimizer_options.*",
        Rung.OPTIMIZER,
        Text("option of the optimizer", "优化器选项"),
        ValueKind.ANY,
        why=_UPDATE,
        between_frameworks=False,
    ),
    _update("weight_decay", "weight decay", "权重衰减"),
    Field(
        "actor.weight_decay_exempt",
        Rung.OPTIMIZER,
        Text("parameters without weight decay", "不做权重衰减的参数"),
        ValueKind.NAME,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        only_if="actor.weight_decay",
        why=Text(
            "Norm weights and biases shrink on one side only: by lr × weight_decay an update, "
            "1e-8 of their value with 1e-6 and 0.01.",
            "归一化权重与偏置只在一侧衰减：每次更新缩小 lr × weight_decay，"
            "取 1e-6 与 0.01 时为其值的 1e-8。",
        ),
    ),
    Field(
        "actor.lr_advances",
        Rung.OPTIMIZER,
        Text("when the learning rate advances", "学习率推进的时机"),
        ValueKind.NAME,
        severity=Severity.WARNING,
        why=_SCHEDULE,
    ),
    _update("adam_beta1", "Adam's beta1", "Adam 的 beta1"),
    _update("adam_beta2", "Adam's beta2", "Adam 的 beta2"),
    _update("adam_eps", "Adam's epsilon", "Adam 的 epsilon"),
    _update("clip_grad", "largest gradient norm", "梯度裁剪范数"),
    Field(
        "actor.dtype",
        Rung.FORWARD,
        Text("precision of the training forward and backward pass", "训练前反向的计算精度"),
        ValueKind.DTYPE,
        strength=Strength.NUMERIC,
        signature=(
            "training/rollout_probs_diff*",
            "training/rollout_actor_probs_pearson_corr",
            "rollout_corr/*",
        ),
        why=Text(
            "Log_probs and gradients are computed in another precision.",
            "log_probs 与梯度以不同精度计算。",
        ),
    ),
    Field(
        "actor.master_dtype",
        Rung.OPTIMIZER,
        Text("precision of the weights the optimizer updates", "优化器所更新权重的精度"),
        ValueKind.DTYPE,
        why=Text(
            "In bfloat16 updates smaller than half a unit in the last place are lost.",
            "使用 bfloat16 时，小于半个末位单位的更新会丢失。",
        ),
    ),
    Field(
        "actor.reduce_dtype",
        Rung.BACKWARD,
        Text("precision in which gradients are summed", "梯度求和的精度"),
        ValueKind.DTYPE,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=Text("Gradients are rounded otherwise when they are summed.", "梯度求和时的舍入不同。"),
    ),
    Field(
        "actor.buffer_dtype",
        Rung.FORWARD,
        Text("precision of buffers", "buffer 的精度"),
        ValueKind.DTYPE,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        between_frameworks=False,
        why=Text(
            "Buffers such as rotary frequencies are rounded otherwise.",
            "旋转频率等 buffer 的舍入不同。",
        ),
    ),
    Field(
        "actor.precision_options.*",
        Rung.FORWARD,
        Text("option of precision", "精度选项"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        between_frameworks=False,
    ),
    Field(
        "actor.qat.*",
        Rung.FORWARD,
        Text("quantisation-aware training", "量化感知训练"),
        ValueKind.ANY,
        only_if="actor.qat.enable",
        between_frameworks=False,
    ),
    Field(
        "trainer.total_steps",
        Rung.OPTIMIZER,
        Text("training steps", "训练总步数"),
        unit="steps",
        why=_SCHEDULE,
    ),
    Field(
        "trainer.total_epochs",
        Rung.OPTIMIZER,
        Text("passes over the data", "训练轮数"),
        unit="epochs",
        why=_SCHEDULE,
    ),
)
