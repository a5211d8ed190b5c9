"""Exact measures of the tensors that both runs kept whole."""

from __future__ import annotations

import json
from collections.abc import Mapping

from align.core.figure import Column, Table
from align.core.rung import Rung
from align.core.text import Text
from align.layers.exact import exact_differences
from align.layers.tensors_pair import Address, WholePair
from dumps.store.run_data import RunData

_COLUMNS = (
    Column("relative_error", Text("relative error", "相对误差"), numeric=True),
    Column("cosine", Text("cosine", "余弦"), numeric=True),
    Column("max_abs", Text("largest difference", "最大差"), numeric=True),
    Column("position", Text("at position", "所在位置"), numeric=True),
    Column("feature", Text("at feature", "所在特征"), numeric=True),
    Column("max_ulp", Text("ULP", "ULP"), numeric=True),
    Column("beyond", Text("share beyond 4 roundings", "超出 4 次舍入的比例"), numeric=True),
    Column("sign_flips", Text("sign flips", "符号翻转"), numeric=True),
    Column("not_finite", Text("NaN or infinite", "NaN 或无穷"), numeric=True),
    Column("alone", Text("rows on one side", "仅一侧有的行"), numeric=True),
    Column("phase", Text("phase", "阶段")),
    Column("module", Text("module", "模块")),
)


def exact_table(rung: Rung, pairs: Mapping[Address, WholePair]) -> tuple[Table, ...]:
    """Return a table with a row an address; none without pairs."""
    if not pairs:
        return ()
    found = exact_differences([(pair.reference, pair.candidate) for pair in pairs.values()])
    rows = []
    for pair, exact in zip(pairs.values(), found, strict=True):
        row, column = divmod(exact.max_abs_at, pair.reference.raw.shape[1])
        is_known = exact.max_abs_at >= 0
        rows.append(
            (
                exact.relative,
                exact.cosine,
                exact.max_abs,
                int(pair.places[row]) if is_known else None,
                column + pair.first_feature if is_known else None,
                exact.max_ulp,
                exact.beyond / max(1, exact.count),
                exact.sign_flips,
                exact.not_finite[1],
                pair.alone,
                pair.address[1],
                pair.address[0],
            )
        )
    title = Text("Tensors kept whole, number by number", "完整保存的张量（逐元素比较）")
    return (Table(f"{rung.value}_tensors", title, _COLUMNS, tuple(rows)),)


def head_dim_of(*runs: RunData) -> int | None:
    """Return the features of one attention head, from a run's model/config.json; None without."""
    for run in runs:
        path = run.run.root / "model" / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            heads = int(config["num_attention_heads"])
            return int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None
