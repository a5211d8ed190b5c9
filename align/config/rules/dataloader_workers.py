"""The number of loader processes changes the row order in one place only: zero against some.

Source: verl from 0.7 on shuffles with torchdata's RandomSampler, and its StatefulDataLoader with
worker processes draws and throws away one permutation before every epoch.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf, EffectiveConfig
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import number, version_tuple

FIELDS = ("data.dataloader_num_workers",)


def rule(case: Case) -> Ruling | None:
    """Call it harmless unless a permutation is thrown away on one side only."""
    sides = (
        _throws_one_away(case.reference_config, case.reference.value),
        _throws_one_away(case.candidate_config, case.candidate.value),
    )
    if None in sides:
        return Ruling(
            Text(
                "From verl 0.7 on worker processes change the row order; the version is not known.",
                "verl 0.7 起加载进程会改变数据顺序；此处版本未知。",
            ),
            Severity.WARNING,
        )
    if sides[0] == sides[1]:
        return Ruling(
            Text("The rows and their order stay the same.", "数据行及其顺序不变。"),
            Severity.INFO,
            Strength.NONE,
        )
    return Ruling(
        Text(
            "With worker processes verl throws one permutation away before every epoch, without "
            "them it does not: the runs see the same rows in another order.",
            "有加载进程时 verl 在每轮之前丢弃一个排列，没有时则不会："
            "两次运行以不同顺序看到相同的数据。",
        ),
        Severity.ERROR if case.frameworks[0] == case.frameworks[1] else Severity.WARNING,
        Strength.SEMANTIC,
        Rung.DATA,
        by_version=True,
    )


def _throws_one_away(config: EffectiveConfig, workers: ConfigLeaf) -> bool | None:
    """Return None where the version decides and is not known."""
    shuffle, sampler = config.values.get("data.shuffle"), config.values.get("data.sampler")
    if not number(workers) or (shuffle is not None and not shuffle.value):
        return False
    if config.framework == "stack":  # it names its sampler, and torchdata's does the same there
        return sampler is not None and sampler.value == "torchdata"
    if config.framework != "verl":
        return False
    version = version_tuple(config.framework_version)
    return None if version is None else version >= (0, 7)


_SHUFFLED = {"data.shuffle": True}
FIRES = (
    Example("data.dataloader_num_workers", (0, 8), both=_SHUFFLED),
    Example("data.dataloader_num_workers", (4, 8), both=_SHUFFLED),
    Example(
        "data.dataloader_num_workers",
        (0, 8),
        both={**_SHUFFLED, "data.sampler": "torchdata"},
        frameworks=("stack", "stack"),
    ),
    Example("data.dataloader_num_workers", (0, 8), both=_SHUFFLED, versions=(None, None)),
    Example("data.dataloader_num_workers", (0, 8), both=_SHUFFLED, versions=("0.5.0", "0.5.0")),
)
SILENT: tuple[Example, ...] = ()  # it has something to say about every difference
