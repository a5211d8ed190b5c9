"""A vLLM engine's arguments: its command, its log, and inside a trainer's run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.config.engine import sampling_defaults
from align.config.normalise import effective
from align.config.schema import field_named
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    Provenance,
    ProvenanceKind,
    RawConfig,
)
from align.core.errors import AlignError
from align.core.run import ArtifactKind, RunManifest
from align.frameworks.config_table import config_tables
from dumps.readers import vllm_command, vllm_log
from dumps.readers.reader import Glimpse, no_progress
from dumps.store.discover import discover
from dumps.store.run_data import RunData

ENGINE = (
    "INFO [core.py:93] Initializing a V1 LLM engine (v0.11.0) with config: model='/m/Qwen3-8B', "
    "speculative_config=None, tokenizer='/m/Qwen3-8B', dtype=torch.bfloat16, max_seq_len=5120, "
    "tensor_parallel_size=2, quantization=None, enforce_eager=False, kv_cache_dtype=auto, "
    "structured_outputs_config=StructuredOutputsConfig(backend='auto', reasoning_parser=''), "
    "seed=0, enable_prefix_caching=True, chunked_prefill_enabled=True, "
    'compilation_config={"level":3,"custom_ops":["all"],"cudagraph_mode":1}\n'
)
GIVEN = (
    "INFO [utils.py:233] non-default args: {'model': '/m/Qwen3-8B', 'dtype': 'bfloat16', "
    "'max_num_seqs': 256, 'logprobs_mode': 'processed_logprobs', 'served_model_name': ['q'], "
    "'additional_config': {'torchair_graph_config': {'enabled': False}}, "
    "'override_generation_config': {'temperature': 0.6}}\n"
)


def read_log(folder: Path, text: str) -> RawConfig:
    path = folder / "log"
    path.write_text(text)
    raw = vllm_log.READER.read(path, no_progress)
    assert isinstance(raw, RawConfig)
    return raw


def read_command(folder: Path, text: str) -> RawConfig:
    path = folder / "serve.sh"
    path.write_text(text)
    assert vllm_command.READER.sniff(Glimpse(path, path.stat().st_size))
    raw = vllm_command.READER.read(path, no_progress)
    assert isinstance(raw, RawConfig)
    return raw


def values_of(config: EffectiveConfig) -> dict[str, ConfigLeaf]:
    return {name: value.value for name, value in config.values.items()}


def declared(**values: ConfigLeaf) -> RawConfig:
    place = Provenance(ProvenanceKind.FILE, "config.yaml", 3)
    leaves = {
        key: ConfigValue(key, value, place)
        for key, value in {
            "actor_rollout_ref.model.path": "/models/Qwen3-8B",
            **{f"actor_rollout_ref.rollout.{key}": value for key, value in values.items()},
        }.items()
    }
    return RawConfig("config.yaml", "yaml_config", "verl", leaves)


def test_every_key_of_the_table_names_a_field_of_the_schema() -> None:
    tables = config_tables("vllm")
    assert tables is not None
    for name in (*tables.keys.values(), *(formula.field for formula in tables.formulas)):
        field_named(name.replace("*", "x"))  # raises KeyError otherwise


def test_the_engine_s_line_and_what_it_was_given_make_one_configuration(tmp_path: Path) -> None:
    config = effective([read_log(tmp_path, GIVEN + ENGINE)], RunManifest())
    assert config.framework == "vllm" and config.unmatched == ()
    found = values_of(config)
    assert found["rollout.dtype"] == "bfloat16"
    assert found["rollout.max_model_len"] == 5120
    assert found["rollout.max_num_seqs"] == 256
    assert found["rollout.logprobs_mode"] == "processed_logprobs"
    assert found["rollout.chunked_prefill"] is True
    assert found["rollout.temperature"] == 0.6
    assert found["rollout.engine_options.compilation_level"] == 3
    assert found["rollout.engine_options.custom_ops"] == ("all",)
    assert found["rollout.engine_options.ascend.torchair_graph_config.enabled"] is False
    assert config.values["rollout.dtype"].raw.provenance.line == 2


def test_real_engines_are_read_and_every_key_is_known(corpus: Path, reference_runs: Path) -> None:
    logs = {
        corpus / "verl_logs" / "grpo_npu_sync_repeat_a.txt": (5120, 2, False, "torch.bfloat16"),
        reference_runs / "v091_v1_vllmcpu" / "console_full.log": (128, 1, True, "torch.float32"),
    }
    for path, expected in logs.items():
        raw = vllm_log.READER.read(path, no_progress)
        keys = ("max_seq_len", "tensor_parallel_size", "enforce_eager", "dtype")
        assert tuple(raw.values[key].value for key in keys) == expected
        assert effective([raw], RunManifest()).unmatched == ()


# Keys of the engine's line in logs of these versions.
OLD_AND_NEW = {
    "v0.6.1": "model='m', speculative_config=None, tokenizer='m', skip_tokenizer_init=False, "
    "tokenizer_mode=auto, revision=None, override_neuron_config=None, rope_scaling=None, "
    "rope_theta=None, tokenizer_revision=None, trust_remote_code=False, dtype=torch.bfloat16, "
    "max_seq_len=32768, download_dir=None, load_format=LoadFormat.AUTO, tensor_parallel_size=1, "
    "pipeline_parallel_size=1, disable_custom_all_reduce=False, quantization=None, "
    "enforce_eager=False, kv_cache_dtype=auto, quantization_param_path=None, device_config=cuda, "
    "decoding_config=DecodingConfig(guided_decoding_backend='outlines'), seed=0, "
    "served_model_name=m, use_v2_block_manager=False, num_scheduler_steps=1, "
    "multi_step_stream_outputs=False, enable_prefix_caching=False, use_async_output_proc=True, "
    "use_cached_outputs=False, mm_processor_kwargs=None",
    "v0.8.5": "model='m', seed=None, num_scheduler_steps=1, multi_step_stream_outputs=True, "
    "enable_prefix_caching=None, chunked_prefill_enabled=False, use_async_output_proc=True, "
    "disable_mm_preprocessor_cache=False, mm_processor_kwargs=None, pooler_config=None, "
    'compilation_config={"splitting_ops":[],"compile_sizes":[],"max_capture_size":256}',
    "v0.18.0": "model='m', decode_context_parallel_size=1, dcp_comm_backend=ag_rs, "
    "enable_return_routed_experts=False, kv_cache_dtype=auto,  device_config=cuda, "
    "structured_outputs_config=StructuredOutputsConfig(backend='auto', reasoning_parser='')",
}


@pytest.mark.parametrize("version", OLD_AND_NEW)
def test_every_key_that_old_and_new_engines_print_is_known(tmp_path: Path, version: str) -> None:
    line = f"Initializing a V0 LLM engine ({version}) with config: {OLD_AND_NEW[version]}\n"
    raw = read_log(tmp_path, line)
    config = effective([raw], RunManifest())
    assert raw.values["model"].value == "m" and config.unmatched == ()


def test_an_engine_that_overrules_its_trainer_is_found_in_a_real_run(corpus: Path) -> None:
    data = RunData(discover([corpus / "verl_logs" / "grpo_npu_sync_repeat_a.txt"]))
    assert data.framework == "verl"
    config = effective(data.configs, RunManifest(framework=data.framework))
    # Line 252 of the log prints enable_chunked_prefill False; vLLM's V1 engine turns it on.
    prefill = config.values["rollout.chunked_prefill"]
    assert prefill.value is True and prefill.raw.provenance.line == 1055
    assert any(note.en.startswith("rollout.chunked_prefill is True") for note in config.notes)
    assert config.values["rollout.max_model_len"].raw.key != "max_seq_len"  # 1024 + 4096, unset


def test_a_command_is_read_with_its_short_flags_and_counted_lengths(tmp_path: Path) -> None:
    raw = read_command(
        tmp_path,
        "export MODEL=/m/Qwen3-8B\nVLLM_USE_V1=1 vllm serve $MODEL -tp 4 --dtype float16 \\\n"
        "  --max-model-len 32k --no-enable-prefix-caching --enforce-eager \\\n"
        '  --additional-config \'{"ascend_scheduler_config": {"enabled": true}}\' \\\n'
        "  --enable-expert-parallel --generation-config vllm --port 8000 > log 2>&1 &\n",
    )
    found = values_of(effective([raw], RunManifest(framework_version="0.11.0")))
    assert found["model.name"] == "/m/Qwen3-8B"
    assert found["rollout.tensor_parallel_size"] == 4
    assert found["rollout.expert_parallel_size"] == 4
    assert found["rollout.dtype"] == "float16"
    assert found["rollout.max_model_len"] == 32000
    assert found["rollout.prefix_caching"] is False
    assert found["rollout.enforce_eager"] is True
    assert found["rollout.engine_options.ascend.ascend_scheduler_config.enabled"] is True
    assert found["rollout.temperature"] == 1.0
    assert raw.values["dtype"].provenance.line == 2


def test_sampling_comes_from_generation_config_unless_the_command_says_otherwise(
    tmp_path: Path,
) -> None:
    place = Provenance(ProvenanceKind.MODEL_CONFIG, "generation_config.json")
    keys: dict[str, ConfigLeaf] = {"temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05}
    values = {key: ConfigValue(key, value, place) for key, value in keys.items()}
    model = RawConfig("generation_config.json", "hf_generation_config", "huggingface", values)
    for flag, expected in (
        ("", 0.7),
        ("--generation-config auto", 0.7),
        ("--generation-config vllm", 1.0),
    ):
        raw = read_command(tmp_path, f"vllm serve M --dtype bfloat16 {flag}\n")
        assert values_of(effective([raw, model], RunManifest()))["rollout.temperature"] == expected
    raw = read_command(
        tmp_path, "vllm serve M --override-generation-config '{\"temperature\": 0.5}'\n"
    )
    found = values_of(effective([raw, model], RunManifest()))
    assert (found["rollout.temperature"], found["rollout.top_p"]) == (0.5, 0.8)
    assert found["rollout.repetition_penalty"] == 1.05
    assert sampling_defaults([model], {}).keys() == {f"default_sampling.{key}" for key in keys}


def test_what_the_engine_confirms_keeps_its_place_and_what_differs_gives_way_with_a_note(
    tmp_path: Path,
) -> None:
    run = declared(dtype="float16", tensor_model_parallel_size=2, temperature=1.0, seed=7)
    config = effective([run, read_log(tmp_path, GIVEN + ENGINE)], RunManifest())
    assert config.framework == "verl"
    assert config.values["rollout.dtype"].value == "bfloat16"
    assert config.values["rollout.dtype"].raw.provenance.kind is ProvenanceKind.PRINTED
    assert config.values["rollout.tensor_parallel_size"].raw.provenance.source == "config.yaml"
    assert config.values["rollout.temperature"].value == 1.0  # sent with every request
    assert config.values["rollout.seed"].value == 7  # of the first replica, not of the run
    assert [n.en for n in config.notes if "rollout.dtype is bfloat16" in n.en]
    agreeing = effective([declared(dtype="bf16"), read_log(tmp_path, ENGINE)], RunManifest())
    assert not [n for n in agreeing.notes if "rollout.dtype" in n.en]


def test_an_engine_with_another_model_is_left_out(tmp_path: Path) -> None:
    log = read_log(tmp_path, ENGINE.replace("Qwen3-8B", "Qwen3-32B-judge"))
    config = effective([declared(dtype="float16"), log], RunManifest())
    assert config.values["rollout.dtype"].value == "float16"
    assert any("another model" in note.en for note in config.notes)


def test_engines_of_one_log_that_differ_leave_the_key_open(tmp_path: Path) -> None:
    raw = read_log(tmp_path, ENGINE + ENGINE.replace("seed=0", "seed=1"))
    assert "seed" not in raw.values and raw.unknown == ("seed",)
    assert raw.values["max_seq_len"].value == 5120


def test_a_log_of_a_trainer_keeps_its_own_configuration_beside_the_engine_s(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "GRPOConfig(\nbeta=0.0,\nuse_vllm=True,\nnum_generations=8,\n)\n" + ENGINE
    )
    run = discover([tmp_path])
    assert [a.format for a in run.of_kind(ArtifactKind.CONFIG)] == ["trl_printed"]
    assert [a.format for a in run.of_kind(ArtifactKind.ENGINE)] == ["vllm_log"]
    assert RunData(run).framework == "trl"


@pytest.mark.parametrize("end", range(90, len(ENGINE), 29))
def test_a_line_cut_anywhere_gives_a_part_of_the_truth(tmp_path: Path, end: int) -> None:
    truth = {key: value.value for key, value in read_log(tmp_path, ENGINE).values.items()}
    try:
        raw = read_log(tmp_path, ENGINE[:end])
    except AlignError as error:
        assert error.fix
        return
    found = {key: value.value for key, value in raw.values.items()}
    assert {k: v for k, v in found.items() if truth.get(k) != v} == {}


@given(data=st.binary(max_size=300))
def test_any_bytes_give_values_or_our_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file"
    for head in (b"LLM engine with config: model=", b"non-default args: {", b"vllm serve M --a "):
        path.write_bytes(head + data)
        for reader in (vllm_log.READER, vllm_command.READER):
            reader.sniff(Glimpse(path, path.stat().st_size))
            try:
                reader.read(path, no_progress)
            except AlignError:
                continue
