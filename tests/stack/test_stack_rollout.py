"""Rollouts: the noise, the sampling, where responses end and what they cost."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
pytest.importorskip("transformers", reason="the bundled stack needs torch and transformers")

import numpy as np
import torch

from align.core.errors import MissingPackageError
from align.stack import noise
from align.stack.config import load_config
from align.stack.dataset import load_rows
from align.stack.models import build_model
from align.stack.prompts import RenderedPrompt, render
from align.stack.rollout import generate, processed_logits, stop_ids
from align.stack.tokenizer import load_tokenizer

ROLLOUT = "actor_rollout_ref.rollout"


def _engine(*settings: str):
    config = load_config(None, ["data.max_response_length=12", *settings])
    tokenizer = load_tokenizer(config)
    prompts = [render(row, tokenizer, config) for row in load_rows(config)[:8]]
    return build_model(config, tokenizer), tokenizer, prompts, config


def _repeated(prompts, n: int) -> list[RenderedPrompt]:
    return [prompt for prompt in prompts for _ in range(n)]


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe"])
def test_a_batch_gives_what_each_prompt_gives_alone(name: str) -> None:
    model, tokenizer, prompts, config = _engine(f"actor_rollout_ref.model.path={name}")
    together = generate(model, tokenizer, prompts, config, step=3)
    alone = [generate(model, tokenizer, [p], config, step=3)[0] for p in prompts]
    assert [r.response_ids for r in together] == [r.response_ids for r in alone]
    backwards = generate(model, tokenizer, prompts[::-1], config, step=3)
    assert [r.response_ids for r in backwards[::-1]] == [r.response_ids for r in alone]


def test_samples_of_one_prompt_differ_and_the_first_is_the_same_for_every_n() -> None:
    model, tokenizer, prompts, config = _engine()
    four = generate(model, tokenizer, _repeated(prompts, 4), config, step=1)
    two = generate(model, tokenizer, _repeated(prompts, 2), config, step=1)
    assert len({r.response_ids for r in four}) == 32
    assert [r.response_ids for r in two[::2]] == [r.response_ids for r in four[::4]]
    assert [r.row_index for r in four] == [p.row_index for p in _repeated(prompts, 4)]


def test_step_and_seed_change_the_samples_and_nothing_else_is_drawn_from() -> None:
    model, tokenizer, prompts, config = _engine()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = generate(model, tokenizer, prompts, config, step=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert generate(model, tokenizer, prompts, config, step=1) == first
    assert generate(model, tokenizer, prompts, config, step=2) != first
    other = load_config(None, ["data.max_response_length=12", f"{ROLLOUT}.seed=7"])
    assert generate(model, tokenizer, prompts, other, step=1) != first


def test_sampling_without_a_cache_gives_the_same_tokens() -> None:
    """The plainest loop there is: the whole sequence again for every token, one row, no padding."""
    model, tokenizer, prompts, config = _engine(f"{ROLLOUT}.temperature=0.9")
    model.eval()
    for row, response in enumerate(generate(model, tokenizer, prompts[:3], config, step=5)):
        key = noise.keys(config.rollout.seed, 5, [(prompts[row].row_index, 0)])
        ids = list(prompts[row].ids)
        for position, token in enumerate(response.response_ids):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double() / 0.9
            drawn = noise.gumbel(key, position, len(logits))[0]
            assert int(np.argmax(logits.numpy() + drawn)) == token
            want = torch.log_softmax(logits, dim=-1)[token].item()
            assert response.log_probs[position] == pytest.approx(want, abs=1e-5)
            ids.append(token)


def test_greedy_decoding_is_that_of_hugging_face_generate() -> None:
    model, tokenizer, prompts, config = _engine(f"{ROLLOUT}.do_sample=false")
    for prompt in prompts[:3]:
        (response,) = generate(model, tokenizer, [prompt], config, step=1)
        ids = torch.tensor([prompt.ids])
        want = model.eval().generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12
        )
        assert list(response.response_ids) == want[0, len(prompt.ids) :].tolist()


def test_a_response_ends_at_either_stop_token_and_keeps_it() -> None:
    model, tokenizer, prompts, config = _engine()
    ends = stop_ids(model, tokenizer)
    assert ends == {tokenizer.eos_token_id, tokenizer.pad_token_id}  # as Qwen's Instruct models
    forced = tokenizer.pad_token_id
    with torch.no_grad():
        model.lm_head.weight[forced] = 0
        model.lm_head.weight[forced] += (
            1e3
            * model(
                input_ids=torch.tensor([prompts[0].ids]), output_hidden_states=True
            ).hidden_states[-1][0, -1]
        )
    (response,) = generate(model, tokenizer, prompts[:1], config, step=1)
    assert response.response_ids == (forced,)
    assert (response.finish_reason, response.text) == ("stop", "")
    endless = load_config(None, ["data.max_response_length=5", f"{ROLLOUT}.ignore_eos=true"])
    (response,) = generate(model, tokenizer, prompts[:1], endless, step=1)
    assert (len(response.response_ids), response.finish_reason) == (5, "length")


def test_top_k_and_top_p_leave_the_survivors_by_hand() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    logits = probabilities.log()

    def survivors(*settings: str) -> list[int]:
        kept = processed_logits(logits, load_config(None, list(settings))).isfinite()
        return kept[0].nonzero().flatten().tolist()

    assert survivors() == [0, 1, 2, 3]
    assert survivors(f"{ROLLOUT}.top_k=2") == [1, 3]
    assert survivors(f"{ROLLOUT}.top_p=0.6") == [1, 3]
    assert survivors(f"{ROLLOUT}.top_p=0.75") == [1, 2, 3]
    assert survivors(f"{ROLLOUT}.top_p=0.0001") == [1]


def test_log_probs_are_renormalised_over_survivors_unless_raw_ones_are_asked_for() -> None:
    _, tokenizer, prompts, config = _engine(f"{ROLLOUT}.top_k=1", f"{ROLLOUT}.temperature=0.5")
    model = build_model(config, tokenizer)
    (processed,) = generate(model, tokenizer, prompts[:1], config, step=1)
    assert set(processed.log_probs) == {0.0}
    raw = replace(config.rollout, logprobs_mode="raw_logprobs")
    other = replace(config, actor_rollout_ref=replace(config.actor_rollout_ref, rollout=raw))
    (response,) = generate(model, tokenizer, prompts[:1], other, step=1)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompts[0].ids])).logits[0, -1]
    want = torch.log_softmax(logits, dim=-1)[response.response_ids[0]].item()
    assert response.log_probs[0] == pytest.approx(want, abs=1e-5)


def test_the_noise_is_gumbel_and_independent_from_place_to_place() -> None:
    places = [(row, sample) for row in range(20) for sample in range(5)]
    drawn = noise.gumbel(noise.keys(1, 2, places), 3, 500)
    assert drawn.shape == (100, 500)
    # Mean is Euler's constant and variance pi² / 6; four standard errors of 50,000 draws.
    assert drawn.mean() == pytest.approx(0.5772, abs=4 * 1.2825 / 50_000**0.5)
    assert drawn.var() == pytest.approx(np.pi**2 / 6, rel=0.05)
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 4 / 500**0.5
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 4 / 100**0.5
    later = noise.gumbel(noise.keys(1, 2, places), 4, 500)
    assert abs(np.corrcoef(drawn.ravel(), later.ravel())[0, 1]) < 4 / 50_000**0.5


def test_sampled_frequencies_are_the_softmax() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    keys = noise.keys(0, 0, [(row, 0) for row in range(20_000)])
    picked = np.argmax(logits + noise.gumbel(keys, 0, 4), axis=1)
    frequencies = np.bincount(picked, minlength=4) / len(picked)
    np.testing.assert_allclose(frequencies, np.exp(logits), atol=4 * (0.25 / 20_000) ** 0.5)


def test_vllm_is_asked_for_only_when_chosen_and_its_absence_is_said() -> None:
    if "vllm" in sys.modules:
        pytest.skip("vLLM is installed here")
    model, tokenizer, prompts, config = _engine(f"{ROLLOUT}.name=vllm")
    with pytest.raises(MissingPackageError, match="vllm"):
        generate(model, tokenizer, prompts[:1], config, step=1)


def test_what_vllm_returns_becomes_responses(monkeypatch) -> None:
    model, tokenizer, prompts, config = _engine(f"{ROLLOUT}.name=vllm")
    seen = types.SimpleNamespace(loaded=[], settings=None)

    class Engine:
        def __init__(self, **settings):
            seen.settings = settings

        def generate(self, prompts, settings, use_tqdm):
            token = [types.SimpleNamespace(logprob=-0.25)]
            done = types.SimpleNamespace(
                token_ids=[settings[0].stop_token_ids[0]],
                logprobs=[{settings[0].stop_token_ids[0]: token[0]}],
                finish_reason="stop",
            )
            return [
                types.SimpleNamespace(outputs=[done], prompt_token_ids=p["prompt_token_ids"])
                for p in prompts
            ]

        def apply_model(self, change):
            inside = types.SimpleNamespace(load_weights=lambda weights: seen.loaded.extend(weights))
            return [change(inside)]

        def reset_prefix_cache(self):
            return True

    fake = types.SimpleNamespace(LLM=Engine, SamplingParams=types.SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", fake)
    for _ in range(2):
        (response,) = generate(model, tokenizer, prompts[:1], config, step=1)
    assert response.log_probs == (-0.25,) and response.finish_reason == "stop"
    assert response.prompt_token_ids == response.prompt_ids
    assert seen.settings["max_model_len"] == config.data.max_prompt_length + 12
    assert [name for name, _ in seen.loaded] == list(model.state_dict())  # at the second call
