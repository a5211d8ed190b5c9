"""Reach optional packages late, and say how to install one that is absent."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from align.core.errors import MissingPackageError


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module.

    Args:
        module: dotted name, such as "tensorboard.compat.proto.event_pb2".
        extra: the extra of this distribution that brings it.

    Raises:
        MissingPackageError: The package is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(
            where=f"package {package}",
            problem=f"is needed for this input and cannot be imported ({error})",
            fix=f"pip install 'npu-align[{extra}]' "
            f"(in a checkout: .venv/bin/pip install '.[{extra}]')",
        ) from error
