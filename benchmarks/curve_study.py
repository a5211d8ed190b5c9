"""How often curves are called right: clean pairs, and pairs with one planted defect.

    nice python -m benchmarks.curve_study [--pairs 1000] [--write-docs]

Every pair is two runs of 500 steps with five metrics. Noise is autocorrelated (each pair draws its
own first-order autocorrelation between 0 and 0.7, or has the one its row states) and
heteroscedastic (the reward's follows sqrt(p (1 - p)) of a mean of 0/1 rewards, 0.02 at its
largest; sizes scatter in proportion). The defect is planted into the candidate alone. Three judges
see each pair: `align curves diff`, the field's acceptance, and `align watch`.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from align.core.finding import Severity
from align.core.metric import MetricLog, MetricSeries
from align.core.rung import RungResult
from align.curves.criterion import Outcome
from align.curves.curve_class import CurveClass
from align.curves.pair import pair_logs
from align.curves.rung import compare_logs
from align.watch.sequential import alarms, watched

FloatArray = npt.NDArray[np.float64]
Curves = dict[str, FloatArray]  # metric -> [n]
Defect = Callable[[Curves, np.random.Generator], None]

DOCS = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
MARK = re.compile(r"<!-- curve study -->\n.*<!-- curve study: end -->\n", re.DOTALL)
STEPS, SIGMA, ONSET = 500, 0.02, 300
TIME = np.arange(STEPS)
REWARD, LENGTH, ENTROPY, NORM, KL = (
    "critic/score/mean",
    "response_length/mean",
    "actor/entropy",
    "actor/grad_norm",
    "actor/ppo_kl",
)
LEVEL = 0.6
TREND = {
    REWARD: 0.05 + (LEVEL - 0.05) * (1 - np.exp(-TIME / 80)),
    LENGTH: 300 + 80 * TIME / STEPS,
    ENTROPY: 0.15 + 0.35 * np.exp(-TIME / 150),
    NORM: 0.2 + 0.2 * np.exp(-TIME / 60),
    KL: np.zeros(STEPS),
}
KL_SIGMA = 1e-3
CAP = 1024.0
RELATIVE = {LENGTH: 0.03, ENTROPY: 0.05, NORM: 0.15}


def _add(metric: str, change: npt.NDArray[Any]) -> Defect:
    def plant(curves: Curves, rng: np.random.Generator) -> None:
        curves[metric] = curves[metric] + change

    return plant


def _spikes(curves: Curves, rng: np.random.Generator) -> None:
    where = rng.choice(STEPS, 12, replace=False)
    curves[NORM][where] *= 30


def _collapse(curves: Curves, rng: np.random.Generator) -> None:
    share = np.clip((TIME - ONSET) / 20, 0, 1)
    curves[REWARD] = curves[REWARD] * (1 - 0.9 * share)
    curves[LENGTH] = curves[LENGTH] * (1 - 0.9 * share)


def _nan(curves: Curves, rng: np.random.Generator) -> None:
    curves[NORM][ONSET:] = np.nan


def _double(curves: Curves, rng: np.random.Generator) -> None:
    curves[NORM] = 2 * curves[NORM]


def _saturate(curves: Curves, rng: np.random.Generator) -> None:
    curves[LENGTH][ONSET:] = CAP


def _absolute(curves: Curves, rng: np.random.Generator) -> None:
    curves[KL] = np.abs(curves[KL])


@dataclass(frozen=True, slots=True)
class Class:
    """One kind of pair: what is planted, into which metric, and how it reads in the table.

    Args:
        classes: of `CurveClass` that name it.
        between: classes that leave open which of several it is, the planted one among them.
        permutes: the candidate's values are the reference's in another order.
        correlation: of all pairs; None where each draws its own.
    """

    name: str
    metric: str
    plant: Defect
    classes: tuple[CurveClass, ...]
    between: tuple[CurveClass, ...] = ()
    permutes: bool = False
    correlation: float | None = None


CLASSES = (
    Class("clean", "", lambda curves, rng: None, ()),
    Class(
        "offset of 4 % of the reward",
        REWARD,
        _add(REWARD, np.full(STEPS, -0.04 * LEVEL)),
        (CurveClass.OFFSET,),
        (CurveClass.SHIFT,),
    ),
    Class(
        "drift of the reward to 5 %",
        REWARD,
        _add(REWARD, -0.05 * LEVEL * np.clip((TIME - 200) / 150, 0, 1)),
        (CurveClass.DRIFT,),
        (CurveClass.STEP_OR_DRIFT, CurveClass.SHIFT),
    ),
    Class(
        "step of 8 % at step 300",
        REWARD,
        _add(REWARD, -0.08 * LEVEL * (TIME >= ONSET)),
        (CurveClass.STEP,),
        (CurveClass.STEP_OR_DRIFT,),
    ),
    Class("collapse within 20 steps", REWARD, _collapse, (CurveClass.COLLAPSE,)),
    Class("gradient norm twice as large", NORM, _double, (CurveClass.CONSTANT_RATIO,)),
    Class("spikes of the gradient norm", NORM, _spikes, (CurveClass.SPIKES,)),
    Class("NaN from step 300 on", NORM, _nan, (CurveClass.NONFINITE,)),
    Class("length stuck from step 300 on", LENGTH, _saturate, (CurveClass.SATURATION,)),
    Class("absolute value of the KL", KL, _absolute, (CurveClass.DEFINITION,)),
    Class(
        "rewards in another order",
        REWARD,
        lambda c, rng: None,
        (CurveClass.PERMUTATION,),
        permutes=True,
    ),
    Class("clean, autocorrelation 0.8", "", lambda curves, rng: None, (), correlation=0.8),
    Class(
        "collapse within 20 steps, autocorrelation 0.8",
        REWARD,
        _collapse,
        (CurveClass.COLLAPSE,),
        correlation=0.8,
    ),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the judges said of one pair."""

    named: bool  # curves: a finding about the planted metric; on clean pairs, about any
    classed: bool  # curves: the planted class; on clean pairs, any class that is apart
    open: bool  # curves: a class that leaves it open, the planted one among others
    error: bool  # curves: an error
    failed: bool  # acceptance
    passed: bool
    alarm: int | None  # watch: step


