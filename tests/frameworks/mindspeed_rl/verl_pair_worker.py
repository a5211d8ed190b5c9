"""The real MindSpeed-RL's integrated worker on a CPU, trained as a run of verl was.

A process of its own: MINDSPEED_RL_SRC, RANK, WORLD_SIZE, and PREPARED, the folder of settings,
weights and rows (`verl_pair.prepare`). Real are the configuration's classes and their checks, the
worker with actor, reference and reward, the dock, the advantages, the resharding and Megatron's
optimizer and schedule; the reward is verl's, written into the verifier as a user would.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import ray
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from tests.frameworks.megatron import real_model
from tests.frameworks.megatron.on_cpu import CudaMeansCpu
from tests.frameworks.mindspeed_rl import absent
from tests.frameworks.mindspeed_rl.real_worker import Dock, as_vllm, worker_class

from megatron.core import parallel_state, tensor_parallel  # isort: skip
from megatron.core.distributed import DistributedDataParallel  # isort: skip
from megatron.core.distributed import DistributedDataParallelConfig  # isort: skip
from megatron.core.distributed import finalize_model_grads  # isort: skip
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # isort: skip
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # isort: skip
from megatron.core.pipeline_parallel import get_forward_backward_func  # isort: skip

PREPARED = Path(os.environ["PREPARED"])
GIVEN = json.loads((PREPARED / "order.json").read_text(encoding="utf-8"))


class Settings:
    """MindSpeed-RL's own configuration, read and checked as `cli/train_grpo.py` does it."""

    def __init__(self) -> None:
        from mindspeed_rl.config_cls.generate_config import GenerateConfig
        from mindspeed_rl.config_cls.megatron_config import MegatronConfig
        from mindspeed_rl.config_cls.rl_config import RLConfig
        from mindspeed_rl.config_cls.validate_config import validate_rl_args

        given: Any = OmegaConf.load(PREPARED / "train.yaml")
        (file,) = (PREPARED / "model").glob("*.yaml")
        model = OmegaConf.load(file)
        self.actor = MegatronConfig({**given["megatron_training"], **given["actor_config"]}, model)
        self.rl = RLConfig(given["rl_config"])
        self.generate = GenerateConfig(given["generate_config"])
        self.actor.bf16 = True  # else it is refused; the numbers are compared in float32
        validate_rl_args(self.actor, self.actor, self.actor, self.rl, self.generate)
        self.actor.bf16 = False
        self.prompts = self.actor.global_batch_size
        # as `BaseWorker` has it from its launcher
        self.actor.update({"global_batch_size": self.prompts * self.rl.n_samples_per_prompt})

    def model(self) -> dict[str, Any]:
        """Return the model as Hugging Face spells it."""
        actor = self.actor
        return {
            "model_type": "qwen2",
            "num_hidden_layers": actor.num_layers,
            "hidden_size": actor.hidden_size,
            "intermediate_size": actor.ffn_hidden_size,
            "num_attention_heads": actor.num_attention_heads,
            "num_key_value_heads": actor.num_query_groups,
            "head_dim": actor.kv_channels,
            "rms_norm_eps": actor.norm_epsilon,
            "rope_theta": actor.rotary_base,
            "max_position_embeddings": actor.max_position_embeddings,
            "tie_word_embeddings": not actor.untie_embeddings_and_output_weights,
            "vocab_size": actor.padded_vocab_size,
        }


def models(settings: Settings, world: int) -> tuple[Any, list[Any]]:
    """Return Megatron's configuration, and the model with the converted weights."""
    hf, ranks = settings.model(), (world, 1, 1, 1)
    config = real_model.settings(hf, ranks, grouped=False)
    made = real_model.chunk_models(hf, config, hf["vocab_size"], 1)
    for parameter in made[0].parameters():
        if not hasattr(parameter, "partition_dim"):
            parameter.partition_dim = -1
    file = real_model.rank_file(PREPARED / "weights", ranks)
    real_model.load(made, torch.load(file, weights_only=False))
    return config, made


def trainable(settings: Settings, config: Any, made: list[Any]) -> tuple[list[Any], Any, Any]:
    """Wrap a model as Megatron trains it; return chunks, optimizer and schedule."""
    buffers = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
    chunks = [DistributedDataParallel(config, buffers, model) for model in made]
    config.finalize_model_grads_func = finalize_model_grads
    actor = settings.actor
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer=actor.optimizer,
            lr=actor.lr,
            min_lr=actor.min_lr,
            weight_decay=actor.weight_decay,
            adam_beta1=actor.adam_beta1,
            adam_beta2=actor.adam_beta2,
            clip_grad=actor.clip_grad,
        ),
        chunks,
        use_gloo_process_groups=False,
    )
    steps = actor.train_iters * actor.global_batch_size
    schedule = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=actor.lr,
        min_lr=actor.min_lr,
        lr_warmup_steps=int((actor.lr_warmup_fraction or 0.0) * steps),
        lr_decay_steps=steps,
        lr_decay_style=actor.lr_decay_style,
        start_wd=actor.weight_decay,
        end_wd=actor.weight_decay,
        wd_incr_steps=steps,
        wd_incr_style="constant",
    )
    return chunks, optimizer, schedule


