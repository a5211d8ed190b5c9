"""A server of Python processes that begin with torch and its like imported: they are forked.

Each of the nine processes of a verl run spends nine of its ten seconds importing what is the same
in every run. This server imports it once and forks for every client. The forked process does what a
new interpreter does: it runs `sitecustomize`, then the script or module. verl, Ray and this program
are imported there, so what hooks into their import is tested as it is. (Ray reads its environment
when it is imported.) All forked processes hash strings alike, which new interpreters do not.

    python server.py NAME     # serves until its standard input ends; Linux only
"""

from __future__ import annotations

import atexit
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from typing import NoReturn

PRELOADED = (
    *("accelerate", "aiohttp.web", "cachetools", "datasets", "fastapi", "hydra", "jsonschema"),
    *("megatron.core.models.gpt", "msgspec", "networkx", "omegaconf", "pandas", "peft"),
    *("pydantic.dataclasses", "requests", "scipy.optimize", "scipy.stats", "tensordict"),
    *("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.checkpoint"),
    *("torch.distributed.fsdp", "torch.distributed.tensor.experimental"),
    *("torch.utils.tensorboard", "torchdata.stateful_dataloader"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.processing_auto"),
    *("transformers.models.qwen2.modeling_qwen2", "uvicorn", "zmq.asyncio"),
)


@dataclass(frozen=True)
class Request:
    """What a client was started with."""

    files: list[int]
    arguments: list[str]
    folder: str
    environment: dict[str, str]


@dataclass(frozen=True)
class Fork:
    """A forked process and the client that waits for it."""

    pid: int
    watch: int  # a file that is readable once the process has ended
    link: socket.socket


def serve(name: str) -> Request:
    """Fork for every client; returns in the forked processes alone."""
    with selectors.DefaultSelector() as ready, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(64)
        ready.register(sys.stdin.fileno(), selectors.EVENT_READ)
        ready.register(listener, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in ready.select():
                if key.fd == sys.stdin.fileno():
                    os._exit(0)
                elif key.fileobj is listener:
                    request = _fork(listener, ready)
                    if request is not None:
                        return request
                elif key.fd == key.data.watch:
                    _tell_the_end(key.data, ready)
                elif key.data.link.fileno() != -1:  # the client was killed: so is its process
                    with suppress(ProcessLookupError):
                        os.kill(key.data.pid, signal.SIGKILL)
                    ready.unregister(key.data.link)
                    key.data.link.close()


def _fork(listener: socket.socket, ready: selectors.BaseSelector) -> Request | None:
    link = listener.accept()[0]
    head, files, _, _ = socket.recv_fds(link, 8, 3)
    with link.makefile("rb") as stream:
        request = Request(files, *json.loads(stream.read(int.from_bytes(head, "big"))))
    pid = os.fork()
    if pid == 0:
        link.close()
        for key in list(ready.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd != sys.stdin.fileno():
                os.close(key.fd)
        return request
    for file in files:
        os.close(file)
    fork = Fork(pid, os.pidfd_open(pid), link)
    ready.register(fork.watch, selectors.EVENT_READ, fork)
    ready.register(link, selectors.EVENT_READ, fork)
    return None


def _tell_the_end(fork: Fork, ready: selectors.BaseSelector) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
    ready.unregister(fork.watch)
    os.close(fork.watch)
    if fork.link.fileno() != -1:
        ready.unregister(fork.link)
        with suppress(OSError):
            fork.link.sendall(str(code % 256).encode())
        fork.link.close()


def become(request: Request, search: list[str]) -> None:
    """Take over a client's files, folder, environment and search path, as a new interpreter has."""
    for number, file in enumerate(request.files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    random.seed()
    import_module("numpy").random.seed()
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*given, *search]
    invalidate_caches()
    with suppress(ModuleNotFoundError):
        import_module("sitecustomize")


def run(request: Request) -> int:
    """Run a client's script or module; return the exit code."""
    options, arguments = [], [*request.arguments]
    while arguments[0] in ("-u", "-m"):
        options.append(arguments.pop(0))
    if "-u" in options:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    script = os.path.abspath(arguments[0])
    sys.argv[:] = arguments
    sys.path.insert(0, request.folder if "-m" in options else os.path.dirname(script))
    try:
        if "-m" in options:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(code: int) -> NoReturn:
    """End as an interpreter does, but free nothing: after a fork that takes seconds."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    own = sys.path[1:]
    for module in PRELOADED:
        with suppress(ImportError):
            import_module(module)
    assert "ray" not in sys.modules
    asked = serve(sys.argv[1])
    become(asked, own)
    end(run(asked))
