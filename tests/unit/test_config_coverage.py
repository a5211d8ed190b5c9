"""Every key of every real configuration is a field or known to be harmless, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from align.config.keys import why_ignored
from align.config.normalise import effective
from align.core.config_value import EffectiveConfig
from align.core.run import RunManifest
from align.frameworks.config_table import config_tables
from dumps.store.discover import discover
from dumps.store.run_data import RunData

# Keys of forks and recipes that no release of a framework reads, in the runs that were recorded
# with them. A key in here is still shown as unknown to the user; nothing else may be.
FORKS: dict[str, str] = {}


def configurations(corpus: Path, reference_runs: Path) -> Iterator[Path]:
    """Yield every real run or file that holds a configuration."""
    yield from sorted((corpus / "verl_configs").iterdir())
    yield from sorted((corpus / "verl_logs").iterdir())
    yield from sorted((corpus / "mindspeed_rl").rglob("*.yaml"))
    yield from sorted(path.parent for path in (corpus / "metrics").glob("wandb_*/config.yaml"))
    yield from sorted(reference_runs.glob("*/hydra"))
    yield from sorted(reference_runs.glob("*.resolved.yaml"))
    yield from sorted(reference_runs.rglob("*.log"))


@pytest.fixture(scope="module")
def resolved(corpus: Path, reference_runs: Path) -> dict[Path, EffectiveConfig]:
    """Resolve each of them once."""
    found = {}
    for path in configurations(corpus, reference_runs):
        data = RunData(discover([path]))
        if data.configs:
            found[path] = effective(data.configs, RunManifest())
    return found


def test_every_key_of_every_real_configuration_is_known(
    resolved: dict[Path, EffectiveConfig],
) -> None:
    unknown = {
        (path.name, value.key)
        for path, config in resolved.items()
        for value in config.unmatched
        if value.key not in FORKS
    }
    assert unknown == set()


def test_no_exception_is_kept_that_no_configuration_needs(
    resolved: dict[Path, EffectiveConfig],
) -> None:
    needed = {value.key for config in resolved.values() for value in config.unmatched}
    assert set(FORKS) <= needed


def test_the_configurations_are_many_and_of_every_kind(
    resolved: dict[Path, EffectiveConfig],
) -> None:
    assert len(resolved) >= 25
    assert {config.framework for config in resolved.values()} >= {"verl", "mindspeed_rl"}
    assert sum(len(config.values) for config in resolved.values()) > 5000


def test_every_harmless_key_has_its_reason_in_both_languages(
    resolved: dict[Path, EffectiveConfig],
) -> None:
    num_reasons = 0
    for config in resolved.values():
        for key, why in config.ignored.items():
            assert why.en and why.zh, key
            num_reasons += 1
    assert num_reasons > 1000


def test_an_unheard_of_key_is_in_no_table() -> None:
    for name in ("verl", "mindspeed_rl"):
        tables = config_tables(name)
        assert tables is not None
        assert why_ignored(tables, "frobnicate.quux") is None