class Offloader:
    """Leaves the reference model where it is."""

    def onload_param(self) -> None:
        """Do nothing."""

    def offload_param(self) -> None:
        """Do nothing."""


def new_worker(settings: Settings, dock: Any, tokenizer: Any, world: int) -> Any:
    """Return an integrated worker with everything its `initialize` would build."""
    worker_class()
    from mindspeed_rl.models.actor_rollout_hybrid import ActorRolloutHybrid
    from mindspeed_rl.models.reference import Reference
    from mindspeed_rl.utils import compute
    from mindspeed_rl.utils.zmq_communication import ZMQ_ROLE_NONE
    from mindspeed_rl.workers import integrated_worker

    from tests.frameworks.mindspeed_rl import engine

    compute.set_parallel_state(parallel_state)
    compute.set_vocab_parallel(tensor_parallel.vocab_parallel_cross_entropy)
    config, made = models(settings, world)
    _, kept = models(settings, world)
    chunks, optimizer, schedule = trainable(settings, config, made)
    actor, rl, generate = settings.actor, settings.rl, settings.generate
    rollout = engine.Engine(generate.infer_tensor_parallel_size, settings.model())
    shared: dict[str, Any] = {
        "megatron_config": actor,
        "beta": rl.beta,
        "epochs": rl.epochs,
        "shuffle_mini_batch": rl.shuffle_mini_batch,
        "generate_config": generate,
        "stage": actor.stage,
        "forward_backward_func": get_forward_backward_func(),
        "micro_batch_size": actor.micro_batch_size,
        "temperature": generate.sampling_config["temperature"],
        "use_remove_padding": rl.use_remove_padding,
        "use_dynamic_bsz": rl.use_dynamic_bsz,
        "context_parallel_size": actor.context_parallel_size,
    }
    manager = engine.sharding_manager(chunks, optimizer, rollout, parallel_state)
    worker = object.__new__(integrated_worker.IntegratedWorker.__ray_metadata__.modified_class)
    args = SimpleNamespace(
        iteration=0, consumed_train_samples=0, micro_batch_size=actor.micro_batch_size
    )
    vars(worker).update(
        args=args,
        get_args=lambda: args,
        iteration=0,
        rl_config=rl,
        megatron_config=actor,
        generate_config=generate,
        tokenizer=tokenizer,
        parallel_state=parallel_state,
        model=chunks,
        optimizer=optimizer,
        opt_param_scheduler=schedule,
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
        zmq_role=ZMQ_ROLE_NONE,
        actor_forward_micro_batch_size=rl.actor_forward_micro_batch_size,
        ref_forward_micro_batch_size=rl.ref_forward_micro_batch_size,
        ref_model=kept,
        ref_manager=Offloader(),
        reference=Reference(kept, **shared),
        actor_hybrid=ActorRolloutHybrid(
            chunks,
            optimizer=optimizer,
            opt_param_scheduler=schedule,
            inference_model=rollout,
            sharding_manager=manager,
            mini_batch_size_per_dp=rl.mini_batch_size,
            clip_ratio=rl.clip_ratio,
            entropy_coeff=rl.entropy_coeff,
            kl_penalty=rl.kl_penalty,
            **shared,
        ),
    )
    worker.td, worker.mm_td = Dock(dock), None
    return worker


def new_reward(settings: Settings, dock: Any, tokenizer: Any) -> Any:
    """Return the real rule reward, whose verifier is what scored verl's rows."""
    from mindspeed_rl.models import rule_verifier
    from mindspeed_rl.workers import rule_reward

    score = runpy.run_path(str(Path(GIVEN["data"]).parent / "reward.py"))["compute_score"]

    def verifier(responses: Any, data: Any, config: Any, **kwargs: Any) -> Any:
        pairs = zip(responses, data["labels"], strict=True)
        return [score("", response, label)["score"] for response, label in pairs], {}

    rule_verifier.verifier = verifier
    reward = object.__new__(rule_reward.RuleReward.__ray_metadata__.modified_class)
    reward.initialize(settings.actor, settings.rl, tokenizer)
    reward.init_transfer_dock(Dock(dock))
    return reward


