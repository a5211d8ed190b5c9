"""MindSpeed-RL's base_acc rule scores a form that only few prompts ask for.

Source: rule_verifier.py: ``base_acc`` needs the whole
``<think>…</think>…<answer>…\\boxed{}…</answer>`` pattern before it looks at the answer.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf
from align.core.finding import Severity
from align.core.text import Text

FIELDS = ("reward.rules",)


def rule(case: Case) -> Ruling | None:
    """Warn where one side alone scores by base_acc."""
    with_it = [_has_it(value.value) for value in (case.reference, case.candidate)]
    if with_it[0] == with_it[1]:
        return None
    return Ruling(
        Text(
            "base_acc gives 0 to every answer that is not inside <think>…</think> and "
            "<answer>…\\boxed{}…</answer>, however right it is.",
            "base_acc 对未写成 <think>…</think> 与 <answer>…\\boxed{}…</answer> 形式的回答"
            "一律给 0 分，无论答案是否正确。",
        ),
        Severity.WARNING,
        fix=Text(
            "Score both runs by the same rule, such as math_17k_acc.",
            "两次运行使用同一规则打分，例如 math_17k_acc。",
        ),
    )


def _has_it(rules: ConfigLeaf) -> bool:
    return "base_acc" in (rules if isinstance(rules, tuple) else (rules,))


FIRES = (
    Example("reward.rules", ("chosen by data_source", ("base_acc",))),
    Example("reward.rules", (("math_17k_acc",), ("base_acc", "format"))),
)
SILENT = (Example("reward.rules", ("chosen by data_source", ("math_17k_acc",))),)
