"""Every fault of the code changes exactly what it says, and its clean twin does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch", reason="the faults change the bundled stack, which needs torch")
pytest.importorskip("transformers", reason="the faults change the bundled stack")

import torch

from align.objective.aggregate import GlobalBatch
from align.stack.batch import TrainBatch
from align.stack.config import StackConfig, load_config
from align.stack.faults.forward import interleaved_rope
from align.stack.faults.registry import fault_named
from align.stack.pipeline import Pipeline
from align.stack.rewards import Scores
from align.stack.rollout import Response
from align.stack.zoo import BASE

CLEAN = Pipeline()
ANSWERS = ("The answer is 7", "The answer is 12", "The answer is 3", "The answer is 9")


def faulty(name: str, clean: Pipeline = CLEAN) -> Pipeline:
    change = fault_named(name).change
    assert change is not None
    return change(clean)


def configured(*overrides: str) -> StackConfig:
    return load_config(None, [*BASE, *overrides])


@pytest.fixture(scope="module")
def config() -> StackConfig:
    return configured()


@pytest.fixture(scope="module")
def words(config: StackConfig) -> Any:
    return CLEAN.load_tokenizer(config)


@pytest.fixture(scope="module")
def model(config: StackConfig, words: Any) -> Any:
    return _filled(CLEAN.build_model(config, words))


@pytest.fixture(scope="module")
def responses(config: StackConfig, words: Any) -> list[Response]:
    """Four answers to three rows; the last is cut before its eos."""
    rows = CLEAN.load_rows(config)
    made = []
    for row, text in zip((rows[0], rows[0], rows[1], rows[2]), ANSWERS, strict=True):
        ids = (*words.encode(text, add_special_tokens=False), words.eos_token_id)
        prompt = CLEAN.render(row, words, config)
        log_probs = tuple(-0.5 for _ in ids)
        made.append(Response(row.index, prompt.ids, ids, text, log_probs, "stop"))
    cut = made[-1]
    made[-1] = replace(
        cut,
        response_ids=cut.response_ids[:-1],
        log_probs=cut.log_probs[:-1],
        finish_reason="length",
    )
    return made


@pytest.fixture(scope="module")
def scores() -> list[Scores]:
    return [Scores(total, {"add": total, "compare": None}) for total in (1.0, 0.0, 0.5, 0.25)]


@pytest.fixture(scope="module")
def batch(responses: list[Response], scores: list[Scores], words: Any, config: StackConfig) -> Any:
    return CLEAN.assemble(responses, scores, words, config)


def _filled(model: Any) -> Any:
    """Give biases and norms values of their own, so that leaving one out shows."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


# -- tokenizer ---------------------------------------------------------------------------------


def test_the_base_tokenizer_ends_with_what_the_instruct_one_pads_with(config, words) -> None:
    base = faulty("base_eos").load_tokenizer(config)
    assert (words.eos_token, words.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert (base.eos_token, base.pad_token) == ("<|endoftext|>", "<|endoftext|>")


def test_padding_with_eos_takes_every_eos_out_of_the_loss(
    config, words, batch, responses, scores
) -> None:
    pipeline = faulty("pad_is_eos")
    tokenizer = pipeline.load_tokenizer(config)
    masked = pipeline.assemble(responses, scores, tokenizer, config)
    eos = batch.responses == words.eos_token_id
    assert int((batch.response_mask * eos).sum()) == 3
    assert int((masked.response_mask * (masked.responses == words.eos_token_id)).sum()) == 0
    assert int(masked.response_mask.sum()) == int(batch.response_mask.sum()) - 3
    assert torch.equal(masked.attention_mask, batch.attention_mask)


def test_the_other_chat_template_adds_a_system_prompt_and_nothing_else(config, words) -> None:
    tokenizer = faulty("default_system_prompt").load_tokenizer(config)
    row = CLEAN.load_rows(config)[0]
    clean, other = (CLEAN.render(row, t, config).text for t in (words, tokenizer))
    assert other.endswith(clean)
    assert other.removesuffix(clean) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    )


