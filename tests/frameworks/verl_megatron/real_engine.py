"""Train verl's real Megatron engine on a CPU, plainly and under capture, in processes of its own.

Every job is done plainly first, then the hooks go in as in any process under capture, and it is
done again.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch import Tensor
from transformers import (  # noqa: F401  before CUDA is stood for
    AutoModelForCausalLM,
    AutoProcessor,
    GenerationMixin,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from dumps.capture.gradients import plain_name
from dumps.capture.install import install
from dumps.capture.session import current
from dumps.capture.taps.verl_engine import record_loaded
from tests.frameworks.megatron.on_cpu import CudaMeansCpu
from tests.frameworks.megatron.ranks import Jobs, fork_ranks
from tests.frameworks.verl_megatron import absent
from tests.frameworks.verl_megatron.batch import CLIP_NORM, EPSILON, LEARNING_RATE, MICRO, batch_of

absent.install()

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.workers.config import (  # noqa: E402
    ActorConfig,
    HFModelConfig,
    McoreEngineConfig,
    McoreOptimizerConfig,
)
from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead  # noqa: E402
from verl.workers.engine_workers import ActorRolloutRefWorker  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402


def forget() -> None:
    """Have Megatron make its groups anew, as for the first engine of a process."""
    parallel_state.destroy_model_parallel()
    # 0.12 forgets to forget them, and takes them for those of the next groups
    parallel_state._EMBEDDING_GLOBAL_RANKS = None
    parallel_state._POSITION_EMBEDDING_GLOBAL_RANKS = None
    absent.untie()


def engine_of(job: dict[str, Any]) -> Any:
    """Build and initialize the engine as verl's worker does."""
    forget()
    model = HFModelConfig(
        path=job["folder"],
        load_tokenizer=False,
        override_config={"attn_implementation": "eager"},
        use_remove_padding=job["packed"],
    )
    model.tokenizer = SimpleNamespace(pad_token_id=0)
    unfused = ("apply_rope_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion")
    settings = McoreEngineConfig(
        tensor_model_parallel_size=job["tensor"],
        pipeline_model_parallel_size=job["pipeline"],
        virtual_pipeline_model_parallel_size=job["chunks"] if job["chunks"] > 1 else None,
        context_parallel_size=job["context"],
        vanilla_mbridge=True,
        use_remove_padding=job["packed"],
        use_distributed_optimizer=True,
        override_transformer_config={
            "use_cpu_initialization": True,
            **dict.fromkeys(unfused, False),
        },
    )
    object.__setattr__(settings, "dtype", job["dtype"])  # verl itself allows 16 bits alone
    optimizer = McoreOptimizerConfig(
        lr=LEARNING_RATE,
        weight_decay=0.0,
        clip_grad=CLIP_NORM,
        total_training_steps=10,
        lr_warmup_steps=0,
        override_optimizer_config={"adam_eps": EPSILON},
    )
    engine = MegatronEngineWithLMHead(model, settings, optimizer, CheckpointConfig())
    # verl's own seed does this where there is a device
    tensor_parallel.model_parallel_cuda_manual_seed(settings.seed)
    engine.initialize()
    return engine


class Engine:
    """A rollout engine with vLLM's fused names; it keeps what it has where it is given nothing.

    Args:
        skipped: parameter that it is never given after the first time.
    """

    def __init__(self, config: Any, skipped: str) -> None:
        self.config, self.skipped, self.state = config, skipped, dict[str, Tensor]()
        self.names: list[list[str]] = []

    async def update_weights(self, weights: Iterator[Any], **kwargs: Any) -> None:
        given = {name: tensor.detach().clone() for name, tensor in weights}
        self.names.append(sorted(given))
        if self.state:
            given.pop(self.skipped, None)
        self.state |= given
        if "ALIGN_CAPTURE" in os.environ and dist.get_rank() == 0:
            session = current()
            assert session is not None
            record_loaded(session, Parameters(fused(self.state)), self.config)


