"""What is said of an error below the noise that points one way."""

from __future__ import annotations

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.layers.along import Direction
from align.layers.cause_text import address_text, check_text
from align.layers.pattern import place_of
from align.layers.walk import Compared

_IDS = {
    Rung.FORWARD: "forward.first_divergence",
    Rung.BACKWARD: "backward.first_divergence",
}


def systematic_finding(
    departure: Compared,
    rung: Rung,
    where: tuple[Evidence, ...],
    right: Text,
    signature: tuple[str, ...],
    scores: tuple[str, float] | None = None,
) -> Finding:
    """Name the first address whose error has a direction.

    Args:
        right: what a referee says.
        scores: attention module, and the factor its scores' gradient carries, if that is the cause.
    """
    found, record, limit = departure.systematic, departure.reference, departure.limit
    assert found is not None
    gradient = Text("gradients", "梯度") if rung is Rung.BACKWARD else Text("activations", "激活")
    place, shape, check = address_text(record), _shape(departure), check_text(place_of(departure))
    if scores is not None:
        place = Text(f"{scores[0]}: {record.name}", f"{scores[0]}：{record.name}")
        shape, check = _scores_shape(scores[1]), _SCORES
    size = _size(departure)
    return Finding(
        id=_IDS[rung],
        rung=rung,
        severity=Severity.ERROR if found.is_statistical else Severity.WARNING,
        title=Text(
            f"{gradient.en} differ in one direction first at {place.en}: "
            f"{size.en}, in rounding of {departure.difference.relative:.2g}",
            f"{gradient.zh}最早在 {place.zh} 处出现有方向的偏差：{size.zh}，"
            f"该处舍入误差为 {departure.difference.relative:.2g}",
        ),
        reference=record.l2,
        candidate=departure.candidate.l2,
        evidence=(
            *where,
            Evidence(
                "direction",
                Side.BOTH,
                text=f"{found.score:.3g} against {found.limit.value:.3g}: {found.limit.source}"[
                    :200
                ],
            ),
            Evidence("floor", Side.BOTH, text=f"{limit.value:.3g}: {limit.source}"[:200]),
        ),
        why=Text(
            f"Rounding goes both ways and cancels over {record.num_elements} elements and "
            f"{found.num_samples} steps; this does not. {shape.en}{right.en}",
            f"舍入有正有负，在 {record.num_elements} 个元素、{found.num_samples} 个 step 上会抵消，"
            f"这里却没有抵消。{shape.zh}{right.zh}",
        ),
        fix=Text(f"In {record.name}: {check.en}.", f"在 {record.name} 处：{check.zh}。"),
        mechanism=Mechanism(rung, Strength.SEMANTIC, signature),
    )


def _size(departure: Compared) -> Text:
    found = departure.systematic
    assert found is not None
    if found.direction is Direction.GAIN:
        factor = f"{1 + found.size:.5g}"
        return Text(f"{factor} times the reference", f"为参考的 {factor} 倍")
    moved = f"{found.size:.2g}"
    return Text(f"every value moved by {moved} root mean squares", f"所有值平移 {moved} 倍均方根")


def _shape(departure: Compared) -> Text:
    found = departure.systematic
    assert found is not None
    if found.direction is Direction.GAIN:
        return Text(
            "A factor is off by a little: an epsilon, a scale, or rounding towards zero.",
            "某个系数略有偏差：epsilon、缩放系数，或向零舍入。",
        )
    return Text(
        "A constant is added: a mean that is not subtracted, or rounding to one side.",
        "多加了一个常量：均值未减去，或单侧舍入。",
    )


def _scores_shape(factor: float) -> Text:
    return Text(
        f"The gradients of q and k carry the factor {factor:.4g} and that of v does not: attention "
        "scores are scaled by another factor, forward too, where the change is below the noise.",
        f"q 与 k 的梯度带有系数 {factor:.4g}，而 v 的没有：注意力分数的缩放系数不同；"
        "前向也受影响，只是变化低于噪声。",
    )


_SCORES = Text(
    "compare the scale of the scores (1 / sqrt(head_dim) or the model's own) and the rotary "
    "embedding's attention factor",
    "请对照注意力分数的缩放系数（1 / sqrt(head_dim) 或模型自带值），"
    "以及旋转位置编码的 attention factor",
)
