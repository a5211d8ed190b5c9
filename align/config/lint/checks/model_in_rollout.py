"""Trainer and rollout engine of one run must build the same network.

Source: MindSpeed-RL spells the architecture out in its model YAML, verl's override_config changes
the trainer's; vLLM reads config.json (mapping of the two frameworks' keys, model rows).
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.comparable import equal
from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.config.schema import field_named
from align.core.config_value import ConfigLeaf
from align.core.finding import Finding, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_OWN_CHECK = frozenset(
    {
        "model.rms_norm_eps",
        "model.vocab_size",
        "model.attention_dropout",
        "model.hidden_dropout",
        "model.max_position_embeddings",
    }
)
_OFF = (None, "none", "default", 1.0)


def check(run: OneRun) -> Iterator[Finding]:
    """Compare every architecture field that both state."""
    for name, engine in sorted(run.model.items()):
        trainer = run.config.values.get(name)
        field = field_named(name)
        if trainer is None or name in _OWN_CHECK or field.strength is not Strength.SEMANTIC:
            continue
        if equal(trainer.value, engine.value, field.kind) or _both_off(trainer.value, engine.value):
            continue
        meaning = field.meaning
        yield problem(
            run,
            f"model_in_rollout.{name.partition('.')[2]}",
            Severity.ERROR,
            Effect(Rung.FORWARD),
            (trainer, engine),
            Text(
                f"{meaning.en}: {shown(trainer.value)} in training, {shown(engine.value)} in the "
                "config.json that the rollout engine reads",
                f"{meaning.zh}：训练中为 {shown(trainer.value)}，"
                f"推理引擎读取的 config.json 中为 {shown(engine.value)}",
            ),
            Text(
                "Rollout and training are two different networks with one set of weights: their "
                "log_probs differ from the first step on, and the importance ratio is wrong.",
                "rollout 与训练是共用一套权重的两个不同网络：从第一步起 log_probs 就不同，"
                "重要性比值也不正确。",
            ),
            Text(
                f"Set {trainer.raw.key} so that the field is {shown(engine.value)} as in "
                "config.json.",
                f"修改 {trainer.raw.key}，使其与 config.json 中的 {shown(engine.value)} 一致。",
            ),
        )


def _both_off(trainer: ConfigLeaf, engine: ConfigLeaf) -> bool:
    """Tell whether two spellings both say that a feature is not used."""
    return trainer in _OFF and engine in _OFF and not isinstance(trainer, bool)


FIRES = (
    Example(
        {"model.rope_theta": 10000},
        Severity.ERROR,
        "mindspeed_rl",
        model={"model.rope_theta": 1000000.0},
    ),
    Example(
        {"model.tie_word_embeddings": False},
        Severity.ERROR,
        "mindspeed_rl",
        model={"model.tie_word_embeddings": True},
    ),
    Example({"model.rope_theta": 5e5}, Severity.ERROR, model={"model.rope_theta": 1e6}),
)
SILENT = (
    Example(
        {"model.rope_theta": 1000000, "model.tie_word_embeddings": True},
        framework="mindspeed_rl",
        model={"model.rope_theta": 1000000.0, "model.tie_word_embeddings": True},
    ),
    Example({"model.rope_scaling_type": None}, model={"model.rope_scaling_type": "default"}),
    Example({"model.num_layers": 28}),
)
