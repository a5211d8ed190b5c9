"""Spread chunks over this machine's processes or over a Ray cluster; results stay in order."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from align.core.errors import RunError
from align.core.optional import require
from align.layers.step_errors import Chunk, Measured, StepFiles

MapChunks = Callable[[Callable[[Chunk], Measured], Sequence[Chunk]], Iterable[Measured]]

_STEPS = 32
"""Of a chunk: some seconds' work where a step has ten thousand addresses."""

_WORTH_PROCESSES = 64

_PLACE = re.compile(r"(?:ray://)?\[?(?P<host>[^\[\]/]+)\]?:(?P<port>\d+)")
_ANSWERS_S = 10.0  # a cluster's head, across a slow network; Ray itself asks for minutes


@dataclass(frozen=True, slots=True)
class Spread:
    """Where chunks are compared.

    Args:
        workers: how many at a time.
    """

    map_chunks: MapChunks
    workers: int


@contextmanager
def on_this_machine(steps: int, processes: int) -> Iterator[Spread]:
    """Spread over processes; few steps are not worth starting one."""
    if processes == 1 or steps < _WORTH_PROCESSES:
        yield Spread(map, 1)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield Spread(pool.map, processes)


@contextmanager
def on_ray(address: str) -> Iterator[Spread]:
    """Spread over a Ray cluster, whose nodes have this package and the same file system.

    Args:
        address: as of ``ray.init``: "auto", "HOST:6379" or "ray://HOST:10001".

    Raises:
        MissingPackageError: Ray is not installed.
        RunError: There is no cluster at the address.
    """
    ray = require("ray", extra="ray")
    is_own = not ray.is_initialized()
    if is_own:
        try:
            _answers(address)
            ray.init(address=address, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise RunError(
                where=f"--ray {address}",
                problem=f"is no Ray cluster ({error})",
                fix="start one (`ray start --head`) and give its address, or auto on its head",
            ) from error

    def map_chunks(work: Callable[[Chunk], Measured], given: Sequence[Chunk]) -> Iterator[Measured]:
        remote = ray.remote(work)
        for task in [remote.remote(chunk) for chunk in given]:
            yield ray.get(task)

    try:
        yield Spread(map_chunks, max(1, int(ray.cluster_resources().get("CPU", 1))))
    finally:
        if is_own:
            ray.shutdown()


def _answers(address: str) -> None:
    """Ask whether anything listens at an address that names a place.

    Raises:
        OSError: Nothing does.
    """
    place = _PLACE.fullmatch(address)
    if place is not None:
        socket.create_connection((place["host"], int(place["port"])), _ANSWERS_S).close()


def chunks(files: Sequence[StepFiles], workers: int) -> list[Chunk]:
    """Cut the work by step, and by layer too where there are fewer steps than workers."""
    length = max(1, min(_STEPS, len(files) // workers))
    parts = -(-workers // max(1, len(files)))
    return [
        Chunk(tuple(files[start : start + length]), part, parts)
        for start in range(0, len(files), length)
        for part in range(parts)
    ]
