"""`align capture` on the real MindSpeed-RL: its hybrid worker, dock, loss and update on a CPU.

The worker runs two steps on Megatron-core with one and two tensor-parallel ranks, under torchrun.
What was recorded is compared with the dock, with Megatron's own norm, and with log_probs and
gradients of Hugging Face's model in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="captures look at torch's tensors")
pytest.importorskip("megatron.core", reason="Megatron-core is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch
from torch import Tensor

from dumps.readers import captured_step
from dumps.readers.rollout_store import read_store
from dumps.store.verify import verify
from tests.frameworks.mindspeed_rl.runs import SOURCE, Ran
from tests.frameworks.mindspeed_rl.tiny_run import (
    KL_COEFFICIENT,
    MICRO,
    MINI,
    MODEL,
    PROMPTS,
    SAMPLES,
    STEPS,
    advantages,
    answer,
    prompt,
    reference,
)

pytestmark = pytest.mark.skipif(
    SOURCE is None, reason="needs a checkout of MindSpeed-RL (set MINDSPEED_RL_SRC)"
)


@pytest.fixture(params=["one", "two"])
def ran(request: pytest.FixtureRequest) -> Ran:
    return request.getfixturevalue(request.param)


def test_nothing_failed_and_both_steps_are_whole(ran: Ran) -> None:
    assert not (ran.capture / "capture.log").exists()
    verified = verify(ran.capture)
    assert verified.is_whole and verified.whole_steps == (1, 2)
    assert not any(step["left"] for rank in ran.ranks for step in rank)  # no hook is left behind


def test_responses_are_recorded_once_with_the_rows_they_have_in_the_dock(ran: Ran) -> None:
    for step in range(1, STEPS + 1):
        files = sorted((ran.capture / "rollout").glob(f"*/step={step:06d}.parquet"))
        rows = [row for file in files for row in read_store(file)]
        assert [(r.prompt_ids, r.response_ids, r.sample_index, r.uid) for r in rows] == [  # type: ignore[union-attr]
            (
                tuple(prompt(number, step)),
                tuple(answer(prompt(number, step), sample, step)),
                sample,
                f"{step}-{number}",
            )
            for number in range(PROMPTS)
            for sample in range(SAMPLES)
        ]


def test_what_the_loss_is_computed_from_is_what_the_dock_held(ran: Ran) -> None:
    names = {"old_log_prob": "old_log_probs", "ref_log_prob": "ref_log_prob"}
    for number in range(STEPS):
        dock = ran.ranks[0][number]["dock"]
        part = captured_step.read(ran.capture / f"steps/{number + 1:06d}/actor-0.safetensors")
        for row, (update, micro, place) in enumerate(places()):
            length = len(dock["responses"][row])
            for theirs, ours in {**names, "advantages": "advantages"}.items():
                recorded = part.tensors[f"update.{update}.micro.{micro}.{ours}"][place]
                assert recorded[:length].tolist() == dock[theirs][row].tolist()


def test_log_probs_and_gradients_are_those_of_hugging_faces_model(one: Ran) -> None:
    """In float64; the first update of a step is on-policy, so it trains on these weights."""
    for number in range(STEPS):
        held = one.ranks[0][number]
        model = hugging_face(held["weights"])
        part = captured_step.read(one.capture / f"steps/{number + 1:06d}/actor-0.safetensors")
        total = torch.zeros((), dtype=torch.float64)
        for micro in range(MINI // MICRO):
            losses, lengths = [], []
            for place in range(MICRO):
                row = micro * MICRO + place
                log_probs = log_probs_of(model, held["dock"], row)
                recorded = part.tensors[f"update.0.micro.{micro}.log_probs"][place]
                difference = torch.from_numpy(recorded[: len(log_probs)]) - log_probs.detach()
                assert float(difference.abs().max()) < 1e-5
                losses.append(loss_of(log_probs, row))
                lengths.append(len(log_probs))
            loss = torch.cat(losses).sum() / sum(lengths)
            stated = float(part.tensors[f"update.0.micro.{micro}.policy_loss"])
            assert stated == pytest.approx(float(loss.detach()), rel=1e-5)
            total = total + loss / (MINI // MICRO)
        total.backward()
        squares = part.gradient_squares(0)
        expected = dict(megatron_squares(model))
        assert squares.keys() == expected.keys()
        assert squares == pytest.approx(expected, rel=1e-4)


def test_squares_add_up_over_ranks_to_the_norm_that_the_framework_reports(ran: Ran) -> None:
    for number in range(STEPS):
        parts = [
            captured_step.read(ran.capture / f"steps/{number + 1:06d}/actor-{rank}.safetensors")
            for rank in range(len(ran.ranks))
        ]
        norms = ran.ranks[0][number]["norms"]
        assert len(norms) == parts[0].num_updates == PROMPTS * SAMPLES // MINI
        for update, norm in enumerate(norms):
            total = sum(sum(part.gradient_squares(update).values()) for part in parts)
            assert math.sqrt(total) == pytest.approx(norm, rel=1e-6)
            assert float(parts[0].tensors[f"update.{update}.grad_norm"]) == pytest.approx(norm)


def test_two_tensor_parallel_ranks_add_up_to_what_one_has(one: Ran, two: Ran) -> None:
    for update in range(PROMPTS * SAMPLES // MINI):
        alone = captured_step.read(one.capture / "steps/000001/actor-0.safetensors")
        parts = [
            captured_step.read(two.capture / f"steps/000001/actor-{rank}.safetensors")
            for rank in (0, 1)
        ]
        summed: dict[str, float] = {}
        for part in parts:
            for name, square in part.gradient_squares(update).items():
                summed[name] = summed.get(name, 0.0) + square
        assert summed == pytest.approx(alone.gradient_squares(update), rel=1e-4)


def places() -> Iterator[tuple[int, int, int]]:
    """Yield update, micro-batch and place in it of each row, in the order of `guarantee_order`."""
    for row in range(PROMPTS * SAMPLES):
        yield row // MINI, row % MINI // MICRO, row % MICRO


def hugging_face(weights: dict[str, Tensor]) -> Any:
    """Return Hugging Face's model in float64 with the weights of a Megatron model."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**{k: v for k, v in MODEL.items() if k != "model_type"})
    config._attn_implementation = "eager"
    model = Qwen2ForCausalLM(config).double()
    model.load_state_dict(dict(named(weights)))
    return model


