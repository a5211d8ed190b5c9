"""Load the runs that a plan names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from align.config.normalise import effective
from align.config.rung import manifest_of
from align.core.config_value import EffectiveConfig
from align.core.errors import RunError
from dumps.store.discover import discover
from dumps.store.run_data import RunData


def load(paths: Sequence[Path]) -> RunData:
    """Return a run of some files and folders.

    Raises:
        RunError: One of them does not exist.
    """
    for path in paths:
        if not path.exists():
            raise RunError(where=str(path), problem="does not exist", fix="name a run folder")
    return RunData(discover(list(paths)))


def configuration(path: Path) -> EffectiveConfig:
    """Return what a run really uses.

    Raises:
        RunError: The run holds no configuration.
    """
    data = load([path])
    config = effective(data.configs, manifest_of(data))
    if not config.values:
        raise RunError(
            where=str(path),
            problem="holds no configuration",
            fix="add its console log or its YAML",
        )
    return config
