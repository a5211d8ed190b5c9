"""Advice on the next experiment, for a terminal and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from align.core.text import Text
from align.next.experiment import Advice, Cost, Experiment

SCHEMA_VERSION = 1
_RECORD = Text("Free, before any run: keep", "无需运行即可补充的文件")
_NEXT = Text("Next experiment", "下一个实验")
_OTHERS = Text("Then, in order of cost", "其后按代价排序")
_HARMLESS = Text("Differences that change nothing", "不影响结果的差异")
_BLAMELESS = Text("Differences that cannot have caused it", "不可能造成该现象的差异")


def as_text(advice: Advice, lang: str) -> str:
    """Return situation, the chosen experiment with its commands, and the rest in short."""
    lines = [advice.situation.in_language(lang)]
    lines += _listed(_RECORD, advice.record, lang)
    if advice.chosen is not None:
        lines += ["", *_experiment(advice.chosen, lang)]
    if advice.note is not None:
        lines += ["", advice.note.in_language(lang)]
    if advice.others:
        lines += ["", f"{_OTHERS.in_language(lang)}:"]
        for other in advice.others:
            cost = _cost(other.cost).in_language(lang)
            lines.append(f"  {other.plan.id}: {other.plan.title.in_language(lang)} ({cost})")
    lines += _listed(_BLAMELESS, advice.blameless, lang)
    lines += _listed(_HARMLESS, advice.harmless, lang)
    return "\n".join(lines)


def as_document(advice: Advice) -> dict[str, Any]:
    """Return the versioned JSON document of ``align next``."""
    chosen = advice.chosen
    return {
        "schema_version": SCHEMA_VERSION,
        "situation": _both(advice.situation),
        "record": [_both(text) for text in advice.record],
        "next": None if chosen is None else _as_json(chosen),
        "then": [_as_json(other) for other in advice.others],
        "cannot_be_the_cause": [_both(text) for text in advice.blameless],
        "harmless": [_both(text) for text in advice.harmless],
        "note": None if advice.note is None else _both(advice.note),
    }


def _experiment(experiment: Experiment, lang: str) -> Iterator[str]:
    plan = experiment.plan
    yield f"{_NEXT.in_language(lang)}: {plan.title.in_language(lang)} [{plan.id}]"
    yield f"  {_cost(experiment.cost).in_language(lang)}"
    yield f"  {plan.why.in_language(lang)}"
    for reading in plan.readings:
        yield f"  - {reading.seen.in_language(lang)} -> {reading.means.in_language(lang)}"
    yield ""
    for command in experiment.commands:
        yield from (f"    {line}" for line in command.splitlines())


def _listed(head: Text, texts: Sequence[Text], lang: str) -> list[str]:
    if not texts:
        return []
    return ["", f"{head.in_language(lang)}:", *(f"  - {t.in_language(lang)}" for t in texts)]


def _cost(cost: Cost) -> Text:
    steps = f"{cost.num_steps:g}"
    if cost.seconds is None:
        return Text(f"cost: {steps} training steps", f"代价：{steps} 个训练 step")
    minutes = f"{max(cost.seconds / 60, 0.1):.1f}"
    return Text(
        f"cost: {steps} training steps, about {minutes} min at this run's step time",
        f"代价：{steps} 个训练 step，按该运行的步耗时约 {minutes} 分钟",
    )


def _as_json(experiment: Experiment) -> dict[str, Any]:
    plan = experiment.plan
    return {
        "id": plan.id,
        "title": _both(plan.title),
        "why": _both(plan.why),
        "cost": {"num_steps": experiment.cost.num_steps, "seconds": experiment.cost.seconds},
        "commands": list(experiment.commands),
        "readings": [{"seen": _both(r.seen), "means": _both(r.means)} for r in plan.readings],
    }


def _both(text: Text) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}