def test_the_added_bos_stands_before_the_unchanged_prompt(config, words) -> None:
    pipeline = faulty("added_bos")
    tokenizer = pipeline.load_tokenizer(config)
    row = CLEAN.load_rows(config)[0]
    clean, other = CLEAN.render(row, words, config), pipeline.render(row, tokenizer, config)
    assert other.ids == (words.convert_tokens_to_ids("<|endoftext|>"), *clean.ids)


def test_padding_on_the_right_leaves_padding_before_the_response(
    config, words, batch, responses, scores
) -> None:
    padded = assembled("padding_side", responses, scores, words, config)
    width = config.data.max_prompt_length
    for row, response in enumerate(responses):
        length = len(response.prompt_ids)
        assert tuple(padded.input_ids[row, :length].tolist()) == response.prompt_ids
        assert padded.attention_mask[row, :width].tolist() == [1] * length + [0] * (width - length)
    assert torch.equal(padded.responses, batch.responses)
    assert torch.equal(padded.response_mask, batch.response_mask)


def test_the_changed_merge_splits_one_word_and_no_other(config, words) -> None:
    changed = faulty("changed_merge").load_tokenizer(config)
    assert words.tokenize("larger") != changed.tokenize("larger")
    assert changed.decode(changed.encode("larger")) == "larger"
    assert words.encode("The answer is 12") == changed.encode("The answer is 12")
    assert words.get_vocab() == changed.get_vocab()


# -- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy_shuffle", "stale_order_cache"])
def test_another_sampler_takes_the_same_rows_in_another_order(config, name) -> None:
    clean, other = (
        [i for step in islice(p.row_order(config, 96), 6) for i in step]
        for p in (CLEAN, faulty(name))
    )
    assert clean != other
    assert sorted(clean) == sorted(other) == list(range(96))


def test_the_replayed_epoch_is_the_first_one(config) -> None:
    clean, other = (list(islice(p.row_order(config, 96), 12)) for p in (CLEAN, _replayed()))
    assert other[:6] == clean[:6] == other[6:]
    assert clean[6:] != clean[:6]


def _replayed() -> Pipeline:
    return faulty("resume_replays_epoch_0")


def test_the_strict_filter_drops_prompts_of_exactly_the_limit(words) -> None:
    config = configured(*fault_named("strict_length_filter").setting)
    rows = CLEAN.load_rows(config)
    prompts = [CLEAN.render(row, words, config) for row in rows]
    kept = CLEAN.keep_rows(prompts, config)
    strict = faulty("strict_length_filter").keep_rows(prompts, config)
    dropped = sorted(set(kept) - set(strict))
    assert dropped
    assert {len(prompts[i].ids) for i in dropped} == {config.data.max_prompt_length}
    assert {len(prompts[i].ids) for i in strict} < {len(prompts[i].ids) for i in kept}


def test_lost_rows_and_labels_are_lost_and_nothing_else(config) -> None:
    rows = CLEAN.load_rows(config)
    kept = faulty("lost_rows").load_rows(config)
    assert len(kept) == len(rows) - len(rows) // 10
    assert set(row.index for row in kept) < set(row.index for row in rows)
    unlabelled = faulty("lost_labels").load_rows(config)
    assert {row.ground_truth for row in unlabelled} == {""}
    restored = [
        replace(u, ground_truth=r.ground_truth) for u, r in zip(unlabelled, rows, strict=True)
    ]
    assert restored == rows


def test_the_other_template_keeps_the_question(config, words) -> None:
    row = CLEAN.load_rows(config)[0]
    prompt = faulty("other_template").render(row, words, config)
    assert prompt.text == f"Human: {row.messages[-1]['content']}\nAssistant: "
    assert words.decode(list(prompt.ids)) == prompt.text


# -- rollout -----------------------------------------------------------------------------------