def named(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights by Hugging Face's names; qkv lies group by group: its q, then k, then v."""
    yield "model.embed_tokens.weight", weights["embedding.word_embeddings.weight"]
    yield "model.norm.weight", weights["decoder.final_layernorm.weight"]
    yield "lm_head.weight", weights["output_layer.weight"]
    groups, size = int(MODEL["num_key_value_heads"]), 32 // int(MODEL["num_attention_heads"])
    each = int(MODEL["num_attention_heads"]) // groups
    for i in range(int(MODEL["num_hidden_layers"])):
        theirs, ours = f"decoder.layers.{i}.", f"model.layers.{i}."
        for end in ("weight", "bias"):
            whole = weights[f"{theirs}self_attention.linear_qkv.{end}"]
            grouped = whole.reshape(groups, (each + 2) * size, *whole.shape[1:])
            parts = grouped.split([each * size, size, size], dim=1)
            for letter, part in zip("qkv", parts, strict=True):
                yield f"{ours}self_attn.{letter}_proj.{end}", part.flatten(0, 1)
        yield (
            f"{ours}self_attn.o_proj.weight",
            weights[f"{theirs}self_attention.linear_proj.weight"],
        )
        gate, up = weights[f"{theirs}mlp.linear_fc1.weight"].chunk(2)
        yield f"{ours}mlp.gate_proj.weight", gate
        yield f"{ours}mlp.up_proj.weight", up
        yield f"{ours}mlp.down_proj.weight", weights[f"{theirs}mlp.linear_fc2.weight"]
        yield f"{ours}input_layernorm.weight", weights[f"{theirs}input_layernorm.weight"]
        yield f"{ours}post_attention_layernorm.weight", weights[f"{theirs}pre_mlp_layernorm.weight"]


def log_probs_of(model: Any, dock: dict[str, list[Tensor]], row: int) -> Tensor:
    """Return float64 [response]: log_probs of a row's response under the model."""
    ids, response = dock["input_ids"][row].long(), dock["responses"][row].long()
    logits = model(input_ids=ids[None]).logits[0, -len(response) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, response[:, None])[:, 0]


def loss_of(log_probs: Tensor, row: int) -> Tensor:
    """Return GRPO's loss a token, on-policy: the ratio is 1, its gradient that of log_probs.

    The KL estimate is Schulman's k3, which MindSpeed-RL and verl cut at 10.
    """
    ratio = (log_probs - log_probs.detach()).exp()
    gap = reference(row, len(log_probs)) - log_probs
    divergence = (gap.exp() - gap - 1).clamp(max=10)
    return -advantages(row, len(log_probs)) * ratio + KL_COEFFICIENT * divergence


def megatron_squares(model: Any) -> Iterator[tuple[str, float]]:
    """Yield the squared sums of the model's gradients by Megatron's names."""
    own = {n: float(p.grad.square().sum()) for n, p in model.named_parameters()}
    yield "embedding.word_embeddings.weight", own["model.embed_tokens.weight"]
    yield "decoder.final_layernorm.weight", own["model.norm.weight"]
    yield "output_layer.weight", own["lm_head.weight"]
    for i in range(int(MODEL["num_hidden_layers"])):
        theirs, ours = f"decoder.layers.{i}.", f"model.layers.{i}."
        for end in ("weight", "bias"):
            parts = [own[f"{ours}self_attn.{letter}_proj.{end}"] for letter in "qkv"]
            yield f"{theirs}self_attention.linear_qkv.{end}", sum(parts)
        halves = [own[f"{ours}mlp.{half}_proj.weight"] for half in ("gate", "up")]
        yield f"{theirs}mlp.linear_fc1.weight", sum(halves)
        yield f"{theirs}self_attention.linear_proj.weight", own[f"{ours}self_attn.o_proj.weight"]
        yield f"{theirs}mlp.linear_fc2.weight", own[f"{ours}mlp.down_proj.weight"]
        yield f"{theirs}input_layernorm.weight", own[f"{ours}input_layernorm.weight"]
        yield f"{theirs}pre_mlp_layernorm.weight", own[f"{ours}post_attention_layernorm.weight"]
