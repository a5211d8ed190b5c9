"""Values of MindSpeed-RL configuration keys that are not set: its configuration classes' own."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from align.core.config_value import ConfigLeaf, ConfigValue
from align.frameworks.config_table import Default, assumed_defaults

ASSUMED_VERSION = "2.3.0"
_TABLE_IS_OF = (ASSUMED_VERSION, f"v{ASSUMED_VERSION}", "master")


def config_defaults(
    values: Mapping[str, ConfigValue], version: str | None
) -> Mapping[str, Default]:
    """Return what applies where a key is not set: the defaults of its configuration classes.

    A section that is absent as a whole (a DPO run has no ``rl_config``) has no defaults.
    """
    sections = {key.partition(".")[0] for key in values}
    source = f"default of MindSpeed-RL {ASSUMED_VERSION}"
    certain = version in _TABLE_IS_OF
    assumption = None if certain else assumed_defaults("MindSpeed-RL", ASSUMED_VERSION, version)
    unknown = () if "actor.hidden_size" in values else _IN_MODEL_FILE
    return {
        key: Default(value, source, assumption)
        for key, value in _defaults().items()
        if key.partition(".")[0] in sections and key not in unknown
    }


# What a model file sets: unknown, not default, where that file is not at hand.
_IN_MODEL_FILE = frozenset(
    f"actor.{key}"
    for key in (
        *("norm_epsilon", "rotary_base", "normalization", "position_embedding_type", "swiglu"),
        *("add_qkv_bias", "disable_bias_linear", "qk_layernorm", "group_query_attention"),
        *("num_query_groups", "kv_channels", "untie_embeddings_and_output_weights"),
        *("num_experts", "moe_router_topk", "norm_topk_prob", "moe_router_score_function"),
        *("moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_grouped_gemm"),
        *("attention_softmax_in_fp32", "rope_scaling_type", "rope_scaling_factor"),
        *("multi_latent_attention", "q_lora_rank", "kv_lora_rank", "seq_aux"),
    )
)


@cache
def _defaults() -> Mapping[str, ConfigLeaf]:
    table = files("align.frameworks").joinpath("mindspeed_rl_defaults.tsv")
    rows = _rows(table.read_text(encoding="utf-8").splitlines())
    return {row["key"]: _literal(row["default"]) for row in rows}


def _rows(lines: Iterable[str]) -> Iterable[dict[str, str]]:
    return csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)


def _literal(text: str) -> ConfigLeaf:
    value = ast.literal_eval(text)
    return tuple(value) if isinstance(value, list) else value
