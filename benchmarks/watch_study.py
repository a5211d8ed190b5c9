"""How soon `align watch` calls a fall: rewards that wander, and references short and steep.

    nice python -m benchmarks.watch_study [--pairs 150]

The pairs that wander are those of `benchmarks.curve_study`. A short reference rises from 0.05 to
0.6 with a time constant of a sixth of its length and more, sigma 0.02; the candidate falls by
three fifths within 5 steps, at 60 % of the run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from align.core.metric import MetricLog, MetricSeries
from align.curves.pair import pair_logs
from align.watch.sequential import alarms, watched
from benchmarks import curve_study

FloatArray = npt.NDArray[np.float64]
WANDERING = (0.8, 0.9, 0.95)
SHORT = ((40, 8), (60, 10), (60, 20), (100, 15))  # steps and time constant
MOST = 10  # steps after the onset
_COLLAPSE = next(c for c in curve_study.CLASSES if c.name == "collapse within 20 steps")


def alarm_step(reference: MetricLog, candidate: MetricLog) -> int | None:
    """Return the step of the first alarm."""
    pairing = pair_logs(reference, candidate)
    with np.errstate(all="ignore"):
        found = alarms(pairing, watched(pairing), 0)
    return found[0].step if found else None


def wandering(correlation: float, num_pairs: int) -> Iterator[tuple[int | None, int | None]]:
    """Yield (steps from the onset to the alarm, step of an alarm on the clean twin)."""
    for seed in range(num_pairs):
        rng = np.random.default_rng((0, seed, round(100 * correlation)))
        reference, candidate = (curve_study.run(rng, correlation) for _ in range(2))
        logs = curve_study.log_of(reference), curve_study.log_of(candidate)
        clean = alarm_step(*logs)
        _COLLAPSE.plant(candidate, rng)
        called = alarm_step(logs[0], curve_study.log_of(candidate))
        yield None if called is None else called - curve_study.ONSET - 1, clean


def short(
    correlation: float, steps: int, constant: float, num_pairs: int
) -> Iterator[tuple[int | None, int | None]]:
    """Yield the same of short references."""
    time, onset = np.arange(steps), round(0.6 * steps)
    trend = 0.05 + 0.55 * (1 - np.exp(-time / constant))
    fall = 1 - 0.6 * np.clip((time - onset) / 5, 0, 1)
    for seed in range(num_pairs):
        rng = np.random.default_rng((1, seed, steps, round(constant)))
        reference, candidate = (trend + 0.02 * _noise(rng, steps, correlation) for _ in range(2))
        clean = alarm_step(_log(reference), _log(candidate))
        called = alarm_step(_log(reference), _log(candidate * fall))
        yield None if called is None else called - onset - 1, clean


def row(name: str, found: list[tuple[int | None, int | None]]) -> str:
    """Return one line of the table."""
    delays = [delay for delay, _ in found if delay is not None and delay >= 0]
    num, soon = len(found), sum(delay <= MOST for delay in delays)
    cells = (
        name,
        str(num),
        f"{100 * len(delays) / num:.1f} %",
        f"{np.median(delays):.0f}" if delays else "",
        f"{100 * soon / num:.1f} %",
        f"{100 * sum(clean is not None for _, clean in found) / num:.1f} %",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=150)
    num = parser.parse_args().pairs
    print("| fall | pairs | called | median delay, steps | within 10 steps | clean twin alarms |")
    print("| --- " * 6 + "|")
    for correlation in WANDERING:
        name = f"collapse, 500 steps, autocorrelation {correlation}"
        print(row(name, list(wandering(correlation, num))), flush=True)
    for correlation in (0.3, 0.8):
        for steps, constant in SHORT:
            name = f"three fifths, {steps} steps, time constant {constant}"
            name += f", autocorrelation {correlation}"
            print(row(name, list(short(correlation, steps, constant, num))), flush=True)


def _noise(rng: np.random.Generator, num: int, correlation: float) -> FloatArray:
    values: FloatArray = rng.normal(size=num)
    for i in range(1, num):
        values[i] = correlation * values[i - 1] + np.sqrt(1 - correlation**2) * values[i]
    return values


def _log(values: FloatArray) -> MetricLog:
    steps, zeros = np.arange(1, len(values) + 1), np.zeros(len(values))
    name = curve_study.REWARD
    series = MetricSeries(name, name, "study", steps, values, zeros, steps)
    return MetricLog("study", "study", None, (series,))


if __name__ == "__main__":
    main()
