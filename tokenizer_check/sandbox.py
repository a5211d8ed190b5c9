"""Render one chat template in a process of its own, as transformers would.

A template is a program that somebody else wrote. It runs in jinja2's immutable sandbox, which
keeps it from everything but its input, and in a process with bounds on time, memory and output,
which the sandbox does not set. This file is run as a script and imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from jinja2.parser import Parser

MAX_CHARACTERS = 100_000  # of one rendered conversation; the longest of ours has some hundred
MAX_SECONDS = 3
MAX_MEMORY = 1 << 30
_TODAY = datetime(2025, 1, 1)  # both sides are rendered on one day

_RAISED_BY_TEMPLATES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class Refusal(TemplateError):
    """What a template raises itself, such as on a role it does not know."""


class TooLong(TemplateError):
    """More output than any chat template has reason for."""


class GenerationBlock(Extension):
    """``{% generation %}`` marks what the assistant said; the text itself stays as it is."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """Return an environment with the settings and functions that transformers gives templates."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationBlock],
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = _TODAY.strftime
    return made


def render(template: str, values: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Render a template once per set of values.

    Returns:
        For each: ``text``, or why there is none: ``refused`` by the template, or ``failed``.
    """
    return [_outcome(template, each) for each in values]


def _outcome(template: str, values: dict[str, Any]) -> dict[str, str]:
    try:
        return {"text": _rendered(template, values)}
    except Refusal as error:
        return {"refused": str(error)}
    except _RAISED_BY_TEMPLATES as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def _rendered(template: str, values: dict[str, Any]) -> str:
    pieces, length = [], 0
    for piece in environment().from_string(template).generate(values):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_CHARACTERS:
            raise TooLong(f"more than {MAX_CHARACTERS} characters")
    return "".join(pieces)


def _refuse(message: str) -> NoReturn:
    raise Refusal(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON with the arguments that transformers gives this filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _bound() -> None:
    try:
        import resource
    except ImportError:  # not on Windows; there the caller's time limit alone holds
        return
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


if __name__ == "__main__":
    _bound()
    request = json.load(sys.stdin)
    json.dump(render(request["template"], request["values"]), sys.stdout)
