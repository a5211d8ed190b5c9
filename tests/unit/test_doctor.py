"""`align doctor` examines one run alone: problems, stack, speed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from align.cli.main import cli
from align.core.finding import Evidence, Severity, Side
from align.doctor.curves import curve_findings
from align.doctor.known_errors import error_findings
from align.doctor.stack import Standing, stack_findings, stack_of
from tests.unit.one_run_alone import log_of, one_run_with

EXAMPLES = Path(__file__).parents[2] / "align" / "examples"
PERFORMANCE_SET = {
    "device": "npu",
    "driver": "25.2.1",
    "cann": "8.3.RC1",
    "torch": "2.7.1",
    "torch_npu": "2.7.1-0919",
    "vllm": "0.11.0",
    "megatron-core": "0.12.1",
}


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["doctor", *map(str, arguments)], standalone_mode=False)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("RuntimeError: EI0006: Getting socket times out. HCCL timeout", "hccl_timeout"),
        ("AttributeError: no attribute 'context_parallel_size'", "context_parallel_override"),
        ("TypeError: npu_grouped_matmul() got group_type", "group_type"),
        ("ImportError: cannot import name 'index_first_axis'", "index_first_axis"),
        ("AssertionError: only support equal chunk. Got size of DataProto", "not_divisible"),
        (
            "ModuleNotFoundError: No module named 'megatron.training'",
            "megatron_training_missing",
        ),
        ("RuntimeError: NPU out of memory. Tried to allocate", "out_of_memory"),
        ("ValueError: something else", "last"),
    ],
)
def test_the_last_error_is_explained_where_its_cause_is_known(line: str, name: str) -> None:
    (finding,) = error_findings([Evidence("run.log", Side.BOTH, 7, text=line)])
    assert finding.id == f"doctor.error.{name}"
    assert finding.evidence[0].line == 7


def found(**metrics: list[float]) -> list[str]:
    names = {name.replace("__", "/"): values for name, values in metrics.items()}
    return [finding.id for finding in curve_findings(log_of(names))]


WOBBLE = list(np.random.default_rng(0).normal(0.0, 0.02, 100))


@pytest.mark.parametrize(
    ("fault", "clean", "name"),
    [
        (
            {"actor__kl_loss": [0.1, 0.2, np.nan, 0.2]},
            {"actor__kl_loss": [0.1, 0.2, 0.2, 0.2]},
            "nonfinite",
        ),
        (
            {"response_length__mean": [500.0] * 60 + [20.0] * 40},
            {"response_length__mean": [500.0] * 60 + [300.0] * 40},
            "collapse",
        ),
        (
            {"critic__score__mean": [0.6 + w for w in WOBBLE[:60]] + WOBBLE[60:]},
            {"critic__score__mean": [0.1 + 0.005 * i + w for i, w in enumerate(WOBBLE)]},
            "collapse",
        ),
        (
            {"critic__advantages__max": [0.0] * 5, "critic__advantages__min": [0.0] * 5},
            {"critic__advantages__max": [0.0, 1.0] * 3, "critic__advantages__min": [0.0] * 6},
            "no_advantage",
        ),
        (
            {"response_length__clip_ratio": [0.2] * 10 + [1.0] * 5},
            {"response_length__clip_ratio": [0.2] * 10 + [1.0] * 4 + [0.5]},
            "cut_off",
        ),
        (
            {"actor__entropy": list(np.linspace(0.8, 0.01, 60))},
            {"actor__entropy": list(np.linspace(0.8, 0.4, 60))},
            "entropy",
        ),
    ],
)
def test_a_broken_curve_is_named_without_another_run(
    fault: dict[str, list[float]], clean: dict[str, list[float]], name: str
) -> None:
    assert found(**fault) == [f"doctor.curves.{name}"]
    assert found(**clean) == []


def test_a_reward_that_is_always_0_has_not_collapsed() -> None:
    assert found(critic__score__mean=[0.0] * 100, response_length__mean=[256.0] * 100) == []


def test_a_metric_that_was_never_computed_is_no_failure() -> None:
    assert found(actor__entropy=[np.nan] * 30) == []


def test_the_versions_of_the_report_match_its_set() -> None:
    stack = stack_of(one_run_with(facts=PERFORMANCE_SET))
    assert stack.standing is Standing.MATCHES
    assert stack.closest[0].versions.name == "Qwen3-235B on verl, performance"
    assert {"hdk", "megatron"} <= set(stack.closest[0].agrees)


def test_a_deviating_version_is_named_and_a_gpu_is_not_judged() -> None:
    stack = stack_of(one_run_with(facts={**PERFORMANCE_SET, "cann": "8.2.RC1"}))
    assert stack.standing is Standing.NEAREST
    assert stack.closest[0].deviates == ("cann",)
    gpu = stack_of(one_run_with(facts={"device": "cuda", "torch": "2.7.1", "vllm": "0.11.0"}))
    assert gpu.standing is Standing.NOT_ON_NPU
    assert stack_of(one_run_with(facts={"device": "npu"})).standing is Standing.UNKNOWN


def test_expert_parallelism_needs_a_new_cann() -> None:
    values = {"rollout.expert_parallel_size": 16}
    for cann, expected in (
        ("8.2.RC1", ["environment.expert_parallel_cann"]),
        ("8.3.RC1", []),
        ("8.5.0", []),
    ):
        run = one_run_with(values, facts={"device": "npu", "cann": cann})
        assert [f.id for f in stack_findings(stack_of(run), run)] == expected
    single = one_run_with({}, facts={"device": "npu", "cann": "8.2.RC1"})
    assert list(stack_findings(stack_of(single), single)) == []


def write_run(folder: Path, versions: dict[str, str], log: str = "") -> Path:
    folder.mkdir()
    manifest = {"schema_version": 1, "framework": "verl", "device": "npu", "versions": versions}
    (folder / "align-run.json").write_text(json.dumps(manifest), encoding="utf-8")
    rows = [{"step": s, "data": {"timing_s/step": 10.0, "timing_s/gen": 6.0}} for s in (1, 2, 3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_versions_that_cannot_load_together_fail_the_command(tmp_path: Path) -> None:
    bad = write_run(tmp_path / "bad", {"torch": "2.5.1", "torch_npu": "2.7.1"})
    good = write_run(tmp_path / "good", {"torch": "2.7.1", "torch_npu": "2.7.1"})
    result = doctor(bad, "--json")
    assert result.return_value == 1
    document = json.loads(result.stdout)
    assert [f["id"] for f in document["findings"]] == ["lint.torch_npu"]
    assert document["findings"][0]["severity"] == Severity.ERROR.value
    assert doctor(good).return_value == 0
    assert doctor(bad, "--fail-on", "never").return_value == 0
    assert doctor(bad, "--only", "performance").return_value == 0


def test_what_rests_on_variables_is_part_of_the_environment(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"env.ASCEND_LAUNCH_BLOCKING": "1", "tensordict": "0.8.1"})
    expected = {"environment.launch_blocking", "lint.tensordict_copy"}
    for part, names in (("environment", expected), ("problems", set())):
        document = json.loads(doctor(run, "--json", "--only", part).stdout)
        assert {f["id"] for f in document["findings"]} == names


def test_the_document_has_the_parts_that_were_asked_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"torch": "2.7.1"})
    everything = json.loads(doctor(run, "--json").stdout)
    assert everything["parts"] == ["problems", "environment", "performance"]
    assert everything["performance"]["step_time"]["seconds"] == 10.0
    assert everything["performance"]["step_time"]["parts"][0]["share"] == pytest.approx(0.6)
    only = json.loads(doctor(run, "--json", "--only", "environment").stdout)
    assert (only["parts"], only["performance"]) == (["environment"], None)
    assert only["environment"]["versions"] == {"torch": "2.7.1"}


def test_the_text_is_in_the_language_asked_for() -> None:
    english, chinese = doctor(EXAMPLES / "reference"), doctor(EXAMPLES / "reference", "--lang=zh")
    assert "step time" in english.stdout or "throughput" in english.stdout
    assert "吞吐" in chinese.stdout
    assert "throughput" not in chinese.stdout


def test_a_run_that_says_nothing_of_itself_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}', encoding="utf-8")
    assert doctor(tmp_path).return_value == 3


def test_every_real_log_and_configuration_is_examined(corpus: Path) -> None:
    paths = [*(corpus / "verl_logs").iterdir(), *(corpus / "mindspeed_rl").glob("*.*")]
    assert len(paths) > 15
    for path in paths:
        result = doctor(path, "--json", "--fail-on", "never")
        assert result.return_value == 0, (path, result.exception)
        assert json.loads(result.stdout)["schema_version"] == 1


def test_the_run_that_collapsed_is_told_from_those_that_did_not(corpus: Path) -> None:
    def named(log: str) -> set[str]:
        result = doctor(corpus / "verl_logs" / log, "--json", "--fail-on", "never")
        return {f["id"] for f in json.loads(result.stdout)["findings"]}

    assert "doctor.curves.collapse" in named("dapo_gpu_v05_201steps_invalid_utf8.out")
    for healthy in ("grpo_npu_sync_repeat_a.txt", "grpo_gpu_v08_110steps_tqdm.txt"):
        assert not any(name.startswith("doctor.curves") for name in named(healthy))


def test_the_host_is_read_from_the_toolkit_folder(corpus: Path) -> None:
    log = corpus / "verl_logs" / "grpo_npu_sync_repeat_b.txt"
    advice = json.loads(doctor(log, "--json").stdout)["performance"]["advice"]
    (jemalloc,) = (each for each in advice if each["id"] == "performance.jemalloc")
    assert jemalloc["because"]["en"] == "not stated: LD_PRELOAD"  # the host is known: Arm


def test_a_pin_of_verl_that_an_npu_cannot_have_names_the_way_out() -> None:
    run = one_run_with(facts={"device": "npu", "verl": "0.5.0", "tensordict": "0.10.0"})
    (finding,) = stack_findings(stack_of(run), run)
    assert finding.id == "environment.versions.verl.tensordict"
    assert "verl 0.6" in finding.fix.en


def test_the_recorded_runs_are_examined(shared: Path) -> None:
    for folder in sorted((shared / "reference" / "verl_runs").glob("v091*")):
        document = json.loads(doctor(folder, "--json", "--fail-on", "never").stdout)
        rate = document["performance"]["throughput"]
        assert rate["largest_relative_difference"] < 1e-9
