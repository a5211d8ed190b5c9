"""Two steps of the real MindSpeed-RL's hybrid worker on a CPU, real dock and Megatron-core.

A process of its own: MINDSPEED_RL_SRC, RANK and WORLD_SIZE in the environment, the file for what
it did in the first argument. The rollout engine is a stand-in that answers by a formula; its
weights come to it by MindSpeed-RL's own resharding.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoProcessor, GenerationMixin  # noqa: F401

from tests.frameworks.megatron import real_model
from tests.frameworks.megatron.on_cpu import CudaMeansCpu, trainable
from tests.frameworks.megatron.train_once import fill
from tests.frameworks.mindspeed_rl import absent
from tests.frameworks.mindspeed_rl.tiny_run import (
    CLIP,
    EOS,
    KL_COEFFICIENT,
    LONGEST,
    MICRO,
    MINI,
    MODEL,
    PAD,
    PROMPTS,
    ROWS,
    SAMPLES,
    STEPS,
    advantages,
    prompt,
    reference,
)

from megatron.core import parallel_state, tensor_parallel  # isort: skip
from megatron.core.pipeline_parallel import get_forward_backward_func  # isort: skip


_IS_PACKED = bool(os.environ.get("PACKED"))


class Dock:
    """Calls the dock at once, where a Ray actor would be asked."""

    def __init__(self, dock: Any) -> None:
        self._dock = dock

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._dock, name))


class Nothing:
    """Has every method and does nothing in it: the scheduler of the learning rate."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def worker_class() -> Any:
    """Import the real worker, which a capture hooks."""
    sys.path.insert(0, os.environ["MINDSPEED_RL_SRC"])
    import ray

    ray.get = lambda value, *args, **kwargs: value
    from mindspeed_rl.workers import actor_hybrid_worker, base_worker

    actor_hybrid_worker.num_floating_point_operations = lambda *args: 0
    base_worker.get_vllm_tp_group_ranks = lambda: [list(range(dist.get_world_size()))]
    return actor_hybrid_worker.ActorHybridWorkerBase


def as_vllm(ranks: int) -> None:
    """Have vLLM's tensor-parallel groups be Megatron's, or each rank by itself.

    The worker asks them which rank fills the dock; so many ranks share an engine's weights.
    """
    from vllm.distributed import parallel_state as groups

    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    shared = parallel_state.get_tensor_model_parallel_group()
    tensor = alone if ranks == 1 else shared
    first = dist.get_process_group_ranks(tensor)[0]
    groups.get_tensor_model_parallel_rank = lambda: dist.get_rank() - first
    groups.get_tensor_model_parallel_world_size = lambda: ranks
    groups.get_tensor_model_parallel_group = lambda: SimpleNamespace(
        device_group=tensor, first_rank=first
    )
    groups.get_pipeline_model_parallel_group = lambda: SimpleNamespace(
        rank_in_group=0, first_rank=dist.get_rank(), is_last_rank=True, device_group=alone
    )


class Packing:
    """Keeps packed rows apart in Megatron's local attention, which knows causal masks alone.

    On an NPU the kernel is told where rows end, by what MindSpeed-RL calls here.
    """

    def __init__(self) -> None:
        self.ends = torch.zeros(0)

    def set_ends(self, bounds: Any) -> None:
        self.ends = torch.as_tensor(bounds)[1:]

    def mask(self, length: int) -> torch.Tensor:
        place = torch.arange(length)
        row = torch.searchsorted(self.ends.to(place), place, right=True)
        return (place[:, None] < place) | (row[:, None] != row)


def new_dock() -> Any:
    """Return the real dock, as one process uses it."""
    from mindspeed_rl.trainer.utils import transfer_dock
    from mindspeed_rl.utils.metrics import Metric

    kind = transfer_dock.GRPOTransferDock.__ray_metadata__.modified_class
    return kind(PROMPTS, SAMPLES, metrics=Metric(), addition_columns=["labels"])


