"""Samplers that draw the same permutation from the same seed, and where they part.

Source: torch's RandomSampler, which MindSpeed-RL and verl up to 0.6 use, and torchdata's, which
verl from 0.7 on uses, draw ``randperm`` from one generator; torchdata's loader throws one
permutation away before every epoch where it has worker processes. MindSpeed-RL shuffles all its
epochs at once, so the orders agree where it makes one pass over the data.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import number

FIELDS = ("data.sampler",)

_ONE_FAMILY = {"torch", "torchdata"}


def rule(case: Case) -> Ruling | None:
    """Tell torch's and torchdata's samplers apart only where a permutation is thrown away."""
    samplers = (case.reference.value, case.candidate.value)
    if set(samplers) != _ONE_FAMILY:
        return None
    workers = case.values("data.dataloader_num_workers")[samplers.index("torchdata")]
    if number(workers) == 0:
        return Ruling(
            Text(
                "Without worker processes both draw the same permutation in the first epoch.",
                "没有加载进程时，两者在第一轮抽取相同的排列。",
            ),
            Severity.INFO,
            Strength.NONE,
        )
    return Ruling(
        Text(
            "torchdata's loader throws one permutation away before every epoch where it has worker "
            "processes: the same seed gives another order from the first step on.",
            "torchdata 的加载器在有加载进程时每轮之前会丢弃一个排列："
            "同一种子从第一步起就得到不同的顺序。",
        ),
        acts_on=Rung.DATA,
        by_version=True,
        fix=Text(
            "Set data.dataloader_num_workers of verl to 0, or give both runs one order file.",
            "将 verl 的 data.dataloader_num_workers 设为 0，或让两次运行使用同一个顺序文件。",
        ),
    )


_BOTH = ("torchdata", "torch")
_NO_WORKERS: dict[str, ConfigLeaf] = {"data.dataloader_num_workers": 0}
FIRES = (
    Example("data.sampler", _BOTH, reference=_NO_WORKERS),
    Example("data.sampler", _BOTH, reference={"data.dataloader_num_workers": 8}),
    Example("data.sampler", _BOTH),
)
SILENT = (Example("data.sampler", ("torchdata", "numpy")),)
