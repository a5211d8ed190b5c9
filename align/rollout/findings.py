"""What the rollout rung says, in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength, Symptom
from align.core.rung import Rung
from align.core.text import Text
from align.rollout.permutation import FAMILY
from align.rollout.shift import LENGTH, SCORE, Tested, has
from dumps.store.rollout_index import Int64
from dumps.store.rollout_pair import RolloutPair, SideRows

_QUOTE = 200

_FIRST_STEP_WHY = Text(
    "Before the first update both runs hold the same initial weights, so responses to the same "
    "prompts must be alike; sampling does not explain this.",
    "第一次更新之前两侧权重相同，对同样 prompt 的回复应同分布；采样随机性无法解释这一差异。",
)
_FIRST_STEP_FIX = Text(
    "Compare temperature, top_p, top_k, maximum lengths, stop tokens, chat template, tokenizer and "
    "initial weights of the rollout engines, then generate the quoted step again.",
    "请核对两侧推理引擎的 temperature、top_p、top_k、最大长度、停止符、chat template、"
    "分词器与初始权重，然后重新生成该步。",
)
_SCORE_FIX = Text(
    "Score the reference's responses with the candidate's reward function: if the scores agree, "
    "the responses differ and the rollout settings are to blame, else the reward rule.",
    "用被测的奖励函数给参考的回复打分：若得分一致，则是回复（rollout 设置）不同，"
    "否则是奖励规则不同。",
)
_LATER_WHY = Text(
    "Up to there the responses are alike. Policies trained apart drift apart, also between two "
    "seeds, so this dates the divergence without explaining it.",
    "在此之前两侧回复无差异。分别训练的策略会逐渐分离（不同随机种子也会如此），"
    "因此这只说明分离的时间，不说明原因。",
)
_LATER_FIX = Text(
    "Nothing to change here; look at the metrics of the steps before it.",
    "此处无需修改；请查看在此之前各步的指标。",
)
DEGENERATE_WHY = Text(
    "Such responses come from broken weights or a broken engine, not from training.",
    "这样的回复来自损坏的权重或推理引擎，而不是训练结果。",
)
DEGENERATE_FIX = Text(
    "Check the rollout engine's weights after the weight sync of this step, its memory release "
    "(sleep mode) and its kernels; generate one prompt with the engine alone.",
    "请检查该步权重同步之后推理引擎中的权重、显存释放（sleep mode）与算子；"
    "并单独用该引擎生成一条 prompt。",
)


def other_group_size(pair: RolloutPair, reference: int, candidate: int) -> Finding:
    """Say that prompts get another number of responses."""
    return Finding(
        id="rollout.group_size",
        rung=Rung.ROLLOUT,
        severity=Severity.ERROR,
        title=Text(
            f"{reference} responses per prompt in the reference, {candidate} in the candidate",
            f"每个 prompt 的回复数：参考为 {reference}，被测为 {candidate}",
        ),
        reference=reference,
        candidate=candidate,
        evidence=_first_rows(pair, reference, candidate),
        why=Text(
            "Group size sets the baseline and the noise of every advantage, and the number of "
            "sequences per update.",
            "组大小决定 advantage 的基线与噪声，以及每次更新的序列数。",
        ),
        fix=Text(
            "Make actor_rollout_ref.rollout.n (verl) and n_samples_per_prompt (MindSpeed-RL) "
            "equal.",
            "请统一 actor_rollout_ref.rollout.n（verl）与 n_samples_per_prompt（MindSpeed-RL）。",
        ),
        mechanism=Mechanism(Rung.ROLLOUT, Strength.SEMANTIC),
    )


def other_count(pair: RolloutPair, reference: int, candidate: int) -> Finding:
    """Say that every step has another number of responses, of equal groups."""
    return Finding(
        id="rollout.count",
        rung=Rung.ROLLOUT,
        severity=Severity.ERROR,
        title=Text(
            f"{reference} responses per step in the reference, {candidate} in the candidate",
            f"每步的回复数：参考为 {reference}，被测为 {candidate}",
        ),
        reference=reference,
        candidate=candidate,
        evidence=_first_rows(pair, reference, candidate),
        why=Text(
            "Another batch size changes the gradient noise and how much data a step has seen.",
            "batch 大小不同会改变梯度噪声，也改变每步已见的数据量。",
        ),
        fix=Text(
            "Make data.train_batch_size (verl) and global_batch_size (MindSpeed-RL) equal.",
            "请统一 data.train_batch_size（verl）与 global_batch_size（MindSpeed-RL）。",
        ),
        mechanism=Mechanism(Rung.DATA, Strength.SEMANTIC),
    )


def first_step_shift(pair: RolloutPair, tested: Tested) -> Finding:
    """Say that the initial models answer differently."""
    return _shift(
        pair,
        tested,
        severity=Severity.ERROR,
        noise_sized=False,
        why=_FIRST_STEP_WHY,
        fix=_SCORE_FIX if tested.statistic is SCORE else _FIRST_STEP_FIX,
    )


def degenerate(pair: RolloutPair, tested: Tested) -> Finding:
    """Say that one side's responses broke down during training."""
    return _shift(
        pair,
        tested,
        severity=Severity.ERROR,
        noise_sized=False,
        why=DEGENERATE_WHY,
        fix=DEGENERATE_FIX,
    )


