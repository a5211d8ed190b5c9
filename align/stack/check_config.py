"""Refuse a configuration before any work: unknown names, sizes, missing files."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from align.core.errors import ConfigError
from align.objective.aggregate import LossAggregation
from align.stack.config_sections import ActorConfig, CriticConfig, StackConfig
from align.stack.presets import DTYPES, PRESETS

BUILT_IN_MODELS = ("tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe")
BUILT_IN_SETS = ("arithmetic",)

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"


def check_config(config: StackConfig) -> None:
    """Raise at the first setting the stack cannot follow.

    Raises:
        ConfigError: With the key, the reason and the nearest valid spelling or value.
    """
    for check in (_names, _sizes, _ranges, _files, _combinations, _fixed):
        for error in check(config):
            raise error


def _names(config: StackConfig) -> Iterator[ConfigError]:
    actor, stack = config.actor, config.stack
    modes = [mode.value for mode in LossAggregation]
    estimators = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
    choices: tuple[tuple[str, str | None, Sequence[str]], ...] = (
        ("stack.algorithm", stack.algorithm, tuple(PRESETS)),
        ("algorithm.adv_estimator", config.algorithm.adv_estimator, ("grpo", "rloo", "gae")),
        ("algorithm.kl_penalty", config.algorithm.kl_penalty, estimators),
        ("algorithm.kl_ctrl.type", config.algorithm.kl_ctrl.type, ("fixed", "adaptive")),
        (
            "algorithm.rollout_correction.rollout_is",
            config.algorithm.rollout_correction.rollout_is or "token",
            ("token", "sequence"),
        ),
        (f"{_ACTOR}.policy_loss.loss_mode", actor.policy_loss.loss_mode, ("vanilla", "gspo")),
        (f"{_ACTOR}.loss_agg_mode", actor.loss_agg_mode, modes),
        ("critic.loss_agg_mode", config.critic.loss_agg_mode, modes),
        (f"{_ACTOR}.kl_loss_type", actor.kl_loss_type.removesuffix("+"), estimators),
        (
            f"{_ACTOR}.optim.lr_scheduler_type",
            actor.optim.lr_scheduler_type,
            ("constant", "cosine", "linear", "inverse-square-root"),
        ),
        (f"{_ACTOR}.optim.optimizer", actor.optim.optimizer, ("AdamW",)),
        (f"{_ROLLOUT}.name", config.rollout.name, ("hf", "vllm")),
        ("data.truncation", config.data.truncation, ("error", "left", "right", "middle")),
        ("trainer.device", config.trainer.device, ("cpu", "cuda", "npu")),
        ("stack.definitions", stack.definitions, ("verl", "mindspeed_rl")),
        ("stack.numerics.profile", stack.numerics.profile, tuple(DTYPES)),
        ("stack.data.sampler", stack.data.sampler, ("torchdata", "torch", "mindspeed_rl")),
        ("stack.dpo.loss_type", stack.dpo.loss_type, ("sigmoid", "robust")),
    )
    for key, value, known in choices:
        if value not in known:
            yield _refused(key, f"{value!r} is not known", f"use {_list(value or '', known)}")


def _sizes(config: StackConfig) -> Iterator[ConfigError]:
    data, actor, rollout = config.data, config.actor, config.rollout
    positive = {
        "data.train_batch_size": data.train_batch_size,
        "data.max_prompt_length": data.max_prompt_length,
        "data.max_response_length": data.max_response_length,
        f"{_ACTOR}.ppo_mini_batch_size": actor.ppo_mini_batch_size,
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": actor.ppo_micro_batch_size_per_gpu,
        f"{_ACTOR}.ppo_epochs": actor.ppo_epochs,
        "critic.ppo_mini_batch_size": config.critic.ppo_mini_batch_size,
        "critic.ppo_micro_batch_size_per_gpu": config.critic.ppo_micro_batch_size_per_gpu,
        f"{_ROLLOUT}.n": rollout.n,
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": rollout.log_prob_micro_batch_size_per_gpu,
        "trainer.total_training_steps": config.trainer.total_training_steps,
        "stack.num_threads": config.stack.num_threads,
    }
    for key, value in positive.items():
        if value < 1:
            yield _refused(key, f"is {value}", "use a whole number above 0")
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    updated: list[tuple[str, ActorConfig | CriticConfig]] = [(_ACTOR, actor)]
    if config.algorithm.adv_estimator == "gae":
        updated.append(("critic", config.critic))
    for name, section in updated:
        mini, micro = section.ppo_mini_batch_size, section.ppo_micro_batch_size_per_gpu
        key = f"{name}.ppo_mini_batch_size"
        yield from _divides(key, mini, "data.train_batch_size", data.train_batch_size)
        own, rest = divmod(mini * rollout.n, ranks)
        if rest:
            yield _refused(key, f"{mini} × n does not split over {ranks} ranks", "use a multiple")
        elif micro < own:
            key = f"{name}.ppo_micro_batch_size_per_gpu"
            yield from _divides(key, micro, "the mini-batch's sequences of a rank,", own)


def _divides(key: str, size: int, what: str, batch: int) -> Iterator[ConfigError]:
    if batch % size:
        best = min((d for d in range(1, batch + 1) if batch % d == 0), key=lambda d: abs(d - size))
        yield _refused(key, f"{size} does not divide {what} {batch}", f"use {best}")


def _ranges(config: StackConfig) -> Iterator[ConfigError]:
    actor, rollout = config.actor, config.rollout
    if not rollout.temperature > 0:
        yield _refused(
            f"{_ROLLOUT}.temperature",
            f"is {rollout.temperature}",
            f"use a positive number, or {_ROLLOUT}.do_sample=false for greedy decoding",
        )
    if not 0 < rollout.top_p <= 1:
        yield _refused(f"{_ROLLOUT}.top_p", f"is {rollout.top_p}", "use a number in (0, 1]")
    if not actor.clip_ratio_c > 1:
        yield _refused(f"{_ACTOR}.clip_ratio_c", f"is {actor.clip_ratio_c}", "use verl's 3.0")
    if len(actor.optim.betas) != 2:
        yield _refused(f"{_ACTOR}.optim.betas", "are not two numbers", "use [0.9,0.999]")
    buffer = config.reward_model.reward_kwargs.overlong_buffer_cfg
    if buffer.enable and not 0 < buffer.len <= config.data.max_response_length:
        yield _refused(
            "reward_model.reward_kwargs.overlong_buffer_cfg.len",
            f"is {buffer.len} of at most {config.data.max_response_length} tokens",
            "use 1 to data.max_response_length",
        )


def _files(config: StackConfig) -> Iterator[ConfigError]:
    path = config.model.path
    if path not in BUILT_IN_MODELS and not (Path(path) / "config.json").is_file():
        what = "has no config.json" if Path(path).is_dir() else "is no folder"
        yield _refused(
            f"{_MODEL}.path",
            f"{path!r} {what}",
            f"give a Hugging Face model folder or {_list(path, BUILT_IN_MODELS)}",
        )
    tokenizer = config.model.tokenizer_path
    if tokenizer is not None and not Path(tokenizer).is_dir():
        yield _refused(f"{_MODEL}.tokenizer_path", f"{tokenizer!r} is no folder", "give a folder")
    for file in config.data.train_files.split(","):
        bare = file.strip()
        if bare not in BUILT_IN_SETS and not _any_file(bare):
            yield _refused(
                "data.train_files",
                f"{bare!r} does not exist",
                f"give a file or {_list(bare, BUILT_IN_SETS)}",
            )


def _any_file(path: str) -> bool:
    """Tell whether it is a file, a folder, or the prefix of MindSpeed-RL's .bin and .idx."""
    where = Path(path)
    return where.exists() or (
        where.parent.is_dir() and any(where.parent.glob(f"{where.name}*.idx"))
    )


