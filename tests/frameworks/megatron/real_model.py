"""Build and run the real Megatron-core on a CPU, in a process of its own.

Megatron-core asks CUDA for devices, streams and random states; the stand-ins below answer for the
CPU. They change the process, so tests start this file as a script instead of importing it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.checkpoint.filesystem import SerializationFormat


class _Stream:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self


def stand_in_for_cuda() -> None:
    """Answer for CUDA with the CPU."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda *args: None
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed))
    cuda._lazy_call = lambda call, **kwargs: call()
    cuda.Stream = cuda.Event = lambda *args, **kwargs: _Stream()
    cuda.current_stream = lambda *args, **kwargs: _Stream()
    cuda.stream = lambda stream: contextlib.nullcontext()
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *args, **kwargs: self
    tensor.record_stream = lambda self, *args, **kwargs: None


stand_in_for_cuda()

from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402
from megatron.core.dist_checkpointing.validation import StrictHandling  # noqa: E402
from megatron.core.models.gpt import GPTModel, gpt_layer_specs  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
)
from megatron.core.tensor_parallel import random as megatron_random  # noqa: E402
from megatron.core.transformer import (  # noqa: E402
    TransformerConfig,
    dot_product_attention,
    multi_latent_attention,
    torch_norm,
)
from megatron.core.transformer.moe import experts, grouped_gemm_util, moe_utils  # noqa: E402
from megatron.core.transformer.transformer_config import MLATransformerConfig  # noqa: E402

megatron_random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
megatron_random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()


def rms_norm(kind: Any, config: Any, hidden_size: int, eps: float = 1e-5, **others: Any) -> Any:
    """Make the norm that Megatron's refuses to be under sequence parallelism."""
    norm = torch.nn.RMSNorm(hidden_size, eps=eps)
    for parameter in norm.parameters():  # so that their gradients are reduced over the ranks
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


torch_norm.WrappedTorchNorm.__new__ = staticmethod(rms_norm)
filesystem_async._write_item = partial(
    filesystem_async._write_item, serialization_format=SerializationFormat.TORCH_SAVE
)


