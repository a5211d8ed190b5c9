"""The common schema covers what the frameworks' tables and real configurations hold."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from align.config.normalise import effective
from align.config.rules import rules, rulings
from align.config.schema import FIELDS, field_named
from align.core.run import RunManifest
from align.core.text import Text
from align.frameworks.config_table import config_tables

FRAMEWORKS = ("verl", "mindspeed_rl", "huggingface")
# Keys the mapping names that stand for no single key, or for code and not configuration.
NOT_KEYS = ("(", "tokenizer eos/pad", "rl_config.mini_batch_size / DP", "critic_config.*")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_key_of_a_table_names_a_field_of_the_schema(framework: str) -> None:
    tables = config_tables(framework)
    assert tables is not None
    for name in (*tables.keys.values(), *(formula.field for formula in tables.formulas)):
        field_named(name.replace("*", "x"))  # raises KeyError otherwise


def test_every_condition_of_a_field_names_a_field() -> None:
    for field in FIELDS.values():
        for name in (*field.follows, *filter(None, [field.only_if])):
            field_named(name)  # raises KeyError otherwise


def test_every_field_speaks_both_languages() -> None:
    for field in FIELDS.values():
        for text in (field.meaning, field.why or Text("x", "中")):
            assert text.en and text.zh
            assert any(
                "一" <= letter <= "鿿" or letter in "ABCDEFGabcdefgtr." for letter in text.zh
            )


def _spellings_of_row(cell: str) -> list[list[str]]:
    """Split ``a.x / y (+z)`` into keys, each with the ways in which its short form can be meant."""
    keys: list[list[str]] = []
    section = ""
    stems: set[str] = set()
    for word in re.split(r"[/+,]", re.sub(r"[()]", "", cell)):
        key = word.strip().split(" ")[0]
        if "." in key:
            section = key.rpartition(".")[0]
            keys.append([key])
        elif key:
            long = [f"{section}.{stem}_{key}" for stem in sorted(stems)]
            keys.append([f"{section}.{key}", f"megatron_training.{key}", *long])
        words = key.rpartition(".")[2].split("_")
        stems |= {"_".join(words[:n]) for n in range(1, len(words))}
    return keys


def test_every_mindspeed_rl_key_of_the_mapping_is_known(shared: Path) -> None:
    with (shared / "facts" / "msrl_verl_mapping.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(rows) == 114
    unknown = []
    for row in rows:
        cell = row["msrl_key"]
        if cell.startswith(NOT_KEYS) or "configs/model" in cell:
            continue
        for spellings in _spellings_of_row(cell):
            if not any(_is_known("mindspeed_rl", key) for key in spellings):
                unknown.append(spellings[0])
    assert unknown == []


def test_every_verl_key_that_matters_is_known(shared: Path) -> None:
    lines = (shared / "facts" / "verl_config_keys.md").read_text(encoding="utf-8").splitlines()
    keys = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    keys = [key for key in keys if key != "key"]
    assert len(keys) == 120
    assert [key for key in keys if not _is_known("verl", key)] == []


def test_every_mindspeed_rl_default_is_known(shared: Path) -> None:
    with (shared / "facts" / "msrl_defaults.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    unknown = []
    for row in rows:
        section = row["section"].split(" ")[0].split("/")[0]
        if section in ("megatron_training", "rl_config", "generate_config"):
            key = f"{section}.{row['key']}"
            unknown += [] if _is_known("mindspeed_rl", key) else [key]
    assert unknown == []


def _is_known(framework: str, key: str) -> bool:
    """Tell whether a configuration with only this key leaves nothing unmatched."""
    from align.core.config_value import ConfigValue, Provenance, ProvenanceKind, RawConfig

    value = ConfigValue(key, None, Provenance(ProvenanceKind.FILE, "test"))
    raw = RawConfig("test", "test", framework, {key: value})
    return not effective([raw], RunManifest()).unmatched


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.__name__.rpartition(".")[2])
def test_every_rule_fires_and_stays_silent_on_its_examples(rule) -> None:
    assert rule.FIRES
    for example in rule.FIRES:
        ruling = rule.rule(example.case())
        assert ruling is not None and ruling.because.en and ruling.because.zh
        assert ruling in rulings(example.case())
    for example in rule.SILENT:
        assert rule.rule(example.case()) is None