def _combinations(config: StackConfig) -> Iterator[ConfigError]:
    stack, algorithm, rollout = config.stack, config.algorithm, config.rollout
    if (stack.algorithm == "ppo") != (algorithm.adv_estimator == "gae"):
        fitting = "gae" if stack.algorithm == "ppo" else "grpo"
        yield _refused(
            "algorithm.adv_estimator",
            f"{algorithm.adv_estimator!r} does not go with stack.algorithm={stack.algorithm}",
            f"use {fitting}, or stack.algorithm={'ppo' if fitting == 'grpo' else 'grpo'}",
        )
    if stack.algorithm == "dpo" and rollout.n < 2:
        yield _refused(f"{_ROLLOUT}.n", "is 1, which makes no pair", "use 2 or more for dpo")
    if stack.algorithm == "dpo" and config.actor.ppo_micro_batch_size_per_gpu % 2:
        yield _refused(
            f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "splits a pair", "use an even number for dpo"
        )
    expected = DTYPES[stack.numerics.profile]
    if config.model.enable_gradient_checkpointing and expected == "bfloat16":
        yield _refused(
            f"{_MODEL}.enable_gradient_checkpointing",
            f"computes again without the rounding of profile {stack.numerics.profile!r}",
            "use stack.numerics.profile=float32 or float64",
        )
    for key, dtype in (
        (f"{_ACTOR}.fsdp_config.dtype", config.actor.fsdp_config.dtype),
        (f"{_ROLLOUT}.dtype", rollout.dtype),
    ):
        if dtype not in (None, expected):
            yield _refused(
                key,
                f"is {dtype!r}, but stack.numerics.profile={stack.numerics.profile}"
                f" computes in {expected}",
                "set the profile alone",
            )
    styles = ("constant", "cosine")
    if stack.definitions == "verl" and config.actor.optim.lr_scheduler_type not in styles:
        yield _refused(
            f"{_ACTOR}.optim.lr_scheduler_type",
            f"verl has no {config.actor.optim.lr_scheduler_type!r}",
            "use constant or cosine, or stack.definitions=mindspeed_rl",
        )


def _fixed(config: StackConfig) -> Iterator[ConfigError]:
    """Refuse another value of a key whose value here is stated, but cannot be chosen."""
    fsdp, trainer = config.actor.fsdp_config, config.trainer
    stated: tuple[tuple[str, object, object], ...] = (
        (f"{_ACTOR}.strategy", config.actor.strategy, "fsdp2"),
        (f"{_ACTOR}.fsdp_config.model_dtype", fsdp.model_dtype, "fp32"),
        (f"{_ACTOR}.fsdp_config.full_determinism", fsdp.full_determinism, True),
        (f"{_ACTOR}.fsdp_config.fsdp_size", fsdp.fsdp_size, -1),
        (f"{_ROLLOUT}.calculate_log_probs", config.rollout.calculate_log_probs, True),
        ("algorithm.filter_groups.metric", config.algorithm.filter_groups.metric, "score"),
        ("trainer.balance_batch", trainer.balance_batch, False),
    )
    for key, value, only in stated:
        if value != only:
            yield _refused(key, f"is {value!r}; the stack knows {only!r} alone", "leave it out")


def _refused(key: str, problem: str, fix: str) -> ConfigError:
    return ConfigError(where="configuration", key=key, problem=problem, fix=fix)


def _list(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    others = [name for name in known if name not in close]
    return " or ".join(
        ["; otherwise ".join(close)] * bool(close) + [", ".join(others)] * bool(others)
    )
