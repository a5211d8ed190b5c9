"""Models and numerics profiles: what is built, and whose rounding it has."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="the bundled stack needs torch and transformers")
pytest.importorskip("transformers", reason="the bundled stack needs torch and transformers")

import torch

from align.core.errors import ConfigError
from align.stack import attention, numerics
from align.stack.check_config import BUILT_IN_MODELS
from align.stack.config import load_config
from align.stack.models import build_model
from align.stack.presets import DTYPES
from align.stack.tokenizer import load_tokenizer

MODEL = "actor_rollout_ref.model"
IDS = torch.arange(2 * 11).view(2, 11) % 200 + 40


def _model(*settings: str):
    config = load_config(None, list(settings))
    return build_model(config, load_tokenizer(config))


def _logits(model) -> torch.Tensor:
    return model(input_ids=IDS).logits.detach()


@pytest.mark.parametrize("name", BUILT_IN_MODELS)
def test_a_built_in_model_is_small_and_the_same_for_one_seed(name: str) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    model, again = _model(f"{MODEL}.path={name}"), _model(f"{MODEL}.path={name}")
    assert torch.equal(torch.get_rng_state(), state)
    assert 100_000 < sum(p.numel() for p in model.parameters()) < 400_000
    assert torch.equal(_logits(model), _logits(again))
    other = _model(f"{MODEL}.path={name}", "stack.seed=1")
    assert not torch.equal(_logits(model), _logits(other))


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
@pytest.mark.parametrize("name", BUILT_IN_MODELS)
def test_our_attention_is_that_of_transformers(name: str, kind: str) -> None:
    ours = _model(f"{MODEL}.path={name}")
    theirs = _model(f"{MODEL}.path={name}", f"{MODEL}.override_config.attn_implementation={kind}")
    assert (ours.config._attn_implementation, theirs.config._attn_implementation) == (
        attention.NAME,
        kind,
    )
    mask = torch.ones_like(IDS)
    mask[0, :4] = 0
    a, b = (m(input_ids=IDS, attention_mask=mask).logits[mask.bool()] for m in (ours, theirs))
    torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


def test_overrides_reach_the_model_and_its_config() -> None:
    plain = _model()
    other = _model(
        f"{MODEL}.override_config.rms_norm_eps=1e-3",
        f"{MODEL}.override_config.rope_theta=500.0",
        f"{MODEL}.override_config.tie_word_embeddings=true",
    )
    assert (plain.config.rms_norm_eps, other.config.rms_norm_eps) == (1e-6, 1e-3)
    assert other.model.norm.variance_epsilon == 1e-3
    assert other.config.rope_parameters["rope_theta"] == 500.0
    assert other.lm_head.weight is other.model.embed_tokens.weight


def test_an_unknown_override_is_refused_with_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match=r"rms_norm_epsilon.*did you mean rms_norm_eps"):
        _model(f"{MODEL}.override_config.rms_norm_epsilon=1e-6")


def test_a_saved_model_comes_back_bit_for_bit_with_its_stop_tokens(tmp_path) -> None:
    config = load_config()
    tokenizer = load_tokenizer(config)
    model = build_model(config, tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = _model(f"{MODEL}.path={tmp_path}")
    assert torch.equal(_logits(loaded), _logits(model))
    assert loaded.generation_config.eos_token_id == model.generation_config.eos_token_id
    assert "softmax_float32" not in (tmp_path / "config.json").read_text()


def test_a_folder_without_weights_is_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    config = load_config(None, [f"{MODEL}.path={tmp_path}", f"{MODEL}.tokenizer_path={tmp_path}"])
    with pytest.raises(ConfigError, match="no causal language model"):
        build_model(config, load_tokenizer(load_config()))


def test_every_profile_can_be_configured() -> None:
    assert set(DTYPES) == set(numerics.PROFILES)


# Largest difference of logits from float64 that the profile's rounding explains: a few roundings
# of values of about 1 in each of two layers. 2^-24 float32, 2^-9 bfloat16.
ROUNDING = {
    "float64": 0.0,
    "float32": 2.0**-18,
    "float32_split_k": 2.0**-18,
    "float32_bfloat16_all_reduce": 2.0**-5,
    "bfloat16": 2.0**-3,
    "bfloat16_split_k": 2.0**-3,
}


@pytest.mark.parametrize("profile", list(numerics.PROFILES))
def test_a_profile_is_the_same_mathematics_in_another_rounding(profile: str) -> None:
    exact = _logits(_model().double())
    model = _model()
    numerics.apply(profile, model)
    got = _logits(model)
    error = (got.double() - exact).abs().max().item()
    assert error <= ROUNDING[profile]
    assert got.dtype == numerics.compute_dtype(model) == numerics.PROFILES[profile].dtype
    if profile not in ("float64", "float32"):
        assert not torch.equal(got.float(), _logits(_model()))


def test_profiles_that_share_a_dtype_differ_from_each_other() -> None:
    logits = []
    for profile in ("bfloat16", "bfloat16_split_k"):
        model = _model()
        numerics.apply(profile, model)
        logits.append(_logits(model))
    assert not torch.equal(*logits)


@pytest.mark.parametrize("profile", list(numerics.PROFILES))
def test_a_profile_leaves_names_gradients_and_copies_alone(profile: str) -> None:
    plain, model = _model(), _model()
    numerics.apply(profile, model)
    assert list(model.state_dict()) == list(plain.state_dict())
    twin = copy.deepcopy(model)
    assert torch.equal(_logits(twin), _logits(model))
    with torch.no_grad():
        twin.model.layers[0].self_attn.o_proj.weight.zero_()
    assert not torch.equal(_logits(twin), _logits(model))  # the copy has weights of its own
    twin(input_ids=IDS).logits.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in twin.parameters())


def test_gradients_of_a_rounded_model_point_where_the_exact_ones_do() -> None:
    exact, rounded = _model(), _model()
    numerics.apply("bfloat16", rounded)
    gradients = []
    for model in (exact, rounded):
        torch.log_softmax(model(input_ids=IDS).logits.float(), -1)[..., 50].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    exact_gradient, rounded_gradient = gradients
    assert torch.cosine_similarity(exact_gradient, rounded_gradient, dim=0) > 0.999


def test_softmax_in_the_models_own_dtype_rounds_where_float32_does_not() -> None:
    logits = {}
    for in_float32 in ("true", "false"):
        for profile in ("float32", "bfloat16"):
            model = _model(f"stack.numerics.softmax_float32={in_float32}")
            numerics.apply(profile, model)
            logits[in_float32, profile] = _logits(model)
    assert torch.equal(logits["true", "float32"], logits["false", "float32"])
    assert not torch.equal(logits["true", "bfloat16"], logits["false", "bfloat16"])


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fp8: is no numerics profile; use float64"):
        numerics.apply("fp8", _model())
