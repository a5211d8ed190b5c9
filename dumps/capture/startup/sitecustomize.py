"""Runs as Python starts, where the environment names a capture plan; hands on to the next one.

This folder is first on PYTHONPATH of a captured command and of the workers it starts. It hides any
other ``sitecustomize``, so that is found and run too.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_next() -> None:
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _replay() -> None:
    try:
        from dumps.inject.install import install

        install()
    except Exception as error:  # Python goes on after any but this; a run without replay must not
        raise SystemExit(f"align replay: not hooked: {type(error).__name__}: {error}") from error


def _hook() -> None:
    if os.environ.get("ALIGN_REPLAY"):  # first, so that a capture sees what a replay makes
        _replay()
    if not os.environ.get("ALIGN_CAPTURE"):
        return
    try:
        import dumps.capture.install_now  # noqa: F401
    except ImportError as error:
        print(f"align capture: not hooked: npu-align is not installed ({error})", file=sys.stderr)


try:
    _run_the_next()
finally:
    _hook()
