"""What the watch says, in both languages, and as a JSON document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from align.core.document import scalar_to_json
from align.core.text import Text
from align.core.watch_record import Alarm, Trace
from align.watch.watch import Standing

SCHEMA_VERSION = 1


def alarm_text(alarm: Alarm) -> Text:
    """Say which metric left the reference, since when, and how far."""
    values = f"{alarm.reference:.4g} → {alarm.candidate:.4g}"
    if not math.isfinite(alarm.candidate):
        return Text(
            f"{alarm.metric} of the candidate is {alarm.candidate} at step {alarm.step}; the "
            "reference's is a number throughout",
            f"被测的 {alarm.metric} 在第 {alarm.step} 步为 {alarm.candidate}；参考始终是数值",
        )
    return Text(
        f"{alarm.metric} has left the reference: {values} over steps {alarm.since} to "
        f"{alarm.step}, {alarm.deviation:.1f} standard errors",
        f"{alarm.metric} 已偏离参考：第 {alarm.since} 至 {alarm.step} 步的均值 {values}，"
        f"相差 {alarm.deviation:.1f} 个标准误",
    )


def standing_text(standing: Standing) -> Text:
    """Say how far the candidate is."""
    if standing.step is None:
        return Text("no common step yet", "尚无共有的步")
    if not standing.tested:
        return Text(
            f"step {standing.step} of {standing.last_step}: neither reward, response length nor "
            "entropy is recorded on both sides; only NaN is looked for",
            f"第 {standing.step} / {standing.last_step} 步：两侧没有共同记录奖励、回复长度或熵，"
            "只检查 NaN",
        )
    names = ", ".join(standing.tested)
    return Text(
        f"step {standing.step} of {standing.last_step}: no alarm ({names})",
        f"第 {standing.step} / {standing.last_step} 步：无告警（{names}）",
    )


def as_document(standing: Standing, reference: str, candidate: str) -> dict[str, Any]:
    """Return what hooks are given, with ``text`` for chat services."""
    texts = [alarm_text(alarm) for alarm in standing.alarms] or [standing_text(standing)]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "alarm" if standing.alarms else "standing",
        "reference": reference,
        "candidate": candidate,
        "step": standing.step,
        "last_step": standing.last_step,
        "text": "; ".join(text.en for text in texts),
        "text_zh": "；".join(text.zh for text in texts),
        "alarms": [_alarm(alarm) for alarm in standing.alarms],
    }


def as_record(
    standing: Standing, traces: Sequence[Trace], reference: str, candidate: str
) -> dict[str, Any]:
    """Return what ``align watch -o`` writes; `dumps.readers.watch_record` reads it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "format": "align_watch",
        "reference": reference,
        "candidate": candidate,
        "step": standing.step,
        "last_step": standing.last_step,
        "alarms": [_alarm(alarm) for alarm in standing.alarms],
        "traces": [
            {
                "metric": each.metric,
                "limit": scalar_to_json(each.limit),
                "steps": list(each.steps),
                "standard_errors": [scalar_to_json(round(d, 4)) for d in each.deviations],
                "sizes": [scalar_to_json(round(s, 4)) for s in each.sizes],
            }
            for each in traces
        ],
    }


def _alarm(alarm: Alarm) -> dict[str, Any]:
    return {
        "metric": alarm.metric,
        "step": alarm.step,
        "since": alarm.since,
        "reference": scalar_to_json(alarm.reference),
        "candidate": scalar_to_json(alarm.candidate),
        "standard_errors": scalar_to_json(alarm.deviation),
    }
