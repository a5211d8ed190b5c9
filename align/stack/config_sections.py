"""The configuration of the stack, section by section, spelled as verl 0.9 spells it.

What verl has no word for stands under ``stack``. Defaults make the built-in model learn the
built-in task; they are the stack's own, not verl's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]  # free-form keys that a library reads, such as a model's config


def _no_options() -> Options:
    return {}


@dataclass(frozen=True)
class DataConfig:
    """``data``: rows, prompts and their order. Batch sizes are in prompts, lengths in tokens."""

    train_files: str = "arithmetic"  # a file, comma-separated files, or a built-in set
    prompt_key: str = "prompt"
    reward_fn_key: str = "data_source"
    train_batch_size: int = 16
    max_prompt_length: int = 32
    max_response_length: int = 12
    truncation: str = "error"  # error, left, right, middle
    filter_overlong_prompts: bool = False
    train_max_samples: int = -1
    shuffle: bool = True
    seed: int | None = 42
    dataloader_num_workers: int = 0
    apply_chat_template_kwargs: Options = field(default_factory=_no_options)


@dataclass(frozen=True)
class ModelConfig:
    """``actor_rollout_ref.model``."""

    path: str = "tiny-qwen2"  # a Hugging Face folder, or tiny-qwen2, tiny-qwen3, tiny-qwen3-moe
    tokenizer_path: str | None = None  # None: the model's own
    custom_chat_template: str | None = None
    override_config: Options = field(default_factory=_no_options)  # rms_norm_eps, rope_theta …
    use_remove_padding: bool = True
    enable_gradient_checkpointing: bool = False


@dataclass(frozen=True)
class OptimConfig:
    """``optim``: AdamW and its learning rate. Steps are training steps, as in verl."""

    optimizer: str = "AdamW"
    lr: float = 1e-3
    lr_warmup_steps: int = -1  # above 0 it counts, else the ratio
    lr_warmup_steps_ratio: float = 0.0
    total_training_steps: int = -1  # filled in from trainer.total_training_steps
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    clip_grad: float = 1.0
    min_lr_ratio: float = 0.0
    num_cycles: float = 0.5
    lr_scheduler_type: str = "constant"  # constant, cosine; mindspeed_rl also linear
    override_optimizer_config: Options = field(default_factory=_no_options)  # eps


@dataclass(frozen=True)
class MixedPrecisionConfig:
    """``fsdp_config.mixed_precision``."""

    reduce_dtype: str = "fp32"


@dataclass(frozen=True)
class FsdpConfig:
    """``fsdp_config``."""

    model_dtype: str = "fp32"  # of the weights the optimizer steps
    dtype: str | None = None  # filled in from stack.numerics.profile
    seed: int = 42
    full_determinism: bool = True
    fsdp_size: int = -1
    mixed_precision: MixedPrecisionConfig = field(default_factory=MixedPrecisionConfig)


@dataclass(frozen=True)
class PolicyLossConfig:
    """``policy_loss``."""

    loss_mode: str = "vanilla"  # vanilla, gspo


@dataclass(frozen=True)
class ActorConfig:
    """``actor_rollout_ref.actor``. The mini-batch is in prompts, the micro-batch in sequences."""

    strategy: str = "fsdp2"
    ppo_mini_batch_size: int = 16
    ppo_micro_batch_size_per_gpu: int = 64
    ppo_epochs: int = 1
    shuffle: bool = False
    data_loader_seed: int = 42
    clip_ratio: float = 0.2
    clip_ratio_low: float | None = None  # None: clip_ratio
    clip_ratio_high: float | None = None
    clip_ratio_c: float = 3.0
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: float | None = None
    entropy_coeff: float = 0.0
    use_kl_loss: bool = True
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    optim: OptimConfig = field(default_factory=OptimConfig)
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)


@dataclass(frozen=True)
class RolloutConfig:
    """``actor_rollout_ref.rollout``."""

    name: str = "hf"  # hf: the stack's own sampling loop; vllm where it is installed
    n: int = 4
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    do_sample: bool = True
    ignore_eos: bool = False
    seed: int = 42
    dtype: str | None = None  # filled in from stack.numerics.profile
    calculate_log_probs: bool = True
    logprobs_mode: str = "processed_logprobs"
    log_prob_micro_batch_size_per_gpu: int = 256


@dataclass(frozen=True)
class RefConfig:
    """``actor_rollout_ref.ref``."""

    log_prob_micro_batch_size_per_gpu: int = 256


@dataclass(frozen=True)
class ActorRolloutRefConfig:
    """``actor_rollout_ref``."""

    model: ModelConfig = field(default_factory=ModelConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    ref: RefConfig = field(default_factory=RefConfig)


@dataclass(frozen=True)
class CriticConfig:
    """``critic``; batch sizes as in the actor."""

    ppo_mini_batch_size: int = 16
    ppo_micro_batch_size_per_gpu: int = 64
    ppo_epochs: int = 1
    cliprange_value: float = 0.5
    loss_agg_mode: str = "token-mean"
    optim: OptimConfig = field(default_factory=OptimConfig)


@dataclass(frozen=True)
class KlControlConfig:
    """``algorithm.kl_ctrl``."""

    type: str = "fixed"  # fixed, adaptive
    kl_coef: float = 0.001
    horizon: float = 10000
    target_kl: float = 0.1


@dataclass(frozen=True)
class FilterGroupsConfig:
    """``algorithm.filter_groups``: DAPO's dynamic sampling."""

    enable: bool = False
    metric: str = "score"
    max_num_gen_batches: int = 3


