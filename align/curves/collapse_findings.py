"""Say which run broke down, when, and from what to what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from align.core.finding import Finding, Severity, Side
from align.core.rung import Rung
from align.core.text import Text
from align.curves.collapse import Collapse
from align.curves.shift_findings import dotted


def collapse_findings(collapses: Iterable[Collapse], first_step: int) -> Iterator[Finding]:
    """Yield an error with its symptom for each collapse."""
    for collapse in collapses:
        metric, onset = collapse.metric, collapse.onset
        yield Finding(
            id=f"curves.{dotted(metric.name)}.collapse",
            rung=Rung.CURVES,
            severity=Severity.ERROR,
            title=_title(collapse),
            reference=collapse.reference.after,
            candidate=collapse.candidate.after,
            evidence=metric.evidence(onset.step),
            why=_why(collapse),
            fix=_FIX_LENGTH if metric.meaning.rung is Rung.ROLLOUT else _FIX_REWARD,
            symptom=metric.symptom(
                onset.step, first_step, noise_sized=False, uncertainty=onset.uncertainty
            ),
        )


def _title(collapse: Collapse) -> Text:
    name, since = collapse.metric.name, collapse.onset.words
    ours, theirs = collapse.candidate, collapse.reference
    if collapse.side is Side.REFERENCE:
        ours, theirs = theirs, ours
    fell = f"{ours.before:.4g} → {ours.after:.4g}"
    other = f"{theirs.before:.4g} → {theirs.after:.4g}"
    side, other_side = _SIDE[collapse.side], _OTHER[collapse.side]
    return Text(
        f"{name} of the {side.en} collapses {since.en} ({fell}), that of the {other_side.en} does "
        f"not ({other})",
        f"{name}：{side.zh}{since.zh}塌缩（{fell}），{other_side.zh}没有（{other}）",
    )


def _why(collapse: Collapse) -> Text:
    share = (collapse.candidate if collapse.side is Side.CANDIDATE else collapse.reference).share
    num = collapse.num_last
    return Text(
        f"It fell by {share:.0%} of the level it had just before and stays there for the last "
        f"{num} steps. The whole run is judged here, not only the steps acceptance looks at. "
        "Chance does not do that: the other run of the recipe goes on.",
        f"跌幅为此前水平的 {share:.0%}，最后 {num} 步一直如此。"
        "此项判定覆盖整个运行，不限于验收所看的步数。"
        "同一配方的另一次运行没有下跌，因此并非偶然。",
    )


_SIDE = {
    Side.REFERENCE: Text("reference", "参考"),
    Side.CANDIDATE: Text("candidate", "被测"),
}
_OTHER = {Side.REFERENCE: _SIDE[Side.CANDIDATE], Side.CANDIDATE: _SIDE[Side.REFERENCE]}
_FIX_LENGTH = Text(
    "Read the responses of the steps around it: nothing, one token over and over, or an answer cut "
    "short. Compare eos and pad ids of both tokenizers, stop words and the engine's weights after "
    "the weight sync.",
    "查看该步前后的回复：是空的、反复输出同一个 token，还是答案被截断。"
    "比较两侧分词器的 eos 与 pad id、停止词，以及权重同步之后推理引擎中的权重。",
)
_FIX_REWARD = Text(
    "Look at what moves before it: response length, entropy, KL, gradient norm. Read the responses "
    "of the steps around it. Then resume both runs from the last checkpoint before it: if only one "
    "falls again, the difference acts in every step.",
    "先看哪些量在它之前就已变化：回复长度、熵、KL、梯度范数；并查看该步前后的回复。"
    "再让两侧都从下跌前最后一个检查点续训：若仍只有一侧下跌，则差异在每一步都起作用。",
)
