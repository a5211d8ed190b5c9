"""``align rollout``: what the models answered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from align.cli.options import json_option, lang_option
from align.cli.rung_diff import diff_command

if TYPE_CHECKING:
    from dumps.store.rollout_convert import Conversion

_PATH = click.Path(path_type=Path)
_FORMATS = ("store", "verl", "mindspeed_rl", "tq_batch", "gen_batch")


@click.group()
def command() -> None:
    """Compare what the models answered, or convert dumps of it."""


command.add_command(
    diff_command(
        "align.ladder",
        "Compare counts, lengths and scores per step, responses paired by prompt text.",
        function="compare_rollouts",
    )
)


@command.command("convert")
@click.argument("source", type=_PATH, metavar="SRC")
@click.option("-o", "--out", type=_PATH, required=True, metavar="DST", help="Folder to write.")
@click.option("--to", type=click.Choice(_FORMATS), default="store", show_default=True)
@click.option("--tokenizer", type=_PATH, help="Decodes SRC where it holds token ids alone.")
@lang_option
@json_option
def convert_command(
    source: Path, out: Path, to: str, tokenizer: Path | None, lang: str, as_json: bool
) -> None:
    """Convert the rollout dumps of SRC, and say what does not survive.

    SRC is a file or folder of verl's or MindSpeed-RL's JSON lines, tq_batch.pt, gen_batch.dp or
    the standard store. Pickles are read without executing them.
    """
    from dumps.store.rollout_convert import convert
    from reports.render.json import render

    done = convert(source, out, to, tokenizer)
    click.echo(render(_as_document(done)) if as_json else _as_text(done, lang), nl=not as_json)
    for problem in done.problems:
        click.echo(f"align: {problem}", err=True)


def _as_document(done: Conversion) -> dict[str, object]:
    return {
        "schema_version": 1,
        "files": [str(file) for file in done.files],
        "rows": done.num_rows,
        "rows_not_read": done.num_skipped,
        "absent": list(done.absent),
        "lost": done.lost,
        "left_out": list(done.left_out),
        "problems": list(done.problems),
    }


def _as_text(done: Conversion, lang: str) -> str:
    lost = [f"{name} ({count})" for name, count in done.lost.items()]
    zh = lang == "zh"
    lines = [
        f"写出 {done.num_rows} 行，{len(done.files)} 个文件"
        if zh
        else f"{done.num_rows} rows written in {len(done.files)} files"
    ]
    for names, en, cn in (
        (done.absent, "the source does not have", "来源中没有"),
        (lost, "the written format has no place for", "目标格式无法保存"),
        (done.left_out, "fields of the source left out", "来源中未保留的字段"),
    ):
        if names:
            lines.append(f"{cn if zh else en}: {', '.join(names)}")
    if done.num_skipped:
        lines.append(
            f"无法读取的行：{done.num_skipped}" if zh else f"rows not read: {done.num_skipped}"
        )
    return "\n".join(lines)
