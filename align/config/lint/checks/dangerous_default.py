"""Defaults of MindSpeed-RL that differ from what RL runs mean and from verl.

Source: its configuration classes (table of 377 defaults) and the mapping to verl: temperature 0.2,
top_k 50, linear decay, rows handed out at random, MoE auxiliary loss 0.001, adam_beta2 0.999.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.config_value import ConfigLeaf
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_REASONS: tuple[tuple[str, ConfigLeaf, Severity, Rung, Text, ConfigLeaf], ...] = (
    (
        "rollout.temperature",
        0.2,
        Severity.WARNING,
        Rung.ROLLOUT,
        Text(
            "Responses of a group become almost equal and carry no signal; verl's default is 1.0.",
            "同组回复几乎相同，没有学习信号；verl 的默认值为 1.0。",
        ),
        1.0,
    ),
    (
        "rollout.top_k",
        50,
        Severity.WARNING,
        Rung.ROLLOUT,
        Text(
            "Tokens beyond the 50 likeliest are never drawn, while training counts them; verl's "
            "default is off.",
            "排名 50 之后的 token 永远不会被采样，而训练会计入；verl 默认关闭。",
        ),
        -1,
    ),
    (
        "actor.lr_schedule",
        "linear",
        Severity.WARNING,
        Rung.OPTIMIZER,
        Text(
            "The learning rate falls to min_lr over train_iters; verl's default is constant.",
            "学习率会在 train_iters 内降到 min_lr；verl 默认为常数。",
        ),
        "constant",
    ),
    (
        "data.guarantee_order",
        False,
        Severity.WARNING,
        Rung.LOSS,
        Text(
            "Rows are handed to the ranks by an unseeded draw, so no run repeats itself, not even "
            "on one device.",
            "数据由未设种子的随机抽取分发到各卡，任何运行都无法复现，即使在同一设备上。",
        ),
        True,
    ),
    (
        "model.moe_aux_loss_coef",
        0.001,
        Severity.WARNING,
        Rung.LOSS,
        Text(
            "A load balancing term is added to the loss of every update; verl adds none.",
            "每次更新的损失都会加上负载均衡项；verl 不加。",
        ),
        0.0,
    ),
    (
        "actor.adam_beta2",
        0.999,
        Severity.INFO,
        Rung.OPTIMIZER,
        Text(
            "The shipped examples write 0.95; 0.999 is verl's default.",
            "官方示例写的是 0.95；0.999 是 verl 的默认值。",
        ),
        0.999,
    ),
)


def check(run: OneRun) -> Iterator[Finding]:
    """Report each of these that the run leaves unset."""
    if run.framework != "mindspeed_rl":
        return
    for name, default, severity, rung, why, wanted in _REASONS:
        if not _rests_on_it(run, name, default):
            continue
        (value,) = run.known(name)
        key = value.raw.key.rpartition(", ")[2]
        yield problem(
            run,
            f"dangerous_default.{name.partition('.')[2]}",
            severity,
            Effect(rung),
            (value,),
            Text(
                f"{key} is not written; the default {shown(value.value)} holds",
                f"未写明 {key}；采用默认值 {shown(value.value)}",
            ),
            why,
            Text(
                f"Write {key}: {shown(wanted).lower()}.", f"写明 {key}: {shown(wanted).lower()}。"
            ),
        )


def _rests_on_it(run: OneRun, name: str, default: ConfigLeaf) -> bool:
    """Tell whether nothing sets the field, or nothing sets the part that makes it harmful."""
    if name == "model.moe_aux_loss_coef":
        written = any(k.endswith("moe_aux_loss_coeff") for k in run.stated)
        return run.number(name) == default and not written
    return run.by_default(name) and run.value(name) == default


FIRES = (
    Example(
        framework="mindspeed_rl",
        defaults={"rollout.temperature": 0.2, "rollout.top_k": 50, "data.guarantee_order": False},
    ),
    Example({"model.moe_aux_loss_coef": 0.001}, framework="mindspeed_rl"),
    Example(framework="mindspeed_rl", severity=Severity.INFO, defaults={"actor.adam_beta2": 0.999}),
    Example(framework="mindspeed_rl", defaults={"actor.lr_schedule": "linear"}),
)
SILENT = (
    Example(
        {"rollout.temperature": 0.2, "rollout.top_k": 50, "actor.lr_schedule": "linear"},
        framework="mindspeed_rl",
    ),
    Example(
        {"model.moe_aux_loss_coef": 0.001},
        framework="mindspeed_rl",
        stated={"model.moe_aux_loss_coeff": 0.001},
    ),
    Example(defaults={"rollout.temperature": 0.2, "actor.adam_beta2": 0.999}),
)
