"""Time the retokenisation check on 100 000 responses.

Usage: python -m benchmarks.retokenise TOKENIZER_FOLDER [NUM_RESPONSES] [TOKENS_PER_RESPONSE]
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from align.rollout.retokenise import round_trip
from align.rollout.token_tokenizer import load_tokenizer


def _responses(tokenizer: Any, num: int, length: int) -> Iterator[list[int]]:
    """Yield slices of a text of words and numbers by Zipf's law; a hundredth sampled otherwise.

    Those have one word in two spelled letter by letter, as a policy may sample it.
    """
    rng = np.random.default_rng(0)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    spaced = [(t[1:], i) for t, i in vocabulary.items() if t[:1] == "Ġ"]
    words = np.array([i for word, i in spaced if word.isalpha() and word.isascii()])
    digits = np.array([i for t, i in vocabulary.items() if t.isdigit() and t.isascii()])
    ranks = rng.zipf(1.2, 1_000_000)
    drawn = rng.permutation(words)[ranks[ranks < len(words)]]
    numbers = rng.random(len(drawn)) < 0.1
    drawn[numbers] = rng.choice(digits, numbers.sum())
    text = tokenizer.decode(drawn.tolist(), skip_special_tokens=False)
    (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    base, spelled = encoded.ids, _spelled(tokenizer)
    for row in range(num):
        start = int(rng.integers(0, len(base) - length))
        ids = base[start : start + length]
        if row % 100 == 0:
            ids = [i for at, word in enumerate(ids) for i in (spelled(word) if at % 2 else [word])]
        yield ids[:length]


def _spelled(tokenizer: Any) -> Callable[[int], list[int]]:
    def letters(number: int) -> list[int]:
        ids = [tokenizer.token_to_id(letter) for letter in tokenizer.id_to_token(number)]
        return [number] if None in ids else ids

    return letters


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
