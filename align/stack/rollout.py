"""Generate responses: one batched sampling loop with a key-value cache.

The noise of every token is a function of seed, step, row, sample and position, so responses do
not depend on the batch they are generated in (as far as the model's rounding does not).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from align.stack import noise
from align.stack.prompts import RenderedPrompt, fit

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from align.stack.config import StackConfig

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled answer.

    Args:
        row_index: `Row.index` of the row asked about.
        prompt_ids: as the trainer gets them.
        response_ids: up to the stop token, which is included.
        text: the response decoded without special tokens, as verl dumps it.
        log_probs: of response_ids, in nats, as ``rollout.logprobs_mode`` has it.
        finish_reason: "stop" at a stop token, "length" at data.max_response_length.
        prompt_token_ids: what the engine says it was asked, as vLLM's RequestOutput has it.
    """

    row_index: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    text: str
    log_probs: tuple[float, ...]
    finish_reason: str
    prompt_token_ids: tuple[int, ...] = ()


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[RenderedPrompt],
    config: StackConfig,
    step: int,
) -> list[Response]:
    """Sample one response to every prompt; a prompt given n times gets n different ones.

    Args:
        model: the rollout engine's own weights.
        prompts: repeated ``rollout.n`` times each.
        step: training step, part of the noise.

    Raises:
        RunError: A prompt is too long and ``data.truncation`` is "error".
    """
    if config.rollout.name == "vllm":
        from align.stack.rollout_vllm import generate_with_vllm

        return generate_with_vllm(model, tokenizer, prompts, config, step)
    asked = [fit(prompt.ids, config, f"row {prompt.row_index}") for prompt in prompts]
    keys = noise.keys(config.rollout.seed, step, sample_places(prompts))
    stops = frozenset() if config.rollout.ignore_eos else stop_ids(model, tokenizer)
    tokens, log_probs = _sample(model, asked, keys, stops, config)
    return [
        _response(prompt, ids, tokens[i], log_probs[i], stops, tokenizer)
        for i, (prompt, ids) in enumerate(zip(prompts, asked, strict=True))
    ]


def sample_places(prompts: Sequence[RenderedPrompt]) -> list[tuple[int, int]]:
    """Return (row index, how often the row came before) of every prompt."""
    seen: Counter[int] = Counter()
    places = []
    for prompt in prompts:
        places.append((prompt.row_index, seen[prompt.row_index]))
        seen[prompt.row_index] += 1
    return places


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """Return the tokens that end a response: generation_config.json's, else the tokenizer's eos."""
    given = getattr(model.generation_config, "eos_token_id", None)
    if given is None:
        given = tokenizer.eos_token_id
    return frozenset(given if isinstance(given, list) else [given])


def processed_logits(logits: Tensor, config: StackConfig) -> Tensor:
    """Divide by the temperature, then leave top-k and top-p survivors; the others are -inf.

    Args:
        logits: float [..., vocab_size].

    Source: vLLM `apply_top_k_top_p`: ties at the k-th logit all survive; of equal logits the
    nucleus takes the one that sorts last.
    """
    rollout = config.rollout
    logits = logits / rollout.temperature
    if 0 < rollout.top_k < logits.shape[-1]:
        worst = logits.topk(rollout.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < worst, -torch.inf)
    if rollout.top_p < 1:
        ascending, order = logits.sort(dim=-1, stable=True)
        below = torch.softmax(ascending, dim=-1).cumsum(dim=-1)
        outside = below <= 1 - rollout.top_p
        outside[..., -1] = False
        outside = outside.scatter(-1, order, outside.clone())
        logits = logits.masked_fill(outside, -torch.inf)
    return logits


@torch.no_grad()
def _sample(
    model: PreTrainedModel,
    prompts: Sequence[tuple[int, ...]],
    keys: noise.Keys,
    stops: frozenset[int],
    config: StackConfig,
) -> tuple[list[list[int]], list[list[float]]]:
    """Return tokens and log_probs [row][position], padded to the longest response."""
    was_training = model.training
    model.eval()  # type: ignore[no-untyped-call]
    ids, mask = _left_padded(prompts, model.device)
    stop = torch.tensor(sorted(stops), dtype=torch.int64, device=model.device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=model.device)
    cache, tokens, log_probs = None, [], []
    for position in range(config.data.max_response_length):
        position_ids = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = out.past_key_values
        token, log_prob = _pick(out.logits[:, -1], keys, position, config)
        tokens.append(token)
        log_probs.append(log_prob)
        done |= torch.isin(token, stop)
        if bool(done.all()):
            break
        ids = token[:, None]
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    model.train(was_training)
    return torch.stack(tokens, 1).tolist(), torch.stack(log_probs, 1).tolist()


def _left_padded(prompts: Sequence[tuple[int, ...]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _pick(
    logits: Tensor, keys: noise.Keys, position: int, config: StackConfig
) -> tuple[Tensor, Tensor]:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    processed = processed_logits(logits, config)
    if config.rollout.do_sample:
        drawn = torch.from_numpy(noise.gumbel(keys, position, logits.shape[-1]))
        token = (processed.double() + drawn.to(logits.device)).argmax(-1)
    else:
        token = processed.argmax(-1)
    scored = processed if config.rollout.logprobs_mode.startswith("processed") else logits
    log_prob = torch.log_softmax(scored, dim=-1).gather(-1, token[:, None]).squeeze(-1)
    return token, log_prob


def _response(
    prompt: RenderedPrompt,
    prompt_ids: tuple[int, ...],
    tokens: Sequence[int],
    log_probs: Sequence[float],
    stops: frozenset[int],
    tokenizer: PreTrainedTokenizerFast,
) -> Response:
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), None)
    ids = tuple(tokens[:end])
    return Response(
        row_index=prompt.row_index,
        prompt_ids=prompt_ids,
        response_ids=ids,
        text=str(tokenizer.decode(list(ids), skip_special_tokens=True)),
        log_probs=tuple(log_probs[: len(ids)]),
        finish_reason=LENGTH if end is None else STOP,
        prompt_token_ids=prompt_ids,
    )
