"""A second implementation of torch's generator and of the samplers, for tests alone.

Written from the published Mersenne Twister (Matsumoto and Nishimura, 1998) and the samplers'
sources, in plain Python and without sharing anything with ours.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


class Twister:
    """MT19937 with init_genrand, one 32-bit number after the other."""

    def __init__(self, seed: int) -> None:
        state = [seed % 2**32]
        while len(state) < 624:
            last = state[-1]
            state.append((1812433253 * (last ^ last >> 30) + len(state)) % 2**32)
        self.state, self.used = state, 624

    def __call__(self) -> int:
        if self.used == 624:
            self._twist()
        y = self.state[self.used]
        self.used += 1
        y ^= y >> 11
        y ^= y << 7 & 0x9D2C5680
        y ^= y << 15 & 0xEFC60000
        return y ^ y >> 18

    def _twist(self) -> None:
        state = self.state
        for i in range(624):
            y = state[i] & 0x80000000 | state[(i + 1) % 624] & 0x7FFFFFFF
            state[i] = state[(i + 397) % 624] ^ y >> 1 ^ (0x9908B0DF if y & 1 else 0)
        self.used = 0


def permutation(draw: Twister, n: int) -> list[int]:
    rows = list(range(n))
    for i in range(n - 1):
        j = i + draw() % (n - i)
        rows[i], rows[j] = rows[j], rows[i]
    return rows


def verl_steps(
    n: int, batch: int, seed: int, epochs: int, *, workers: int = 0, torchdata: bool = True
) -> list[list[int]]:
    return [
        step for epoch in _epochs(n, seed, epochs, workers, torchdata) for step in cut(epoch, batch)
    ]


def mindspeed_rl_steps(n: int, batch: int, seed: int, iters: int) -> list[list[int]]:
    repeats = 1
    while repeats * n < iters * batch:
        repeats += 1
    return cut([row % n for row in permutation(Twister(seed), repeats * n)], batch)


def megatron_samples(
    lengths: list[int], size: int, num_samples: int, seed: int, extra: bool
) -> list[list[int]]:
    """Walk Megatron's documents token by token: the documents of each drawn sample.

    Written from GPTDataset's description; numpy's legacy shuffle is stable by policy.
    """
    tokens, more = sum(lengths), int(extra)
    epochs = 1
    while epochs * tokens < num_samples * size + more:
        epochs += 1
    before = ((epochs - 1) * tokens - more) // size
    apart = epochs > 1 and num_samples - before < int(0.8 * ((tokens - more) // size))
    draw = np.random.RandomState(seed)
    documents: list[int] = []
    for times in [epochs - 1, 1] if apart else [epochs]:
        part = np.array([*range(len(lengths))] * times)
        draw.shuffle(part)
        documents += part.tolist()
    stream = [d for d in documents for _ in range(lengths[d])]
    places = [place for place, d in enumerate(documents) for _ in range(lengths[d])]
    samples = []
    for start in range(0, len(stream) - more - size + 1, size):
        seen = dict.fromkeys(places[start : start + size + more])
        samples.append([documents[place] for place in seen])
    numbers = np.arange(before if apart else len(samples))
    draw.shuffle(numbers)
    rest = np.arange(len(numbers), len(samples))
    if apart:
        draw.shuffle(rest)
    return [samples[i] for i in [*numbers.tolist(), *rest.tolist()]]


def cut(rows: list[int], batch: int) -> list[list[int]]:
    return [rows[i : i + batch] for i in range(0, len(rows), batch) if i + batch <= len(rows)]


def _epochs(n: int, seed: int, epochs: int, workers: int, torchdata: bool) -> Iterator[list[int]]:
    draw = Twister(seed)
    for _ in range(epochs):
        if torchdata and workers:
            permutation(draw, n)
        rows = permutation(draw, n)
        if not torchdata:
            permutation(draw, n)
        yield rows
