"""Find what two msprobe dumps disagree about first, in the order of computation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from align.core.threshold import Threshold
from align.layers.floor import ACCUMULATED, GROWTH, UNIT_ROUNDOFF
from align.layers.msprobe_compare import ComparedTensor, Method, Step
from align.layers.msprobe_pair import EntryPair
from dumps.readers.msprobe_keys import Direction

_NEIGHBOURS = 3
_SAME_WEIGHTS = 4
_NOT_NUMERIC = ("torch.device", "torch.memory_format", "torch.ProcessGroup", "torch.dtype")


class Kind(Enum):
    """What a departure is."""

    INPUTS = "inputs"  # other token ids, positions or masks
    WEIGHTS = "weights"
    ARGUMENT = "argument"  # an argument that is no tensor
    SHAPE = "shape"
    BITS = "bits"  # a digest, which cannot say by how much
    ERROR = "error"


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """The first thing that rounding does not explain.

    Args:
        tensor: None for an argument.
        values: of the argument, on both sides.
        argument: its place.
        before: largest error before it.
        limit: what explains an error here.
    """

    kind: Kind
    pair: EntryPair
    tensor: ComparedTensor | None = None
    values: tuple[str, str] = ("", "")
    argument: tuple[str, ...] = ()
    before: float = 0.0
    limit: Threshold = field(default_factory=lambda: Threshold(0.0, "equal bits"))


@dataclass(frozen=True, slots=True, eq=False)
class DumpWalk:
    """The tensors of one direction, in order.

    Args:
        dtype: the first tensor held in another dtype, with an error that this explains.
        departure: None where everything agrees.
        worst: the largest error of all.
        num_equal: tensors equal bit for bit, as far as whole tensors or digests show.
    """

    tensors: Sequence[ComparedTensor]
    departure: Departure | None
    dtype: ComparedTensor | None
    worst: float
    num_equal: int

    def around(self, tensor: ComparedTensor) -> Sequence[ComparedTensor]:
        """Return the tensors just before and after one, itself included."""
        at = next(i for i, other in enumerate(self.tensors) if other is tensor)
        return self.tensors[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS + 1]


def walk_dumps(steps: Iterable[Step], *, backward: bool = False, before: float = 0.0) -> DumpWalk:
    """Go through the forward, or the backward entries, to the first departure.

    Args:
        before: largest error of what the first entry is computed from.
    """
    taken = [(p, t) for p, t in steps if (p.direction is not Direction.FORWARD) == backward]
    tensors = [tensor for _, both in taken for tensor in both]
    departure = next(_departures(taken, before), None)
    finite = [t.relative for t in tensors if math.isfinite(t.relative)]
    return DumpWalk(
        tensors,
        departure,
        next((t for t in tensors if _is_dtype(t)), None),
        max(finite, default=0.0),
        sum(_is_equal(tensor) for tensor in tensors),
    )


def differing_parameters(tensors: Iterable[ComparedTensor]) -> tuple[int, int]:
    """Count the parameters that differ, and all of them."""
    parameters = {(t.pair.name, t.reference.place): t for t in tensors if t.is_parameter}
    return sum(_is_other_weight(t) for t in parameters.values()), len(parameters)


def _departures(steps: Sequence[Step], before: float) -> Iterator[Departure]:
    seen: set[int] = set()
    worst, has_floats = before, False
    for pair, tensors in steps:
        if id(pair) not in seen:
            seen.add(id(pair))
            yield from _other_arguments(pair, worst)
        for tensor in tensors:
            found = _departure(tensor, worst, has_floats)
            if found is not None:
                yield found
            if not tensor.is_parameter and not tensor.is_integer:
                has_floats = True
                if math.isfinite(tensor.relative):
                    worst = max(worst, tensor.relative)


def _departure(tensor: ComparedTensor, worst: float, has_floats: bool) -> Departure | None:
    pair = tensor.pair
    if not tensor.same_shape:
        return Departure(Kind.SHAPE, pair, tensor, before=worst)
    if tensor.is_parameter:
        return Departure(Kind.WEIGHTS, pair, tensor) if _is_other_weight(tensor) else None
    if tensor.is_integer:
        # an index chosen by rounded scores may differ once anything does
        explained = worst > 0 or tensor.relative == 0
        kind = Kind.ERROR if has_floats else Kind.INPUTS
        return None if explained else Departure(kind, pair, tensor, limit=tensor.limit)
    inherited = GROWTH.value * worst
    limit = tensor.limit
    if inherited > limit.value:
        limit = Threshold(inherited, _INHERITED)
    if tensor.relative <= limit.value:
        return None
    kind = Kind.BITS if tensor.method is Method.DIGEST else Kind.ERROR
    if kind is Kind.ERROR and _is_lookup(tensor):
        kind = Kind.INPUTS
    return Departure(kind, pair, tensor, before=worst, limit=limit)


def _is_lookup(tensor: ComparedTensor) -> bool:
    """Tell an embedding's output: equal ids look equal weights up bit for bit."""
    name = tensor.pair.name.rsplit(".", 1)[-1]
    is_embedding = "embed" in name.lower() or "embedding" in tensor.pair.reference.key.name.lower()
    whole = [t.dtype for t in tensor.pair.reference.tensors if t.place[0] in ("input", "kwargs")]
    same_dtype = tensor.reference.dtype == tensor.candidate.dtype
    integers = any(d.startswith("int") for d in whole)
    return is_embedding and integers and same_dtype and not tensor.enters


def _is_other_weight(tensor: ComparedTensor) -> bool:
    if not tensor.same_shape:
        return True
    if tensor.reference.dtype != tensor.candidate.dtype:
        units = (UNIT_ROUNDOFF.get(t.dtype, 0.0) for t in (tensor.reference, tensor.candidate))
        return tensor.relative > _SAME_WEIGHTS * max(units)
    # sums of the same numbers may be rounded differently by two devices
    return tensor.relative > (ACCUMULATED if tensor.method is Method.STATISTICS else 0.0)


def _is_dtype(tensor: ComparedTensor) -> bool:
    """Tell whether another dtype makes an error that the finer one would not."""
    dtypes = tensor.reference.dtype, tensor.candidate.dtype
    if dtypes[0] == dtypes[1] or any(name not in UNIT_ROUNDOFF for name in dtypes):
        return False
    return UNIT_ROUNDOFF[dtypes[0]] != UNIT_ROUNDOFF[dtypes[1]]


def _is_equal(tensor: ComparedTensor) -> bool:
    if tensor.method is Method.STATISTICS:
        return False
    return tensor.relative == 0 and (tensor.exact is None or tensor.exact.is_equal)


def _other_arguments(pair: EntryPair, worst: float) -> Iterator[Departure]:
    theirs = {value.place: value for value in pair.candidate.values}
    for own in pair.reference.values:
        other = theirs.get(own.place)
        if other is None or own.type in _NOT_NUMERIC or own.value == other.value:
            continue
        yield Departure(
            Kind.ARGUMENT, pair, None, (own.value, other.value), own.place, before=worst
        )


_INHERITED = f"{GROWTH.value:g} times the largest error before it: {GROWTH.source}"
