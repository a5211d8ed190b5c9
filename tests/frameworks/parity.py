"""Inputs on which our objective and a framework's must agree, and what agreeing means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch", reason="parity with the frameworks needs torch")

import torch

TOLERANCE = 1e-6  # of max(1, |value|): 8 units in the last place of float32


@dataclass
class Agreement:
    """The greatest difference seen for one function of one package."""

    max_abs: float = 0.0
    max_rel: float = 0.0
    num_inputs: int = 0


@dataclass
class Table:
    """What was compared, for the summary at the end of the run."""

    rows: dict[tuple[str, str], Agreement] = field(default_factory=dict)

    def note(self, package: str, function: str, max_abs: float, max_rel: float) -> None:
        row = self.rows.setdefault((package, function), Agreement())
        row.max_abs = max(row.max_abs, max_abs)
        row.max_rel = max(row.max_rel, max_rel)
        row.num_inputs += 1

    def lines(self) -> Iterator[str]:
        for (package, function), row in sorted(self.rows.items()):
            yield (
                f"{package:13} {function:44} max abs {row.max_abs:.1e}  "
                f"max rel {row.max_rel:.1e}  {row.num_inputs} inputs"
            )


TABLE = Table()


def agree(package: str, function: str, ours, theirs, tolerance: float = TOLERANCE) -> None:
    """Assert equal shape, equal NaN and infinities, and values within the tolerance."""
    ours, theirs = (torch.as_tensor(x, dtype=torch.float64).detach() for x in (ours, theirs))
    assert ours.shape == theirs.shape, f"{function}: shape {ours.shape} against {theirs.shape}"
    ours, theirs = ours.flatten(), theirs.flatten()
    finite = theirs.isfinite()
    same = ours[~finite].nan_to_num(nan=123.0) == theirs[~finite].nan_to_num(nan=123.0)
    assert bool(same.all()), f"{function}: {ours[~finite]} against {theirs[~finite]}"
    difference = (ours[finite] - theirs[finite]).abs()
    relative = difference / theirs[finite].abs().clamp(min=1.0)
    max_abs, max_rel = (float(d.max()) if d.numel() else 0.0 for d in (difference, relative))
    assert max_rel <= tolerance, f"{function}: off by {max_abs} ({max_rel} relative)"
    TABLE.note(package, function, max_abs, max_rel)


def gradient(loss, *inputs):
    """Differentiate a scalar (or the sum of a matrix) by the inputs."""
    return list(torch.autograd.grad(loss.sum(), inputs, materialize_grads=True))


@dataclass(frozen=True)
class Batch:
    """Random float32 [batch, response_len] tensors as the losses take them; mask is int64."""

    name: str
    mask: torch.Tensor
    log_prob: torch.Tensor
    old_log_prob: torch.Tensor
    ref_log_prob: torch.Tensor
    advantages: torch.Tensor
    values: torch.Tensor
    rewards: torch.Tensor

    def leaf(self, name: str = "log_prob"):
        """Give a copy of one tensor that collects a gradient."""
        return getattr(self, name).clone().requires_grad_(True)


def _prefixes(*lengths: int, width: int):
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).long()


def _batch(name: str, mask, seed: int, *, spread: float = 0.3, advantage: float = 1.0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float):
        return torch.randn(mask.shape, generator=generator) * scale

    old = -normal(1.0).abs() - 0.01
    return Batch(
        name=name,
        mask=mask,
        log_prob=old + normal(spread),
        old_log_prob=old,
        ref_log_prob=old + normal(spread),
        advantages=normal(advantage),
        values=normal(1.0),
        rewards=normal(1.0) * mask,
    )


def _batches() -> Iterator[Batch]:
    for seed in range(4):
        yield _batch(f"random{seed}", _prefixes(7, 12, 1, 5, 9, 12, width=12), seed)
    holes = torch.randint(0, 2, (5, 16), generator=torch.Generator().manual_seed(9))
    yield _batch("tool tokens masked", holes, 10)
    yield _batch("empty responses", _prefixes(4, 0, 6, 0, width=8), 11)
    yield _batch("all masked", _prefixes(0, 0, 0, width=5), 12)
    yield _batch("one token", _prefixes(1, width=1), 13)
    yield _batch("one row", _prefixes(6, width=9), 14)
    far = _batch("log ratios to ±40", _prefixes(8, 8, 3, width=8), 15, spread=20.0)
    yield far
    yield _batch("advantages of 0", _prefixes(5, 2, width=6), 16, advantage=0.0)
    same = _batch("on policy", _prefixes(5, 2, width=6), 17, spread=0.0)
    yield same


BATCHES = {batch.name: batch for batch in _batches()}
EVERY_BATCH = pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())

# scores of responses and the prompt each belongs to, ordinary and degenerate
SCORED = {
    "random": ([0.3, -1.2, 2.0, 0.7, 0.1, 0.4], [0, 0, 0, 1, 1, 1]),
    "interleaved": ([0.3, -1.2, 2.0, 0.7, 0.1, 0.4], [0, 1, 0, 1, 0, 1]),
    "uneven groups": ([1.0, 0.0, 1.0, 1.0, 0.0, 0.5], [0, 0, 1, 2, 2, 2]),
    "groups of one": ([0.3, -1.2, 2.0], [0, 1, 2]),
    "equal scores": ([1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1]),
    "equal scores with an inexact mean": ([0.9, 0.9, 0.9], [0, 0, 0]),
    "a NaN score": ([float("nan"), 1.0, 0.0, 1.0], [0, 0, 1, 1]),
    "an infinite score": ([float("inf"), 1.0, 0.0, 1.0], [0, 0, 1, 1]),
    "large scores": ([1e6, 1e6 + 1, -1e6, 3e6], [0, 0, 1, 1]),
}
EVERY_SCORING = pytest.mark.parametrize("scored", SCORED.values(), ids=SCORED.keys())
