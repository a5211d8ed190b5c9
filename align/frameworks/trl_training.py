"""TRL's batches, schedule and optimizer in the units of the common schema."""

from __future__ import annotations

import math
from collections.abc import Callable

from align.core.config_value import ConfigLeaf
from align.frameworks.config_table import NOT_SET, Formula, NotSet, number

Value = ConfigLeaf | NotSet

PPO, DPO = "PPOConfig", "DPOConfig"
_BATCH = ("per_device_train_batch_size", "num_processes", "gradient_accumulation_steps")
_GENERATION = ("generation_batch_size", "steps_per_generation", "gradient_accumulation_steps")


def word_of(value: ConfigLeaf) -> str:
    """Return ``cosine`` of ``SchedulerType.COSINE``, as a printed configuration has it."""
    return str(value).rpartition(".")[2].strip().lower()


def is_on(value: ConfigLeaf) -> bool:
    """Tell whether a flag is set, however it is written."""
    return str(value).strip().lower() in ("true", "1")


def _share(whole: float, part: float) -> float | NotSet:
    share = whole / part
    return int(share) if share.is_integer() else NOT_SET


def _prompts_generated(
    whole: ConfigLeaf, steps: ConfigLeaf, accumulated: ConfigLeaf, n: ConfigLeaf
) -> Value:
    size, group = number(whole), number(n)
    return NOT_SET if size is None or not group else _share(size, group)


def _prompts_per_generation(
    per_device: ConfigLeaf,
    processes: ConfigLeaf,
    accumulated: ConfigLeaf,
    whole: ConfigLeaf,
    steps: ConfigLeaf,
    n: ConfigLeaf,
) -> Value:
    if whole is not None:
        return NOT_SET
    repeats = accumulated if steps is None else steps
    sizes = [number(value) for value in (per_device, processes, repeats)]
    group = number(n)
    if any(size is None for size in sizes) or not group:
        return NOT_SET
    return _share(math.prod(size for size in sizes if size is not None), group)


def _prompts_per_update(*sizes: ConfigLeaf) -> Value:
    """Return per device × processes × accumulation / n."""
    *factors, group = (number(size) for size in sizes)
    if any(factor is None for factor in factors) or not group:
        return NOT_SET
    return _share(math.prod(factor for factor in factors if factor is not None), group)


def _product(*sizes: ConfigLeaf) -> Value:
    return _prompts_per_update(*sizes, 1)


def _product_of(owners: tuple[str, ...]) -> Callable[..., Value]:
    return lambda owner, *sizes: _product(*sizes) if owner in owners else NOT_SET


def _iterations(
    max_steps: ConfigLeaf, steps: ConfigLeaf, accumulated: ConfigLeaf, repeats: ConfigLeaf
) -> Value:
    """Return training iterations: TRL counts optimizer steps."""
    total, whole = number(max_steps), number(accumulated if steps is None else steps)
    part, times = number(accumulated), number(repeats)
    if total is None or total <= 0 or not whole or not part or not times:
        return NOT_SET
    return _share(total * part, whole * times)


def _ppo_steps(episodes: ConfigLeaf, *sizes: ConfigLeaf) -> Value:
    total, batch = number(episodes), _product(*sizes)
    if total is None or not isinstance(batch, int | float) or not batch:
        return NOT_SET
    return math.ceil(total / batch)


def _steps(max_steps: ConfigLeaf) -> Value:
    total = number(max_steps)
    return NOT_SET if total is None or total <= 0 else int(total)


def _epochs(max_steps: ConfigLeaf, epochs: ConfigLeaf) -> Value:
    total = number(max_steps)
    return epochs if total is None or total <= 0 else NOT_SET


def _warmup_steps(kind: ConfigLeaf, steps: ConfigLeaf) -> Value:
    count = number(steps)
    if word_of(kind) == "constant":
        return 0
    return int(count) if count is not None and count >= 1 else NOT_SET


def _warmup_fraction(kind: ConfigLeaf, steps: ConfigLeaf, ratio: ConfigLeaf) -> Value:
    count, part = number(steps) or 0.0, number(ratio) or 0.0
    if word_of(kind) == "constant" or count >= 1:
        return NOT_SET
    return count or part


def _schedule(kind: ConfigLeaf) -> str:
    word = word_of(kind)
    names = {"constant_with_warmup": "constant", "cosine_with_min_lr": "cosine"}
    return names.get(word, word)


def _min_lr(kind: ConfigLeaf, lr: ConfigLeaf, least: ConfigLeaf) -> Value:
    return least if word_of(kind) == "cosine_with_min_lr" else NOT_SET


def _min_lr_by_rate(kind: ConfigLeaf, lr: ConfigLeaf, rate: ConfigLeaf) -> Value:
    peak, part = number(lr), number(rate)
    if word_of(kind) != "cosine_with_min_lr" or peak is None or part is None:
        return NOT_SET
    return peak * part


def _min_lr_zero(kind: ConfigLeaf) -> Value:
    return (
        0.0
        if word_of(kind) in ("linear", "cosine", "constant", "constant_with_warmup")
        else NOT_SET
    )


def _optimizer(name: ConfigLeaf) -> str:
    word = word_of(name)
    return "adamw" if name is None or word.startswith("adamw_torch") or word == "adamw_hf" else word


def _dtype(bf16: ConfigLeaf, fp16: ConfigLeaf) -> str:
    if is_on(fp16):
        return "float16"
    return "bfloat16" if bf16 is None or is_on(bf16) else "float32"


