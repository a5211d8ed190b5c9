"""A report's finding gives the modules and the step to record again, whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

from align.core.document import to_document
from align.core.errors import DocumentError
from align.core.report import Report
from align.ladder import climb
from align.layers.zoom import read_zoom
from tests.unit.layer_runs import recorded
from tests.unit.test_layers_forward import epsilon


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Give the report of one norm's epsilon."""
    folder = tmp_path_factory.mktemp("runs")
    runs = recorded(folder / "reference"), recorded(folder / "candidate", epsilon)
    return climb(*runs)


def written(report: Report, path: Path) -> Path:
    path.write_text(json.dumps(to_document(report)), encoding="utf-8")
    return path


def test_the_neighbourhood_of_the_verdicts_finding_is_kept_whole(
    report: Report, tmp_path: Path
) -> None:
    found = read_zoom(str(written(report, tmp_path / "report.json")))
    assert found.step == 1
    centre = found.modules.index("model.layers.1.post_attention_layernorm")
    assert 0 < centre < len(found.modules) - 1
    assert all(name.startswith("model.layers.1") for name in found.modules)
    assert len(found.modules) <= 7


def test_a_finding_can_be_named(report: Report, tmp_path: Path) -> None:
    path = written(report, tmp_path / "report.json")
    assert read_zoom(f"{path}:forward.first_divergence") == read_zoom(str(path))
    with pytest.raises(DocumentError, match="no single module"):
        read_zoom(f"{path}:config.model.rms_norm_eps")


def test_a_report_without_a_finding_or_that_is_no_report_is_refused(
    report: Report, tmp_path: Path
) -> None:
    silent = replace(report, verdict=replace(report.verdict, finding_id=None))
    with pytest.raises(DocumentError, match="no single module"):
        read_zoom(str(written(silent, tmp_path / "silent.json")))
    (tmp_path / "no.json").write_text("[", encoding="utf-8")
    with pytest.raises(DocumentError, match="JSON"):
        read_zoom(str(tmp_path / "no.json"))
    with pytest.raises(DocumentError, match="JSON"):
        read_zoom(str(tmp_path / "absent.json"))
