"""A candidate's modules run alone on what the reference recorded: errors that nothing piled up."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from align.core.text import Text
from align.core.threshold import Threshold
from align.layers.exact import ExactDifference, Values, exact_difference
from align.layers.floor import ACCUMULATED, UNIT_ROUNDOFF, coarsest, rounding_floor
from align.layers.isolate_inputs import (
    TAKES_INPUT,
    Beside,
    inputs_beside,
    takes_one,
    whole_sequences,
)
from align.layers.tensors_pair import Whole, whole_tensors
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64 = npt.NDArray[np.int64]

OWN_ERRORS = 4.0
"""How many of its own errors against float64 a module may be away from the reference."""

NO_MODULE = Text("the model has no module of this name", "模型中没有这个名字的模块")
NOT_RECORDED = Text(
    "its input or its output is not recorded as rows of tokens", "未按 token 逐行记录其输入或输出"
)
OTHER_ROWS = Text("input and output were recorded of other tokens", "输入与输出记录的 token 不同")
NOT_FLOATING = Text("its input holds no floating numbers", "输入不是浮点数")
MANY_INPUTS = Text("its forward takes inputs that are not recorded", "forward 需要未记录的其他输入")
NOT_WHOLE = Text("its sequences are not recorded whole", "其序列未完整记录")
NO_TENSOR = Text("its output is not one tensor of this width", "输出不是同宽度的单个张量")
NOT_RUN = Text("it cannot run on this input", "无法在该输入上运行")


@dataclass(frozen=True, slots=True)
class Isolated:
    """A module's output held against the reference's, or its input's gradient against float64.

    Args:
        phase: forward or backward.
        dtype: that it ran in.
        rows: tokens.
        difference: from the recorded output, or from the float64 copy's gradient.
        width: features of what is compared, by which its flat places are read.
        own_error: relative, of the module on this device against its float64 copy.
        model: largest relative error that rounding explains.
        inside: a module within it that is beyond its own limit; empty where there is none.
    """

    name: str
    phase: str
    dtype: str
    rows: int
    difference: ExactDifference
    width: int
    own_error: float
    floor: Threshold
    model: Threshold
    inside: str = ""

    @property
    def is_beyond(self) -> bool:
        """Whether the error is larger than its floor, or either is not a number."""
        return not self.difference.relative <= self.floor.value

    @property
    def place(self) -> tuple[int, int] | None:
        """Row and feature of the largest difference; None where there is none."""
        at = self.difference.not_finite_at
        at = at if at >= 0 else self.difference.max_abs_at
        return divmod(at, self.width) if at >= 0 else None

    @property
    def is_imprecise(self) -> bool:
        """Whether this device itself is further from float64 than rounding explains."""
        return not self.own_error <= self.model.value


@dataclass(frozen=True, slots=True)
class NotIsolated:
    """A recorded module that was not run, and why."""

    name: str
    why: Text


@dataclass(frozen=True, slots=True)
class Isolation:
    """Every recorded module, run or not."""

    step: int | None
    modules: tuple[Isolated, ...] = ()
    others: tuple[NotIsolated, ...] = ()

    @property
    def beyond(self) -> tuple[Isolated, ...]:
        """The innermost modules beyond their floor."""
        return tuple(found for found in self.modules if found.is_beyond and not found.inside)


def isolate(
    run: RunData,
    model: nn.Module,
    *,
    patterns: Sequence[str] = (),
    step: int | None = None,
    dtype: str | None = None,
    device: str = "cpu",
) -> Isolation:
    """Run each module of which a step's input and output are recorded.

    Only the first optimizer step within the training step is looked at, whose weights are those
    that the step began with.

    Args:
        patterns: shell patterns of module names; all where empty.
        step: the first recorded one where None.
        dtype: to run in; that of the recorded input where None.
        device: torch's name of where modules run; their float64 copies run on the CPU.
    """
    steps = sorted({file.step for file in run.tensor_files})
    step = step if step is not None else next(iter(steps), None)
    if step is None:
        return Isolation(None)
    known = whole_tensors(run, step)
    found: list[Isolated] = []
    others = []
    for name in dict.fromkeys(name for name, _, update in known if not update):
        if patterns and not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        kinds = (Phase.INPUT, Phase.FORWARD, Phase.GRADIENT)
        three = [known.get((name, kind, 0)) for kind in kinds]
        if three[0] is None:
            inside = (known.get((f"{name}.{own}", Phase.INPUT, 0)) for own in TAKES_INPUT)
            three[0] = next((given for given in inside if given is not None), None)
        result = _isolated(name, model, three, dtype, device)
        if isinstance(result, Text):
            others.append(NotIsolated(name, result))
        else:
            found += result
    return Isolation(step, tuple(_with_inside(found)), tuple(others))


def _isolated(
    name: str, model: nn.Module, three: Sequence[Whole | None], dtype: str | None, device: str
) -> list[Isolated] | Text:
    """Run a module forward and, where its output's gradient is recorded, backward."""
    given, expected, gradient = three
    module = dict(model.named_modules()).get(name)
    if module is None:
        return NO_MODULE
    is_simple = takes_one(module)
    beside = None if is_simple else inputs_beside(module, model)
    if beside is None and not is_simple:
        return MANY_INPUTS
    if given is None or expected is None:
        return NOT_RECORDED
    if not np.array_equal(given.tokens, expected.tokens) or given.first_feature:
        return OTHER_ROWS
    if given.values.dtype not in UNIT_ROUNDOFF:
        return NOT_FLOATING
    if gradient is not None and not np.array_equal(given.tokens, gradient.tokens):
        gradient = None
    sequences = whole_sequences(given.tokens) if beside else [np.arange(len(given.tokens[0]))]
    if sequences is None:
        return NOT_WHOLE
    kind = dtype or given.values.dtype
    rows = _tensor(given.values)
    slope = None if gradient is None else _tensor(gradient.values)
    rounded = copy.deepcopy(module).to(getattr(torch, kind))
    exact = copy.deepcopy(rounded).double()
    start = rows.to(getattr(torch, kind))
    try:
        ours = _passed(rounded.to(device), start.to(device), slope, sequences, beside)
        theirs = _passed(exact, start.double(), slope, sequences, beside)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return NOT_RUN
    if ours is None or theirs is None or ours[0].shape != expected.values.raw.shape:
        return NO_TENSOR
    terms = max([rows.shape[1], *(weight.shape[-1] for weight in module.parameters())])
    coarse = coarsest((kind, expected.values.dtype))
    model_limit = rounding_floor(coarse, 1, terms)
    # a gradient comes through what is inside twice, forward and back
    back_limit = rounding_floor(coarse, 2, terms) if any(module.children()) else model_limit
    own = exact_difference(_values(theirs[0]), _values(ours[0])).relative
    results = [
        Isolated(
            name,
            "forward",
            kind,
            len(rows),
            exact_difference(expected.values, _values(ours[0])),
            expected.values.raw.shape[1],
            own,
            _floor(own, coarse, model_limit, device),
            model_limit,
        )
    ]
    if ours[1] is not None and theirs[1] is not None:
        apart = exact_difference(_values(theirs[1]), _values(ours[1]))
        wide = rows.shape[1]
        results.append(
            Isolated(
                name,
                "backward",
                kind,
                len(rows),
                apart,
                wide,
                apart.relative,
                back_limit,
                back_limit,
            )
        )
    return results


