"""Faults planted in the real Megatron-core are named by the command line, each at its module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("transformers", reason="the other side is a transformers model")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from click.testing import CliRunner

from align.cli.main import cli
from align.layers import update_rung
from tests.frameworks.megatron.cases import CASES, PLANTED, UNMENDED, Case, Planted
from tests.frameworks.megatron.sketched import run_of

COMMANDS = {"forward": ("layers", "diff"), "backward": ("layers", "gradients")}


def findings(trained: Path, case: Case, rung: str) -> list[tuple[str, str]]:
    """Return ids and titles of what one rung finds between transformers and a case."""
    folders = trained / case.reference, trained / case.label
    if rung == "optimizer":  # has no command of its own
        result = update_rung.compare(*map(run_of, folders))
        return [(each.id, each.title.en) for each in result.findings] if result else []
    shown = CliRunner().invoke(cli, [*COMMANDS[rung], *map(str, folders), "--json"])
    document: dict[str, Any] = json.loads(shown.stdout)
    found = [(each["id"], each["title"]) for each in document["findings"]]
    is_comparable = document["rungs"][0]["status"] != "missing"
    assert shown.exit_code == (1 if found else 0 if is_comparable else 3), shown.output
    return found


@pytest.mark.parametrize("planted", (*PLANTED, UNMENDED), ids=lambda each: each.case.label)
def test_a_fault_planted_or_megatrons_own_is_named_first_at_its_module(
    trained: Path, planted: Planted
) -> None:
    rung = planted.finding.partition(".")[0]
    found = {name: findings(trained, planted.case, name) for name in (*COMMANDS, "optimizer")}
    (key, title), *further = found.pop(rung)
    assert key == planted.finding
    assert planted.named in title
    assert not further
    assert not any(found.values())  # no other rung blames anything


@pytest.mark.parametrize("rung", COMMANDS)
@pytest.mark.parametrize("case", CASES[:1], ids=lambda case: case.label)
def test_the_command_line_finds_nothing_in_a_clean_pair(
    trained: Path, case: Case, rung: str
) -> None:
    assert not findings(trained, case, rung)


def test_every_layout_of_the_clean_pairs_has_a_fault_of_its_own() -> None:
    tried = {each.case._replace(fault=None) for each in PLANTED}
    assert {CASES[number] for number in range(5)} <= tried
    assert any(case.name == "qwen3_moe" for case in tried)
