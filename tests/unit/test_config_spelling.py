"""The nearest known key: found for one wrong letter, never claimed for another word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.config.spelling import known_keys, misspelled, most_alike, nearest

FRAMEWORKS = ("verl", "mindspeed_rl", "trl", "megatron")
KEYS = [
    (framework, key)
    for framework in FRAMEWORKS
    for key in known_keys(framework)
    if len(key.rpartition(".")[2]) >= 8
]


@given(st.sampled_from(KEYS), st.data())
def test_a_key_with_one_letter_lost_or_doubled_resembles_itself(
    case: tuple[str, str], data: st.DataObject
) -> None:
    framework, key = case
    section, dot, last = key.rpartition(".")
    at = data.draw(st.integers(1, len(last) - 2))
    written = data.draw(st.sampled_from([last[:at] + last[at + 1 :], last[:at] + last[at - 1 :]]))
    near = nearest(framework, f"{section}{dot}{written}")
    assert near is not None
    if near.score < 100:  # it may have become another known word
        found = [
            name for name, _ in most_alike(f"{section}{dot}{written}", known_keys(framework), 3)
        ]
        assert key in found


@given(st.sampled_from(KEYS))
def test_a_known_key_resembles_itself_and_is_no_misspelling(case: tuple[str, str]) -> None:
    framework, key = case
    near = nearest(framework, key)
    assert near is not None and near.key == key
    assert misspelled(framework, key) is None


@pytest.mark.parametrize(
    ("framework", "key", "meant"),
    [
        ("mindspeed_rl", "rl_config.temprature", "generate_config.sampling_config.temperature"),
        ("mindspeed_rl", "megatron_training.norm_epsilom", "megatron_training.norm_epsilon"),
        ("mindspeed_rl", "rl_config.minibatch_size", "rl_config.mini_batch_size"),
        ("mindspeed_rl", "rl_config.norm_epsilon", "megatron_training.norm_epsilon"),
        (
            "verl",
            "actor_rollout_ref.actor.kl_loss_coeff",
            "actor_rollout_ref.actor.kl_loss_coef",
        ),
        ("verl", "actor_rollout_ref.actor.lr", "actor_rollout_ref.actor.optim.lr"),
        ("verl", "data.max_prompt_len", "data.max_prompt_length"),
    ],
)
def test_a_misspelling_that_people_make_is_certain(framework: str, key: str, meant: str) -> None:
    near = misspelled(framework, key)
    assert near is not None and near.key == meant


@pytest.mark.parametrize(
    ("framework", "key"),
    [
        ("verl", "actor_rollout_ref.actor.clip_ratio_b"),  # beside clip_ratio_c
        ("mindspeed_rl", "megatron_training.adam_beta3"),
        ("verl", "actor_rollout_ref.rollout.top_kk"),
        ("verl", "my_recipe.dtype"),  # another section's own setting
        ("verl", "my_recipe.learning_signal_threshold"),
        ("verl", "algorithm.foo_bar"),
    ],
)
def test_a_key_of_its_own_is_no_misspelling(framework: str, key: str) -> None:
    assert misspelled(framework, key) is None


def test_an_unknown_framework_has_no_known_keys() -> None:
    assert known_keys(None) == {} and nearest(None, "data.seed") is None
