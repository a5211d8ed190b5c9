"""A judgement as a document that can be signed: inputs, policy, formulas, results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from align import __version__
from align.acceptance.judgement import Judgement, Result
from align.acceptance.read_inputs import Input
from align.acceptance.words import (
    decision_sentence,
    formula_name,
    noise_sentence,
    outcome_name,
    power_sentence,
)
from align.core.document import run_to_json, scalar_to_json
from align.core.figure import Curve, CurvePair
from align.core.text import Text
from align.curves.bootstrap import CONFIDENCE, NUM_RESAMPLES, SEED
from align.curves.pair import PairedMetric
from align.curves.smooth import smooth, window_for

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Certificate:
    """A judgement and what it rests on; ``curve`` is what was judged first, to draw."""

    judgement: Judgement
    inputs: tuple[Input, ...]
    curve: CurvePair | None


def certify(judgement: Judgement, inputs: Sequence[Input]) -> Certificate:
    """Put a judgement and its inputs together."""
    judged = judgement.judged
    return Certificate(judgement, tuple(inputs), None if judged is None else _curve(judged))


def as_document(certificate: Certificate) -> dict[str, Any]:
    """Return the certificate as JSON-ready values with a fixed key order."""
    judgement, policy = certificate.judgement, certificate.judgement.policy
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "acceptance certificate",
        "made_by": f"npu-align {__version__}",
        "outcome": judgement.outcome.value,
        **_texts(
            sentence=decision_sentence(judgement),
            power=power_sentence(judgement),
            noise_floor=noise_sentence(judgement),
        ),
        "policy": {
            "name": policy.name,
            "sha256": policy.sha256,
            "source": policy.source,
            "text": policy.text,
        },
        "statistics": {
            "confidence": CONFIDENCE,
            "bootstrap_resamples": NUM_RESAMPLES,
            "bootstrap_seed": SEED,
            "num_repeats": judgement.num_repeats,
        },
        "curve": None if certificate.curve is None else _drawn(certificate.curve),
        "results": [_result(result) for result in judgement.results],
        "inputs": [_input(given) for given in certificate.inputs],
    }


def _result(result: Result) -> dict[str, Any]:
    c = result.criterion
    return {
        "formula": c.name,
        "subject": c.subject,
        "task": result.task,
        "outcome": c.outcome.value,
        "reference": scalar_to_json(c.reference),
        "candidate": scalar_to_json(c.candidate),
        "error": scalar_to_json(c.error),
        "low": scalar_to_json(c.low),
        "high": scalar_to_json(c.high),
        "limit": scalar_to_json(c.limit.value),
        "limit_source": c.limit.source,
        "denominator": scalar_to_json(c.scale),
        "num_steps": c.num_steps,
        "detectable": scalar_to_json(c.detectable),
        "noise_floor": scalar_to_json(result.floor),
        **_texts(
            name=formula_name(c.name),
            outcome_text=outcome_name(c.outcome),
            description=c.formula,
            remark=result.remark or Text("", ""),
        ),
    }


def _input(given: Input) -> dict[str, Any]:
    return {
        "role": given.role,
        **run_to_json(given.summary),
        "seeds": dict(given.seeds),
        "files": [
            {"path": f.path, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in given.files
        ],
    }


def _drawn(pair: CurvePair) -> dict[str, Any]:
    return {
        "metric": pair.metric,
        "window": pair.window,
        "steps": list(pair.reference.steps),
        **{
            f"{side}{kind}": [scalar_to_json(v) for v in values]
            for side, curve in (("reference", pair.reference), ("candidate", pair.candidate))
            for kind, values in (("", curve.values), ("_smoothed", curve.smoothed))
        },
    }


def _texts(**texts: Text) -> Mapping[str, Any]:
    return {name: {"en": text.en, "zh": text.zh} for name, text in texts.items()}


def _curve(judged: PairedMetric) -> CurvePair:
    window = window_for(len(judged))

    def side(values: Any) -> Curve:
        return Curve(
            tuple(judged.steps.tolist()),
            tuple(values.tolist()),
            tuple(smooth(values, window).tolist()),
        )

    return CurvePair(
        metric=judged.name,
        reference=side(judged.reference),
        candidate=side(judged.candidate),
        window=window,
        note=Text("the steps that were judged", "被判定的步"),
    )
