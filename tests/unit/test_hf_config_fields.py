"""A model's config.json means the same in transformers 4 and 5, and no key of it is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from align.config.diff import compare_configs
from align.config.model_files import ModelFiles, model_files
from align.config.normalise import effective
from align.config.schema import field_named
from align.core.config_value import ConfigLeaf, RawConfig
from align.core.run import RunManifest
from align.frameworks.config_table import config_tables
from dumps.readers.hf_config import read_hf_json
from dumps.readers.reader import no_progress

FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "llama", "deepseek_v3", "mistral", "qwen2_moe")
MORE_FAMILIES = ("mixtral", "gemma3", "qwen3_vl", "qwen3_next", "glm4_moe")

# As published with DeepSeek-V3, written by transformers 4.33 (shortened: no weights' hashes).
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "mscale": 1.0},
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def read(folder: Path, values: dict[str, Any], name: str = "hf_config") -> RawConfig:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(values, indent=2))
    return read_hf_json(path, no_progress, format=name)


def fields(folder: Path, values: dict[str, Any]) -> ModelFiles:
    return model_files([read(folder, values)])


def saved(folder: Path, family: str) -> dict[str, Any]:
    """Return what transformers 5 itself writes for this family."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    transformers.AutoConfig.for_model(family).save_pretrained(folder)
    found = json.loads((folder / "config.json").read_text())
    assert isinstance(found, dict)
    return found


def as_loaded(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return what transformers 5 understands by a config.json."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    (folder / "config.json").write_text(json.dumps(values))
    loaded = transformers.AutoConfig.from_pretrained(folder).to_dict()
    left_out = ("_name_or_path", "transformers_version", "scoring_func")
    return {key: value for key, value in loaded.items() if key not in left_out}


def as_transformers_4(values: dict[str, Any]) -> dict[str, Any]:
    """Write the same model as transformers 4 would."""
    old = dict(values)
    rope = old.pop("rope_parameters", None)
    if rope:
        kind = rope["rope_type"]
        rest = {k: v for k, v in rope.items() if k not in ("rope_theta", "rope_type")}
        old["rope_theta"] = rope["rope_theta"]
        old["rope_scaling"] = None if kind == "default" else {"type": kind, **rest}
    if "dtype" in old:
        old["torch_dtype"] = old.pop("dtype")
    old.pop("layer_types", None)
    if old["model_type"] == "qwen3_moe":
        old["num_experts"] = old.pop("num_local_experts")
    if old["model_type"] == "deepseek_v3":
        old.pop("head_dim", None)
        old.pop("qk_head_dim", None)
        old["scoring_func"] = "sigmoid"
    old["transformers_version"] = "4.57.1"
    return old


def test_every_key_of_the_table_names_a_field_of_the_schema() -> None:
    tables = config_tables("huggingface")
    assert tables is not None and "*" not in tables.ignored
    for name in (*tables.keys.values(), *(formula.field for formula in tables.formulas)):
        field_named(name.replace("*", "x"))  # raises KeyError otherwise


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_every_key_that_transformers_5_writes_is_known(tmp_path: Path, family: str) -> None:
    found = fields(tmp_path, saved(tmp_path, family))
    assert [value.key for value in found.unmatched] == []
    assert found.values["model.num_layers"].value and found.values["model.hidden_size"].value


@pytest.mark.parametrize("family", FAMILIES)
def test_the_spellings_of_transformers_4_and_5_give_the_same_values(
    tmp_path: Path, family: str
) -> None:
    new = saved(tmp_path, family) | {"dtype": "bfloat16"}
    assert as_loaded(tmp_path, as_transformers_4(new)) == as_loaded(tmp_path, new)
    sides = [fields(tmp_path, new), fields(tmp_path, as_transformers_4(new))]
    known = [{k: v.value for k, v in side.values.items()} for side in sides]
    assert all(side.unmatched == () for side in sides)
    common = known[0].keys() & known[1].keys()
    assert {k: (known[0][k], known[1][k]) for k in common if known[0][k] != known[1][k]} == {}
    assert common >= {"model.rope_theta", "model.head_dim", "model.checkpoint_dtype"}
    # All that only one of them tells is which layers there are.
    assert known[0].keys() ^ known[1].keys() <= {"model.override.layer_types"}


def test_scaled_rotary_embeddings_are_compared_across_the_spellings(tmp_path: Path) -> None:
    new = saved(tmp_path, "qwen2") | {
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "beta_fast": 32}
    }
    for values in (new, as_transformers_4(new)):
        found = {k: v.value for k, v in fields(tmp_path, values).values.items()}
        assert found["model.rope_scaling_type"] == "yarn"
        assert found["model.rope_scaling_factor"] == 4.0
        assert found["model.rope_theta"] == 1e6
        assert found["model.override.rope_beta_fast"] == 32


