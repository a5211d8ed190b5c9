"""Stack differences: known to matter, or only worth knowing."""

from __future__ import annotations

from pathlib import Path

import pytest

from align.core.run import Run, RunManifest
from align.core.rung import RungStatus
from align.environment.known import release
from align.environment.rung import compare
from dumps.store.run_data import RunData


def run(**versions: str) -> RunData:
    return RunData(Run("run", Path("run"), (), (), RunManifest(versions=versions)))


def test_versions_on_both_sides_of_a_known_boundary_are_a_warning() -> None:
    result = compare(run(verl="0.6.1"), run(verl="0.9.1"))
    assert result.status is RungStatus.UNDECIDED
    assert [f.id for f in result.findings] == ["environment.verl.0.8", "environment.verl.0.7"]
    assert all(f.mechanism for f in result.findings)


def test_versions_on_one_side_of_every_boundary_are_only_noted() -> None:
    result = compare(run(verl="0.8.0", torch="2.7.1"), run(verl="0.9.1", torch="2.7.1+cpu"))
    assert result.status is RungStatus.ALIGNED
    assert {f.severity.value for f in result.findings} == {"info"}


def test_equal_stacks_are_silent() -> None:
    result = compare(run(verl="0.9.1"), run(verl="0.9.1"))
    assert result.status is RungStatus.ALIGNED
    assert result.findings == ()


def test_nothing_stated_on_both_sides_is_missing_with_the_side_that_lacks_it() -> None:
    result = compare(run(verl="0.9.1"), run())
    assert result.status is RungStatus.MISSING
    assert result.missing[0].side == "candidate"


def of_framework(framework: str | None, device: str | None = None, **versions: str) -> RunData:
    manifest = RunManifest(framework=framework, device=device, versions=versions)
    return RunData(Run("run", Path("run"), (), (), manifest))


def test_a_mindspeed_rl_run_is_on_npu_and_the_evidence_says_how_that_is_known() -> None:
    reference, candidate = of_framework("verl", "cuda"), of_framework("mindspeed_rl", torch="2.7.1")
    assert candidate.device == "npu"
    (finding,) = compare(reference, candidate).findings
    assert (finding.id, finding.reference, finding.candidate) == (
        "environment.device",
        "cuda",
        "npu",
    )
    assert finding.evidence[1].source == "derived: mindspeed_rl runs on npu only"


def test_a_stated_device_wins_and_other_frameworks_imply_none() -> None:
    assert of_framework("mindspeed_rl", "cpu").device == "cpu"
    assert of_framework("verl").device is None
    assert of_framework(None).device is None


def test_an_implied_device_alone_is_no_statement_about_the_stack() -> None:
    run = of_framework("mindspeed_rl")
    assert compare(run, run).status is RungStatus.MISSING
    stated = of_framework("mindspeed_rl", torch="2.7.1")
    assert compare(stated, stated).status is RungStatus.ALIGNED


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("2.7.1.post1", (2, 7, 1)),
        ("0.10.0+cpu", (0, 10, 0)),
        ("v0.9.1", (0, 9, 1)),
        ("0.8.0.dev", (0, 8, 0)),
        ("21271aa", ()),
        ("", ()),
    ],
)
def test_releases_are_read_as_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers
