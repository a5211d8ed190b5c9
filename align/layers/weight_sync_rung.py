"""Weight sync rung: does each run's rollout engine hold the weights its own trainer has?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from align.core.finding import Severity, Side
from align.core.recording import missing_artifact
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.layers.captured import Address, CapturedStep, added, captured_steps
from align.layers.floor import CONFIDENCE, SKETCH, UNIT_ROUNDOFF
from align.layers.measure import difference
from align.layers.pattern import is_scaled, same_values
from align.layers.weight_sync_findings import Broken, Sync, finding
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase, TensorRecord

Weights = Mapping[Address, TensorRecord]

_ONE_FACTOR = 0.02
_SEVERAL = 3
_ONE_ROUNDING = 0.25, 0.65  # of the unit roundoff: the L2 norm of many roundings is 0.43 of it
_MOVED = 1e-3  # statistics agree up to 1e-5, as those of weights that are off by so little do

# Projections that engines hold as one tensor.
_FUSED = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


def compare(reference: RunData, candidate: RunData) -> RungResult:
    """Compare each engine's weights with its own trainer's."""
    steps = {
        Side.REFERENCE: captured_steps(reference),
        Side.CANDIDATE: captured_steps(candidate),
    }
    lacking = [side.value for side, each in steps.items() if not _recorded(each)]
    if lacking:
        return _missing(lacking)
    broken = {side: found for side, each in steps.items() if (found := check(each)) is not None}
    severity = Severity.INFO if len(broken) > 1 else Severity.ERROR
    findings = tuple(finding(side, each, severity) for side, each in broken.items())
    if findings:
        title = findings[0].title
        status = RungStatus.UNDECIDED if len(broken) > 1 else RungStatus.DIVERGED
        summary = Text(f"{title.en[:1].upper()}{title.en[1:]}.", f"{title.zh}。")
        return RungResult(Rung.WEIGHT_SYNC, status, summary, findings)
    counts = [len(_recorded(each)) for each in steps.values()]
    return RungResult(
        Rung.WEIGHT_SYNC,
        RungStatus.ALIGNED,
        Text(
            "Both rollout engines hold their trainer's weights after every recorded sync "
            f"({counts[0]} and {counts[1]} steps).",
            "两侧推理引擎在每次已记录的同步之后都持有训练侧的权重"
            f"（{counts[0]} 步与 {counts[1]} 步）。",
        ),
    )


def check(steps: Mapping[int, CapturedStep]) -> Broken | None:
    """Find the first step whose engine weights differ, and what they are."""
    recorded = _recorded(steps)
    found = [each for step in recorded if (each := _differing(recorded, step)) is not None]
    if not found:
        return None
    held = [each for each in found if each.of_step is not None]
    if not held:
        return found[0]
    start = min(recorded)
    late = [each for each in held if each.step > start + 1]
    never = all(
        _holds(recorded[each.step].of(Phase.ENGINE), recorded[start], each.names) for each in found
    )
    if late and never:
        return replace(late[-1], kind=Sync.NOT_SYNCED, of_step=start)
    return replace((late or held)[0], kind=Sync.STALE)


def _recorded(steps: Mapping[int, CapturedStep]) -> dict[int, CapturedStep]:
    return {
        number: step
        for number, step in steps.items()
        if step.of(Phase.PARAMETER) and step.of(Phase.ENGINE)
    }


def _differing(steps: Mapping[int, CapturedStep], number: int) -> Broken | None:
    step = steps[number]
    engine, trainer = step.of(Phase.ENGINE), given(step)
    errors = _errors(engine, trainer)
    absent = _absent(engine, trainer)
    wrong = tuple(name for name, error in errors.items() if error > 0)
    if not wrong and not absent:
        return None
    earlier = [n for n in steps if n < number]
    held = next((n for n in reversed(earlier) if wrong and _holds(engine, steps[n], wrong)), None)
    kind, factor = Sync.OTHER, None
    if absent:
        kind, held = Sync.MISSING, None
    elif held is None and _moved(errors, wrong) and are_permuted(engine, trainer, wrong):
        kind = Sync.PERMUTED
    elif held is None and (factor := _factor(step, wrong)) is not None:
        kind = Sync.SCALED
    elif held is None and _are_rounded(errors, wrong):
        kind = Sync.ROUNDED
    return Broken(
        kind=kind,
        step=number,
        source=step.source,
        names=absent or wrong,
        error=1.0 if absent else max(errors.values()),
        num_compared=len(trainer) if absent else len(errors),
        of_step=held,
        factor=factor,
    )


def given(step: CapturedStep) -> Weights:
    """Return what the engine should hold: the trainer's weights, rounded to the engine's dtype
    where they were recorded so; then a sync that is late by one small update shows in bfloat16 too.
    """
    engine, rounded = step.of(Phase.ENGINE), step.of(Phase.SENT)
    return {
        address: rounded[address]
        if address in rounded
        and address in engine
        and rounded[address].dtype == engine[address].dtype
        else record
        for address, record in step.of(Phase.PARAMETER).items()
    }


def _holds(engine: Weights, step: CapturedStep, names: Sequence[str]) -> bool:
    """Tell whether some of an engine's tensors are those that the trainer had at a step."""
    own = {address: engine[address] for address in engine if address[0] in names}
    past = replace(step, records={**step.records, Phase.ENGINE: own})
    return not any(_errors(own, given(past)).values())


