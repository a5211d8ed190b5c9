"""Each piece of advice is given where it can help, and kept back where it cannot."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from align.core.config_value import ConfigLeaf
from align.doctor.advice import State, advise, all_advice
from align.doctor.case import case_of
from tests.unit.one_run_alone import log_of, one_run_with

Values = Mapping[str, ConfigLeaf]

SIZES: Values = {
    "data.train_batch_size": 256,
    "rollout.n": 8,
    "trainer.world_size": 16,
    "rollout.tensor_parallel_size": 4,
    "rollout.pipeline_parallel_size": 1,
}
MEGATRON: Values = {**SIZES, "actor.strategy": "megatron", "model.num_layers": 28}
MOE: Values = {**MEGATRON, "model.num_experts": 128, "actor.tensor_parallel_size": 4}
LONG: Values = {"data.max_prompt_length": 2048, "data.max_response_length": 30720}
ACTOR = "actor_rollout_ref.actor.megatron"
OVERRIDE = f"{ACTOR}.override_transformer_config"
NPU = {"device": "npu"}
KEY = {"some.key": 1}  # a configuration is there, and complete


def state(
    name: str,
    values: Values,
    stated: Values = KEY,
    facts: Mapping[str, str] | None = None,
    framework: str = "verl",
    metrics: Mapping[str, list[float]] | None = None,
) -> str:
    run = one_run_with(values, framework=framework, stated=stated, facts=facts or NPU)
    case = case_of(run, log_of(metrics or {}))
    (advice,) = (each for each in all_advice() if each.id == f"performance.{name}")
    return advice.answer(case).state.value


@pytest.mark.parametrize(
    ("name", "fault", "clean"),
    [
        (
            "acl_graph",
            {**SIZES, "rollout.enforce_eager": True},
            {**SIZES, "rollout.enforce_eager": False},
        ),
        (
            "max_num_seqs",
            {**SIZES, "rollout.max_num_seqs": 511},
            {**SIZES, "rollout.max_num_seqs": 512},
        ),
        (
            "rollout_tensor_parallel",
            {**SIZES, "rollout.tensor_parallel_size": 2},
            {**SIZES, "rollout.tensor_parallel_size": 4},
        ),
        ("expert_parallel", MOE, {**MOE, "rollout.expert_parallel_size": 16}),
        ("remove_padding", {"model.remove_padding": False}, {"model.remove_padding": True}),
        ("fused_rms_norm", MEGATRON, {**MEGATRON, "model.override.use_fused_rmsnorm": True}),
        ("fused_swiglu", MEGATRON, {**MEGATRON, "model.override.use_fused_swiglu": True}),
        (
            "fused_rope",
            {**MEGATRON, "model.override.use_fused_rotary_pos_emb": True},
            {
                **MEGATRON,
                "model.override.use_fused_rotary_pos_emb": True,
                "model.override.apply_rope_fusion": True,
            },
        ),
        ("grouped_gemm", MOE, {**MOE, "model.override.moe_grouped_gemm": True}),
        (
            "parallel_sizes",
            {**MEGATRON, "actor.context_parallel_size": 8, "actor.pipeline_parallel_size": 12},
            {**MEGATRON, "actor.context_parallel_size": 4, "actor.pipeline_parallel_size": 8},
        ),
        (
            "log_prob_token_budget",
            {**LONG, "old_log_prob.max_tokens": 32768},
            {**LONG, "old_log_prob.max_tokens": 16384},
        ),
    ],
)
def test_advice_is_given_once_and_not_where_it_is_taken(
    name: str, fault: Values, clean: Values
) -> None:
    assert state(name, fault) == "advised"
    assert state(name, clean) in ("on", "does_not_apply")


def test_coc_is_advised_with_tensor_parallelism_on_mindspeed_rl() -> None:
    for size, on, expected in (
        (4, False, "advised"),
        (4, True, "on"),
        (1, False, "does_not_apply"),
    ):
        values = {"actor.tensor_parallel_size": size, "actor.parallel_options.ascend_coc": on}
        assert state("coc", values, framework="mindspeed_rl") == expected
    assert state("coc", {"actor.tensor_parallel_size": 4}) == "does_not_apply"  # verl


def test_the_distributed_optimizer_wants_all_three_switches() -> None:
    third = {f"{OVERRIDE}.use_distributed_optimizer": True}
    assert state("distributed_optimizer", MEGATRON) == "advised"
    assert state("distributed_optimizer", MEGATRON, third) == "on"
    second_off = {**third, "actor_rollout_ref.ref.megatron.use_distributed_optimizer": False}
    assert state("distributed_optimizer", MEGATRON, second_off) == "advised"
    assert state("distributed_optimizer", {**SIZES, "actor.strategy": "fsdp2"}) == "does_not_apply"


def test_experts_are_kept_whole() -> None:
    key = f"{ACTOR}.expert_tensor_parallel_size"
    assert state("expert_tensor_parallel", MOE) == "advised"
    assert state("expert_tensor_parallel", MOE, {key: 4}) == "advised"
    assert state("expert_tensor_parallel", MOE, {key: 1}) == "on"
    assert state("expert_tensor_parallel", MEGATRON) == "does_not_apply"  # no experts


def test_a_very_large_expert_parallel_size_is_advised_against_on_a2() -> None:
    values = {**MOE, "rollout.expert_parallel_size": 128}
    a2 = {**NPU, "device_name": "Ascend 910B3"}
    a3 = {**NPU, "device_name": "Ascend910_9391"}
    assert state("expert_parallel", values, facts=a2) == "advised"
    assert state("expert_parallel", values, facts=a3) == "on"


def test_remove_padding_is_not_advised_where_lengths_are_even() -> None:
    off = {"model.remove_padding": False}
    even = {"response_length/max": [110.0, 120.0], "response_length/mean": [100.0, 100.0]}
    uneven = {"response_length/max": [4096.0, 4096.0], "response_length/mean": [400.0, 500.0]}
    assert state("remove_padding", off, metrics=even) == "does_not_apply"
    assert state("remove_padding", off, metrics=uneven) == "advised"


@pytest.mark.parametrize(
    ("facts", "eager", "expected"),
    [
        ({"env.TASK_QUEUE_ENABLE": "1"}, True, "advised"),
        ({"env.TASK_QUEUE_ENABLE": "2"}, True, "on"),
        ({"env.TASK_QUEUE_ENABLE": "1"}, False, "does_not_apply"),  # graphs exclude level 2
        (
            {"env.TASK_QUEUE_ENABLE": "1", "env.ASCEND_LAUNCH_BLOCKING": "1"},
            True,
            "does_not_apply",
        ),
        ({}, True, "unknown"),
    ],
)
def test_the_queue_level_is_advised_without_graphs(
    facts: dict[str, str], eager: bool, expected: str
) -> None:
    values = {**SIZES, "rollout.enforce_eager": eager}
    assert state("task_queue", values, facts={**NPU, **facts}) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"machine": "aarch64", "env.LD_PRELOAD": "/usr/lib/libother.so"}, "advised"),
        ({"machine": "aarch64", "env.LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, "on"),
        ({"machine": "x86_64"}, "does_not_apply"),
        ({"machine": "aarch64"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_jemalloc_is_advised_on_arm_alone(facts: dict[str, str], expected: str) -> None:
    assert state("jemalloc", {}, facts={**NPU, **facts}) == expected


def test_batch_rope_cannot_be_told_and_needs_packing() -> None:
    packed, padded = ({**MEGATRON, "model.remove_padding": on} for on in (True, False))
    assert state("batch_rope", packed) == "unknown"
    assert state("batch_rope", padded) == "does_not_apply"


def test_a_gpu_run_gets_no_advice_for_an_npu() -> None:
    run = one_run_with(
        {**MOE, "rollout.enforce_eager": True, "model.remove_padding": True},
        stated=KEY,
        facts={"device": "cuda"},
    )
    npu_only = {"acl_graph", "fused_rms_norm", "fused_swiglu", "fused_rope", "grouped_gemm"}
    given = {j.advice.id.partition(".")[2] for j in advise(case_of(run, log_of({})))}
    assert not given & (npu_only | {"task_queue", "jemalloc", "batch_rope"})


def test_without_a_configuration_nothing_is_advised_and_all_is_said_to_be_open() -> None:
    run = one_run_with({}, framework=None)
    judged = advise(case_of(run, log_of({})))
    assert judged and all(j.answer.state is State.UNKNOWN for j in judged)


def test_what_shortens_the_slowest_stage_comes_first() -> None:
    values = {**SIZES, "rollout.enforce_eager": True, "model.remove_padding": False}
    for generation, first in ((18.0, "acl_graph"), (1.0, "remove_padding")):
        times = {
            "timing_s/step": [20.0] * 3,
            "timing_s/gen": [generation] * 3,
            "timing_s/update_actor": [19.0 - generation] * 3,
        }
        run = one_run_with(values, stated=KEY, facts=NPU)
        judged = advise(case_of(run, log_of(times)))
        assert judged[0].advice.id == f"performance.{first}"


def test_every_piece_says_its_gain_its_condition_its_source_and_how_to_set_it() -> None:
    ids = [advice.id for advice in all_advice()]
    assert len(ids) == len(set(ids)) >= 16
    for advice in all_advice():
        assert advice.source and advice.how
        for text in (advice.title, advice.gain, advice.holds_when):
            assert text.en and text.zh and text.en != text.zh