def noise(rng: np.random.Generator, correlation: float) -> FloatArray:
    """Return first-order autoregressive noise [STEPS] of unit variance."""
    values: FloatArray = rng.normal(size=STEPS)
    fresh = np.sqrt(1 - correlation**2)
    for i in range(1, STEPS):
        values[i] = correlation * values[i - 1] + fresh * values[i]
    return values


def run(rng: np.random.Generator, correlation: float) -> Curves:
    """Draw one run."""
    curves = {}
    for name, trend in TREND.items():
        if name == REWARD:
            sigma = SIGMA * np.sqrt(trend * (1 - trend)) / 0.5
            curves[name] = trend + sigma * noise(rng, correlation)
        elif name == KL:
            curves[name] = KL_SIGMA * noise(rng, correlation)
        else:
            curves[name] = trend * np.exp(RELATIVE[name] * noise(rng, correlation))
    return curves


def log_of(curves: Mapping[str, FloatArray]) -> MetricLog:
    """Return curves as a metric log, with a reward scale of 0 to 1."""
    steps, zeros = np.arange(1, STEPS + 1), np.zeros(STEPS)
    return MetricLog(
        "study",
        "study",
        None,
        tuple(
            MetricSeries(name, name, "study", steps, values, zeros, steps)
            for name, values in curves.items()
        ),
    )


def look(reference: Curves, candidate: Curves, kind: Class) -> Seen:
    """Let all three judge one pair."""
    planted = kind.metric
    logs = log_of(reference), log_of(candidate)
    result = compare_logs(*logs)
    weighty = [f for f in result.findings if f.symptom is not None]
    about = [f for f in weighty if not planted or (f.symptom and f.symptom.metric == planted)]
    about += [f for f in result.findings if planted and planted.replace("/", ".") in f.id]
    pairing = pair_logs(*logs)
    outcomes = acceptance_outcomes(result)
    with np.errstate(all="ignore"):
        found = alarms(pairing, watched(pairing), 0)
    return Seen(
        named=bool(about),
        classed=is_classed(result, kind.metric, kind.classes),
        open=bool(kind.metric) and is_classed(result, kind.metric, kind.between),
        error=any(f.severity is Severity.ERROR for f in result.findings),
        failed=Outcome.FAIL.value in outcomes,
        passed=outcomes == {Outcome.PASS.value},
        alarm=found[0].step if found else None,
    )


