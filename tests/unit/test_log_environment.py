"""What console logs state about the stack, and what they only seem to state."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import DumpError
from dumps.readers.log_environment import READER
from dumps.readers.reader import Glimpse, no_progress


def facts(path: Path) -> dict[str, str]:
    return {name: fact.value for name, fact in READER.read(path, no_progress).facts.items()}


def facts_of_text(folder: Path, text: str) -> dict[str, str]:
    path = folder / "log"
    path.write_text(text)
    return facts(path)


# Seen with grep in the files themselves.
REAL = [
    (
        "grpo_npu_sync_repeat_a.txt",
        {
            "device": "npu",
            "cann": "8.3.RC1.alpha003",
            "transformers": "4.57.3",
            "python": "3.10",
            "env.VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
        },
    ),
    (
        "grpo_gpu_v08_110steps_tqdm.txt",
        {
            "device": "cuda",
            "cuda": "13.0",
            "nccl": "2.28.9",
            "transformers": "4.57.1",
            "tensorrt_llm": "1.3.0rc4",
            "env.RAY_DEDUP_LOGS": "0",
        },
    ),
    (
        "no_step_crash_a.log",
        {"transformers": "4.45.2", "cuda": "12.4", "env.VLLM_ATTENTION_BACKEND": "XFORMERS"},
    ),
    ("dapo_gpu_v05_201steps_invalid_utf8.out", {"transformers": "4.54.1", "nccl": "2.21.5"}),
]


@pytest.mark.parametrize(("name", "expected"), REAL)
def test_real_logs_state_these_facts(corpus: Path, name: str, expected: dict[str, str]) -> None:
    path = corpus / "verl_logs" / name
    assert READER.sniff(Glimpse(path, path.stat().st_size))
    found = facts(path)
    assert {name: found.get(name) for name in expected} == expected


def test_every_fact_points_at_the_line_that_states_it(corpus: Path) -> None:
    path = corpus / "verl_logs" / "grpo_npu_sync_repeat_b.txt"
    rows = path.read_bytes().decode("utf-8", "replace").split("\n")
    for name, fact in READER.read(path, no_progress).facts.items():
        assert fact.evidence.line is not None and fact.evidence.key == name
        row = rows[fact.evidence.line - 1]
        assert (name.removeprefix("env.") in row) or fact.value in row or fact.value == "npu"


@pytest.mark.parametrize("name", ["grpo_npu_v09_npfloat_excerpt.log", "sft_gpu_4500steps.log"])
def test_a_log_that_states_nothing_gives_nothing(corpus: Path, name: str) -> None:
    assert facts(corpus / "verl_logs" / name) == {}


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("PyTorch version 2.7.1 available.", "torch", "2.7.1"),
        ("torch_npu version: 2.7.1.post1.dev20250801", "torch_npu", "2.7.1.post1.dev20250801"),
        ("torch-npu==2.5.1", "torch_npu", "2.5.1"),
        ("vllm_ascend               0.11.0rc1", "vllm_ascend", "0.11.0rc1"),
        ("torch                     2.6.0+cu124", "torch", "2.6.0+cu124"),
        ("INFO 03-02 Initializing a V1 LLM engine (v0.8.5) with config: x", "vllm", "0.8.5"),
        ("INFO: vLLM API server version 0.11.0", "vllm", "0.11.0"),
        ("CANN version: 8.2.RC1", "cann", "8.2.RC1"),
        (
            "| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: 12.4 |",
            "cuda",
            "12.4",
        ),
        (
            "|   0  NVIDIA H100 80GB HBM3          On  | 00000000:18:00.0",
            "device_name",
            "NVIDIA H100 80GB HBM3",
        ),
        ("| 0     910B3               | OK            | 92.5        44", "device_name", "910B3"),
        ("| npu-smi 24.1.rc3          Version: 24.1.rc3             |", "driver", "24.1.rc3"),
        ("INFO [__init__.py:207] Automatically detected platform cuda.", "device", "cuda"),
        ("INFO Platform plugin ascend is activated", "device", "npu"),
        ("++ export HCCL_DETERMINISTIC='true'", "env.HCCL_DETERMINISTIC", "true"),
        ("export CUBLAS_WORKSPACE_CONFIG=:4096:8", "env.CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    ],
)
def test_a_statement_gives_its_fact(tmp_path: Path, line: str, name: str, value: str) -> None:
    text = f"start\n\x1b[36m(WorkerDict pid=3, ip=10.0.0.1)\x1b[0m {line}\nend\n"
    assert facts_of_text(tmp_path, text).get(name) == value


@pytest.mark.parametrize(
    "line",
    [
        "Warning: Driver Version: 9 is invalid or not supported yet. (function operator())",
        "ImportError: vllm requires torch version 2.6.0",
        "Please install transformers version 4.51.0 or newer",
        "    torch==2.6.0 is not installed; pip install torch==2.6.0",
        "the answer is version 3.2.1 of torch",
        '  "transformers_version": "4.37.0",',
        "wandb: Tracking run with wandb version 0.19.7",
        "+ export WANDB_API_KEY=abc123",
        "+ MODEL_PATH=/data/Qwen2.5-7B",
        "count=1, position=910",
    ],
)
def test_what_only_looks_like_a_statement_gives_nothing(tmp_path: Path, line: str) -> None:
    assert facts_of_text(tmp_path, f"(TaskRunner pid=1) {line}\n") == {}


def test_a_printed_model_config_tells_the_running_transformers(tmp_path: Path) -> None:
    text = 'Model config after override: Qwen2Config {\n  "transformers_version": "4.51.3",\n}\n'
    assert facts_of_text(tmp_path, text) == {"transformers": "4.51.3"}


def test_of_two_statements_the_first_counts(tmp_path: Path) -> None:
    text = "torch version: 2.6.0\ntorch version: 2.7.0\nexport HCCL_A=1\nexport HCCL_A=2\n"
    assert facts_of_text(tmp_path, text) == {"torch": "2.6.0", "env.HCCL_A": "1"}


@given(
    data=st.binary(max_size=300), line=st.sampled_from(["torch version: 1.2", "export A=", "=="])
)
def test_any_bytes_give_facts_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, line: str
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "log"
    path.write_bytes(data + line.encode() + data)
    try:
        READER.read(path, no_progress)
    except DumpError:
        return
