"""When the learning rate advances matters only where it changes.

Source: MindSpeed-RL steps its scheduler after every mini-batch by the *sequences* in it, while its
decay is train_iters × global_batch_size *prompts*: with n > 1 it ends n times earlier than verl's,
even where a batch is one optimizer step (`BaseTrainingEngine.update`, `rl_config.mini_batch_size`).
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf
from align.core.finding import Severity, Strength
from align.core.text import Text

FIELDS = ("actor.lr_advances",)


def rule(case: Case) -> Ruling | None:
    """Call it harmless where the rate is constant."""
    constant = case.both("actor.lr_schedule", "constant") and case.numbers(
        "actor.lr_warmup_fraction"
    ) == (0.0, 0.0)
    if not constant:
        return None
    return Ruling(
        Text(
            "The learning rate is constant without warmup, so every update has the same rate.",
            "学习率恒定且无预热，因此每次更新的学习率相同。",
        ),
        Severity.INFO,
        Strength.NONE,
    )


_BOTH = ("per training step", "per optimizer step")
_CONSTANT: dict[str, ConfigLeaf] = {
    "actor.lr_schedule": "constant",
    "actor.lr_warmup_fraction": 0.0,
}
FIRES = (Example("actor.lr_advances", _BOTH, both=_CONSTANT),)
SILENT = (
    Example("actor.lr_advances", _BOTH, both={**_CONSTANT, "actor.lr_warmup_fraction": 0.1}),
    Example("actor.lr_advances", _BOTH),
)
