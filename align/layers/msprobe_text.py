"""Words for the findings of two msprobe dumps."""

from __future__ import annotations

from align.core.finding import Evidence, Side
from align.core.text import Text
from align.layers.cause_text import check_text, shape_text
from align.layers.floor import UNIT_ROUNDOFF
from align.layers.msprobe_compare import ComparedTensor, Method
from align.layers.msprobe_pair import EntryPair
from align.layers.msprobe_walk import Departure, DumpWalk
from align.layers.pattern import Cause, Pattern, Place
from dumps.readers.msprobe_keys import Direction

_PLACES = (
    (Place.ROTARY, ("rotary", "rope")),
    (Place.EMBEDDING, ("embed",)),
    (Place.NORM, ("norm",)),
    (Place.ROUTER, ("router",)),
    (Place.ATTENTION, ("attention", "self_attn", "attn")),
    (Place.LINEAR, ("_proj", "lm_head", "linear", "output_layer", "fc1", "fc2")),
)
_CLOSING = ("o_proj", "linear_proj", "dense")
_OPENING = ("q_proj", "k_proj", "v_proj", "linear_qkv")
_ALMOST_ALL = 0.9
_SECTIONS = {
    "input": Text("input", "输入"),
    "kwargs": Text("input", "输入"),
    "output": Text("output", "输出"),
    "parameters": Text("parameter", "参数"),
    "gradient": Text("gradient of", "参数梯度"),
}
_BACKWARD = {
    "input": Text("gradient of the output", "输出的梯度"),
    "output": Text("gradient of the input", "输入的梯度"),
}


def where(pair: EntryPair, place: tuple[str, ...]) -> Text:
    """Say which tensor of which call."""
    of, zh_of = module(pair).en, module(pair).zh
    backward = pair.reference.text.endswith(".backward") or ".backward." in pair.reference.text
    section = _BACKWARD.get(place[0]) if backward else None
    section = section or _SECTIONS[place[0]]
    name = ".".join(place[1:])
    return Text(f"{section.en} {name} of {of}", f"{zh_of}的{section.zh} {name}")


def module(pair: EntryPair) -> Text:
    """Name the module, or the API and the module it was called in."""
    kind = pair.reference.key.name
    call = pair.reference.key.call
    if not pair.is_api:
        again = f", call {call}" if call else ""
        zh_again = f"，第 {call + 1} 次调用" if call else ""
        return Text(f"{pair.name} ({kind}{again})", f"{pair.name}（{kind}{zh_again}）")
    inside = pair.inside or "the model"
    return Text(f"{kind} in {inside}", f"{pair.inside or '模型'} 中的 {kind} ")


def size(tensor: ComparedTensor) -> Text:
    """Say how far a tensor is off, by what it was compared."""
    if tensor.method is Method.DIGEST:
        return Text("its bits differ", "逐位不同")
    amount = "NaN or infinity on one side" if tensor.relative == float("inf") else ""
    zh_amount = "只有一侧出现 NaN 或无穷大" if amount else f"相对误差 {tensor.relative:.2g}"
    amount = amount or f"by {tensor.relative:.2g}"
    if tensor.method is Method.STATISTICS and tensor.relative != float("inf"):
        return Text(f"{amount}, estimated from statistics", f"{zh_amount}（由统计量估计）")
    return Text(amount, zh_amount)


def measures(tensor: ComparedTensor) -> str:
    """List every measure of a tensor, for evidence."""
    found = tensor.exact
    if found is None:
        one, two = tensor.reference, tensor.candidate
        if tensor.method is Method.DIGEST:
            return f"{one.digest} against {two.digest}"
        return (
            f"L2 {_number(one.norm)} / {_number(two.norm)}, mean {_number(one.mean)} / "
            f"{_number(two.mean)}, max {_number(one.maximum)} / {_number(two.maximum)}, "
            f"min {_number(one.minimum)} / {_number(two.minimum)}"
        )
    at = index_of(found.max_abs_at, tensor.reference.shape)
    beyond = found.beyond / max(1, found.count)
    text = (
        f"relative L2 {found.relative:.3g}, cosine {found.cosine:.7g}, max {found.max_abs:.3g} at "
        f"{at}, {found.max_ulp} ulp, {beyond:.1%} beyond 4 u, {found.sign_flips} sign flips"
    )
    holes = found.not_finite
    return text + (f", not finite {holes[0]} / {holes[1]}" if any(holes) else "")


def index_of(flat: int, shape: tuple[int, ...]) -> list[int]:
    """Return the index of a flat position; empty where there is none."""
    index: list[int] = []
    for length in reversed(shape if flat >= 0 else ()):
        index.insert(0, flat % length)
        flat //= length
    return index


def neighbourhood(walk: DumpWalk, tensor: ComparedTensor) -> tuple[Evidence, ...]:
    """Show the tensors computed just before and after one."""
    return tuple(
        Evidence(
            "in order" if other is not tensor else "here",
            Side.BOTH,
            text=f"{where(other.pair, other.reference.place).en}: {_short(other)}"[:200],
        )
        for other in walk.around(tensor)
    )


def _short(tensor: ComparedTensor) -> str:
    if tensor.method is Method.DIGEST:
        return "equal bits" if tensor.relative == 0 else "other bits"
    if tensor.is_integer:
        return "equal numbers" if tensor.relative == 0 else "other numbers"
    return f"{tensor.relative:.2g} of {tensor.limit.value:.2g}"


def cause_text(departure: Departure) -> Text:
    """Say what shape the difference has."""
    tensor = departure.tensor
    assert tensor is not None
    if tensor.relative == float("inf"):
        return shape_text(Cause(Pattern.NOT_FINITE))
    found = tensor.exact
    if found is None:
        return Text(
            f"The candidate's L2 is {tensor.gain:.6g} times the reference's; statistics show no "
            "more of its shape.",
            f"被测的 L2 是参考的 {tensor.gain:.6g} 倍；统计量无法进一步说明差值的形态。",
        )
    if found.residual < (1 - _ALMOST_ALL) * found.relative:
        return shape_text(Cause(Pattern.SCALED, found.gain))
    dtypes = {tensor.reference.dtype, tensor.candidate.dtype}
    unit = UNIT_ROUNDOFF["bfloat16"]
    if dtypes == {"float32"} and unit / 32 < found.relative < unit:
        return shape_text(Cause(Pattern.BFLOAT16))
    return shape_text(Cause(Pattern.OTHER))


def check(departure: Departure) -> Text:
    """Say what to compare in the module of a departure."""
    assert departure.tensor is not None
    return check_text(place_of(departure.tensor))


def place_of(tensor: ComparedTensor) -> Place:
    """Say what kind of module a tensor belongs to; an output projection's input is attention."""
    pair = tensor.pair
    last = pair.name.rsplit(".", 1)[-1].lower()
    if tensor.enters and last in _CLOSING and not tensor.is_parameter:
        return Place.ATTENTION
    if last in _OPENING and pair.direction is not Direction.FORWARD:
        return Place.ATTENTION  # what a gradient comes from lies behind the module
    if last in ("gate", "router"):
        return Place.ROUTER
    for place, words in _PLACES:
        if any(word in last for word in words):
            return place
    return Place.OTHER


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.7g}"
