"""Time the retokenisation check on 100 000 responses.

Usage: python benchmarks/retokenise.py TOKENIZER_FOLDER [NUM_RESPONSES] [TOKENS_PER_RESPONSE]
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from align.rollout.retokenise import round_trip
from align.rollout.token_tokenizer import load_tokenizer


def _responses(tokenizer: Any, num: int, length: int) -> Iterator[list[int]]:
    """Yield slices of a long text of words drawn by Zipf's law; one in a hundred is random ids."""
    rng = np.random.default_rng(0)
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    ranks = rng.zipf(1.2, 3_000_000)
    drawn = rng.permutation(size)[ranks[ranks < size]]
    text = tokenizer.decode(drawn.tolist(), skip_special_tokens=False)
    base = tokenizer.encode(text, add_special_tokens=False).ids
    for row in range(num):
        if row % 100 == 0:
            yield rng.integers(0, size, length).tolist()
            continue
        start = int(rng.integers(0, len(base) - length))
        yield base[start : start + length]


def main() -> None:
    """Print seconds, tokens a second, drifted responses and peak memory."""
    folder = Path(sys.argv[1])
    num, length = (int(n) for n in (*sys.argv[2:4], *("100000", "512")[len(sys.argv) - 2 :]))
    tokenizer = load_tokenizer(folder)
    responses = list(_responses(tokenizer, num, length))
    began = time.perf_counter()
    found = round_trip(responses, tokenizer, max_response_length=length)
    elapsed_s = time.perf_counter() - began
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{num} responses of {length} tokens: {elapsed_s:.1f} s, "
        f"{found.num_tokens / elapsed_s / 1e6:.2f} M tokens/s, {found.num_drifted} drifted, "
        f"{found.num_broken_text} no whole characters, peak {peak_mib:.0f} MiB"
    )


if __name__ == "__main__":
    main()