def _echo(model, tokenizer, prompts, config, step) -> list[Response]:
    """Answer every prompt with its own row number."""
    return [Response(p.row_index, p.ids, (p.row_index,), "", (0.0,), "stop") for p in prompts]


def test_without_interleaving_responses_sit_under_other_questions(config, words, model) -> None:
    pipeline = faulty("input_not_interleaved", replace(CLEAN, generate=_echo))
    rows = CLEAN.load_rows(config)[:3]
    n = config.rollout.n
    prompts = [CLEAN.render(row, words, config) for row in rows for _ in range(n)]
    made = pipeline.generate(model, words, prompts, config, 1)
    assert [r.row_index for r in made] == [p.row_index for p in prompts]
    answered = [r.response_ids[0] for r in made]
    assert answered == [row.index for row in rows] * n
    assert sorted(answered) == sorted(p.row_index for p in prompts)


def test_the_engine_is_asked_without_special_tokens_and_the_trainer_keeps_them(
    config, words, model
) -> None:
    asked = []

    def generate(model, tokenizer, prompts, config, step):
        asked.extend(prompts)
        return _echo(model, tokenizer, prompts, config, step)

    pipeline = faulty("prompt_special_tokens_lost", replace(CLEAN, generate=generate))
    prompt = CLEAN.render(CLEAN.load_rows(config)[0], words, config)
    (response,) = pipeline.generate(model, words, [prompt], config, 1)
    special = set(words.all_special_ids)
    assert special & set(prompt.ids)
    assert not special & set(asked[0].ids)
    assert response.prompt_ids == prompt.ids


# -- tokens ------------------------------------------------------------------------------------


def assembled(name: str, responses, scores, words, config) -> TrainBatch:
    return faulty(name).assemble(responses, scores, words, config)


def test_stripping_takes_eos_and_only_eos(config, words, batch, responses, scores) -> None:
    stripped = assembled("eos_stripped", responses, scores, words, config)
    eos = (batch.responses == words.eos_token_id) & batch.response_mask.bool()
    assert int(eos.sum()) == 3
    assert torch.equal(stripped.response_mask, batch.response_mask * ~eos)
    assert torch.equal(stripped.responses.where(~eos, 0), batch.responses.where(~eos, 0))
    assert not (stripped.responses == words.eos_token_id).any()


def test_the_invented_eos_ends_the_cut_response_alone(
    config, words, batch, responses, scores
) -> None:
    invented = assembled("eos_invented", responses, scores, words, config)
    last = len(responses[-1].response_ids) - 1
    assert int(invented.responses[-1, last]) == words.eos_token_id
    assert torch.equal(invented.responses[:-1], batch.responses[:-1])
    assert torch.equal(invented.response_mask, batch.response_mask)


def test_retokenised_responses_have_other_ids_and_the_same_text(
    config, words, batch, responses, scores
) -> None:
    other = assembled("retokenised", responses, scores, words, config)
    for row, response in enumerate(responses):
        ids = other.responses[row][other.response_mask[row].bool()].tolist()
        assert ids != list(response.response_ids)
        text = words.decode(ids, skip_special_tokens=True)
        assert response.text.startswith(text)


def test_bfloat16_positions_repeat_above_256(words, responses, scores) -> None:
    config = configured(*fault_named("position_ids_bfloat16").setting)
    row = CLEAN.load_rows(config)[0]
    long = CLEAN.render(row, CLEAN.load_tokenizer(config), config)
    given = [replace(responses[0], prompt_ids=long.ids)]
    clean, other = (
        p.assemble(given, scores[:1], words, config).position_ids[0]
        for p in (CLEAN, faulty("position_ids_bfloat16"))
    )
    assert int(clean.max()) > 256
    small = clean <= 256
    assert torch.equal(other[small], clean[small])
    assert len(set(other.tolist())) < len(set(clean.tolist()))