def new_worker(kind: Any, dock: Any, tensor: int, engine_ranks: int) -> Any:
    """Return a worker with everything its `initialize` would build."""
    from megatron.core.fusions import fused_softmax
    from mindspeed_rl.models.actor_rollout_hybrid import ActorRolloutHybrid
    from mindspeed_rl.utils import compute

    from tests.frameworks.mindspeed_rl import engine

    compute.set_parallel_state(parallel_state)
    compute.set_vocab_parallel(tensor_parallel.vocab_parallel_cross_entropy)
    config = real_model.settings(MODEL, (tensor, 1, 1, 1), grouped=False)
    models = real_model.chunk_models(MODEL, config, 64, 1)
    for parameter in models[0].parameters():
        if not hasattr(parameter, "partition_dim"):
            parameter.partition_dim = -1
    fill(models, 0, MODEL["num_hidden_layers"])
    chunks, optimizer = trainable(config, models)
    rollout, packing = engine.Engine(engine_ranks), Packing()
    if _IS_PACKED:
        fused_softmax.get_default_causal_mask = packing.mask
    manager = engine.sharding_manager(chunks, optimizer, rollout, parallel_state)
    megatron = SimpleNamespace(
        stage="ray_grpo",
        tensor_model_parallel_size=tensor,
        context_parallel_size=1,
        context_parallel_algo="ulysses_cp_algo",
        attention_mask_type="causal",
        global_batch_size=ROWS,
        train_iters=STEPS,
    )
    worker = object.__new__(kind)
    vars(worker).update(
        args=SimpleNamespace(iteration=0, consumed_train_samples=0),
        iteration=0,
        rl_config=settings(),
        megatron_config=megatron,
        generate_config=SimpleNamespace(
            sampling_config={"max_tokens": LONGEST}, data_parallel_size=1, max_model_len=32
        ),
        tokenizer=SimpleNamespace(pad=PAD, eod=EOS, vocab_size=64),
        parallel_state=parallel_state,
        model=chunks,
        optimizer=optimizer,
        inference_model=rollout,
        sharding_manager=manager,
        enable_partial_rollout=False,
        profiler_config=None,
        actor_profiler=None,
        prof_iteration=1,
        num_floating_point_operations_so_far=0,
        idx=0,
        sampling_transfer_dock=None,
        mm_sampling_transfer_dock=None,
    )
    from mindspeed_rl.utils.zmq_communication import ZMQ_ROLE_NONE

    worker.zmq_role = ZMQ_ROLE_NONE
    worker.td, worker.mm_td = Dock(dock), None
    worker.actor_hybrid = ActorRolloutHybrid(
        chunks,
        megatron_config=megatron,
        optimizer=optimizer,
        opt_param_scheduler=Nothing(),
        inference_model=worker.inference_model,
        sharding_manager=worker.sharding_manager,
        mini_batch_size_per_dp=MINI,
        stage="ray_grpo",
        clip_ratio=CLIP,
        micro_batch_size=MICRO,
        forward_backward_func=get_forward_backward_func(),
        entropy_coeff=0.0,
        kl_penalty="low_var_kl",
        use_remove_padding=_IS_PACKED,
        set_actual_seq_len=packing.set_ends,
    )
    return worker


def settings() -> Any:
    """Return the RL settings the worker asks for."""
    return SimpleNamespace(
        n_samples_per_prompt=SAMPLES,
        guarantee_order=True,
        filter_groups_enable=False,
        async_engine=False,
        reuse_image_embeds=False,
        multi_turn_enable=False,
        use_dp_batch_balance=False,
        partial_rollout_max_split=1,
        actor_rollout_dispatch_size=ROWS,
        actor_logprob_dispatch_size=ROWS,
        actor_update_dispatch_size=ROWS,
        zmq_communication=False,
    )


def put(dock: Any, **columns: list[torch.Tensor]) -> None:
    """Put columns of every row into the dock."""
    from mindspeed_rl.utils.pad_process import padding_dict_to_tensor_dict

    dock.put_experience(padding_dict_to_tensor_dict(columns), list(range(ROWS)))


def train(worker: Any, dock: Any) -> list[dict[str, Any]]:
    """Run the stages of a step in the trainer's order; return what the dock held, step by step."""
    from mindspeed_rl.trainer.utils.transfer_dock import put_prompts_experience

    done = []
    leads = parallel_state.get_tensor_model_parallel_rank() == 0
    for step in range(1, STEPS + 1):
        asked = [torch.tensor(prompt(number, step)) for number in range(PROMPTS)]
        columns, index = put_prompts_experience(
            {"prompts": asked, "labels": [torch.tensor([7])] * PROMPTS}, SAMPLES, ["labels"]
        )
        dock.put_experience(columns, index, is_prompt=True)
        weights = {
            name: value.clone()
            for name, value in worker.model[0].module.state_dict().items()
            if isinstance(value, torch.Tensor)
        }
        worker.inference_model.step = step
        worker.generate_sequences()
        worker.compute_log_prob()
        if leads:
            lengths = [int(n) for n in dock.experience_data["response_length"]]
            put(
                dock,
                ref_log_prob=[reference(row, n) for row, n in enumerate(lengths)],
                advantages=[advantages(row, n) for row, n in enumerate(lengths)],
            )
        wanted = ("input_ids", "responses", "old_log_prob", "ref_log_prob", "advantages")
        rows = {name: list(dock.experience_data[name]) for name in wanted} if leads else {}
        worker.update(SimpleNamespace(value=KL_COEFFICIENT))
        norms = [] if not leads else list(dock.metrics.metric["actor/grad_norm"])
        left = "step" in vars(worker.optimizer)
        random = torch.get_rng_state()
        done.append(
            {"weights": weights, "dock": rows, "norms": norms, "left": left, "random": random}
        )
        dock.clear()
        dock.metrics.reset()
    return done


def main(out: str) -> None:
    """Run as one rank of a tensor-parallel group of all processes."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    real_model.start(world, 1, 1, 1)
    absent.install()
    kind = worker_class()
    engine_ranks = int(os.environ.get("ENGINE_RANKS", world))
    as_vllm(engine_ranks)
    dock = new_dock()
    done = train(new_worker(kind, dock, world, engine_ranks), dock)
    torch.save(done, f"{out}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with CudaMeansCpu():
        main(sys.argv[1])
