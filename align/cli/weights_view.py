"""Show a comparison of weights as text or as a JSON document."""

from __future__ import annotations

import math
from typing import Any

from align.cli.rung_view import finding_lines
from align.cli.weights_sides import Side
from align.core.document import finding_to_json, scalar_to_json
from align.core.finding import Finding
from align.core.text import Text
from align.weights.diff import WeightDiff, WeightsDiff

SCHEMA_VERSION = 1


def as_document(
    diff: WeightsDiff, sides: tuple[Side, Side], findings: tuple[Finding, ...]
) -> dict[str, Any]:
    """Return the versioned JSON document of ``align weights diff``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "reference": _side(sides[0]),
        "candidate": _side(sides[1]),
        "num_compared": diff.num_compared,
        "num_equal": diff.num_equal,
        "tensors": [_tensor(tensor) for tensor in diff.differing],
        "findings": [finding_to_json(finding) for finding in findings],
    }


def _side(side: Side) -> dict[str, Any]:
    checkpoint = side.checkpoint
    return {
        "path": str(side.path),
        "format": checkpoint.files.format,
        "layout": checkpoint.framework,
        "num_tensors": len(checkpoint.sources),
        "padded_vocab": checkpoint.padded_vocab,
        "num_uncovered": len(checkpoint.uncovered),
        "num_missing": len(checkpoint.missing),
    }


def _tensor(diff: WeightDiff) -> dict[str, Any]:
    found = diff.distance
    return {
        "name": diff.name,
        "relation": diff.relation.value,
        "reference": {"shape": list(diff.shapes[0]), "dtype": diff.dtypes[0]},
        "candidate": {"shape": list(diff.shapes[1]), "dtype": diff.dtypes[1]},
        "rel_l2": None if found is None else scalar_to_json(found.rel_l2),
        "max_abs": None if found is None else found.max_abs,
        "gain": None if found is None else found.gain,
        "num_nonfinite": None if found is None else list(found.num_nonfinite),
        "detail": None if diff.detail is None else diff.detail.en,
        "zh": {} if diff.detail is None else {"detail": diff.detail.zh},
    }


def as_text(
    diff: WeightsDiff,
    sides: tuple[Side, Side],
    findings: tuple[Finding, ...],
    lang: str,
    *,
    show_all: bool,
) -> str:
    """Return summary and findings; every differing tensor with ``show_all``."""
    lines = [summary(diff, sides).in_language(lang)]
    for finding in findings:
        lines += ["", *finding_lines(finding, lang)]
    if show_all and diff.differing:
        lines += ["", *(_row(tensor, lang) for tensor in diff.differing)]
    return "\n".join(lines)


def summary(diff: WeightsDiff, sides: tuple[Side, Side]) -> Text:
    """Say how many tensors are equal."""
    layouts = " / ".join(f"{s.checkpoint.framework} ({s.checkpoint.files.format})" for s in sides)
    if diff.num_compared == 0:
        return Text(
            f"nothing comparable: no tensor is on both sides; {layouts}",
            f"无可比较内容：没有两侧共有的张量；{layouts}",
        )
    return Text(
        f"{diff.num_equal} of {diff.num_compared} tensors equal bit for bit; {layouts}",
        f"{diff.num_compared} 个张量中 {diff.num_equal} 个逐位相同；{layouts}",
    )


def _row(diff: WeightDiff, lang: str) -> str:
    error = "-" if math.isinf(diff.rel_l2) else f"{diff.rel_l2:.3g}"
    detail = "" if diff.detail is None else diff.detail.in_language(lang)
    return f"  {diff.name}  {diff.relation.value}  {error}  {detail}".rstrip()