def test_padding_is_counted_between_prompt_and_response(
    config, words, batch, responses, scores
) -> None:
    other = assembled("left_pad_positions", responses, scores, words, config)
    width = config.data.max_prompt_length
    assert torch.equal(other.position_ids[:, :width], batch.position_ids[:, :width])
    assert other.position_ids[:, width].tolist() == [width] * len(responses)


def test_the_shifted_mask_starts_and_ends_one_token_late(
    config, words, batch, responses, scores
) -> None:
    shifted = assembled("mask_off_by_one", responses, scores, words, config)
    for row, response in enumerate(responses):
        length = len(response.response_ids)
        on = shifted.response_mask[row].nonzero().squeeze(-1).tolist()
        assert on == [i for i in range(1, length + 1) if i < shifted.response_mask.shape[1]]
    assert torch.equal(shifted.input_ids, batch.input_ids)


def test_the_last_quarter_is_read_before_it_arrives(
    config, words, batch, responses, scores
) -> None:
    early = assembled("copy_read_too_early", responses, scores, words, config)
    assert torch.equal(early.responses[:3], batch.responses[:3])
    assert int(early.responses[3].abs().sum()) == 0
    assert torch.equal(early.response_mask, batch.response_mask)


# -- reward ------------------------------------------------------------------------------------


def test_a_rule_that_does_not_apply_gives_zero_and_the_total_stays(config) -> None:
    row = next(r for r in CLEAN.load_rows(config) if r.task == "add")
    clean, other = (
        p.score(row, f"The answer is {row.ground_truth}")
        for p in (CLEAN, faulty("zeros_averaged_in"))
    )
    assert None in clean.by_rule.values()
    assert other.by_rule == {k: v or 0.0 for k, v in clean.by_rule.items()}
    assert other.total == clean.total == 1.0
    rows = CLEAN.load_rows(config)[:2]
    means = [
        CLEAN.summarise_scores([p.score(r, f"The answer is {r.ground_truth}") for r in rows], rows)
        for p in (CLEAN, faulty("zeros_averaged_in"))
    ]
    assert means[0]["rewards/add/mean"] == 1.0
    assert means[1]["rewards/add/mean"] == 0.5


def test_weak_extraction_accepts_the_number_anywhere(config) -> None:
    row = next(r for r in CLEAN.load_rows(config) if r.ground_truth == "7")
    weak = faulty("weak_extraction")
    for text, strict, lenient in (
        ("7, no: the answer is 3", 0.0, 1.0),
        ("The answer is 7", 1.0, 1.0),
        ("The answer is", 0.0, 0.0),
    ):
        assert CLEAN.score(row, text).total == strict
        assert weak.score(row, text).total == lenient


def test_permuted_rewards_are_the_same_numbers_elsewhere(
    config, words, batch, responses, scores
) -> None:
    other = assembled("permuted_rewards", responses, scores, words, config)
    clean, moved = (b.token_level_rewards.sum(-1).tolist() for b in (batch, other))
    assert moved == [*clean[1:], clean[0]]
    assert torch.equal(other.responses, batch.responses)


# -- forward -----------------------------------------------------------------------------------


def _log_probs(pipeline: Pipeline, config: StackConfig, words: Any, batch: TrainBatch) -> Any:
    model = _filled(pipeline.build_model(config, words)).eval()
    with torch.no_grad():
        return pipeline.log_probs(model, batch, config)[0]


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("rope_interleaved", 2.0),
        ("qkv_bias_dropped", 3.0),
        ("attention_scale", 0.05),
        ("softmax_bfloat16", 0.05),
        ("packed_attends_across", 2.0),
        ("one_norm_eps", 0.001),
    ],
)
def test_a_forward_fault_moves_log_probs_of_the_trainer_and_not_of_the_engine(
    config, words, batch, name, largest
) -> None:
    clean = _log_probs(CLEAN, config, words, batch)
    other = _log_probs(faulty(name), config, words, batch)
    here = batch.response_mask.bool()
    moved = (clean - other)[here].abs().max()
    assert 0 < float(moved) < largest
    engine = faulty(name).build_rollout_model
    assert engine is CLEAN.build_rollout_model


