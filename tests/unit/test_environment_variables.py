"""Environment variables become facts with their line, secrets never do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.environment import EnvironmentFacts
from align.core.errors import AlignError
from align.core.run import ArtifactKind
from align.environment.rung import compare
from dumps.readers import env_files, log_environment
from dumps.readers.env_names import is_fact
from dumps.readers.reader import Glimpse, no_progress
from dumps.store.discover import discover
from dumps.store.run_data import RunData

RUNTIME, DUMP, SCRIPT = env_files.READERS

MATTERS = [
    *("TASK_QUEUE_ENABLE", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC", "HCCL_CONNECT_TIMEOUT"),
    *("CLOSE_MATMUL_K_SHIFT", "PYTORCH_NPU_ALLOC_CONF", "NCCL_ALGO", "CUBLAS_WORKSPACE_CONFIG"),
    *("CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "VLLM_USE_V1", "VLLM_ASCEND_ENABLE_NZ"),
    *("VERL_LOGGING_LEVEL", "LD_PRELOAD", "OMP_NUM_THREADS", "PYTHONHASHSEED", "RAY_DEDUP_LOGS"),
    *("TOKENIZERS_PARALLELISM", "TORCH_NCCL_AVOID_RECORD_STREAMS", "ASCEND_RT_VISIBLE_DEVICES"),
    *("LCCL_DETERMINISTIC", "ATB_MATMUL_SHUFFLE_K_ENABLE", "MULTI_STREAM_MEMORY_REUSE"),
]
SECRETS = [
    *("WANDB_API_KEY", "HF_TOKEN", "VLLM_API_KEY", "OPENAI_API_KEY", "HF_HUB_TOKEN", "DB_PASSWORD"),
    *("AWS_SECRET_ACCESS_KEY", "SWANLAB_API_KEY", "RAY_AUTH_TOKEN", "NCCL_SECRET", "TORCH_PASSWD"),
    *(
        "GITHUB_TOKEN",
        "MODELSCOPE_SDK_TOKEN",
        "http_proxy",
        "https_proxy",
        "MY_OWN",
        "USER",
        "HOME",
    ),
]


def read(folder: Path, text: str, name: str = "run.sh") -> EnvironmentFacts:
    path = folder / name
    path.write_text(text)
    (artifact,) = discover([path]).of_kind(ArtifactKind.ENVIRONMENT)
    readers = {r.format: r for r in (*env_files.READERS, log_environment.READER)}
    facts = readers[artifact.format].read(path, no_progress)
    assert isinstance(facts, EnvironmentFacts)
    return facts


def values_of(facts: EnvironmentFacts) -> dict[str, str]:
    return {name.removeprefix("env."): fact.value for name, fact in facts.facts.items()}


@pytest.mark.parametrize("name", MATTERS)
def test_a_variable_that_matters_is_a_fact(name: str) -> None:
    assert is_fact(name, "1")


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_or_a_private_variable_is_none(name: str) -> None:
    assert not is_fact(name, "1")


def test_credentials_in_a_value_keep_a_variable_out() -> None:
    assert not is_fact("RAY_REDIS", "redis://user:hunter2@10.0.0.1:6379")


def test_a_script_gives_what_it_exports_or_sets_before_a_command(tmp_path: Path) -> None:
    facts = read(
        tmp_path,
        "#!/bin/bash\n"
        "export TASK_QUEUE_ENABLE=2 HCCL_CONNECT_TIMEOUT=1800  # both\n"
        "export WANDB_API_KEY=abc123 CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        "HCCL_DETERMINISTIC=true\n"  # set, but no process ever sees it
        'export LD_PRELOAD="$LD_PRELOAD:/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"\n'
        "export OMP_NUM_THREADS=$(nproc)\n"
        "export ASCEND_LAUNCH_BLOCKING=${BLOCK:-0}\n"
        "export CLOSE_MATMUL_K_SHIFT=0\nexport CLOSE_MATMUL_K_SHIFT=1\n"
        "export NCCL_ALGO=Ring\nunset NCCL_ALGO\n"
        'if [ -n "$DEBUG" ]; then\n  export CUDA_LAUNCH_BLOCKING=1\nfi\n'
        "VLLM_USE_V1=1 python3 -m verl.trainer.main_ppo \\\n  trainer.nnodes=1\n",
    )
    assert values_of(facts) == {
        "TASK_QUEUE_ENABLE": "2",
        "HCCL_CONNECT_TIMEOUT": "1800",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "LD_PRELOAD": "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2",
        "CLOSE_MATMUL_K_SHIFT": "1",
        "VLLM_USE_V1": "1",
    }
    lines = {name: fact.evidence.line for name, fact in facts.facts.items()}
    assert lines["env.TASK_QUEUE_ENABLE"] == 2 and lines["env.VLLM_USE_V1"] == 15
    assert all("abc123" not in str(fact) for fact in facts.facts.values())


def test_a_script_is_read_as_configuration_too(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "#!/bin/bash\nexport HCCL_DETERMINISTIC=true\n"
        "python3 -m verl.trainer.main_ppo data.train_batch_size=8\n"
    )
    run = discover([tmp_path])
    assert {a.format for a in run.artifacts} == {"launch_command", "env_script"}


def test_the_runtime_env_of_ray_is_read_from_its_file(tmp_path: Path) -> None:
    facts = read(
        tmp_path,
        "working_dir: ./\nexcludes: ['/.git/']\nenv_vars:\n"
        "  TORCH_NCCL_AVOID_RECORD_STREAMS: '1'\n  PYTHONHASHSEED: 1234\n"
        "  HCCL_IF_BASE_PORT: '48000'\n  HF_TOKEN: secret\n",
        "runtime_env.yaml",
    )
    assert values_of(facts) == {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1", "PYTHONHASHSEED": "1234"}
    assert facts.facts["env.PYTHONHASHSEED"].evidence.line == 5


def test_ray_job_submit_gives_its_variables_as_json(tmp_path: Path) -> None:
    facts = read(
        tmp_path,
        "set -x\nray job submit --runtime-env-json="
        '\'{"env_vars": {"VLLM_USE_V1": "1", "HF_TOKEN": "x", "NCCL_DEBUG": "WARN"}}\' -- true\n',
    )
    assert values_of(facts) == {"VLLM_USE_V1": "1", "NCCL_DEBUG": "WARN"}


@pytest.mark.parametrize("prefix", ["", "declare -x "])
def test_a_dump_of_the_environment_is_read(tmp_path: Path, prefix: str) -> None:
    text = "".join(
        f"{prefix}{line}\n"
        for line in ("HOME=/root", "WANDB_API_KEY=abc", "TASK_QUEUE_ENABLE=1", "VLLM_USE_V1=0")
    )
    facts = read(tmp_path, text, "env.txt")
    assert values_of(facts) == {"TASK_QUEUE_ENABLE": "1", "VLLM_USE_V1": "0"}


@pytest.mark.parametrize(
    "line",
    [
        "TASK_QUEUE_ENABLE=2",
        "+ TASK_QUEUE_ENABLE=2",
        "+ export TASK_QUEUE_ENABLE=2",
        "kwargs: {'env_vars': {'TASK_QUEUE_ENABLE': '2', 'HF_TOKEN': 'x'}}",
        'runtime_env {"env_vars": {"TASK_QUEUE_ENABLE": "2", "HF_TOKEN": "x"}}',
    ],
)
def test_a_log_states_variables_in_these_ways(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    path.write_text(f"start\n(TaskRunner pid=3) {line}\nend\n")
    facts = log_environment.READER.read(path, no_progress)
    assert values_of(facts) == {"TASK_QUEUE_ENABLE": "2"}
    fact = facts.facts["env.TASK_QUEUE_ENABLE"]
    assert fact.evidence.line == 2 and "HF_TOKEN" not in str(fact)


@pytest.mark.parametrize(
    "line", ["set TASK_QUEUE_ENABLE=2 to speed this up", "a=TASK_QUEUE_ENABLE=2", "HCCL_X = 2"]
)
def test_a_sentence_about_a_variable_is_no_statement(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    path.write_text(f"{line}\n")
    assert log_environment.READER.read(path, no_progress).facts == {}


def test_real_logs_hold_no_secret_and_no_private_variable(corpus: Path) -> None:
    num_facts = 0
    for path in sorted((corpus / "verl_logs").iterdir()):
        if not log_environment.READER.sniff(Glimpse(path, path.stat().st_size)):
            continue
        for name, fact in log_environment.READER.read(path, no_progress).facts.items():
            if name.startswith("env."):
                num_facts += 1
                assert is_fact(name.removeprefix("env."), fact.value)
                assert "API_KEY" not in str(fact)
    assert num_facts >= 20


def test_a_variable_that_differs_between_two_runs_is_found(tmp_path: Path) -> None:
    for side, value in (("reference", "1"), ("candidate", "2")):
        folder = tmp_path / side
        folder.mkdir()
        (folder / "run.sh").write_text(f"#!/bin/bash\nexport TASK_QUEUE_ENABLE={value}\n")
    sides = [RunData(discover([tmp_path / side])) for side in ("reference", "candidate")]
    found = compare(*sides).findings
    assert [f.id for f in found if "TASK_QUEUE_ENABLE" in f.id]
    assert not compare(sides[0], sides[0]).findings


@given(data=st.binary(max_size=300))
def test_any_bytes_give_facts_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file"
    for head in (b"#!/bin/bash\nexport HCCL_A=", b"env_vars:\n  HCCL_A: ", b"HCCL_A=1\nB=2\nC=3\n"):
        path.write_bytes(head + data)
        for reader in env_files.READERS:
            reader.sniff(Glimpse(path, path.stat().st_size))
            try:
                reader.read(path, no_progress)
            except AlignError:
                continue