def is_classed(result: RungResult, metric: str, classes: Collection[CurveClass]) -> bool:
    """Tell whether the table of metrics gives a metric one of these classes.

    Without a metric: whether it gives any metric a class that is apart.
    """
    table = next(table for table in result.tables if table.id == "curves.metrics")
    at = [column.key for column in table.columns].index("class")
    told = {str(row[0]): str(row[at]) for row in table.rows}
    if not metric:
        apart = {str(c.words) for c in CurveClass if c.is_apart}
        return any(words in apart for words in told.values())
    return told[metric] in {str(c.words) for c in classes}


def acceptance_outcomes(result: RungResult) -> set[str]:
    """Read the outcomes off the table the rung shows."""
    table = next(table for table in result.tables if table.id == "curves.acceptance")
    at = [column.key for column in table.columns].index("outcome")
    return {str(row[at]) for row in table.rows}


def one(number: int, seed: int) -> Seen:
    """Draw and judge one pair of a class, given by its number."""
    kind = CLASSES[number]
    rng = np.random.default_rng((number, seed))
    drawn = float(rng.uniform(0, 0.7))
    correlation = drawn if kind.correlation is None else kind.correlation
    reference, candidate = run(rng, correlation), run(rng, correlation)
    kind.plant(candidate, rng)
    if kind.permutes:
        candidate[kind.metric] = rng.permutation(reference[kind.metric])
    return look(reference, candidate, kind)


def study(kind: Class, num_pairs: int, pool: Pool) -> list[Seen]:
    """Judge so many seeded pairs of one class."""
    number = CLASSES.index(kind)
    return pool.starmap(one, [(number, seed) for seed in range(num_pairs)], chunksize=10)


def row(kind: Class, seen: list[Seen]) -> str:
    """Return one line of the table."""
    num = len(seen)

    def share(count: int) -> str:
        return f"{100 * count / num:.1f} %"

    delays = [s.alarm - ONSET - 1 for s in seen if s.alarm is not None]
    watch = share(len(delays))
    if kind.name.startswith(("collapse", "step", "NaN")) and delays:
        watch += f", median {np.median(delays):.0f} steps after the onset"
        watch += f", {np.quantile(delays, 0.95):.0f} at most in 95 of 100"
        watch += f", more than 10 in {share(num - sum(0 <= d <= 10 for d in delays))}"
    cells = (
        kind.name,
        str(num),
        share(sum(s.named for s in seen)),
        share(sum(s.classed for s in seen)),
        share(sum(s.open for s in seen)) if kind.between else "",
        share(sum(s.error for s in seen)),
        share(sum(s.failed for s in seen)),
        share(sum(s.passed for s in seen)),
        watch,
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run the study and print, or write, its table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help="classes that begin like this")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    head = (
        "planted",
        "pairs",
        "curves: named",
        "curves: class",
        "curves: class left open",
        "curves: error",
        "acceptance fails",
        "acceptance passes",
        "watch: alarm",
    )
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    pool = multiprocessing.Pool(options.workers)
    for kind in CLASSES:
        if kind.name.startswith(options.only or ""):
            lines.append(row(kind, study(kind, options.pairs, pool)))
            print(lines[-1], flush=True)
    if options.write_docs:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        today = datetime.datetime.now(tz=datetime.timezone.utc).date()
        note = (
            f"Measured {today} at commit {commit}: "
            "`python -m benchmarks.curve_study --write-docs`.\n\n"
        )
        table = "\n".join(lines)
        block = f"<!-- curve study -->\n{note}{table}\n<!-- curve study: end -->\n"
        DOCS.write_text(MARK.sub(lambda _: block, DOCS.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
