"""Options and exit codes shared by the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from align.core.errors import ExitCode
from align.core.finding import Severity
from align.core.text import LANGUAGES

if TYPE_CHECKING:
    from align.core.finding import Finding

Command = TypeVar("Command", bound=Callable[..., Any])


def lang_option(function: Command) -> Command:
    """Add ``--lang en|zh``."""
    return click.option(
        "--lang",
        type=click.Choice(LANGUAGES),
        default="en",
        show_default=True,
        help="Language of what is shown.",
    )(function)


def fail_on_option(function: Command) -> Command:
    """Add ``--fail-on error|warning|info|never``."""
    return click.option(
        "--fail-on",
        type=click.Choice([*(severity.value for severity in Severity), "never"]),
        default=Severity.ERROR.value,
        show_default=True,
        help="Exit 1 when a finding is at least this severe.",
    )(function)


def json_option(function: Command) -> Command:
    """Add ``--json``: one document on stdout, everything else on stderr."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print the JSON document to stdout."
    )(function)


def exit_code(findings: Iterable[Finding], fail_on: str) -> ExitCode:
    """Return 1 when a finding is at or above ``fail_on``, else 0."""
    if fail_on == "never":
        return ExitCode.ALIGNED
    limit = Severity(fail_on).rank
    failed = any(finding.severity.rank <= limit for finding in findings)
    return ExitCode.FINDINGS if failed else ExitCode.ALIGNED