class LatentDotProductAttention(dot_product_attention.DotProductAttention):  # type: ignore[misc]
    """Attention whose values are narrower than its keys, which only TransformerEngine offers."""

    def __init__(self, *args: Any, k_channels: int = 0, v_channels: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if v_channels:
            ranks = parallel_state.get_tensor_model_parallel_world_size()
            self.hidden_size_per_partition = v_channels * self.config.num_attention_heads // ranks


# 0.16 takes it from a module of its own
sys.modules.get(
    "megatron.core.models.backends", gpt_layer_specs
).DotProductAttention = LatentDotProductAttention


def grouped_product(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """Multiply each expert's rows with its matrix, as the CUDA package grouped_gemm does."""
    rows = torch.split(a, batch_sizes.tolist())
    return torch.cat([r @ (m.t() if trans_b else m) for r, m in zip(rows, b, strict=True)])


_GEMM = SimpleNamespace(ops=SimpleNamespace(gmm=grouped_product))
for name in ("grouped_gemm_is_available", "assert_grouped_gemm_is_available"):
    setattr(_GEMM, name, lambda: True)
    setattr(grouped_gemm_util, name, lambda: True)
experts.gg = _GEMM
# what 0.16 asks for and defines with TransformerEngine alone, or takes for it
moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
multi_latent_attention.HAVE_TE = False


def start(tensor: int, pipeline: int, expert: int, chunks: int) -> None:
    """Make Megatron's groups of a started process group."""
    parallel_state.destroy_model_parallel()
    # 0.12 forgets to forget them, and takes them for those of the next groups
    parallel_state._EMBEDDING_GLOBAL_RANKS = None
    parallel_state._POSITION_EMBEDDING_GLOBAL_RANKS = None
    parallel_state.initialize_model_parallel(
        tensor,
        pipeline,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        expert_model_parallel_size=expert,
        create_gloo_process_groups=False,
    )
    megatron_random.model_parallel_cuda_manual_seed(1234)


def settings(
    hf: dict[str, Any],
    ranks: tuple[int, int, int, int],
    grouped: bool,
    *,
    sequence_parallel: bool = False,
) -> Any:
    """Translate a Hugging Face configuration."""
    tensor, pipeline, expert, chunks = ranks
    is_mla, is_qwen2 = "kv_lora_rank" in hf, hf["model_type"] == "qwen2"
    rope = (hf.get("rope_parameters") or hf)["rope_theta"]
    given: dict[str, Any] = {
        "num_layers": hf["num_hidden_layers"],
        "hidden_size": hf["hidden_size"],
        "ffn_hidden_size": hf["intermediate_size"],
        "num_attention_heads": hf["num_attention_heads"],
        "num_query_groups": hf["num_key_value_heads"],
        "kv_channels": hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"],
        "layernorm_epsilon": hf["rms_norm_eps"],
        "add_qkv_bias": bool(hf.get("attention_bias", is_qwen2)),
        "qk_layernorm": hf["model_type"].startswith("qwen3") or is_mla,
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "expert_model_parallel_size": expert,
        "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
        "sequence_parallel": sequence_parallel or (expert > 1 and tensor > 1),
    }
    num_experts = hf.get("num_local_experts") or hf.get("n_routed_experts")
    if num_experts:
        given |= {
            "num_moe_experts": num_experts,
            "moe_router_topk": hf["num_experts_per_tok"],
            "moe_ffn_hidden_size": hf["moe_intermediate_size"],
            "moe_grouped_gemm": grouped,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
        }
    if is_mla:
        dense = hf["first_k_dense_replace"]
        given |= {
            "q_lora_rank": hf["q_lora_rank"],
            "kv_lora_rank": hf["kv_lora_rank"],
            "qk_head_dim": hf["qk_nope_head_dim"],
            "qk_pos_emb_head_dim": hf["qk_rope_head_dim"],
            "v_head_dim": hf["v_head_dim"],
            "kv_channels": hf["qk_nope_head_dim"] + hf["qk_rope_head_dim"],
            "num_query_groups": hf["num_attention_heads"],
            "rope_type": "rope",
            "rotary_base": rope,
            "rotary_scaling_factor": 1.0,
            "moe_layer_freq": [0] * dense + [1] * (hf["num_hidden_layers"] - dense),
            "moe_shared_expert_intermediate_size": hf["n_shared_experts"]
            * hf["moe_intermediate_size"],
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_num_groups": hf["n_group"],
            "moe_router_group_topk": hf["topk_group"],
            "moe_router_topk_scaling_factor": hf["routed_scaling_factor"],
        }
    unfused = (
        *("bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion"),
        *("apply_rope_fusion", "gradient_accumulation_fusion", "persist_layer_norm"),
        *("batch_p2p_comm", "deallocate_pipeline_outputs", "add_bias_linear"),
    )
    kind = MLATransformerConfig if is_mla else TransformerConfig
    return kind(
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        use_cpu_initialization=True,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        **dict.fromkeys(unfused, False),
        **given,
    )


def build(
    hf: dict[str, Any], config: Any, rows: int, first: bool, last: bool, chunk: int | None = None
) -> Any:
    """Build the model, or one stage or virtual chunk of it."""
    is_mixed = isinstance(config.moe_layer_freq, list)
    if is_mixed:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    else:
        spec = get_gpt_layer_local_spec(
            num_experts=config.num_moe_experts,
            moe_grouped_gemm=config.moe_grouped_gemm,
            qk_layernorm=config.qk_layernorm,
            multi_latent_attention=getattr(config, "multi_latent_attention", False),
            moe_use_legacy_grouped_gemm=config.moe_grouped_gemm,
            normalization="RMSNorm",
        )
    is_told = chunk is not None and "vp_stage" in inspect.signature(GPTModel).parameters
    model = GPTModel(
        config,
        spec,
        vocab_size=rows,
        max_sequence_length=hf["max_position_embeddings"],
        pre_process=first,
        post_process=last,
        parallel_output=True,
        share_embeddings_and_output_weights=bool(hf["tie_word_embeddings"]),
        position_embedding_type="rope",
        rotary_base=(hf.get("rope_parameters") or hf)["rope_theta"],
        **({"vp_stage": chunk} if is_told else {}),
    )
    for module in model.modules():
        if isinstance(module, experts.GroupedMLP):  # 0.16 wants to be told bfloat16
            module.config = copy.copy(config)
            module.config.bf16 = True
    return model


def rank_file(folder: Path, ranks: tuple[int, int, int, int]) -> Path:
    """Return this rank's file, as Megatron's own get_checkpoint_name names it."""
    _, pipeline, expert, _ = ranks
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    if pipeline > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    if expert > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03d}"
    return folder / "release" / name / "model_optim_rng.pt"


def chunk_models(hf: dict[str, Any], config: Any, rows: int, chunks: int) -> list[Any]:
    """Build every virtual chunk of this rank's stage."""
    stage, stages = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_world_size(),
    )
    models = []
    for chunk in range(chunks):
        if chunks > 1:
            parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
        first = stage == 0 and chunk == 0
        last = stage == stages - 1 and chunk == chunks - 1
        models.append(build(hf, config, rows, first, last, chunk if chunks > 1 else None))
    return models


