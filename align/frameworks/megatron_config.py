"""Megatron's and MindSpeed-LLM's arguments, of core_v0.12.1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from align.core.config_value import ConfigLeaf, ConfigValue
from align.frameworks.config_table import (
    NOT_SET,
    ConfigView,
    Default,
    Fixed,
    Formula,
    Known,
    NotSet,
    Values,
    assumed_defaults,
    number,
)
from align.frameworks.megatron_arguments import Argument, arguments
from align.frameworks.megatron_formulas import EXEMPT, formulas
from align.frameworks.megatron_keys import ARGUMENT_IGNORED, ARGUMENT_KEYS

READS_MODEL_CONFIG = False

CONFIG_SIGNS = ("tensor_model_parallel_size", "micro_batch_size", "lr_decay_style", "norm_epsilon")

ASSUMED_VERSION = "core_v0.12.1"
CONFIG_RELEASES = (ASSUMED_VERSION,)
_LLM_VERSION = "2.2.0"

CONFIG_KEYS: dict[str, str] = ARGUMENT_KEYS

CONFIG_IGNORED: dict[str, str] = {
    **{name: why for name, why in ARGUMENT_IGNORED.items() if name not in CONFIG_KEYS},
    "rank": "which process printed it · 打印该内容的进程",
    "consumed_*": "state of the run · 运行状态",
    "iteration": "state of the run · 运行状态",
    "num_floating_point_operations_so_far": "state of the run · 运行状态",
    "params_dtype": "decided by bf16 and fp16 · 由 bf16 与 fp16 决定",
    "data_parallel_size": "computed from the other sizes · 由其他并行度计算得出",
    "transformer_pipeline_model_parallel_size": "copy of another argument · 另一参数的副本",
    "virtual_pipeline_model_parallel_size": "copy of another argument · 另一参数的副本",
}


def _ffn(ffn: ConfigLeaf, hidden: ConfigLeaf, swiglu: ConfigLeaf) -> ConfigLeaf | NotSet:
    width = number(hidden)
    if ffn is not None or width is None:
        return NOT_SET if ffn is None else ffn
    return int((4 * width * 2 / 3) / 64) * 64 if swiglu else int(4 * width)


def _dtype(bf16: ConfigLeaf, fp16: ConfigLeaf) -> str:
    return "bfloat16" if bf16 else "float16" if fp16 else "float32"


def _position(rotary: ConfigLeaf, kind: ConfigLeaf) -> ConfigLeaf:
    return "rope" if rotary else kind


def _decay_iters(decay: ConfigLeaf, train: ConfigLeaf) -> ConfigLeaf:
    return train if decay is None else decay


def _devices(nodes: ConfigLeaf, per_node: ConfigLeaf) -> int | NotSet:
    a, b = number(nodes), number(per_node)
    return NOT_SET if a is None or b is None else int(a * b)


def _warmup_steps(fraction: ConfigLeaf, steps: ConfigLeaf) -> ConfigLeaf | NotSet:
    return steps if fraction is None else NOT_SET


def _not_set(value: ConfigLeaf) -> ConfigLeaf | NotSet:
    return NOT_SET if value is None else value


CONFIG_FORMULAS: tuple[Formula, ...] = (
    *formulas(""),
    Formula(
        "model.intermediate_size",
        ("ffn_hidden_size", "hidden_size", "swiglu"),
        _ffn,
        "ffn_hidden_size, else 4 × hidden_size, of which 2/3 in multiples of 64 with swiglu",
    ),
    Formula(
        "model.position_embedding",
        ("use_rotary_position_embeddings", "position_embedding_type"),
        _position,
        "rope with use_rotary_position_embeddings, else position_embedding_type",
    ),
    Formula("actor.dtype", ("bf16", "fp16"), _dtype, "bf16, else fp16, else float32"),
    Formula(
        "actor.master_dtype",
        ("bf16", "fp16"),
        lambda bf16, fp16: "float32",
        "Megatron's optimizer keeps float32 main parameters",
    ),
    Formula("actor.lr_warmup_fraction", ("lr_warmup_fraction",), _not_set, "lr_warmup_fraction"),
    Formula(
        "actor.lr_warmup_steps",
        ("lr_warmup_fraction", "lr_warmup_iters"),
        _warmup_steps,
        "lr_warmup_iters where lr_warmup_fraction is not set",
    ),
    Formula(
        "actor.lr_options.decay_steps",
        ("lr_decay_iters", "train_iters"),
        _decay_iters,
        "lr_decay_iters, else train_iters",
    ),
    Formula("trainer.world_size", ("world_size",), lambda size: size, "world_size"),
    Formula(
        "trainer.world_size",
        ("nnodes", "nproc_per_node"),
        _devices,
        "nnodes × nproc_per_node of torchrun",
    ),
    Formula(
        "data.shuffle",
        ("no_shuffle",),
        lambda off: not off,
        "not no_shuffle",
    ),
)


def config_view(values: Mapping[str, ConfigValue], version: str | None) -> ConfigView:
    """Take every key as it is."""
    return ConfigView(values)


def config_defaults(
    values: Mapping[str, ConfigValue], version: str | None
) -> Mapping[str, Default]:
    """Return the parser's defaults; those of MindSpeed-LLM where one of its arguments is set."""
    table = arguments()
    llm = any(key in table and not table[key].is_megatron for key in values)
    framework = "MindSpeed-LLM" if llm else "Megatron"
    known = _LLM_VERSION if llm else ASSUMED_VERSION
    certain = version is not None and _plain(version) == _plain(known)
    assumption = None if certain else assumed_defaults(framework, known, version)
    source = f"default of {framework} {known}"
    return {
        argument.name: Default(_default(argument, llm), source, assumption)
        for argument in table.values()
        if llm or argument.is_megatron
    }


def config_fixed(values: Values, known: Known, version: str | None) -> Iterable[Fixed]:
    """Return what Megatron does whatever is set."""
    source = f"code of Megatron {version or ASSUMED_VERSION}"
    yield Fixed("actor.strategy", "megatron", source, "it is Megatron")
    yield Fixed("actor.weight_decay_exempt", EXEMPT, source, f"weight decay spares {EXEMPT}")
    yield Fixed("actor.lr_advances", "per optimizer step", source, "one step of the scheduler each")


def _default(argument: Argument, llm: bool) -> ConfigLeaf:
    return argument.mindspeed_llm if llm else argument.megatron


def _plain(version: str) -> str:
    return version.lower().removeprefix("core_").removeprefix("v")
