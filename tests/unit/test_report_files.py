"""The three files of a report: whole or not written, and the same bytes every time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from align.core.document import to_document
from align.core.errors import AlignError
from reports import write
from reports.render import html, markdown
from tests.example_report import awkward_report, long_report

REPOSITORY = Path(__file__).resolve().parents[2]
AWKWARD: dict[str, Any] = json.loads(json.dumps(to_document(awkward_report()), allow_nan=False))


def test_three_files_are_written_and_the_json_is_the_document(tmp_path: Path) -> None:
    paths = write.write_report(AWKWARD, tmp_path / "new" / "folder", "zh")
    assert sorted(p.name for p in paths.html.parent.iterdir()) == [
        *("report.html", "report.json", "report.md"),
    ]
    assert json.loads(paths.json.read_text("utf-8")) == AWKWARD
    assert paths.html.read_text("utf-8") == html.render(AWKWARD, "zh")
    assert paths.markdown.read_text("utf-8") == markdown.render(AWKWARD, "zh")


def test_a_page_drawn_from_the_written_json_is_the_same(tmp_path: Path) -> None:
    paths = write.write_report(to_document(awkward_report()), tmp_path, "en")
    assert html.render(json.loads(paths.json.read_bytes()), "en") == paths.html.read_text("utf-8")


def test_half_a_surrogate_pair_can_be_written(tmp_path: Path) -> None:
    document = json.loads(json.dumps(AWKWARD))
    document["findings"][0]["evidence"][0]["text"] = "half \ud83d of a smile"
    paths = write.write_report(document, tmp_path, "en")
    assert json.loads(paths.json.read_text("utf-8")) == document
    assert "half \\ud83d of" in paths.html.read_text("utf-8")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_stop_while_writing_leaves_the_earlier_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: Any
) -> None:
    (tmp_path / "report.html").write_text("earlier")

    def stopped(*_: object) -> None:
        raise stop

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt if stop is KeyboardInterrupt else AlignError):
        write.write_report(AWKWARD, tmp_path, "en")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "earlier"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AlignError, match="cannot be written") as caught:
        write.write_report(AWKWARD, tmp_path / "file" / "report", "en")
    assert "file" in caught.value.where and "-o" in caught.value.fix


SAME_BYTES = """
import hashlib, json, sys
from pathlib import Path
from reports.write import write_report
document = json.loads(Path(sys.argv[1]).read_text("utf-8"))
paths = write_report(document, Path(sys.argv[2]), "zh")
for path in (paths.html, paths.markdown, paths.json):
    print(hashlib.sha256(path.read_bytes()).hexdigest())
"""


def test_the_same_document_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    source = tmp_path / "document.json"
    source.write_text(json.dumps(to_document(long_report(60, 20, 5))), encoding="utf-8")
    printed = set()
    for seed in ("0", "1234"):
        command = [sys.executable, "-c", SAME_BYTES, str(source), str(tmp_path / seed)]
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "MPLBACKEND": "svg",
            "TZ": f"UTC{seed[0]}",
        }
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=REPOSITORY, env=environment
        )
        printed.add(done.stdout)
    assert len(printed) == 1 and len(printed.pop().split()) == 3
