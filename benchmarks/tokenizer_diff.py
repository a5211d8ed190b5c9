"""Time to compare two tokenizers of 151 k tokens, with one merge lost and one id swapped.

``python -m benchmarks.tokenizer_diff [FOLDER]`` takes a folder with vocab.json and merges.txt, such
as Qwen2.5's; without one a vocabulary and merges of that size are made up. Both sides are found,
read and compared five times in one process; printed are the medians in wall and processor seconds:
of vocabulary and merges alone, and of the whole rung with encoded texts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

NUM_REPEATS = 5
NUM_TOKENS = 151_643
LIMIT_S = 3.0  # for vocabulary and merges


def made_up(folder: Path) -> None:
    """Write a byte-level vocabulary of the size of Qwen2.5's."""
    letters = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
    tokens, merges = dict.fromkeys(letters), []
    first = list(tokens)
    for a in first:
        for b in first:
            merges.append((a, b))
            tokens[a + b] = None
    grown = list(tokens)[len(first) :]
    for number in range(NUM_TOKENS - len(tokens)):
        a, b = grown[number % len(grown)], first[number // len(grown)]
        if a + b not in tokens:
            merges.append((a, b))
            tokens[a + b] = None
    folder.mkdir()
    write(folder, {token: number for number, token in enumerate(tokens)}, merges)


def write(folder: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Write the files of a tokenizer of Qwen2's class."""
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = "".join(f"{a} {b}\n" for a, b in merges)
    (folder / "merges.txt").write_text(lines, encoding="utf-8")
    config = {
        "eos_token": "<|im_end|>",
        "model_max_length": 8,
        "tokenizer_class": "Qwen2Tokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def damaged(folder: Path, target: Path) -> None:
    """Copy a folder without one merge and with two ids swapped."""
    from dumps.readers.tokenizer_content import read_merges, read_vocabulary

    shutil.copytree(folder, target, copy_function=shutil.copyfile)
    target.chmod(0o755)
    merges, vocabulary = list(read_merges(folder / "merges.txt")), {**_ids(folder, read_vocabulary)}
    del merges[len(merges) // 2]
    a, b = list(vocabulary)[-2:]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    write(target, vocabulary, merges)


def _ids(folder: Path, read: Callable[[Path], object]) -> dict[str, int]:
    loaded = read(folder / "vocab.json")
    assert isinstance(loaded, dict)
    return loaded


def content_alone(reference: Path, candidate: Path) -> str:
    """Find, read and compare vocabulary and merges."""
    from dumps.store.discover import discover
    from dumps.store.run_data import RunData
    from tokenizer_check.content import read_content
    from tokenizer_check.content_diff import diff_merges, diff_vocabularies

    ours, theirs = (read_content(RunData(discover([side]))) for side in (reference, candidate))
    assert ours.vocabulary and theirs.vocabulary and ours.merges and theirs.merges
    vocabulary = diff_vocabularies(ours.vocabulary.value, theirs.vocabulary.value, frozenset())
    merges = diff_merges(ours.merges.value, theirs.merges.value)
    return f"{vocabulary.num_other_id if vocabulary else 0} ids, {1 if merges else 0} merges"


def whole_rung(reference: Path, candidate: Path) -> str:
    """Compare everything the rung compares."""
    from dumps.store.discover import discover
    from dumps.store.run_data import RunData
    from tokenizer_check.rung import compare

    result = compare(RunData(discover([reference])), RunData(discover([candidate])))
    return ", ".join(finding.id for finding in result.findings)


def main() -> int:
    """Print one line a comparison; fail where vocabulary and merges take too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    stated = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as work:
        reference, candidate = stated or Path(work, "reference"), Path(work, "candidate")
        if stated is None:
            made_up(reference)
        damaged(reference, candidate)
        medians = []
        for name, function in (
            ("vocabulary and merges", content_alone),
            ("whole rung", whole_rung),
        ):
            walls, processors, found = [], [], ""
            for _ in range(NUM_REPEATS):
                wall, processor = time.perf_counter(), time.process_time()
                found = function(reference, candidate)
                walls.append(time.perf_counter() - wall)
                processors.append(time.process_time() - processor)
            medians.append(statistics.median(processors))
            print(
                f"{name}: {statistics.median(walls):.2f} s wall, {medians[-1]:.2f} s processor "
                f"({found})"
            )
    return 1 if medians[0] > LIMIT_S else 0


if __name__ == "__main__":
    raise SystemExit(main())