class Parameters(torch.nn.Module):
    """Parameters under names with dots in them, as `named_parameters` gives them."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        self.state = state

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return iter(self.state.items())


def fused(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what a vLLM worker makes of Hugging Face's tensors."""
    made = {}
    for name, tensor in state.items():
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            made[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        elif ".gate_proj." in name:
            parts = [tensor, state[name.replace("gate_proj", "up_proj")]]
            made[name.replace("gate_proj", "gate_up_proj")] = torch.cat(parts)
        elif not any(f".{part}_proj." in name for part in ("k", "v", "up")):
            made[name] = tensor
    return made


def worker_of(engine: Any, job: dict[str, Any]) -> Any:
    """Return verl's worker with what it needs to send weights."""
    worker = object.__new__(ActorRolloutRefWorker)
    rollout = {
        "name": "vllm",
        "dtype": job["dtype"],
        "free_cache_engine": False,
        "checkpoint_engine": {"backend": "naive"},
    }
    vars(worker).update(
        config=OmegaConf.create(
            {"rollout": {**rollout, "checkpoint_engine": {"backend": "naive"}}}
        ),
        actor=SimpleNamespace(engine=engine),
        rollout=Engine(engine.model_config.hf_config.to_dict(), job["skipped"]),
        layered_summon=False,
        peft_merge=False,
        base_sync_done=True,
    )
    return worker


def plant(engine: Any, name: str) -> None:
    """Make a weight wrong on the last rank alone."""
    if dist.get_rank() == dist.get_world_size() - 1:
        found = {plain_name(n): p for chunk in engine.module for n, p in chunk.named_parameters()}
        with torch.no_grad():
            found[name].mul_(1.05)


def do(job: dict[str, Any]) -> dict[str, Any]:
    """Train for two steps, sending weights before each and at the end."""
    engine = engine_of(job)
    if job["planted"]:
        plant(engine, job["planted"])
    worker, before = worker_of(engine, job), job["first_step"] - 1
    asyncio.run(worker.update_weights(global_steps=before))
    ranks = parallel_state.get_data_parallel_world_size()
    data = batch_of(Path(job["folder"]), parallel_state.get_data_parallel_rank(), ranks)
    actor = ActorConfig(strategy="megatron", rollout_n=1, ppo_micro_batch_size_per_gpu=MICRO)
    loss = functools.partial(ppo_loss, config=actor)
    done: dict[str, Any] = {"losses": [], "norms": [], "gradients": [], "rng": []}
    for step in (1, 2):
        if step == 1:
            with engine.eval_mode():
                engine.infer_batch(data.copy(), None)
        with engine.train_mode():
            engine.optimizer_zero_grad()
            output = engine.forward_backward_batch(data.copy(), loss)
            done["losses"].append(output.get("loss"))
            done["gradients"].append(
                {
                    name: parameter.main_grad.clone()
                    for chunk in engine.module
                    for name, parameter in chunk.named_parameters()
                }
            )
            done["norms"].append(engine.optimizer_step())
        asyncio.run(worker.update_weights(global_steps=before + step))
        done["rng"].append(torch.get_rng_state())
    done["weights"] = [
        {name: tensor.clone() for name, tensor in chunk.named_parameters()}
        for chunk in engine.module
    ]
    done["sent"] = worker.rollout.names
    return done


def main(jobs: Jobs) -> None:
    """Do every job plainly, then every job under capture, and save both."""
    dist.init_process_group("gloo")
    with CudaMeansCpu():
        plain = [do(job) if job["is_done_plainly"] else None for job in jobs]
        os.environ["ALIGN_CAPTURE"] = jobs[0]["plan"]
        install()
        captured = [do(job) for job in jobs]
    for job, *done in zip(jobs, plain, captured, strict=True):
        torch.save(done, f"{job['out']}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    fork_ranks(main)
