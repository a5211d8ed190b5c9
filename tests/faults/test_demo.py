"""The demo trains a pair, plants what it is asked for, and its exit code says what came out."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from align.cli import demo
from align.core.errors import AlignError

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("transformers") is None,
    reason="the demo trains with the bundled stack, which needs torch and transformers",
)


def _invoke(*arguments: str):
    return CliRunner().invoke(demo.command, list(arguments))


@needs_torch
def test_the_default_demo_leads_to_the_planted_fault(tmp_path) -> None:
    result = _invoke("-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "right: the report names what was planted" in result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["verdict"]["finding_id"] == "config.model.rms_norm_eps"
    for run in ("reference", "candidate"):
        assert (tmp_path / "out" / "runs" / run / "metrics.jsonl").is_file()


@needs_torch
def test_the_list_shows_every_fault_under_its_rung() -> None:
    from align.stack.faults.registry import faults

    lines = _invoke("--list").output.splitlines()
    for fault in faults().values():
        (at,) = [i for i, line in enumerate(lines) if line.split()[0] == fault.name]
        rung = next(line for line in reversed(lines[:at]) if not line.startswith(" "))
        assert rung == fault.rung.value
        assert fault.finding_id in lines[at + 1]


def test_without_torch_the_recorded_runs_are_compared(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    result = _invoke("-o", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "torch is not installed" in result.output
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["verdict"]["finding_id"] == "config.rollout.temperature"


@needs_torch
def test_an_unknown_fault_is_refused_before_any_work(tmp_path) -> None:
    result = _invoke("--fault", "kl_sgn", "-o", str(tmp_path / "out"))
    assert isinstance(result.exception, AlignError)
    assert "kl_sign" in str(result.exception)
    assert not (tmp_path / "out").exists()
