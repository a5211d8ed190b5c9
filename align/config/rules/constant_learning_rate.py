"""Length of training matters to numbers only through the learning rate."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf, EffectiveConfig
from align.core.finding import Severity, Strength
from align.core.text import Text

FIELDS = ("trainer.total_steps", "trainer.total_epochs", "actor.min_lr", "actor.lr_options.*")

_CONSTANT: dict[str, ConfigLeaf] = {
    "actor.lr_schedule": "constant",
    "actor.lr_warmup_fraction": 0.0,
}


def rule(case: Case) -> Ruling | None:
    """Call it harmless where the learning rate is constant without warmup on both sides."""
    if all(map(_independent_of_length, (case.reference_config, case.candidate_config))):
        return Ruling(
            Text(
                "The learning rate is constant and its warmup does not depend on the length of "
                "training on either side, so no step changes.",
                "两侧学习率恒定，预热也不依赖训练长度，因此任何一步都不受影响。",
            ),
            Severity.INFO,
            Strength.NONE,
        )
    if case.name == "trainer.total_epochs" and None not in case.values("trainer.total_steps"):
        return Ruling(
            Text(
                "Training ends by the number of steps, which is set on both sides.",
                "两侧都设置了训练总步数，训练按步数结束。",
            ),
            Severity.INFO,
            Strength.NONE,
        )
    if case.name == "trainer.total_steps" and None in case.values("trainer.total_steps"):
        return Ruling(
            Text(
                "One side computes the steps from epochs and rows, which are not known here.",
                "其中一侧由轮数与数据行数计算步数，此处无法得知。",
            ),
            Severity.WARNING,
        )
    return None


def _independent_of_length(config: EffectiveConfig) -> bool:
    """Tell whether the learning rate of a step does not depend on how long training is."""
    schedule, fraction = (
        config.values.get(name) for name in ("actor.lr_schedule", "actor.lr_warmup_fraction")
    )
    constant = schedule is not None and schedule.value == "constant"
    in_steps = "actor.lr_warmup_steps" in config.values
    return constant and (in_steps or (fraction is not None and fraction.value == 0))


FIRES = (
    Example("trainer.total_steps", (2, 3), both=_CONSTANT),
    Example("actor.min_lr", (0.0, 1e-7), both=_CONSTANT),
    Example(
        "trainer.total_steps",
        (100, 200),
        both={"actor.lr_schedule": "constant", "actor.lr_warmup_steps": 10},
    ),
    Example("trainer.total_epochs", (1, 3), both={"trainer.total_steps": 100}),
    Example("trainer.total_steps", (100, None), both={"actor.lr_schedule": "cosine"}),
)
SILENT = (
    Example("trainer.total_steps", (2, 3), both={**_CONSTANT, "actor.lr_schedule": "cosine"}),
    Example("trainer.total_steps", (2, 3), both={**_CONSTANT, "actor.lr_warmup_fraction": 0.1}),
    Example("trainer.total_steps", (2, 3), both={"actor.lr_schedule": "constant"}),
)
