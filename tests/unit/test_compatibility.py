"""Versions of Ascend stacks are compared, and sets of them recognised, by a table with sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from align.environment.compatibility import (
    MIN_COMPARED,
    closest_sets,
    components,
    mismatches,
    version_sets,
)
from align.environment.versions import release_of, satisfies

# The two tables of the Qwen3-235B report, copied by hand from it.
PERFORMANCE = {
    "hdk": "25.2.1",
    "cann": "8.3.RC1",
    "verl": "21271aa",
    "vllm": "release/v0.11.0",
    "vllm_ascend": "15b2e5c",
    "mindspeed": "35da6ac",
    "megatron": "core_v0.12.1",
    "torch": "2.7.1",
    "torch_npu": "2.7.1-0919",
}
COMMERCIAL = {
    "hdk": "25.2.1",
    "cann": "8.3.RC1",
    "verl": "796871d7d092f7cbc6a64e7f4a3796f7a2217f5e",
    "vllm": "38217877aa70041c0115ee367b75197af9cbc5ad",
    "vllm_ascend": "1de16ead8eecfec8903ec1b330b27a4fa2593c35",
    "mindspeed": "1cdd0ab",
    "megatron": "core_v0.12.1",
    "torch": "2.7.1",
    "torch_npu": "2.7.1",
}
MINDSPEED_RL_230 = {"cann": "8.5.0", "torch": "2.5.1", "torch_npu": "2.5.1", "python": "3.10.14"}

releases = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(
    lambda parts: ".".join(map(str, parts))
)
suffixes = st.sampled_from(["", "rc1", "rc2", "a1", "b2", ".post1", ".post2", ".dev3"])
versions = st.builds("{}{}".format, releases, suffixes)


@given(versions, versions, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
def test_python_versions_compare_as_packaging_compares_them(a: str, b: str, sign: str) -> None:
    left, right = Version(a), Version(b)
    truth = {
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[sign]
    assert satisfies(a, f"{sign}{b}") is truth


@pytest.mark.parametrize(
    ("version", "constraint", "verdict"),
    [
        ("8.3.rc1", "8.3.RC1", True),
        ("8.3.RC2", ">=8.3.RC1", True),
        ("8.2.RC1", ">=8.3.RC1", False),
        ("8.3.RC1.alpha003", ">=8.3.RC1", False),  # a build from before the candidate
        ("8.5.0", ">=8.3.RC1", True),
        ("2.7.1+cpu", "2.7.1", True),
        ("2.7.1-0919", "2.7.1", False),  # the build of a day is not the release
        ("v0.11.0", "release/v0.11.0", True),
        ("0.12.1", "core_v0.12.1", True),
        ("796871d", "796871d7d092f7cbc6a64e7f4a3796f7a2217f5e", True),
        ("0.11.0.dev1+g38217877a", "38217877aa70041c0115ee367b75197af9cbc5ad", True),
        ("abcdef1", "796871d7d092f7cbc6a64e7f4a3796f7a2217f5e", False),
        ("0.11.0", "38217877aa70041c0115ee367b75197af9cbc5ad", None),
        ("main", "2.7.1", None),
        ("0.9.1", "0.10.1|0.9.1", True),
        ("0.9.0", ">=0.8.0,<=0.10.0,!=0.9.0", False),
        ("0.10.0", ">=0.8.0,<=0.10.0,!=0.9.0", True),
        ("3.10.12", "3.10.*", True),
        ("3.11.2", "3.10.*", False),
    ],
)
def test_a_stated_version_is_compared_with_a_listed_one(
    version: str, constraint: str, verdict: bool | None
) -> None:
    assert satisfies(version, constraint) is verdict


def test_a_commit_has_no_release() -> None:
    assert release_of("35da6ac") is None
    assert release_of("core_v0.12.1") == (0, 12, 1)


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        (PERFORMANCE, "Qwen3-235B on verl, performance"),
        (COMMERCIAL, "Qwen3-235B on verl, commercial (MindSpeed-RL 2.2.0)"),
        (MINDSPEED_RL_230, "MindSpeed-RL 2.3.0"),
    ],
)
def test_a_published_set_is_recognised(stated: dict[str, str], name: str) -> None:
    best = closest_sets(stated)[0]
    assert (best.versions.name, best.matches, best.deviates) == (name, True, ())
    assert list(mismatches(stated)) == []


def test_the_sets_of_the_report_stand_in_the_report(shared: Path) -> None:
    text = (shared / "seeds" / "001_c3f2cebafbcaf9d7.txt").read_text(encoding="utf-8")
    rows = set(re.findall(r"^(\S+)\t(\S+)$", text, re.MULTILINE))
    names = {"megatron": "Megatron-LM", "vllm_ascend": "vllm-ascend", "torch_npu": "toch-npu"}
    names |= {"hdk": "HDK", "cann": "CANN", "verl": "VeRL", "mindspeed": "MindSpeed"}
    for stated in (PERFORMANCE, COMMERCIAL):
        assert {(names.get(name, name), version) for name, version in stated.items()} <= rows


def test_what_deviates_from_the_nearest_set_is_named() -> None:
    best = closest_sets({**PERFORMANCE, "torch_npu": "2.7.1.post1"})[0]
    assert best.versions.name == "Qwen3-235B on verl, performance"
    assert (best.matches, best.deviates) == (False, ("torch_npu",))


def test_too_few_versions_match_nothing() -> None:
    assert not any(m.matches for m in closest_sets({"torch": "2.7.1", "torch_npu": "2.7.1"}))
    assert MIN_COMPARED.value == 3


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ({"torch_npu": "2.6.0.post3", "cann": "8.1.RC1"}, ("torch_npu", "cann")),
        ({"vllm_ascend": "0.11.0rc1", "vllm": "0.10.2"}, ("vllm_ascend", "vllm")),
        ({"vllm_ascend": "0.77.0", "vllm": "0.76.0"}, ("vllm_ascend", "vllm")),
        ({"verl": "0.9.1", "tensordict": "0.11.0"}, ("verl", "tensordict")),
        ({"mindspeed_rl": "2.3.0", "megatron": "0.8.0"}, ("mindspeed_rl", "megatron")),
    ],
)
def test_versions_that_do_not_belong_together_are_named(
    stated: dict[str, str], found: tuple[str, str]
) -> None:
    first = next(iter(mismatches(stated)))
    assert (first.key, first.component) == found


@pytest.mark.parametrize(
    "stated",
    [
        {"torch_npu": "2.6.0.post3", "cann": "8.3.RC1"},
        {"vllm_ascend": "0.10.1rc1", "vllm": "0.10.1.1"},
        {"vllm_ascend": "0.77.0", "vllm": "0.77.0"},
        {"verl": "0.9.1", "tensordict": "0.10.0"},
        {"mindspeed_rl": "2.3.0", "megatron": "core_v0.12.1"},
        {"torch_npu": "2.5.1", "cann": "8.5.0"},  # another vendor's table has them together
        {"torch": "2.11.0", "vllm": "0.24.0"},
    ],
)
def test_versions_that_belong_together_are_left_alone(stated: dict[str, str]) -> None:
    assert list(mismatches(stated)) == []


def test_ascend_stacks_do_not_judge_a_gpu_run() -> None:
    stated = {"verl": "0.6.1", "transformers": "4.55.0", "tensordict": "0.10.0"}
    assert [m.component for m in mismatches(stated)] == ["transformers"]
    assert list(mismatches(stated, on_npu=False)) == []


def test_every_row_of_the_table_has_a_source_and_a_version_that_can_be_compared() -> None:
    assert len(version_sets()) > 60
    assert {"hdk", "cann", "torch", "torch_npu", "vllm", "tensordict"} <= set(components())
    for each in version_sets():
        assert each.source
        for name, wanted in each.versions.items():
            exact = re.sub(r"^[=<>!]+", "", wanted.split("|")[0].split(",")[0])
            verdict = satisfies(exact.replace(".*", ""), wanted)
            assert verdict is not None, (each.name, name, wanted)