def _errors(engine: Weights, trainer: Weights) -> dict[str, float]:
    """Return the error of each parameter beyond the rounding of its dtype and of sketches."""
    errors = {}
    for address in (each for each in trainer if each in engine):
        own, other = trainer[address], engine[address]
        found = difference(own, other).relative if own.digest == other.digest else math.inf
        narrow = own.dtype != other.dtype
        unit = CONFIDENCE * UNIT_ROUNDOFF.get(other.dtype, SKETCH) if narrow else 0.0
        allowed = max(unit, SKETCH)  # shards of one tensor are summed in another order
        errors[address[0]] = found if found > allowed else 0.0
    return errors


def _absent(engine: Weights, trainer: Weights) -> tuple[str, ...]:
    """Return the parameters that the engine lacks in whole or in part; a tied one is there once."""
    found = []
    for (name, update), own in trainer.items():
        other = engine.get((name, update))
        if other is None:
            tied = any(
                own.digest == twin.digest and difference(own, twin).relative <= SKETCH
                for key, twin in trainer.items()
                if key in engine
            )
            found += [] if tied else [name]
        elif other.num_elements < own.num_elements:
            found.append(name)
    return tuple(found)


def _factor(step: CapturedStep, names: Sequence[str]) -> float | None:
    """Return the one factor by which every differing tensor is off, None where there is none."""
    engine, trainer = step.of(Phase.ENGINE), step.of(Phase.PARAMETER)
    found = [difference(trainer[(name, 0)], engine[(name, 0)]) for name in names]
    gains = [each.gain for each in found]
    alike = max(gains) - min(gains) <= _ONE_FACTOR * abs(gains[0])
    return gains[0] if alike and all(map(is_scaled, found)) else None


def _are_rounded(errors: Mapping[str, float], names: Sequence[str]) -> bool:
    """Tell whether every error is as large as one rounding to 16 bits makes it."""
    least, most = _ONE_ROUNDING
    return len(names) >= _SEVERAL and any(
        all(least <= errors[name] / UNIT_ROUNDOFF[dtype] <= most for name in names)
        for dtype in ("bfloat16", "float16")
    )


def _moved(errors: Mapping[str, float], names: Iterable[str]) -> bool:
    """Tell whether errors are as large as another order makes them."""
    return all(errors[name] > _MOVED for name in names)


def are_permuted(engine: Weights, trainer: Weights, names: Iterable[str]) -> bool:
    """Tell whether differing tensors, fused as engines fuse them, hold the same values."""
    groups = {_group(name) for name in names}
    return all(_same_group(engine, trainer, group) for group in groups)


def _group(name: str) -> tuple[str, ...]:
    for fused in _FUSED:
        for part in fused:
            if f".{part}." in name:
                return tuple(name.replace(f".{part}.", f".{each}.") for each in fused)
    return (name,)


def _same_group(engine: Weights, trainer: Weights, group: Sequence[str]) -> bool:
    parts = [
        [weights[(name, 0)] for name in group if (name, 0) in weights]
        for weights in (trainer, engine)
    ]
    if not all(parts):
        return False
    own, other = (reduce(added, each) for each in parts)
    return same_values(own, other)


def _missing(lacking: Sequence[str]) -> RungResult:
    side = "both" if len(lacking) > 1 else lacking[0]
    missing = missing_artifact(Rung.WEIGHT_SYNC, side)
    return RungResult(
        Rung.WEIGHT_SYNC,
        RungStatus.MISSING,
        Text(f"Not compared: needs {missing.artifact.en}.", f"未比较：需要{missing.artifact.zh}。"),
        missing=(missing,),
    )