def test_deepseek_as_published_and_as_transformers_5_saves_it_agree(tmp_path: Path) -> None:
    published = fields(tmp_path, DEEPSEEK)
    assert published.unmatched == ()
    ours = {k: v.value for k, v in published.values.items()}
    assert ours["model.head_dim"] == 192  # 128 + 64; hidden_size / heads would be 56
    assert ours["model.num_experts"] == 256
    assert ours["model.router_score"] == "sigmoid"
    assert ours["model.rope_scaling_factor"] == 40
    assert ours["model.override.kv_lora_rank"] == 512
    assert ours["model.override.quantization.quant_method"] == "fp8"
    new = {k: v.value for k, v in fields(tmp_path, saved(tmp_path, "deepseek_v3")).values.items()}
    same = ("head_dim", "num_experts", "router_score", "qk_norm", "norm_topk_prob", "num_layers")
    for name in same:
        assert new[f"model.{name}"] == ours[f"model.{name}"]


def test_a_nested_text_model_counts_and_a_second_tied_flag_is_kept(tmp_path: Path) -> None:
    values = {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": False,
        "text_config": {
            **{"model_type": "qwen3_vl_text", "hidden_size": 8, "num_hidden_layers": 2},
            **{"rms_norm_eps": 1e-6, "tie_word_embeddings": True},
        },
        "vision_config": {"depth": 3},
    }
    found = {k: v.value for k, v in fields(tmp_path, values).values.items()}
    assert found["model.hidden_size"] == 8 and found["model.qk_norm"] is True
    assert found["model.tie_word_embeddings"] is False
    assert found["model.override.text_tie_word_embeddings"] is True
    assert found["model.override.vision.depth"] == 3


@pytest.mark.parametrize(
    ("keys", "window", "layers"),
    [
        ({"use_sliding_window": False, "sliding_window": 4096}, None, "full_attention"),
        ({"use_sliding_window": True, "sliding_window": 4096}, 4096, None),
        ({"sliding_window": 4096}, 4096, None),  # Mistral has no switch
        ({"sliding_window": None, "layer_types": ["full_attention"] * 3}, None, "full_attention"),
        ({"layer_types": ["a", "b"], "sliding_window": 8}, 8, ("a", "b")),
    ],
)
def test_a_sliding_window_counts_only_where_it_is_on(
    tmp_path: Path, keys: dict[str, Any], window: ConfigLeaf, layers: ConfigLeaf
) -> None:
    found = fields(tmp_path, {"model_type": "x", "hidden_size": 8, **keys}).values
    assert found["model.override.sliding_window"].value == window
    types = found.get("model.override.layer_types")
    assert (types.value if types else None) == layers


def test_every_key_of_real_models_is_known(corpus: Path, reference_runs: Path) -> None:
    folders = [
        *(corpus / "tokenizers").iterdir(),
        reference_runs / "tiny_model_tokenizer_data" / "model",
    ]
    num_files = 0
    for folder in folders:
        for name in ("config", "generation_config"):
            path = folder / f"{name}.json"
            if path.is_file():
                raw = read_hf_json(path, no_progress, format=f"hf_{name}")
                assert model_files([raw]).unmatched == (), path
                num_files += 1
    assert num_files >= 5


def test_an_unknown_key_of_either_file_surfaces(tmp_path: Path) -> None:
    model = read(tmp_path, {"model_type": "qwen3", "hidden_size": 8, "new_trick": 1})
    generation = read(tmp_path, {"temperature": 0.6, "tempurature": 1}, "hf_generation_config")
    config = effective([model, generation], RunManifest())
    assert {value.key for value in config.unmatched} == {"new_trick", "tempurature"}


def test_responses_end_at_the_tokens_of_both_files(tmp_path: Path) -> None:
    model = read(tmp_path, {"model_type": "qwen2", "hidden_size": 8, "eos_token_id": 151643})
    generation = read(
        tmp_path,
        {"eos_token_id": [151645, 151643], "pad_token_id": 151643},
        "hf_generation_config",
    )
    found = model_files([model, generation]).values
    assert found["model.eos_token_id"].value == (151643, 151645)
    assert found["model.pad_token_id"].value == 151643
    alone = model_files([model]).values
    assert alone["model.eos_token_id"].value == (151643,)


def test_two_generation_configs_that_differ_are_not_told_apart(tmp_path: Path) -> None:
    files = [
        read(tmp_path, {"eos_token_id": token, "do_sample": True}, "hf_generation_config")
        for token in (1, 2)
    ]
    found = model_files(files)
    assert found.values == {} and len(found.notes) == 1


def test_another_epsilon_is_found_between_two_model_folders(tmp_path: Path) -> None:
    base = saved(tmp_path, "qwen2")
    sides = [
        effective([read(tmp_path, base | {"rms_norm_eps": eps})], RunManifest())
        for eps in (1e-6, 1e-5)
    ]
    found = [f.id for f in compare_configs(*sides).findings]
    assert found == ["config.model.rms_norm_eps"]