def new_dock(settings: Settings) -> Any:
    """Return the real dock, as one process uses it."""
    from mindspeed_rl.trainer.utils import transfer_dock
    from mindspeed_rl.utils.metrics import Metric

    kind = transfer_dock.GRPOTransferDock.__ray_metadata__.modified_class
    keys = settings.actor.dataset_additional_keys
    samples = settings.rl.n_samples_per_prompt
    return kind(settings.prompts, samples, metrics=Metric(), addition_columns=keys)


def batches(tokenizer: Any) -> list[dict[str, list[torch.Tensor]]]:
    """Return each step's prompts and labels, as MindSpeed-RL's preprocessing leaves them."""
    inner, frame = tokenizer.tokenizer, pandas.read_parquet(GIVEN["data"])
    made = []
    for rows in GIVEN["rows"]:
        chosen = [frame.iloc[row] for row in rows]
        asked = [
            inner.apply_chat_template(
                list(row["prompt"]), add_generation_prompt=True, tokenize=False
            )
            for row in chosen
        ]
        answers = [row["reward_model"]["ground_truth"] for row in chosen]
        made.append(
            {
                "prompts": [torch.tensor(inner(text).input_ids) for text in asked],
                "labels": [torch.tensor(inner(text).input_ids) for text in answers],
            }
        )
    return made


def tell(settings: Settings, dock: Any, tokenizer: Any, step: int, elapsed_s: float) -> Any:
    """Print a step's metrics as the trainer does; return them."""
    from mindspeed_rl.trainer.utils.compute_utils import compute_grpo_data_metrics
    from mindspeed_rl.utils.loggers import Loggers
    from mindspeed_rl.utils.utils import metrics_post_processing, metrics_sort

    rows = settings.actor.global_batch_size
    own = compute_grpo_data_metrics(Dock(dock), rows, tokenizer, rows, settings.rl.guarantee_order)
    told = {**metrics_sort(metrics_post_processing(dock.metrics), elapsed_s), **own}
    Loggers("grpo_trainer_hybrid").info(told, step, settings.actor.train_iters)
    return told


def train(settings: Settings, tokenizer: Any, world: int) -> list[dict[str, Any]]:
    """Run the trainer's stages step by step; return the metrics that the first rank prints."""
    dock = new_dock(settings)
    worker = new_worker(settings, dock, tokenizer, world)
    reward = new_reward(settings, dock, tokenizer)
    from mindspeed_rl.trainer.utils import compute_utils
    from mindspeed_rl.trainer.utils.transfer_dock import put_prompts_experience

    if name := os.environ.get("PLANTED_FAULT"):
        from tests.frameworks.mindspeed_rl import verl_pair_faults

        verl_pair_faults.FAULTS[name](worker)
    rl, leads = settings.rl, parallel_state.get_tensor_model_parallel_rank() == 0
    control = compute_utils.FixedKLController(rl.init_kl_coef)
    told = []
    for step, batch in enumerate(batches(tokenizer), 1):
        began = time.monotonic()
        columns, index = put_prompts_experience(batch, rl.n_samples_per_prompt, ["labels"])
        dock.put_experience(columns, index, is_prompt=True)
        worker.generate_sequences()
        if leads:
            reward.compute_rm_score()
            begun = [round(time.time(), 4)]
            compute_utils.compute_advantage._function(
                Dock(dock),
                rl.gamma,
                rl.lam,
                adv_estimator=rl.adv_estimator,
                experience_count=rl.adv_dispatch_size,
                tokenizer=tokenizer,
                global_batch_size=settings.actor.global_batch_size,
                guarantee_order=rl.guarantee_order,
                n_sample_per_prompt=rl.n_samples_per_prompt,
            )
            dock.metrics.update("timing/adv", [round(time.time(), 4), *begun], cumulate=True)
            dock.metrics.update("end_time/end_adv_time", begun, cumulate=True)
        worker.compute_ref_log_prob()
        worker.compute_log_prob()
        worker.update(control)
        if leads:
            told.append(tell(settings, dock, tokenizer, step, time.monotonic() - began))
        dock.clear()
        dock.metrics.reset()
    return told


def main(out: str) -> None:
    """Run as one rank of a tensor-parallel group of all processes."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    real_model.start(world, 1, 1, 1)
    absent.install()
    worker_class()
    ray.nodes = lambda: [{"Alive": True, "Resources": {"NPU": float(world)}}]
    as_vllm(world)
    from mindspeed_rl.utils.tokenizer import get_tokenizer

    settings = Settings()
    tokenizer = get_tokenizer(GIVEN["model"])
    assert isinstance(tokenizer.tokenizer, type(AutoTokenizer.from_pretrained(GIVEN["model"])))
    told = train(settings, tokenizer, world)
    torch.save(told, f"{out}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with CudaMeansCpu():
        main(sys.argv[1])
