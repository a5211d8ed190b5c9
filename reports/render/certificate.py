"""Draw an acceptance certificate as one HTML page that needs nothing beside itself.

No script, no request: a content security policy forbids both. Every value is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from align.core.document import float_from_json
from align.core.figure import Curve, CurvePair
from align.core.finding import Scalar
from align.core.text import Text
from reports.cells import show_short
from reports.figures import draw
from reports.render.html import environment

SAY = {
    "title": Text("Acceptance certificate", "验收证书"),
    "power": Text("What these runs could show", "本次数据的分辨力"),
    "noise": Text("Noise floor", "噪声基线"),
    "results": Text("Clauses", "条款"),
    "clause": Text("clause", "条款"),
    "subject": Text("judged on", "判定对象"),
    "reference": Text("reference", "参考"),
    "candidate": Text("candidate", "被测"),
    "repeat": Text("repeat of the reference", "参考的重复运行"),
    "error": Text("error", "误差"),
    "interval": Text("95 % interval", "95% 区间"),
    "limit": Text("limit", "限值"),
    "floor": Text("repeats", "重复运行"),
    "outcome": Text("outcome", "结论"),
    "formulas": Text("Formulas", "公式"),
    "policy": Text("Policy", "判据"),
    "source": Text("Source", "来源"),
    "sha256": Text("SHA-256", "SHA-256"),
    "statistics": Text(
        "Intervals: moving-block bootstrap, {resamples} resamples, seed {seed}, {percent} % "
        "confidence.",
        "区间：移动块自助法，重采样 {resamples} 次，随机种子 {seed}，置信度 {percent}%。",
    ),
    "inputs": Text("Inputs", "输入"),
    "seeds": Text("seeds", "随机种子"),
    "steps": Text("steps", "步"),
    "not_stated": Text("not stated", "未说明"),
    "files": Text("files", "文件"),
    "signed": Text("Signed off", "签署"),
    "name": Text("Name", "姓名"),
    "role": Text("Role", "职务"),
    "date": Text("Date", "日期"),
    "signature": Text("Signature", "签名"),
    "none": Text("none", "无"),
    "smoothed": Text(
        "Judged steps, raw and averaged over {window} steps; below: candidate − reference.",
        "被判定的步：原始值与 {window} 步滑动平均；下图为被测 − 参考。",
    ),
}
_TONES = {"pass": "aligned", "fail": "diverged"}
_COUNTS, _UNITS = ("failing_steps",), ("seed_band",)


def render(document: Mapping[str, Any], lang: str) -> str:
    """Return the page for a certificate document.

    Args:
        document: as ``certificate.json`` holds it; nothing else is looked at.
        lang: "en" or "zh".
    """
    curve = document["curve"]
    drawing = None if curve is None else next(iter(draw([_pair(curve)])))
    return (
        environment(lang)
        .get_template("certificate.html.jinja")
        .render(
            certificate=document,
            say=SAY,
            lang=lang,
            drawing=drawing,
            tone=lambda outcome: _TONES.get(outcome, "undecided"),
            amount=_amount,
            number=_number,
        )
    )


def _amount(result: Mapping[str, Any], key: str) -> str:
    """Show an error in the unit of its formula: a share, a count or the metric's own."""
    value = float_from_json(result[key])
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞"
    if result["formula"] in _COUNTS:
        return f"{value:.0f}"
    return f"{value:.3g}" if result["formula"] in _UNITS else f"{value:.2%}"


def _number(value: Scalar) -> str:
    number = float_from_json(value)
    return "–" if math.isnan(number) else show_short(number)


def _pair(curve: Mapping[str, Any]) -> CurvePair:
    def side(name: str) -> Curve:
        return Curve(
            tuple(curve["steps"]),
            tuple(map(float_from_json, curve[name])),
            tuple(map(float_from_json, curve[f"{name}_smoothed"])),
        )

    return CurvePair(
        metric=curve["metric"],
        reference=side("reference"),
        candidate=side("candidate"),
        window=curve["window"],
        note=Text("", ""),
    )
