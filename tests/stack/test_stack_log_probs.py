"""Log-probabilities against transformers' logits in float64 and against a recorded run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
pytest.importorskip("transformers", reason="the bundled stack needs torch and transformers")

import torch

from align.stack import numerics
from align.stack.batch import TrainBatch, assemble
from align.stack.config import load_config
from align.stack.dataset import load_rows
from align.stack.log_probs import log_probs, packed_logits, padded_logits
from align.stack.models import build_model
from align.stack.prompts import render
from align.stack.rewards import Scores
from align.stack.rollout import Response, generate
from align.stack.tokenizer import load_tokenizer

MODELS = ("tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe")


def _config(*settings: str):
    return load_config(None, ["actor_rollout_ref.model.use_remove_padding=false", *settings])


def _packed(config):
    model = replace(config.model, use_remove_padding=True)
    return replace(config, actor_rollout_ref=replace(config.actor_rollout_ref, model=model))


def _sampled(config, num_rows: int = 6):
    tokenizer = load_tokenizer(config)
    model = build_model(config, tokenizer)
    prompts = [render(row, tokenizer, config) for row in load_rows(config)[:num_rows]]
    responses = [
        replace(r, response_ids=r.response_ids[: i + 2], log_probs=r.log_probs[: i + 2])
        for i, r in enumerate(generate(model, tokenizer, prompts, config, step=1))
    ]
    return model, assemble(responses, [Scores(0.0, {})] * num_rows, tokenizer, config)


def _one_row_at_a_time(model, batch: TrainBatch, temperature: float):
    """Score each row alone, without any padding, with torch's log_softmax in float64."""
    values = torch.zeros(batch.responses.shape, dtype=torch.float64)
    entropies = torch.zeros_like(values)
    for i in range(len(batch)):
        ids = batch.input_ids[i][batch.attention_mask[i].bool()]
        length = int(batch.response_mask[i].sum())
        logits = model.double()(input_ids=ids[None]).logits[0] / temperature
        picked = torch.log_softmax(logits, dim=-1)[-length - 1 : -1]
        values[i, :length] = picked.gather(-1, ids[-length:, None])[:, 0]
        entropies[i, :length] = -(picked.exp() * picked).sum(-1)
    return values, entropies


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_both_paths_equal_each_row_scored_alone_in_float64(name: str, temperature: float) -> None:
    config = _config(
        f"actor_rollout_ref.model.path={name}",
        f"actor_rollout_ref.rollout.temperature={temperature}",
    )
    model, batch = _sampled(config)
    padded, padded_entropy = log_probs(model, batch, config)
    packed, packed_entropy = log_probs(model, batch, _packed(config))
    assert padded.dtype == packed.dtype == torch.float32
    want, want_entropy = _one_row_at_a_time(model, batch, temperature)
    for got in (padded, packed):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)
    for got in (padded_entropy, packed_entropy):
        torch.testing.assert_close(got.double(), want_entropy, rtol=0, atol=1e-5)
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ["align", "eager", "sdpa"])
def test_packed_equals_padded_with_every_attention(attention: str) -> None:
    setting = f"actor_rollout_ref.model.override_config.attn_implementation={attention}"
    model, batch = _sampled(_config(setting))
    torch.testing.assert_close(
        packed_logits(model, batch), padded_logits(model, batch), rtol=0, atol=1e-5
    )


def test_packed_rows_really_are_one_sequence_without_padding() -> None:
    model, batch = _sampled(_config())
    shapes = []
    handle = model.model.embed_tokens.register_forward_hook(
        lambda module, args, output: shapes.append(tuple(output.shape[:2]))
    )
    packed_logits(model, batch)
    padded_logits(model, batch)
    handle.remove()
    assert shapes == [(1, int(batch.attention_mask.sum())), tuple(batch.input_ids.shape)]


def test_gradients_of_both_paths_agree() -> None:
    config = _config()
    model, batch = _sampled(config)
    gradients = []
    for each in (config, _packed(config)):
        model.zero_grad()
        log_probs(model, batch, each)[0].sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_padding_scores_zero_and_changes_nothing() -> None:
    config = _config()
    model, batch = _sampled(config)
    values, entropy = log_probs(model, batch, config)
    outside = ~batch.response_mask.bool()
    assert outside.any()
    assert not values[outside].any() and not entropy[outside].any()
    noisy = batch.input_ids.masked_fill(~batch.attention_mask.bool(), 17)
    again, _ = log_probs(model, replace(batch, input_ids=noisy), config)
    torch.testing.assert_close(again, values, rtol=0, atol=1e-6)


def test_a_float64_model_scores_in_float64() -> None:
    config = _config()
    model, batch = _sampled(config)
    numerics.apply("float64", model)
    got, _ = log_probs(model, batch, config)
    want, _ = _one_row_at_a_time(model, batch, 1.0)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_the_rollout_engines_own_log_probs_are_those_of_the_trainer() -> None:
    config = _config("actor_rollout_ref.rollout.temperature=0.8")
    model, batch = _sampled(config)
    got, _ = log_probs(model, batch, config)
    torch.testing.assert_close(got, batch.rollout_log_probs, rtol=0, atol=1e-5)


def test_log_probs_recorded_by_a_real_run_are_reproduced(reference_runs) -> None:
    """verl 0.9.1's agent loop recorded ids and log_probs of its first step on CPU, float32."""
    folder = reference_runs / "tiny_model_tokenizer_data" / "model"
    lines = (reference_runs / "agentloop_dump_tokens.jsonl").read_text().splitlines()
    first = [each for each in map(json.loads, lines) if each["key"].startswith("1:")]
    config = _config(
        f"actor_rollout_ref.model.path={folder}",
        "data.max_prompt_length=64",
        "data.max_response_length=16",
    )
    tokenizer = load_tokenizer(config)
    responses = [
        Response(i, tuple(d["prompt_ids"]), tuple(d["response_ids"]), "", tuple(d["logprobs"]), "")
        for i, d in enumerate(first)
    ]
    batch = assemble(responses, [Scores(0.0, {})] * len(first), tokenizer, config)
    model = build_model(config, tokenizer)
    assert len(first) == 32
    for each in (config, _packed(config)):
        got, _ = log_probs(model, batch, each)
        torch.testing.assert_close(got, batch.rollout_log_probs, rtol=0, atol=1e-5)
