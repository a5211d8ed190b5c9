"""The dual clip acts only where the ratio is far above 1 and the advantage is negative."""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.finding import Severity, Strength
from align.core.text import Text

FIELDS = ("loss.dual_clip",)


def rule(case: Case) -> Ruling | None:
    """Grade it by whether the ratio can leave 1 at all."""
    if case.both("derived.on_policy", True):
        return Ruling(
            Text(
                "There is one update per batch, so the ratio stays 1 and no clip acts.",
                "每批数据只更新一次，ratio 始终为 1，裁剪不起作用。",
            ),
            Severity.INFO,
            Strength.NONE,
        )
    return Ruling(
        Text(
            "It acts only on tokens with a negative advantage whose ratio exceeds the bound; "
            "MindSpeed-RL has no dual clip.",
            "仅对 advantage 为负且 ratio 超过上界的 token 起作用；MindSpeed-RL 没有 dual clip。",
        ),
        Severity.WARNING,
    )


_ONE_UPDATE = {"data.train_batch_size": 32, "actor.mini_batch_size": 32, "actor.ppo_epochs": 1}
FIRES = (
    Example("loss.dual_clip", (3.0, 10.0)),
    Example("loss.dual_clip", (3.0, "none"), both=_ONE_UPDATE),
)
SILENT: tuple[Example, ...] = ()  # it has something to say about every difference
