"""A diagnosis as a JSON document."""

from __future__ import annotations

from typing import Any

from align.cli.doctor_view import standing
from align.core.document import finding_to_json, run_to_json, table_to_json
from align.core.text import Text
from align.doctor.advice import Judged
from align.doctor.diagnosis import Diagnosis
from align.doctor.stack import stack_table

SCHEMA_VERSION = 1


def as_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the versioned JSON document of ``align doctor``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run_to_json(diagnosis.summary),
        "parts": [part.value for part in diagnosis.parts],
        "findings": [finding_to_json(finding) for finding in diagnosis.findings],
        "assumptions": [_both(text) for text in diagnosis.assumptions],
        "environment": None if diagnosis.stack is None else _environment(diagnosis),
        "performance": None if diagnosis.case is None else _performance(diagnosis),
        "problems": [str(problem) for problem in diagnosis.problems],
    }


def _environment(diagnosis: Diagnosis) -> dict[str, Any]:
    stack = diagnosis.stack
    assert stack is not None
    return {
        "standing": stack.standing.value,
        "summary": _both(standing(stack)),
        "versions": {name: fact.value for name, fact in stack.versions.items()},
        "closest": [
            {
                "set": match.versions.name,
                "source": match.versions.source,
                "agrees": list(match.agrees),
                "deviates": list(match.deviates),
                "unknown": list(match.unknown),
            }
            for match in stack.closest
        ],
        "table": table_to_json(stack_table(stack)),
        "variables": {name: fact.value for name, fact in sorted(diagnosis.variables.items())},
    }


def _performance(diagnosis: Diagnosis) -> dict[str, Any]:
    case = diagnosis.case
    assert case is not None
    time, rate, size = case.time, case.rate, case.capacity
    return {
        "step_time": time
        and {
            "seconds": time.seconds,
            "num_steps": time.num_steps,
            "skips_first": time.skips_first,
            "overlapping": time.overlapping,
            "parts": [
                {"stage": p.stage.value, "seconds": p.seconds, "share": p.share} for p in time.parts
            ],
        },
        "throughput": rate
        and {
            "computed": rate.computed,
            "logged": rate.logged,
            "largest_relative_difference": rate.disagreement,
            "per_a3_card": rate.per_a3_card,
            "unknown": list(rate.unknown),
        },
        "capacity": size and {"replicas": size.replicas, "sequences": size.sequences},
        "memory": [
            {"name": _both(m.name), "bytes": m.num_bytes, "formula": m.formula} for m in case.memory
        ],
        "advice": [_advice(judged) for judged in diagnosis.advice],
    }


def _advice(judged: Judged) -> dict[str, Any]:
    advice = judged.advice
    return {
        "id": advice.id,
        "state": judged.answer.state.value,
        "because": _both(judged.answer.because),
        "title": _both(advice.title),
        "stage": advice.stage and advice.stage.value,
        "gain": _both(advice.gain),
        "gain_percent": list(advice.gain_percent),
        "holds_when": _both(advice.holds_when),
        "trades_precision": advice.trades_precision and advice.trades_precision.value,
        "how": dict(advice.how),
        "source": advice.source,
    }


def _both(text: Text) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}
