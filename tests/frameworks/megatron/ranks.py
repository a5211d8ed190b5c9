"""Groups of processes, forked from one that has imported Megatron-core already: that takes long."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

Jobs = Sequence[dict[str, Any]]
PATIENCE_S = 600


def run(jobs: Mapping[int, Jobs], folder: Path, *command: str) -> None:
    """Start a script that ends with `fork_ranks`, for jobs by the number of ranks they need.

    Args:
        command: the script, or what else Python is started with.
    """
    plan = folder / f"jobs_{'_'.join(map(str, jobs))}.json"
    plan.write_text(json.dumps(list(jobs.items())), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *command, str(plan)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def fork_ranks(main: Callable[[Jobs], None]) -> None:
    """Call a function in every rank of one group after the other, with the group's jobs.

    RANK, WORLD_SIZE and the rendezvous are in its environment. A rank that fails ends its group.
    """
    for world, jobs in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(world))
        context = get_context("fork")
        ranks = [context.Process(target=_one, args=(main, jobs, rank)) for rank in range(world)]
        for process in ranks:
            process.start()
        codes = _codes(ranks)
        if any(codes):
            sys.exit(f"of {world} ranks, these codes: {codes}")


def _one(main: Callable[[Jobs], None], jobs: Jobs, rank: int) -> None:
    os.environ["RANK"] = str(rank)
    main(jobs)


def _codes(ranks: Sequence[BaseProcess]) -> list[int | None]:
    """Wait for all ranks; stop the others, which would wait for it, when one fails."""
    while any(process.is_alive() for process in ranks):
        if any(process.exitcode for process in ranks):
            time.sleep(1)  # for the others to tell what they failed at
            for process in ranks:
                process.terminate()
        time.sleep(0.02)
    return [process.exitcode for process in ranks]
