"""Versions at which a package is known to change results, each with its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from align.core.finding import Mechanism, Severity, Strength
from align.core.rung import Rung
from align.core.text import Text


@dataclass(frozen=True, slots=True)
class Boundary:
    """A package behaves differently from ``version`` on.

    Two runs on different sides of it differ in the way ``why`` says, unless a configuration key
    sets the behaviour explicitly; that is why a boundary alone is a warning, not an error.
    """

    package: str
    version: tuple[int, ...]
    why: Text
    fix: Text
    mechanism: Mechanism
    severity: Severity = Severity.WARNING


# Sources: release sources of verl 0.3.0.post1 to 0.9.1, read and run; Ascend performance guide for
# Qwen3-235B on verl (tensordict).
BOUNDARIES = (
    Boundary(
        "verl",
        (0, 8),
        Text(
            "verl up to 0.7 normalises the token-mean loss per micro-batch, from 0.8 on over the "
            "whole mini-batch: the micro-batch size changes the loss on the older side only.",
            "verl 0.7 及以前按 micro-batch 归一化 token-mean 损失，0.8 起按整个 mini-batch 归一化："
            "旧版本一侧的损失会随 micro-batch 大小变化。",
        ),
        Text(
            "Use one verl version on both sides, or set loss_agg_mode=seq-mean-token-mean.",
            "两侧使用同一 verl 版本，或设置 loss_agg_mode=seq-mean-token-mean。",
        ),
        Mechanism(Rung.LOSS, Strength.SEMANTIC),
    ),
    Boundary(
        "verl",
        (0, 7),
        Text(
            "From verl 0.7 on the sampler is torchdata's: with num_workers > 0 one permutation is "
            "discarded before every epoch, so the row order differs from older versions.",
            "verl 0.7 起采样器来自 torchdata：num_workers > 0 时每个 epoch 会先丢弃一个排列，"
            "因此行顺序与旧版本不同。",
        ),
        Text(
            "Use one verl version on both sides, or data.dataloader_num_workers=0.",
            "两侧使用同一 verl 版本，或设置 data.dataloader_num_workers=0。",
        ),
        Mechanism(Rung.DATA, Strength.SEMANTIC),
    ),
    Boundary(
        "tensordict",
        (0, 10),
        Text(
            "tensordict before 0.10.0 copies to the CPU without waiting on NPU: batches can hold "
            "stale values.",
            "tensordict 0.10.0 之前在 NPU 上 .to(cpu) 为非阻塞拷贝，batch 中可能出现未就绪的数据。",
        ),
        Text(
            "Upgrade tensordict to 0.10.0 or later.",
            "将 tensordict 升级到 0.10.0 或更高版本。",
        ),
        Mechanism(Rung.TOKENS, Strength.SEMANTIC),
    ),
)


def boundaries_between(package: str, reference: str, candidate: str) -> Iterator[Boundary]:
    """Yield the boundaries of ``package`` that lie between two versions, in either direction."""
    low, high = sorted((release(reference), release(candidate)))
    if low and high:
        yield from (b for b in BOUNDARIES if b.package == package and low < b.version <= high)


def release(version: str) -> tuple[int, ...]:
    """Return the numeric release of a version, () where there is none ("2.7.1.post1" -> 2, 7, 1).

    A pre-release such as "0.8.0.dev" counts as the release it leads to.
    """
    numbers = []
    for part in version.lstrip("v").split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