def load(models: list[Any], saved: dict[str, Any]) -> None:
    """Load strictly: a name too many, a name too few or a wrong shape raises."""
    names = ["model"] if len(models) == 1 else [f"model{i}" for i in range(len(models))]
    for model, name in zip(models, names, strict=True):
        found = model.load_state_dict(saved[name], strict=False)
        lacking = [n for n in found.missing_keys if not n.endswith("_extra_state")]
        lacking = [n for n in lacking if not n.endswith("local_tokens_per_expert")]
        assert not lacking and not found.unexpected_keys, (lacking, found.unexpected_keys)


def logits(model: Any, vocab: int) -> Tensor:
    """Run the model on fixed ids; gather the vocabulary over ranks and cut its padding."""
    ids = torch.arange(32).reshape(2, 16) * 7 % vocab
    places = torch.arange(16).expand(2, -1).contiguous()
    mask = torch.triu(torch.ones(1, 1, 16, 16, dtype=torch.bool), 1).expand(2, -1, -1, -1)
    with torch.no_grad():
        own = model(input_ids=ids, position_ids=places, attention_mask=mask).contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return torch.cat(parts, -1)[..., :vocab]


def do(job: dict[str, Any]) -> None:
    """Load a checkpoint, and do with it what the job says."""
    folder, ranks = Path(job["folder"]), tuple(job["ranks"])
    hf = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    start(*ranks)
    config = settings(hf, ranks, job["grouped"])
    models = chunk_models(hf, config, job["rows"], ranks[3])
    if job["task"] == "load_dist":
        state = dist_checkpointing.load(
            models[0].sharded_state_dict(),
            str(folder / "release"),
            strict=StrictHandling.LOG_ALL,
        )
        named = models[0].state_dict().keys() & state.keys()
        load(models, {"model": {name: state[name] for name in named}})
    else:
        load(models, torch.load(rank_file(folder, ranks), weights_only=False))
    if job["task"] == "save_dist":
        Path(job["out"]).mkdir(exist_ok=True)
        dist_checkpointing.save(models[0].sharded_state_dict(), job["out"])
    elif job["task"] != "load":
        found = logits(models[0].eval(), hf["vocab_size"])
        if dist.get_rank() == 0:
            torch.save(found, job["out"])


def main(jobs: list[dict[str, Any]]) -> None:
    """Do jobs one after the other on this rank; a failed one is told in a file of its own.

    A job with ``fake`` runs without other processes, as the rank it names: it loads and computes
    nothing.
    """
    for job in jobs:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if "fake" in job:
            if dist.is_initialized():
                dist.destroy_process_group()
            rank, world = job["fake"]
            from torch.testing._internal.distributed.fake_pg import FakeStore

            dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        elif not dist.is_initialized():
            dist.init_process_group("gloo", rank=rank, world_size=world)
        try:
            do(job)
        except BaseException:  # torch's CheckpointException is no Exception
            Path(job["out"] + ".error").write_text(traceback.format_exc(), encoding="utf-8")
        if "fake" in job:
            dist.destroy_process_group()


if __name__ == "__main__":
    from ranks import fork_ranks  # type: ignore[import-not-found]

    fork_ranks(main)
