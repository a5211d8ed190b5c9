"""A short supervised phase that gives the RL a model worth training: the run's starting weights.

It imitates ground truths. What it depends on is the model's shape, the data set and its own
settings, never a setting of the RL part: two runs that differ in `rms_norm_eps` or in a planted
fault start from equal weights, as two runs do that load one published model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from align.stack.config import StackConfig, to_tree
from align.stack.config_sections import (
    ActorRolloutRefConfig,
    DataConfig,
    ModelConfig,
    StackSection,
)
from align.stack.tensors import read_tensors, write_tensors

_SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
_IGNORED = -100  # label of a token without loss


def warm_weights(config: StackConfig, cache: Path) -> Mapping[str, Tensor]:
    """Return the starting weights by name; none where there is no warm-up.

    They are made once, and kept in memory and in the cache folder under a key of the recipe.
    """
    if not config.stack.warmup.steps:
        return {}
    recipe = recipe_of(config)
    text = json.dumps(to_tree(recipe), sort_keys=True)
    path = cache / f"warmup-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"
    if not path.is_file():
        write_tensors(path, _made(text))
    return read_tensors(path)


def recipe_of(config: StackConfig) -> StackConfig:
    """Return the part of a configuration that the warm-up depends on, over the defaults."""
    model, stack = config.model, config.stack
    shape = {k: v for k, v in model.override_config.items() if k in _SHAPE}
    return StackConfig(
        data=DataConfig(
            train_files=config.data.train_files,
            prompt_key=config.data.prompt_key,
            reward_fn_key=config.data.reward_fn_key,
        ),
        actor_rollout_ref=ActorRolloutRefConfig(
            model=ModelConfig(
                path=model.path, tokenizer_path=model.tokenizer_path, override_config=shape
            )
        ),
        stack=StackSection(
            seed=stack.seed,
            warmup=stack.warmup,
            data=replace(stack.data, sampler="torchdata"),
        ),
    )


@lru_cache(maxsize=4)
def _made(text: str) -> Mapping[str, Tensor]:
    from align.stack.config import build

    return train_supervised(build(StackConfig, _flat(json.loads(text)), where="warm-up"))


def train_supervised(recipe: StackConfig) -> dict[str, Tensor]:
    """Train on ground truths with AdamW, and return the weights in float32.

    The learning rate falls linearly to 0. Rows are drawn with replacement by a seeded generator.
    """
    from align.stack import dataset, models, prompts, tokenizer

    words = tokenizer.load_tokenizer(recipe)
    rows = dataset.load_rows(recipe)
    examples = [
        (
            list(prompts.render(row, words, recipe).ids),
            _answer(row.solution or row.ground_truth, words),
        )
        for row in rows
    ]
    model = models.build_model(recipe, words)
    settings = recipe.stack.warmup
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, foreach=True)
    generator = torch.Generator().manual_seed(settings.seed)
    for step in range(settings.steps):
        drawn = torch.randint(len(rows), (settings.batch_size,), generator=generator).tolist()
        loss = _loss(model, [examples[i] for i in drawn])
        optimizer.param_groups[0]["lr"] = settings.lr * (1 - step / settings.steps)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _answer(text: str, words: Any) -> list[int]:
    return [*words.encode(text, add_special_tokens=False), words.eos_token_id]


def _loss(model: Any, examples: Sequence[tuple[list[int], list[int]]]) -> Tensor:
    """Average -log p over the answers' tokens; rows are padded on the right."""
    width = max(len(prompt) + len(answer) for prompt, answer in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.int64)
    labels = torch.full((len(examples), width), _IGNORED)
    mask = torch.zeros(len(examples), width, dtype=torch.int64)
    for row, (prompt, answer) in enumerate(examples):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
        mask[row, :end] = 1
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]),
        labels[:, 1:].reshape(-1),
        ignore_index=_IGNORED,
    )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves.update(_flat(value, f"{prefix}{name}."))
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves
