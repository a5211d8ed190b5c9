"""Trainer and rollout engine of one run must use the same epsilon in RMSNorm.

Source: MindSpeed-RL's trainer takes norm_epsilon from its model YAML (1e-5 where it is not written)
and vLLM takes rms_norm_eps from config.json; Ascend's GRPO practice report saw the reward fall
after 1,500 steps. verl's override_config reaches the trainer alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text

_FIELDS = ("model.rms_norm_eps", "model.override.layernorm_epsilon")


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the trainer's epsilon with config.json, or say that it is a mere default."""
    trainer = next(iter(run.known(*reversed(_FIELDS))), None)
    engine = run.model.get("model.rms_norm_eps")
    if trainer is None:
        return
    if engine is None:
        if run.framework == "mindspeed_rl" and run.by_default(trainer.field):
            yield _unwritten(run)
        return
    if trainer.value == engine.value:
        return
    yield problem(
        run,
        "norm_epsilon",
        Severity.ERROR,
        Effect(Rung.FORWARD),
        (trainer, engine),
        Text(
            f"RMSNorm epsilon is {shown(trainer.value)} in training and {shown(engine.value)} in "
            "config.json, which the rollout engine reads",
            f"RMSNorm 的 epsilon 在训练中为 {shown(trainer.value)}，"
            f"而推理引擎读取的 config.json 中为 {shown(engine.value)}",
        ),
        Text(
            "Two models compute the log_probs of one token: the gap grows with training, and in "
            "the field the reward fell after 1,500 steps.",
            "同一 token 的 log_probs 由两个不同的模型计算：差距随训练增大，"
            "实践中曾在 1500 步后出现 reward 下降。",
        ),
        Text(
            f"Set {trainer.raw.key} to {shown(engine.value)}, the value of config.json.",
            f"将 {trainer.raw.key} 设为 config.json 中的 {shown(engine.value)}。",
        ),
    )


def _unwritten(run: OneRun) -> Finding:
    (trainer,) = run.known("model.rms_norm_eps")
    return problem(
        run,
        "norm_epsilon",
        Severity.WARNING,
        Effect(Rung.FORWARD),
        (trainer,),
        Text(
            f"norm_epsilon is not written, so training uses {shown(trainer.value)}",
            f"未写明 norm_epsilon，训练使用默认值 {shown(trainer.value)}",
        ),
        Text(
            "The rollout engine takes rms_norm_eps from config.json (1e-6 for Qwen3 and for most "
            "Qwen2.5 models), so one run may compute with two values.",
            "推理引擎使用 config.json 中的 rms_norm_eps（Qwen3 与多数 Qwen2.5 模型为 1e-6），"
            "因此同一次运行可能使用两个值。",
        ),
        Text(
            "Write norm_epsilon in the model's YAML with the rms_norm_eps of config.json; record "
            "config.json with the run to have it checked.",
            "在模型 YAML 中按 config.json 的 rms_norm_eps 写明 norm_epsilon；"
            "并将 config.json 与运行一同保存以便检查。",
        ),
    )


_CONFIG_JSON = {"model.rms_norm_eps": 1e-6}
FIRES = (
    Example(
        {"model.rms_norm_eps": 1e-5}, Severity.ERROR, "mindspeed_rl", "2.3.0", model=_CONFIG_JSON
    ),
    Example(
        framework="mindspeed_rl",
        severity=Severity.ERROR,
        defaults={"model.rms_norm_eps": 1e-5},
        model=_CONFIG_JSON,
    ),
    Example(framework="mindspeed_rl", defaults={"model.rms_norm_eps": 1e-5}),
    Example({"model.override.layernorm_epsilon": 1e-5}, Severity.ERROR, model=_CONFIG_JSON),
)
SILENT = (
    Example({"model.rms_norm_eps": 1e-6}, framework="mindspeed_rl", model=_CONFIG_JSON),
    Example({"model.rms_norm_eps": 1e-5}, framework="mindspeed_rl"),
    Example(defaults={"model.rms_norm_eps": 1e-6}, framework="verl"),
)