def later_shift(pair: RolloutPair, tested: Tested) -> Finding:
    """Date the step from which trained policies answer differently."""
    return _shift(
        pair, tested, severity=Severity.INFO, noise_sized=True, why=_LATER_WHY, fix=_LATER_FIX
    )


def _shift(
    pair: RolloutPair,
    tested: Tested,
    *,
    severity: Severity,
    noise_sized: bool,
    why: Text,
    fix: Text,
) -> Finding:
    method = _method(tested)
    return Finding(
        id=f"rollout.{tested.statistic.id}",
        rung=Rung.ROLLOUT,
        severity=severity,
        title=_title(tested),
        reference=tested.reference,
        candidate=tested.candidate,
        evidence=(
            _row_of_step(pair.reference, Side.REFERENCE, tested, tested.reference),
            _row_of_step(pair.candidate, Side.CANDIDATE, tested, tested.candidate),
        ),
        why=Text(f"{why.en} {method.en}", f"{why.zh}{method.zh}"),
        fix=fix,
        symptom=Symptom(
            metric=tested.statistic.metric,
            rung=tested.statistic.rung,
            step=tested.step,
            first_recorded_step=pair.common_steps[0],
            noise_sized=noise_sized,
        ),
    )


def _title(tested: Tested) -> Text:
    name, step = tested.statistic.name, tested.step
    is_share = tested.statistic not in (LENGTH, SCORE)
    reference, candidate = (
        f"{100 * value:.3g}%" if is_share else f"{value:.4g}"
        for value in (tested.reference, tested.candidate)
    )
    return Text(
        f"{name.en} at step {step}: {reference} in the reference, {candidate} in the candidate, "
        "beyond sampling noise",
        f"第 {step} 步{name.zh}：参考为 {reference}，被测为 {candidate}，超出采样噪声",
    )


def _method(tested: Tested) -> Text:
    shift = tested.shift
    size = f"{shift.difference:.6g}", f"{shift.standard_error:.3g}", f"{shift.z:.1f}"
    return Text(
        f"Tested by permutation within {shift.num_strata} prompts: difference {size[0]}, standard "
        f"error {size[1]}, z {size[2]}; limit {FAMILY.value:g}, the {FAMILY.source}.",
        f"在 {shift.num_strata} 个 prompt 内做置换检验：差值 {size[0]}，标准误 {size[1]}，"
        f"z 值 {size[2]}；界限 {FAMILY.value:g}，即整次比较出现一次误报的概率，"
        "按 Bonferroni 方法分配给各项检验。",
    )


def _first_rows(pair: RolloutPair, reference: int, candidate: int) -> tuple[Evidence, ...]:
    """Point at the first common step on both sides."""
    step = pair.common_steps[0]
    return (
        _row(pair.reference, _of_step(pair.reference, step)[0], Side.REFERENCE, reference),
        _row(pair.candidate, _of_step(pair.candidate, step)[0], Side.CANDIDATE, candidate),
    )


def _row_of_step(rows: SideRows, side: Side, tested: Tested, value: float) -> Evidence:
    """Point at the tested step: at a response that shows the property, where one does."""
    of_step = _of_step(rows, tested.step)
    shows = of_step[has(rows.flags[of_step], tested.statistic)]
    if not len(shows):
        return _row(rows, of_step[0], side, value)
    (text,) = rows.index.texts(rows.row[shows[:1]])
    quote = text.response.replace("\n", "\\n")
    shown = quote if len(quote) <= _QUOTE else f"{quote[: _QUOTE - 1]}…"
    return replace(_row(rows, shows[0], side, value), text=shown or None)


def _of_step(rows: SideRows, step: int) -> Int64:
    """Return the positions of a step's rows, in file order."""
    return np.arange(*np.searchsorted(rows.step, [step, step + 1]))


def _row(rows: SideRows, position: int, side: Side, value: int | float) -> Evidence:
    index, row = rows.index, rows.row[position]
    return Evidence(
        source=index.sources[index.source[row]],
        side=side,
        line=int(index.line[row]),
        values=(value,),
    )
