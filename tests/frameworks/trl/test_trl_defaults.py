"""Our table of TRL defaults against the dataclasses of the installed TRL."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("transformers", reason="TRL's configurations extend its own")
pytest.importorskip("trl", reason="TRL is not installed")

import transformers
import trl

from align.config.normalise import effective
from align.core.config_value import ConfigValue, Provenance, ProvenanceKind, RawConfig
from align.core.run import RunManifest
from align.frameworks.config_table import version_tuple
from align.frameworks.trl_defaults import NEWEST, TRAINERS, defaults_of
from dumps.readers import trl_printed
from dumps.readers.reader import no_progress

VERSION = version_tuple(trl.__version__)
pytestmark = pytest.mark.skipif(
    VERSION is None or VERSION > NEWEST, reason=f"the table ends at {NEWEST}"
)
CONFIGS = [name for name in TRAINERS if hasattr(trl, name)]


def fields(name: str, module: ModuleType = trl) -> dict[str, object]:
    found = {}
    for field in dataclasses.fields(getattr(module, name)):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("name", CONFIGS)
def test_every_default_is_the_dataclass_s_own(name: str) -> None:
    real = fields(name)
    assert VERSION is not None
    ours = defaults_of(TRAINERS[name], VERSION)
    assert len(ours) > 45
    for key, value in ours.items():
        if key == "optim":  # adamw_torch or adamw_torch_fused, by the version of transformers
            assert value is None and str(real[key]).startswith("adamw_torch")
        elif key == "warmup_ratio":  # transformers 5 gives None, which is none as well
            assert not value and not real[key]
        elif key in ("fsdp", "bf16") and not real[key]:
            assert not value
        else:
            assert plain(real[key]) == value, key


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_of_the_dataclass_is_known(name: str) -> None:
    place = Provenance(ProvenanceKind.FILE, "test")
    values = {key: ConfigValue(key, None, place) for key in fields(name)}
    values["config_class"] = ConfigValue("config_class", name, place)
    config = effective([RawConfig("test", "test", "trl", values)], RunManifest(framework="trl"))
    assert [value.key for value in config.unmatched] == []


@pytest.mark.parametrize("name", CONFIGS)
def test_no_default_that_trl_sets_itself_is_missing(name: str) -> None:
    assert VERSION is not None
    ours = defaults_of(TRAINERS[name], VERSION)
    inherited = fields("TrainingArguments", transformers)
    place = Provenance(ProvenanceKind.FILE, "test")
    for key, default in fields(name).items():
        if default is None or (key in inherited and inherited[key] == default):
            continue
        leaf = plain(default)
        raw = RawConfig("test", "test", "trl", {key: ConfigValue(key, leaf, place)})
        config = effective([raw], RunManifest(framework="trl"))
        made = [n for n, v in config.values.items() if v.raw.key == key]
        assert not made or key in config.ignored or key in ours, key


def test_what_trl_prints_of_itself_is_read_back(tmp_path: Path) -> None:
    stated = {"per_device_train_batch_size": 4, "generation_batch_size": 64, "beta": 0.04}
    real = trl.GRPOConfig(
        output_dir=str(tmp_path), report_to="none", bf16=False, use_cpu=True, **stated
    )
    path = tmp_path / "train.log"
    path.write_text(f"start\n{real}\nend\n")
    read = trl_printed.READER.read(path, no_progress)
    assert read.truncated_at is None
    known = {key: leaf.value for key, leaf in read.values.items()}
    numbers = [
        (key, value)
        for key, value in vars(real).items()
        if isinstance(value, bool | int | float) and not key.startswith("_")
    ]
    assert len(numbers) > 90
    assert {key: known.get(key) for key, _ in numbers} == dict(numbers)
    config = effective([read], RunManifest())
    assert config.values["data.train_batch_size"].value == 64 / real.num_generations
    assert config.values["trainer.world_size"].value == real.world_size
