"""Why the layers of two runs cannot be compared, and what to record instead."""

from __future__ import annotations

from align.core.recording import missing_artifact
from align.core.rung import Missing, Rung, RungResult, RungStatus
from align.core.text import Text
from align.layers.start import Pair, Start

_SAME_STEP = Text(
    "Train one step on both sides from the same weights and the same rollouts, with equal seeds.",
    "在两侧用相同权重、相同 rollout 与相同种子训练一个 step。",
)
_WHY = {
    Start.OTHER_TOKENS: Text(
        "the two runs computed with other tokens, so no layer is to blame",
        "两次运行计算的 token 不同，因此不能归咎于任何一层",
    ),
    Start.OTHER_POSITIONS: Text(
        "the two models were called with other position_ids",
        "两侧模型得到的 position_ids 不同",
    ),
    Start.OTHER_ROWS: Text(
        "the first update trained on other rows of the step, as with another number of ranks; one "
        "mini-batch a step makes them equal",
        "第一次更新训练的是该步中不同的行（例如 rank 数不同）；每步只用一个 mini-batch 即可相同",
    ),
}


def not_comparable(rung: Rung, pair: Pair) -> RungResult:
    """Return the result of a rung that needs equal inputs and did not get them."""
    if pair.start is Start.NOT_RECORDED or pair.reference is None:
        missing = missing_artifact(rung)
        why = Text(f"needs {missing.artifact.en}", f"需要{missing.artifact.zh}")
    else:
        why = _WHY.get(pair.start) or _other_weights(pair)
        artifact = Text(
            "sketches of the same tokens under the same weights", "相同 token、相同权重下的张量摘要"
        )
        missing = Missing(artifact, "both", _SAME_STEP)
    at = "" if pair.reference is None else f" (step {pair.reference.step})"
    zh_at = "" if pair.reference is None else f"（第 {pair.reference.step} 步）"
    return RungResult(
        name=rung,
        status=RungStatus.MISSING,
        summary=Text(f"Not compared: {why.en}{at}.", f"未比较：{why.zh}{zh_at}。"),
        missing=(missing,),
    )


def _other_weights(pair: Pair) -> Text:
    error, name = pair.weights[0]
    return Text(
        f"the two runs computed with other weights: {name} differs by {error:.2g}",
        f"两次运行的权重不同：{name} 的相对差异为 {error:.2g}",
    )
