"""Write rollouts in the layout of the standard rollout store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from align.core.rollout_record import COLUMNS, RolloutRecord
from dumps.readers.rollout_store import schema


def write_records(path: Path, records: Sequence[RolloutRecord]) -> None:
    """Write rows to a Parquet file of the store's columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [asdict(record) for record in records]
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    extras = [json.dumps(dict(record.extras), ensure_ascii=False) for record in records]
    table = pa.table({**columns, "extras": extras}, schema=schema())
    pq.write_table(table, path, compression="zstd")
