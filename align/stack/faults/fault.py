"""One known defect of a run: what it does, where it was met, what a report must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from align.core.rung import Rung

if TYPE_CHECKING:
    from align.stack.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Fault:
    """Exactly one change to a run, as it happened in the field.

    A fault people made in a configuration file is a list of ``overrides``, visible in the resolved
    configuration. A fault of the code is a ``change`` of the pipeline; the configuration then
    still states what the reference does.

    Args:
        name: as `--fault` takes it.
        rung: link of the chain that breaks, the first part of ``finding_id``.
        what: what the fault does, as a sentence.
        field_report: where it was met: "seed NNN", or "report N" of the collected field reports,
            or the source that shows it.
        finding_id: the id a correct verdict gives, taken from the cause and not from any output.
        needs: artifacts without which the cause cannot be told.
        overrides: configuration of the faulty run alone, "key=value".
        change: the pipeline of the faulty run.
        setting: configuration of *both* runs in which the fault acts at all, "key=value".
        module: module the finding must name, where ``finding_id`` alone does not say the place.
    """

    name: str
    rung: Rung
    what: str
    field_report: str
    finding_id: str
    needs: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    change: Callable[[Pipeline], Pipeline] | None = None
    setting: tuple[str, ...] = ()
    module: str | None = None
