"""``align layers isolate``: a candidate's modules alone, on the reference's inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from align.cli.options import json_option, lang_option
from align.core.errors import ExitCode, RunError
from align.core.text import Text

if TYPE_CHECKING:
    from align.layers.isolate import Isolated, Isolation

SCHEMA_VERSION = 1
_NOTHING = Text(
    "no module's input and output are recorded whole in {place}; record them with "
    "`align capture --tensors 'model.layers.0.*'`",
    "{place} 中没有完整记录任何模块的输入与输出；请用 "
    "`align capture --tensors 'model.layers.0.*'` 记录",
)
_IMPRECISE = Text(
    "this device itself is {own:.2g} away from float64, more than rounding explains: check the "
    "implementation of this operation on this device",
    "本设备的结果与 float64 相差 {own:.2g}，超出舍入所能解释的范围：检查该算子在本设备上的实现",
)
_OTHERWISE = Text(
    "this device agrees with float64 to {own:.2g}, so it computes what the folder states: compare "
    "the module's weights (`align weights diff`) and its epsilon in config.json, then the "
    "reference's own implementation",
    "本设备与 float64 一致到 {own:.2g}，即按该目录的内容正确计算：比较该模块的权重"
    "（`align weights diff`）与 config.json 中的 epsilon，然后检查参考侧的实现",
)


@click.command("isolate")
@click.argument("reference", type=click.Path(path_type=Path), metavar="REF")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--module", "patterns", multiple=True, metavar="PATTERN", help="May be repeated.")
@click.option("--step", type=click.IntRange(min=0), help="The first recorded one by default.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Run in this dtype instead of that of each recorded input.",
)
@click.option("--device", default="cpu", show_default=True, help="torch's name: cuda, npu:0, …")
@click.option(
    "--attention",
    type=click.Choice(["eager", "sdpa", "flash_attention_2"]),
    default="eager",
    show_default=True,
    help="How MODEL's attention is computed: sdpa takes this device's fused operator.",
)
@lang_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    reference: Path,
    model: Path,
    patterns: tuple[str, ...],
    step: int | None,
    dtype: str | None,
    device: str,
    attention: str,
    lang: str,
    as_json: bool,
) -> None:
    """Run each module of MODEL alone on the input that REF recorded, forward and backward.

    REF was captured with `align capture --tensors`; MODEL is a Hugging Face folder with the weights
    that the step began with. Outputs are compared with REF's, gradients of inputs with those of a
    float64 copy. Exit 1 when a module is beyond its floor, 3 when there is none to run.
    """
    from align.cli.sides import find_run, load
    from align.layers.isolate import isolate
    from align.weights.load_model import load_model
    from reports.render.json import render

    _check_device(device)
    run = load(find_run(reference, ()), lambda num_bytes: None)
    loaded = load_model(model, attention=attention)
    found = isolate(run, loaded, patterns=patterns, step=step, dtype=dtype, device=device)
    click.echo(render(_document(found)) if as_json else _text(found, lang), nl=not as_json)
    for problem in run.problems:
        click.echo(f"align: {problem}", err=True)
    if not found.modules:
        said = _NOTHING.in_language(lang).format(place=reference)
        click.echo(f"align: {said}", err=True)
        ctx.exit(ExitCode.NOT_COMPARABLE)
    ctx.exit(ExitCode.FINDINGS if found.beyond else ExitCode.ALIGNED)


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RunError(
            where=f"--device {device}",
            problem=f"cannot be used ({str(error).splitlines()[0][:120]})",
            fix="name a device of this machine, or leave it out for the CPU",
        ) from error


def _cause(found: Isolated) -> Text:
    text = _IMPRECISE if found.is_imprecise else _OTHERWISE
    return Text(text.en.format(own=found.own_error), text.zh.format(own=found.own_error))


def _verdict(found: Isolated) -> Text:
    if found.inside:
        return Text(f"from {found.inside}", f"来自 {found.inside}")
    return Text("BEYOND", "超限") if found.is_beyond else Text("within", "限内")


def _text(found: Isolation, lang: str) -> str:
    from align.cli.rung_view import table_lines
    from align.core.figure import Column, Table

    columns = (
        Column("module", Text("module", "模块")),
        Column("phase", Text("phase", "阶段")),
        Column("dtype", Text("dtype", "数据类型")),
        Column("rows", Text("rows", "行数"), numeric=True),
        Column("relative_error", Text("relative error", "相对误差"), numeric=True),
        Column("floor", Text("floor", "限值"), numeric=True),
        Column("max_abs", Text("max abs", "最大绝对差"), numeric=True),
        Column("at", Text("at row, feature", "位置（行，特征）")),
        Column("verdict", Text("verdict", "结论")),
    )
    rows = tuple(
        (
            one.name,
            one.phase,
            one.dtype,
            one.rows,
            one.difference.relative,
            one.floor.value,
            one.difference.max_abs,
            "" if one.place is None else f"{one.place[0]}, {one.place[1]}",
            _verdict(one).in_language(lang),
        )
        for one in found.modules
    )
    title = Text(f"modules alone, step {found.step}", f"单独运行的模块，第 {found.step} 步")
    lines = list(table_lines(Table("isolated", title, columns, rows), lang)) if rows else []
    for one in found.beyond:
        lines += ["", f"{one.name}, {one.phase}: {_cause(one).in_language(lang)}"]
    said = Text("not run", "未运行").in_language(lang)
    lines += [f"{said}: {other.name}: {other.why.in_language(lang)}" for other in found.others]
    return "\n".join(lines)


def _document(found: Isolation) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "step": found.step,
        "modules": [_module(one) for one in found.modules],
        "not_run": [
            {"module": other.name, "why": {"en": other.why.en, "zh": other.why.zh}}
            for other in found.others
        ],
    }


def _module(one: Isolated) -> dict[str, Any]:
    cause = _cause(one) if one.is_beyond and not one.inside else None
    return {
        "module": one.name,
        "phase": one.phase,
        "dtype": one.dtype,
        "rows": one.rows,
        "relative_error": one.difference.relative,
        "own_error": one.own_error,
        "floor": {"value": one.floor.value, "source": one.floor.source},
        "max_abs": one.difference.max_abs,
        "at": None if one.place is None else list(one.place),
        "beyond": one.is_beyond,
        "inside": one.inside or None,
        "cause": None if cause is None else {"en": cause.en, "zh": cause.zh},
    }