def _strategy(deepspeed: ConfigLeaf, fsdp: ConfigLeaf) -> str:
    if deepspeed not in (None, "", ()):
        return "deepspeed"
    return "fsdp" if fsdp not in (None, "", (), False) else "ddp"


def _distributed(kind: ConfigLeaf) -> Value:
    names = {"multi_gpu": "ddp", "multi_npu": "ddp", "no": "ddp"}
    word = word_of(kind)
    return names.get(word, word)


def of(trainer: str, value: ConfigLeaf) -> Callable[[ConfigLeaf], Value]:
    """Return a formula that holds for one trainer only."""
    return lambda owner: value if owner == trainer else NOT_SET


TRAINING_FORMULAS: tuple[Formula, ...] = (
    # batches
    Formula(
        "data.train_batch_size",
        (*_GENERATION, "num_generations"),
        _prompts_generated,
        "generation_batch_size / num_generations",
    ),
    Formula(
        "data.train_batch_size",
        (*_BATCH, "generation_batch_size", "steps_per_generation", "num_generations"),
        _prompts_per_generation,
        "per_device_train_batch_size × processes × steps_per_generation / num_generations, "
        "where steps_per_generation is gradient_accumulation_steps unless set",
    ),
    Formula(
        "actor.mini_batch_size",
        (*_BATCH, "num_generations"),
        _prompts_per_update,
        "per_device_train_batch_size × processes × gradient_accumulation_steps / num_generations",
    ),
    *(
        Formula(
            name,
            ("prompts_per_device", *_BATCH[1:]),
            _product,
            "per_device_train_batch_size × processes × gradient_accumulation_steps; "
            "TRL 0.14 counts prompts",
        )
        for name in ("data.train_batch_size", "actor.mini_batch_size")
    ),
    Formula(
        "actor.micro_batch_size",
        ("prompts_per_device", "num_generations"),
        _product,
        "per_device_train_batch_size × num_generations; TRL 0.14 counts prompts",
    ),
    *(
        Formula(
            name,
            ("config_class", *_BATCH),
            _product_of(others),
            "per_device_train_batch_size × processes × gradient_accumulation_steps",
        )
        for name, others in (
            ("data.train_batch_size", (PPO, DPO)),
            ("actor.mini_batch_size", (DPO,)),
        )
    ),
    Formula(
        "actor.mini_batch_size",
        (*_BATCH, "num_mini_batches"),
        lambda *sizes: _product(*sizes[:-1]) if number(sizes[-1]) == 1 else NOT_SET,
        "per_device_train_batch_size × processes × gradient_accumulation_steps",
    ),
    Formula("rollout.n", ("config_class",), of(PPO, 1), "PPOTrainer draws one response a prompt"),
    # length of training
    Formula(
        "trainer.total_steps",
        ("max_steps", *_GENERATION[1:], "num_iterations"),
        _iterations,
        "max_steps × gradient_accumulation_steps / (steps_per_generation × num_iterations); "
        "TRL counts optimizer steps",
    ),
    Formula(
        "trainer.total_steps",
        ("total_episodes", *_BATCH),
        _ppo_steps,
        "total_episodes / batch, rounded up",
    ),
    Formula(
        "trainer.total_steps",
        ("config_class", "max_steps"),
        lambda owner, steps: _steps(steps) if owner == DPO else NOT_SET,
        "max_steps",
    ),
    Formula(
        "trainer.total_epochs",
        ("max_steps", "num_train_epochs"),
        _epochs,
        "num_train_epochs where max_steps is not set",
    ),
    # learning rate and optimizer
    Formula("actor.lr_schedule", ("lr_scheduler_type",), _schedule, "lr_scheduler_type"),
    Formula(
        "actor.lr_warmup_steps",
        ("lr_scheduler_type", "warmup_steps"),
        _warmup_steps,
        "warmup_steps; the schedule constant has no warmup",
    ),
    Formula(
        "actor.lr_warmup_fraction",
        ("lr_scheduler_type", "warmup_steps", "warmup_ratio"),
        _warmup_fraction,
        "warmup_ratio, or warmup_steps below 1, which is a fraction too",
    ),
    Formula(
        "actor.min_lr",
        ("lr_scheduler_type", "learning_rate", "lr_scheduler_kwargs.min_lr"),
        _min_lr,
        "lr_scheduler_kwargs.min_lr",
    ),
    Formula(
        "actor.min_lr",
        ("lr_scheduler_type", "learning_rate", "lr_scheduler_kwargs.min_lr_rate"),
        _min_lr_by_rate,
        "lr_scheduler_kwargs.min_lr_rate × learning_rate",
    ),
    Formula("actor.min_lr", ("lr_scheduler_type",), _min_lr_zero, "it falls to 0"),
    Formula(
        "actor.optimizer",
        ("optim",),
        _optimizer,
        "adamw_torch and adamw_torch_fused are AdamW, and one of them is the default",
    ),
    Formula(
        "actor.optimizer_options.implementation",
        ("optim",),
        lambda name: NOT_SET if name is None else word_of(name),
        "optim",
    ),
    Formula("actor.dtype", ("bf16", "fp16"), _dtype, "bf16 unless fp16 is set; null is on"),
    Formula("actor.strategy", ("accelerate.distributed_type",), _distributed, "distributed_type"),
    Formula("actor.strategy", ("deepspeed", "fsdp"), _strategy, "deepspeed, fsdp, else DDP"),
)
