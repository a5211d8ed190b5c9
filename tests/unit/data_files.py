"""Data set files written byte by byte or by pyarrow, for tests of their readers."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

QUESTIONS = [f"What is {i}+{i}? " + "x" * (i % 5) for i in range(23)]
IDS = [[i, i + 1, *range(i % 7)] for i in range(23)]


def write_parquet(path: Path, questions: list[str] = QUESTIONS, rows_per_group: int = 8) -> Path:
    rows = [
        {
            "prompt": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": question},
            ],
            "reward_model": {"style": "rule", "ground_truth": str(i)},
        }
        for i, question in enumerate(questions)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=rows_per_group)
    return path


def write_indexed(
    folder: Path, key: str = "input_ids", rows: list[list[int]] = IDS, code: int = 4
) -> Path:
    """Write .bin and .idx byte by byte, as the format is published."""
    start = folder / f"data_packed_{key}_document"
    start.with_suffix(".bin").write_bytes(b"".join(struct.pack(f"<{len(r)}i", *r) for r in rows))
    lengths = [len(row) for row in rows]
    starts = [4 * sum(lengths[:i]) for i in range(len(rows))]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(rows), len(rows) + 1)
    index += struct.pack(f"<{len(rows)}i", *lengths) + struct.pack(f"<{len(rows)}q", *starts)
    index += struct.pack(f"<{len(rows) + 1}q", *range(len(rows) + 1))
    start.with_suffix(".idx").write_bytes(index)
    return start.with_suffix(".idx")
