"""A KL coefficient counts only with its switch.

Source: verl's default use_kl_loss is false while kl_loss_coef is 0.001; MindSpeed-RL's GRPO always
adds KL to the loss (facts about both frameworks); verl prints a notice where both terms are on.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.config_value import ConfigLeaf
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_VERL_DEFAULT = 0.001


def check(run: OneRun) -> Iterator[Finding]:
    """Report a coefficient without its term, a term without coefficient, and two terms."""
    loss, reward = run.is_on("loss.use_kl"), run.is_on("reward.use_kl_in_reward")
    coefficient = run.number("loss.kl_coef")
    written = coefficient not in (None, 0, _VERL_DEFAULT) and not run.by_default("loss.kl_coef")
    if run.is_off("loss.use_kl") and written and not reward:
        yield _unused(run, run.value("loss.kl_coef"))
    if loss and coefficient == 0:
        yield problem(
            run,
            "kl_coefficient_unused.zero",
            Severity.INFO,
            Effect(Rung.LOSS, Strength.NONE),
            run.known("loss.kl_coef", "loss.use_kl"),
            Text("the KL term of the loss has coefficient 0", "损失中的 KL 项系数为 0"),
            Text(
                "The reference model is run for a metric alone; it costs time and memory.",
                "参考模型只为一个指标而运行，耗费时间与显存。",
            ),
            Text("Set use_kl_loss=False.", "设置 use_kl_loss=False。"),
        )
    if run.framework == "mindspeed_rl" and reward and not run.is_on("critic.used"):
        yield problem(
            run,
            "kl_coefficient_unused.reward",
            Severity.INFO,
            Effect(Rung.REWARD, Strength.NONE),
            run.known("reward.use_kl_in_reward"),
            Text("use_kl_in_reward has no effect here", "use_kl_in_reward 在此不起作用"),
            Text(
                "MindSpeed-RL takes KL off the reward in PPO alone; GRPO adds it to the loss.",
                "MindSpeed-RL 只在 PPO 中从奖励扣除 KL；GRPO 将其加入损失。",
            ),
            Text("Set use_kl_in_reward: false.", "设置 use_kl_in_reward: false。"),
        )
    elif loss and reward:
        yield problem(
            run,
            "kl_coefficient_unused.both",
            Severity.WARNING,
            Effect(Rung.REWARD),
            run.known("loss.use_kl", "reward.use_kl_in_reward"),
            Text("KL is taken off the reward and added to the loss", "KL 同时计入奖励与损失"),
            Text(
                "The policy is held to the reference model twice.", "策略受到参考模型的双重约束。"
            ),
            Text(
                "Keep one: use_kl_loss for GRPO, use_kl_in_reward for PPO.",
                "只保留一个：GRPO 用 use_kl_loss，PPO 用 use_kl_in_reward。",
            ),
        )


def _unused(run: OneRun, coefficient: ConfigLeaf) -> Finding:
    return problem(
        run,
        "kl_coefficient_unused",
        Severity.WARNING,
        Effect(Rung.LOSS),
        run.known("loss.kl_coef", "loss.use_kl"),
        Text(
            f"the KL coefficient is {shown(coefficient)}, but there is no KL term",
            f"KL 系数为 {shown(coefficient)}，但没有 KL 项",
        ),
        Text(
            "use_kl_loss is false, so nothing holds the policy to the reference model. "
            "MindSpeed-RL always adds the term: the two differ from the first update on.",
            "use_kl_loss 为 false，策略不受参考模型约束。MindSpeed-RL 始终加入该项："
            "两者从第一次更新起就不同。",
        ),
        Text(
            "Set use_kl_loss=True, or remove the coefficient.",
            "设置 use_kl_loss=True，或删去该系数。",
        ),
    )


_OFF = {"loss.use_kl": False, "loss.kl_coef": 0.01, "reward.use_kl_in_reward": False}
FIRES = (
    Example(_OFF),
    Example({"loss.use_kl": True, "loss.kl_coef": 0}, Severity.INFO),
    Example({"loss.use_kl": True, "reward.use_kl_in_reward": True}, Severity.INFO, "mindspeed_rl"),
    Example({"loss.use_kl": True, "loss.kl_coef": 0.01, "reward.use_kl_in_reward": True}),
)
SILENT = (
    Example(_OFF | {"loss.use_kl": True}),
    Example(_OFF | {"loss.kl_coef": 0.001}),
    Example(_OFF | {"loss.kl_coef": 0}),
)
