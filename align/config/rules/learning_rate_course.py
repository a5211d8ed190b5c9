"""What a setting of the schedule does to the learning rate, step by step."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.config.derive.learning_rate import course_difference
from align.core.config_value import ConfigLeaf
from align.core.finding import Severity, Strength
from align.core.text import Text

_LENGTHS = ("trainer.total_steps", "trainer.total_epochs")
FIELDS = (
    "derived.learning_rate_course",
    "derived.warmup_steps",
    "derived.decay_steps",
    "actor.lr",
    "actor.lr_advances",
    "actor.lr_schedule",
    "actor.min_lr",
    "actor.lr_warmup_steps",
    "actor.lr_warmup_fraction",
    "actor.lr_options.*",
    *_LENGTHS,
)

_COSINE: dict[str, ConfigLeaf] = {
    "actor.strategy": "fsdp",
    "actor.lr": 1e-6,
    "actor.lr_schedule": "cosine",
    "actor.min_lr": 0.0,
    "actor.lr_warmup_fraction": 0.1,
    "trainer.total_steps": 100,
}


def rule(case: Case) -> Ruling | None:
    """Replay both schedules: quote their gap, or call it harmless where they are equal."""
    difference = course_difference(case.reference_config, case.candidate_config)
    if difference is None:
        return None
    if difference.first_step is None:
        harmless = Ruling(difference.said, Severity.INFO, Strength.NONE)
        return None if case.name in _LENGTHS else harmless
    if case.name != "actor.lr_advances":
        return Ruling(difference.said)
    if difference.same_settings:
        return Ruling(difference.said, Severity.ERROR)
    return Ruling(_LATER, Severity.INFO)


_LATER = Text(
    "Other settings of the schedule differ too: look at this once they agree.",
    "该曲线还有其他设置不同：先使它们一致，再看此项。",
)
FIRES = (
    Example(
        "actor.lr_advances",
        ("per training step", "per optimizer step"),
        both={**_COSINE, "actor.ppo_epochs": 1, "rollout.n": 8},
        frameworks=("verl", "mindspeed_rl"),
    ),
    Example("actor.lr_warmup_fraction", (0.1, 0.2), both=_COSINE),
    Example("trainer.total_steps", (100, 200), both=_COSINE),
    Example("actor.min_lr", (0.0, 1e-7), both={**_COSINE, "actor.lr_schedule": "constant"}),
    Example(
        "derived.warmup_steps",
        (10, 1.25),
        both={**_COSINE, "actor.ppo_epochs": 1, "rollout.n": 8},
        frameworks=("verl", "mindspeed_rl"),
    ),
)
SILENT = (
    Example("actor.lr", (1e-6, 2e-6)),
    Example("actor.lr", (1e-6, 2e-6), both={**_COSINE, "actor.strategy": "veomni"}),
    Example(
        "trainer.total_steps",
        (100, 200),
        both={**_COSINE, "actor.lr_schedule": "constant", "actor.lr_warmup_fraction": 0.0},
    ),
)
