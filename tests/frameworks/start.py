"""Run a module of these tests as a process: `python start.py tests.frameworks.NAME ARGS`.

verl installs a package of its own that is called tests, which would be found first.
"""

import runpy
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    sys.path[0] = str(TESTS.parent)
    sys.modules["tests"] = ModuleType("tests")
    sys.modules["tests"].__path__ = [str(TESTS)]
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
