"""What the rollout rung says of responses to another prompt than the one they are filed under."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.rollout.asked import Asked, Mismatch, Mismatches

_QUOTED = 3
_IDS = 24
_ZH = {Side.REFERENCE: "参考", Side.CANDIDATE: "被测"}
# What the trainer and the engine then disagree on by any amount: they see other contexts.
_SIGNATURE = ("training/rollout_probs_diff*", "rollout_corr/*", "critic/score/*")

_TITLES: Mapping[Mismatch, Text] = {
    Mismatch.PERMUTED: Text(
        "responses stand under other prompts than the engine answered",
        "回复被归到了其他 prompt 之下，与推理引擎实际回答的 prompt 不一致",
    ),
    Mismatch.SPECIAL_TOKENS: Text(
        "the engine is asked without special tokens that the trainer's prompt has",
        "推理引擎收到的 prompt 缺少训练侧 prompt 中的特殊 token",
    ),
    Mismatch.OTHER: Text(
        "the engine is asked another prompt than the trainer has",
        "推理引擎收到的 prompt 与训练侧的 prompt 不同",
    ),
}
_WHYS: Mapping[Mismatch, Text] = {
    Mismatch.PERMUTED: Text(
        "Each such response is scored by the rule of another question and reinforced as an answer "
        "to it, so the score falls to chance.",
        "这些回复按别的问题打分，并被当作别的问题的回答来强化，因此得分会降到随机水平。",
    ),
    Mismatch.SPECIAL_TOKENS: Text(
        "The model answers a text without turn markers and is trained as if it had seen them: "
        "sampling and training use two different distributions.",
        "模型回答的是没有对话标记的文本，训练时却当作它看到了这些标记：采样与训练的分布不同。",
    ),
    Mismatch.OTHER: Text(
        "The trainer computes log_probs of a response that was sampled after another context.",
        "训练侧计算 log_probs 所用的上下文，与采样该回复时的上下文不同。",
    ),
}
_FIXES: Mapping[Mismatch, Text] = {
    Mismatch.PERMUTED: Text(
        "Repeat prompts interleaved on both ends (a a b b, DataProto.repeat(interleave=True)), and "
        "join responses to prompts by uid, not by place.",
        "在生成前后都按 a a b b 的顺序重复 prompt（DataProto.repeat(interleave=True)），"
        "并按 uid 而不是位置合并回复与 prompt。",
    ),
    Mismatch.SPECIAL_TOKENS: Text(
        "Hand the engine token ids (prompt_token_ids), not text decoded with "
        "skip_special_tokens=True. MindSpeed-RL's synchronous generation does so since cb82020; "
        "its asynchronous engine and releases 2.0.0 to 2.3.0 pass ids.",
        "请把 token id（prompt_token_ids）交给推理引擎，而不是用 skip_special_tokens=True "
        "解码后的文本。MindSpeed-RL 自 cb82020 起的同步生成有此问题；"
        "异步引擎以及 2.0.0 至 2.3.0 版本传递的是 id。",
    ),
    Mismatch.OTHER: Text(
        "Compare the two quoted lists: truncation of the prompt, a template applied twice, a bos "
        "added by the engine.",
        "请对照引用的两组 id：prompt 截断、模板被套用两次，或引擎额外添加了 bos。",
    ),
}


def asked_findings(both: Sequence[Mismatches]) -> tuple[Finding, ...]:
    """Report each kind of mismatch; one that both runs have is no difference between them."""
    return tuple(
        _finding(kind, having)
        for kind in Mismatch
        if (having := [run for run in both if run.of(kind)])
    )


def _finding(kind: Mismatch, runs: Sequence[Mismatches]) -> Finding:
    rows = {run.side: run.of(kind) for run in runs}
    both = len(runs) > 1
    where = Text(
        "; ".join(
            f"{side.value}: {len(found)} of {run.num_rows} rows, first at step {found[0].step}"
            for run in runs
            for side, found in [(run.side, rows[run.side])]
        ),
        "；".join(
            f"{_ZH[run.side]}：{run.num_rows} 行中有 {len(rows[run.side])} 行，"
            f"最早在第 {rows[run.side][0].step} 步"
            for run in runs
        ),
    )
    lost = _lost(runs) if kind is Mismatch.SPECIAL_TOKENS else ""
    title = _TITLES[kind]
    return Finding(
        id=f"rollout.{kind.value}",
        rung=Rung.ROLLOUT,
        severity=Severity.INFO if both else Severity.ERROR,
        title=Text(
            f"{title.en}{f' ({lost})' if lost else ''}; {where.en}",
            f"{title.zh}{f'（{lost}）' if lost else ''}；{where.zh}",
        ),
        reference=len(rows.get(Side.REFERENCE, ())),
        candidate=len(rows.get(Side.CANDIDATE, ())),
        evidence=tuple(item for run in runs for item in _evidence(run.side, rows[run.side])),
        why=_WHYS[kind],
        fix=_FIXES[kind],
        mechanism=None if both else Mechanism(Rung.ROLLOUT, Strength.SEMANTIC, _SIGNATURE),
    )


def _lost(runs: Sequence[Mismatches]) -> str:
    texts = {token: text for run in runs for token, text in run.lost.items()}
    return ", ".join(f"{text} = {token}" for token, text in sorted(texts.items())[:_QUOTED])


def _evidence(side: Side, rows: Sequence[Asked]) -> Iterator[Evidence]:
    for row in rows[:_QUOTED]:
        source, line = row.place
        for key, ids in (("asked of the engine", row.asked), ("filed under", row.filed)):
            shown = f"{key}: {list(ids[:_IDS])}{' …' if len(ids) > _IDS else ''}"
            yield Evidence(source, side, line, "prompt_ids", shown[:200])