def test_a_fault_inside_attention_ends_with_the_call(config, words, batch) -> None:
    before = _log_probs(CLEAN, config, words, batch)
    for name in ("rope_interleaved", "softmax_bfloat16", "packed_attends_across"):
        _log_probs(faulty(name), config, words, batch)
    assert torch.equal(_log_probs(CLEAN, config, words, batch), before)


def test_interleaved_rope_is_the_halves_rotation_of_permuted_features() -> None:
    from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, 5, 8, generator=generator, dtype=torch.float64)
    angles = torch.randn(1, 5, 4, generator=generator, dtype=torch.float64)
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))
    to_halves = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    want = apply_rotary_pos_emb(q[..., to_halves], k[..., to_halves], cos, sin)
    got = interleaved_rope(q, k, cos, sin)
    for one, other in zip(got, want, strict=True):
        assert torch.allclose(one[..., to_halves], other, atol=1e-12)


def test_the_router_alone_sees_rounded_hidden_states(words) -> None:
    config = configured(*fault_named("router_bfloat16").setting)
    seen = {}
    for side, pipeline in (("clean", CLEAN), ("other", faulty("router_bfloat16"))):
        model = pipeline.build_model(config, words).eval()
        gate = model.model.layers[0].mlp.gate
        gate.register_forward_hook(lambda m, x, out, side=side: seen.update({side: x[0]}))
        model(input_ids=torch.tensor([[1, 2, 3]]))
    assert torch.equal(seen["other"], seen["clean"].bfloat16().float())
    assert not torch.equal(seen["other"], seen["clean"])


def test_without_temperature_log_probs_are_those_at_one(words, batch) -> None:
    config = configured("actor_rollout_ref.rollout.temperature=0.6")
    at_one = configured("actor_rollout_ref.rollout.temperature=1.0")
    other = _log_probs(faulty("temperature_missing"), config, words, batch)
    assert torch.equal(other, _log_probs(CLEAN, at_one, words, batch))
    assert not torch.equal(other, _log_probs(CLEAN, config, words, batch))


# -- advantage and loss ------------------------------------------------------------------------


def _trainable(batch: TrainBatch) -> TrainBatch:
    shape = batch.responses.shape
    generator = torch.Generator().manual_seed(5)
    draw = [-torch.rand(shape, generator=generator) for _ in range(2)]
    advantages = torch.tensor([1.0, -1.0, 0.5, 0.2])[:, None] * batch.response_mask
    return replace(
        batch, old_log_probs=draw[0], ref_log_prob=draw[1], advantages=advantages, returns=None
    )


def test_wrong_groups_mix_prompts(config, batch, scores) -> None:
    clean, other = (
        _first_tokens(p.advantages(batch, config).advantages)
        for p in (CLEAN, faulty("wrong_groups"))
    )
    # Rows 0 and 1 share a prompt: their advantages are opposite, and no others are.
    assert clean[0] == pytest.approx(-clean[1])
    assert other != pytest.approx(clean)


def _first_tokens(values: torch.Tensor | None) -> list[float]:
    assert values is not None
    return values[:, 0].tolist()


def _loss(pipeline: Pipeline, config: StackConfig, batch: TrainBatch, totals: Any) -> Any:
    assert batch.old_log_probs is not None
    log_probs = (batch.old_log_probs - 0.1).requires_grad_(True)
    entropy = torch.zeros_like(log_probs)
    return pipeline.loss(batch, log_probs, entropy, config, totals)


def _total(pipeline: Pipeline, config: StackConfig, batch: TrainBatch, totals: Any) -> float:
    return float(_loss(pipeline, config, batch, totals).total.detach())


