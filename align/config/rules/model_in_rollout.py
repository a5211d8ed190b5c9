"""An architecture that the rollout engine builds too changes the responses of the first step.

Source: vLLM and verl's rollout read the model's own config.json, and the bundled stack builds both
models from one configuration; MindSpeed-RL's model YAML reaches the trainer alone.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import EffectiveValue, ProvenanceKind
from align.core.finding import Strength
from align.core.rung import Rung
from align.core.text import Text

FIELDS = ("model.*",)
_TRAINING_ALONE = frozenset(
    {
        "model.attention_dropout",
        "model.hidden_dropout",
        "model.attention_implementation",
        "model.remove_padding",
    }
)


def rule(case: Case) -> Ruling | None:
    """Let it act from the rollout on where both engines hold it."""
    is_architecture = case.field.acts_on is Rung.FORWARD
    if case.name in _TRAINING_ALONE or not is_architecture:
        return None
    if case.field.strength is not Strength.SEMANTIC:
        return None
    is_stack = case.frameworks == ("stack", "stack")
    if not is_stack and not all(map(_from_model_config, (case.reference, case.candidate))):
        return None
    return Ruling(
        Text(
            "The rollout engine builds the model from the same value.",
            "推理引擎也按同一取值构建模型。",
        ),
        acts_on=Rung.ROLLOUT,
    )


def _from_model_config(value: EffectiveValue) -> bool:
    return value.raw.provenance.kind is ProvenanceKind.MODEL_CONFIG


FIRES = (
    Example("model.tie_word_embeddings", (False, True), frameworks=("stack", "stack")),
    Example("model.rms_norm_eps", (1e-6, 1e-5), frameworks=("stack", "stack")),
)
SILENT = (
    Example("model.rms_norm_eps", (1e-6, 1e-5), frameworks=("mindspeed_rl", "mindspeed_rl")),
    Example("model.attention_dropout", (0.0, 0.1), frameworks=("stack", "stack")),
)
