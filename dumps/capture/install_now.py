"""Hooks the process that imports it, and never fails: the command must run, hooked or not.

For a ``.pth`` file and for verl's VERL_USE_EXTERNAL_MODULES, where PYTHONPATH is not handed on.
"""

import sys

try:
    from dumps.capture.install import install

    install()
except Exception as error:  # a plan that cannot be read, wrapt that is not installed, …
    print(f"align capture: not hooked: {type(error).__name__}: {error}", file=sys.stderr)