def test_the_wrong_sign_turns_the_kl_term_around(config, batch) -> None:
    ready = _trainable(batch)
    totals = GlobalBatch(num_tokens=int(batch.response_mask.sum()), num_sequences=4)
    clean, other = (_loss(p, config, ready, totals) for p in (CLEAN, faulty("kl_sign")))
    kl = config.actor.kl_loss_coef * clean.summed["actor/kl_loss"]
    assert kl > 0
    assert float((clean.total - other.total).detach()) == pytest.approx(2 * kl, rel=1e-4)


def test_micro_batch_means_weigh_short_responses_more(config, batch) -> None:
    ready = _trainable(batch)
    totals = GlobalBatch(num_tokens=int(batch.response_mask.sum()), num_sequences=4)
    halves = [ready.rows(slice(0, 2)), ready.rows(slice(2, 4))]
    pipeline = faulty("micro_batch_mean")
    other = sum(_total(pipeline, config, half, totals) for half in halves)
    own = [
        _total(CLEAN, config, half, GlobalBatch(num_tokens=int(half.response_mask.sum())))
        for half in halves
    ]
    assert other == pytest.approx((own[0] + own[1]) / 2, rel=1e-5)
    whole = sum(_total(CLEAN, config, half, totals) for half in halves)
    assert other != pytest.approx(whole, rel=1e-4)


# -- backward and optimizer --------------------------------------------------------------------


def _gradients(pipeline: Pipeline, config: StackConfig, words: Any, batch: TrainBatch) -> Any:
    model = _filled(pipeline.build_model(config, words))
    log_probs, _ = pipeline.log_probs(model, batch, config)
    pipeline.backward(-(log_probs * batch.response_mask).mean(), model)
    return {name: p.grad for name, p in model.named_parameters()}


def test_unscaled_accumulation_doubles_every_gradient(config, words, batch) -> None:
    clean = _gradients(CLEAN, config, words, batch)
    other = _gradients(faulty("accumulation_not_scaled"), config, words, batch)
    assert all(torch.allclose(other[name], 2 * clean[name]) for name in clean)
    micro = config.actor.ppo_micro_batch_size_per_gpu
    assert config.actor.ppo_mini_batch_size * config.rollout.n == 2 * micro


def test_the_detached_mlp_gets_no_gradient_and_later_layers_keep_theirs(
    config, words, batch
) -> None:
    clean = _gradients(CLEAN, config, words, batch)
    other = _gradients(faulty("detached_layer"), config, words, batch)
    cut = {name for name, gradient in other.items() if gradient is None}
    assert cut == {name for name in clean if name.startswith("model.layers.1.mlp.")} | {
        "model.layers.1.post_attention_layernorm.weight"
    }
    assert torch.equal(other["lm_head.weight"], clean["lm_head.weight"])


def test_norms_alone_lose_a_part_of_their_gradient(config, words, batch) -> None:
    clean = _gradients(CLEAN, config, words, batch)
    other = _gradients(faulty("norm_gradient_not_reduced"), config, words, batch)
    differing = {
        name for name in clean if not torch.allclose(clean[name], other[name], rtol=1e-4, atol=1e-7)
    }
    assert differing == {name for name in clean if "layernorm" in name}


def test_the_doubled_norm_halves_what_clipping_leaves() -> None:
    norms, left = [], []
    for pipeline in (CLEAN, faulty("gradient_norm_doubled")):
        layer = torch.nn.Linear(3, 3)
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, 2.0)
        norms.append(pipeline.clip_gradients(layer, 1.0))
        gradients = [p.grad.flatten() for p in layer.parameters() if p.grad is not None]
        left.append(torch.cat(gradients).norm())
    assert norms[1] == pytest.approx(2 * norms[0])
    assert float(left[1]) == pytest.approx(float(left[0]) / 2, rel=1e-5)