@dataclass(frozen=True)
class RolloutCorrectionConfig:
    """``algorithm.rollout_correction``."""

    rollout_is: str | None = None  # token, sequence
    rollout_is_threshold: float = 2.0
    bypass_mode: bool = False  # old_log_probs are those of the rollout engine


@dataclass(frozen=True)
class AlgorithmConfig:
    """``algorithm``."""

    adv_estimator: str = "grpo"  # grpo, rloo, gae
    gamma: float = 1.0
    lam: float = 1.0
    norm_adv_by_std_in_grpo: bool = True
    use_kl_in_reward: bool = False
    kl_penalty: str = "kl"
    kl_ctrl: KlControlConfig = field(default_factory=KlControlConfig)
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)


@dataclass(frozen=True)
class OverlongBufferConfig:
    """``reward_model.reward_kwargs.overlong_buffer_cfg``: DAPO's penalty near the length limit."""

    enable: bool = False
    len: int = 2
    penalty_factor: float = 1.0


@dataclass(frozen=True)
class RewardOptionsConfig:
    """``reward_model.reward_kwargs``."""

    overlong_buffer_cfg: OverlongBufferConfig = field(default_factory=OverlongBufferConfig)


@dataclass(frozen=True)
class RewardModelConfig:
    """``reward_model``."""

    reward_kwargs: RewardOptionsConfig = field(default_factory=RewardOptionsConfig)


@dataclass(frozen=True)
class TrainerConfig:
    """``trainer``."""

    total_training_steps: int = 16
    save_freq: int = -1  # training steps between checkpoints; -1: after the last step alone
    critic_warmup: int = 0
    nnodes: int = 1
    n_gpus_per_node: int = 1
    device: str = "cpu"  # cpu, cuda, npu
    balance_batch: bool = False
    project_name: str = "align"
    experiment_name: str = "stack"


@dataclass(frozen=True)
class NumericsConfig:
    """``stack.numerics``: whose rounding the run has; the mathematics stays the same."""

    profile: str = "float32"  # a name in numerics.py
    softmax_float32: bool = True


@dataclass(frozen=True)
class WarmupConfig:
    """``stack.warmup``: supervised steps on ground truths before the RL starts."""

    steps: int = 60  # 0 by default with a model of the user's
    batch_size: int = 64
    lr: float = 3e-3
    seed: int = 0


@dataclass(frozen=True)
class StackDataConfig:
    """``stack.data``: MindSpeed-RL's data settings, and the size of the built-in set."""

    format: str = "auto"  # auto, verl, mindspeed_rl, mindspeed_rl_jsonl, gsm8k, arithmetic
    map_keys: Options = field(default_factory=_no_options)
    dataset_additional_keys: tuple[str, ...] = ()
    prompt_type: str | None = None  # a MindSpeed-RL template; None: the chat template
    prompt_type_path: str | None = None  # templates.json; None: the built-in empty and qwen
    sampler: str = "torchdata"  # verl since 0.7; torch: verl to 0.6; mindspeed_rl
    num_rows: int = 512  # of the built-in set
    seed: int = 0  # of the built-in set


@dataclass(frozen=True)
class StackRewardConfig:
    """``stack.reward``."""

    rules: tuple[str, ...] = ()  # names in rewards/; empty: every rule that applies to the task


@dataclass(frozen=True)
class DpoConfig:
    """``stack.dpo``, named as MindSpeed-RL names them without their prefix."""

    beta: float = 0.1
    label_smoothing: float = 0.0
    loss_type: str = "sigmoid"  # sigmoid, robust


@dataclass(frozen=True)
class StackSection:
    """``stack``: what verl has no key for."""

    algorithm: str = "grpo"  # grpo, ppo, dapo, dpo
    definitions: str = "verl"  # verl, mindspeed_rl: optimizer groups, schedule, loss normalisation
    seed: int = 42  # of the model's random weights
    num_threads: int = 1
    record_trainer_inputs: bool = True
    record_sketches: bool = True  # of the first three steps and the last
    numerics: NumericsConfig = field(default_factory=NumericsConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    data: StackDataConfig = field(default_factory=StackDataConfig)
    reward: StackRewardConfig = field(default_factory=StackRewardConfig)
    dpo: DpoConfig = field(default_factory=DpoConfig)


@dataclass(frozen=True)
class StackConfig:
    """Everything a run is determined by."""

    data: DataConfig = field(default_factory=DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    stack: StackSection = field(default_factory=StackSection)

    @property
    def model(self) -> ModelConfig:
        """``actor_rollout_ref.model``."""
        return self.actor_rollout_ref.model

    @property
    def actor(self) -> ActorConfig:
        """``actor_rollout_ref.actor``."""
        return self.actor_rollout_ref.actor

    @property
    def rollout(self) -> RolloutConfig:
        """``actor_rollout_ref.rollout``."""
        return self.actor_rollout_ref.rollout

    @property
    def ref(self) -> RefConfig:
        """``actor_rollout_ref.ref``."""
        return self.actor_rollout_ref.ref
