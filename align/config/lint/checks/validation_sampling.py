"""Validation is greedy by temperature, not by do_sample.

Source: verl's agent loop takes temperature, top_p and top_k of val_kwargs and not do_sample
(0.5 to 0.9); its synchronous rollout up to 0.6 takes do_sample.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Report validation settings that say one thing and do another."""
    if run.framework != "verl":
        return
    heat, sampled = run.number("rollout.val.temperature"), run.value("rollout.val.do_sample")
    seen = run.known("rollout.val.do_sample", "rollout.val.temperature", "rollout.val.n")
    if (sampled is False and heat is not None and heat > 0) or (sampled is True and heat == 0):
        yield _contradiction(run, heat)
    many = run.number("rollout.val.n")
    if heat == 0 and many is not None and many > 1:
        yield problem(
            run,
            "validation_sampling.repeats",
            Severity.INFO,
            Effect(Rung.EVALS, Strength.NONE),
            seen,
            Text(
                f"validation draws {shown(many)} greedy responses a prompt",
                f"验证对每个 prompt 贪心生成 {shown(many)} 条回复",
            ),
            Text(
                "They are equal up to rounding: the mean of n says no more than one.",
                "这些回复除舍入外相同：n 条的均值并不比一条更多信息。",
            ),
            Text(
                "Set val_kwargs.n to 1, or its temperature above 0.",
                "将 val_kwargs.n 设为 1，或将其温度设为大于 0。",
            ),
        )


def _contradiction(run: OneRun, heat: float) -> Finding:
    return problem(
        run,
        "validation_sampling",
        Severity.WARNING,
        Effect(Rung.EVALS, Strength.NONE, ("val-core/*", "val-aux/*", "val/*")),
        run.known("rollout.val.do_sample", "rollout.val.temperature"),
        Text(
            f"validation: do_sample is {shown(heat == 0).lower()}, but the temperature is "
            f"{shown(heat)}",
            f"验证：do_sample 为 {shown(heat == 0).lower()}，而温度为 {shown(heat)}",
        ),
        Text(
            "verl's agent loop takes the temperature and does not read do_sample; its older "
            "synchronous rollout does the opposite. Scores of two versions are not comparable.",
            "verl 的 agent loop 只看温度而不读取 do_sample，较早的同步 rollout 则相反："
            "不同版本的验证得分不可比。",
        ),
        Text(
            "Set both: do_sample false with temperature 0, or do_sample true with the temperature "
            "you want.",
            "两项一并设置：do_sample false 配温度 0，或 do_sample true 配所需温度。",
        ),
    )


FIRES = (
    Example({"rollout.val.do_sample": False, "rollout.val.temperature": 1.0}),
    Example({"rollout.val.do_sample": True, "rollout.val.temperature": 0}),
    Example(
        {"rollout.val.do_sample": False, "rollout.val.temperature": 0, "rollout.val.n": 8},
        Severity.INFO,
    ),
)
SILENT = (
    Example({"rollout.val.do_sample": False, "rollout.val.temperature": 0, "rollout.val.n": 1}),
    Example({"rollout.val.do_sample": True, "rollout.val.temperature": 0.6, "rollout.val.n": 32}),
)
