"""Errors a user can act on: the place, the problem and the fix, in one line."""

from __future__ import annotations

import functools
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of every command."""

    ALIGNED = 0
    FINDINGS = 1
    COULD_NOT_RUN = 2
    NOT_COMPARABLE = 3


class AlignError(Exception):
    """Input that cannot be used. Never raised for a run that is merely misaligned.

    Args:
        where: file, file:line, option or command the problem sits in.
        problem: what is wrong there, as a clause without a full stop.
        fix: what the user can do about it.
        key: field, column or config key concerned, where there is one.
    """

    def __init__(self, *, where: str, problem: str, fix: str, key: str | None = None) -> None:
        self.where = where
        self.problem = problem
        self.fix = fix
        self.key = key
        super().__init__(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Let an error cross from a worker process to its parent, without what it was raised in."""
        words: dict[str, Any] = {
            "where": self.where,
            "problem": self.problem,
            "fix": self.fix,
            "key": self.key,
        }
        return functools.partial(type(self), **words), ()

    def __str__(self) -> str:
        place = f"{self.where}: {self.key}" if self.key else self.where
        return f"{place}: {self.problem}; {self.fix}"


class DumpError(AlignError):
    """A log, rollout dump, capture or other artifact that cannot be read."""


class ConfigError(AlignError):
    """A configuration that cannot be read or resolved."""


class RunError(AlignError):
    """A folder or set of files that does not make a run."""


class DocumentError(AlignError):
    """A report.json that is not one of ours, or of a version we do not know."""


class MissingPackageError(AlignError, ImportError):
    """An optional package is needed and not installed."""