def _floor(own: float, dtype: str, model: Threshold, device: str) -> Threshold:
    """Return how far from the reference a module may be.

    Never above the model of rounding: a device that computes wrongly must not excuse itself.
    """
    measured = max(OWN_ERRORS * own, UNIT_ROUNDOFF[dtype], OWN_ERRORS * ACCUMULATED)
    if not measured <= model.value:
        return model
    return Threshold(
        measured,
        f"{OWN_ERRORS:g} times the module's own error against its float64 copy, measured on "
        f"{device}; at least one rounding to {dtype}, and four to float32, in which norms compute "
        "even in that copy",
    )


def _passed(
    module: nn.Module,
    rows: Tensor,
    slope: Tensor | None,
    sequences: Sequence[Int64],
    beside: Beside | None,
) -> tuple[Tensor, Tensor | None] | None:
    """Return output and input gradient of rows [n, h]; None for other outputs.

    Args:
        sequences: rows that are given together, as [1, t, h].
    """
    given = rows.detach().clone().requires_grad_()
    parts = []
    for numbers in sequences:
        hidden = given[torch.from_numpy(numbers).to(given.device)][None]
        output: Any = module(hidden, **beside(hidden)) if beside else module(hidden)
        first = output[0] if isinstance(output, tuple) else output
        if not isinstance(first, Tensor) or first.ndim != 3:
            return None
        parts.append(first[0])
    order = torch.from_numpy(np.argsort(np.concatenate(sequences))).to(given.device)
    output = torch.cat(parts)[order]
    if slope is None or slope.shape != output.shape:
        return output.detach(), None
    (gradient,) = torch.autograd.grad(output, given, slope.to(output))
    return output.detach(), gradient


def _tensor(values: Values) -> Tensor:
    raw = np.array(values.raw)
    if values.dtype == "bfloat16":
        return torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(raw)


def _values(tensor: Tensor) -> Values:
    own = tensor.detach().cpu().contiguous()
    name = str(own.dtype).removeprefix("torch.")
    if own.dtype is torch.bfloat16:
        return Values(name, own.view(torch.int16).numpy().view(np.uint16))
    return Values(name, own.numpy())


def _with_inside(found: Iterable[Isolated]) -> list[Isolated]:
    """Say of each module beyond its floor which module within it is, too."""
    every = list(found)
    beyond = [one for one in every if one.is_beyond]
    return [replace(one, inside=_within(one, beyond)) if one.is_beyond else one for one in every]


def _within(outer: Isolated, beyond: Iterable[Isolated]) -> str:
    names = [one.name for one in beyond if one.phase == outer.phase]
    return next((name for name in names if name.startswith(f"{outer.name}.")), "")
