"""A mini-batch written in responses is n times one written in prompts.

Source: field report of the Qwen2.5 runs; verl's ``ppo_mini_batch_size`` is in prompts and
multiplied by ``rollout.n`` (verl#180, verl#1524), MindSpeed-RL's since 2025-05-15 too (61effad).
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.text import Text
from align.frameworks.config_table import number

FIELDS = ("actor.mini_batch_size",)


def rule(case: Case) -> Ruling | None:
    """Recognise a factor of exactly n, the responses per prompt."""
    first, second = number(case.reference.value), number(case.candidate.value)
    if first is None or second is None or min(first, second) <= 0:
        return None
    ratio = max(first, second) / min(first, second)
    if not any(n is not None and n > 1 and ratio == n for n in case.numbers("rollout.n")):
        return None
    larger = Text("reference", "参考") if first > second else Text("candidate", "被测")
    return Ruling(
        Text(
            f"The factor between them is n = {ratio:g}: the {larger.en} seems to count responses "
            "where prompts are meant. Both frameworks multiply by n themselves; MindSpeed-RL did "
            "not before 2025-05-15.",
            f"两者相差的倍数恰为 n = {ratio:g}：{larger.zh}似乎以回复计，而这里应以 prompt 计。"
            "两种框架都会自行乘以 n；MindSpeed-RL 在 2025-05-15 之前不会。",
        ),
        by_version=True,
        fix=Text(
            "Write the number of prompts on both sides, and prompts × n only for MindSpeed-RL of "
            "before 2025-05-15.",
            "两侧均填写 prompt 数；仅 2025-05-15 之前的 MindSpeed-RL 需填写 prompt 数 × n。",
        ),
    )


_N = {"rollout.n": 8}
FIRES = (
    Example("actor.mini_batch_size", (32, 256), both=_N, frameworks=("verl", "mindspeed_rl")),
    Example("actor.mini_batch_size", (256, 32), both=_N),
)
SILENT = (
    Example("actor.mini_batch_size", (32, 16), both=_N),
    Example("actor.mini_batch_size", (32, 32.0), both=_N),
)