def test_warmup_in_optimizer_steps_ends_after_half_the_steps(config) -> None:
    clean, other = (
        [p.learning_rate(config, step, update) for step in range(4) for update in range(2)]
        for p in (CLEAN, faulty("warmup_in_optimizer_steps"))
    )
    assert clean == [CLEAN.learning_rate(config, step // 2, 0) for step in range(8)]
    assert other == [CLEAN.learning_rate(config, step, 0) for step in range(8)]


def test_the_early_decay_ends_with_steps_of_no_learning(config) -> None:
    total = config.actor.optim.total_training_steps
    clean, other = (
        [p.learning_rate(config, step, 0) for step in range(total)]
        for p in (CLEAN, faulty("lr_decay_ends_early"))
    )
    warmup = int(0.25 * total)
    assert other[: warmup + 1] == clean[: warmup + 1]
    assert other[total - warmup :] == [0.0] * warmup
    assert min(clean[1:]) > 0


def test_vectors_are_exempt_from_weight_decay(config, model) -> None:
    for pipeline, decayed in ((CLEAN, True), (faulty("weight_decay_of_vectors"), False)):
        groups = pipeline.build_optimizer(model, config).param_groups
        decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
        norm, matrix = model.model.norm.weight, model.lm_head.weight
        assert decay[id(matrix)] == config.actor.optim.weight_decay
        assert (decay[id(norm)] > 0) == decayed


def test_adam_moments_are_rounded_to_bfloat16() -> None:
    for pipeline, rounded in ((CLEAN, False), (faulty("adam_states_bfloat16"), True)):
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(layer.parameters())
        for parameter in layer.parameters():
            parameter.grad = torch.linspace(0.1, 0.7, parameter.numel()).view_as(parameter)
        pipeline.optimizer_step(optimizer, 1e-3)
        moments = [state["exp_avg"] for state in optimizer.state.values()]
        assert all(torch.equal(m, m.bfloat16().float()) for m in moments) == rounded


# -- weight sync -------------------------------------------------------------------------------


def _synced(pipeline: Pipeline, config: StackConfig, words: Any, times: int) -> tuple[Any, list]:
    """Sync a trainer that changes before every sync; return the engine and all trainer weights."""
    trainer, engine = (_filled(CLEAN.build_model(config, words)) for _ in range(2))
    seen = []
    for _ in range(times):
        with torch.no_grad():
            for parameter in trainer.parameters():
                parameter.add_(0.01)
        seen.append({name: t.clone() for name, t in trainer.state_dict().items()})
        pipeline.sync_weights(trainer, engine)
    return engine, seen


def _holds(engine: Any, weights: Any) -> bool:
    return all(torch.equal(t, weights[name]) for name, t in engine.state_dict().items())


@pytest.mark.parametrize(("name", "which"), [(None, 2), ("not_synced", 0), ("stale_weights", 1)])
def test_the_engine_holds_the_weights_of_this_sync(config, words, name, which) -> None:
    engine, seen = _synced(CLEAN if name is None else faulty(name), config, words, times=3)
    assert [_holds(engine, weights) for weights in seen] == [i == which for i in range(3)]


def test_a_reordered_qkv_has_the_same_rows_in_other_places(config, words) -> None:
    engine, (weights,) = _synced(faulty("fused_qkv_reordered"), config, words, times=1)
    names = [f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv"]
    own = engine.state_dict()
    assert any(not torch.equal(own[name], weights[name]) for name in names)
    fused = [torch.cat([each[name] for name in names]) for each in (own, weights)]
    assert sorted(map(tuple, fused[0].tolist())) == sorted(map(tuple, fused[1].tolist()))
    assert torch.equal(own["lm_head.weight"], weights["lm_head.weight"])


def test_changing_a_pipeline_leaves_the_clean_one_as_it_was() -> None:
    changes: list[Callable] = [f.change for f in map(fault_named, ("kl_sign", "base_eos"))]  # type: ignore[misc]
    before = Pipeline()
    for change in changes:
        assert change(before) != before
    assert before == Pipeline()
