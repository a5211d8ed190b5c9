"""The zoo holds every fault it should, each with its source, its truth and its needs."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="the faults change the bundled stack, which needs torch")
pytest.importorskip("transformers", reason="the faults change the bundled stack")

from align.core.errors import ConfigError
from align.core.rung import Rung
from align.stack.config import load_config, to_tree
from align.stack.faults.fault import Fault
from align.stack.faults.registry import fault_named, faults
from align.stack.zoo import BASE

# What the zoo must cover, by the link of the chain people looked at when they met it.
COVERED = {
    "config": """rms_norm_eps warmup_ratio warmup_in_optimizer_steps mini_batch_times_n
        loss_aggregation kl_coefficient kl_estimator kl_sign clip_ratio dual_clip
        std_normalisation_off weight_decay_of_vectors adam_betas grad_clip temperature_missing
        logprobs_mode rope_theta tied_embeddings dropout max_response_length lr_decay_ends_early""",
    "tokenizer": """base_eos pad_is_eos default_system_prompt added_bos padding_side
        changed_merge""",
    "data": """data_seed numpy_shuffle loader_workers strict_length_filter stale_order_cache
        resume_replays_epoch_0 lost_rows lost_labels""",
    "rollout and tokens": """eos_stripped eos_invented prompt_special_tokens_lost retokenised
        position_ids_bfloat16 left_pad_positions mask_off_by_one input_not_interleaved stale_weights
        copy_read_too_early""",
    "forward": """rope_interleaved qkv_bias_dropped attention_scale softmax_bfloat16
        packed_attends_across one_norm_eps router_bfloat16""",
    "reward": "zeros_averaged_in weak_extraction permuted_rewards",
    "backward and optimizer": """accumulation_not_scaled detached_layer norm_gradient_not_reduced
        gradient_norm_doubled adam_states_bfloat16""",
    "weight sync": "not_synced fused_qkv_reordered",
}
ARTIFACTS = {
    "captures",
    "config",
    "gradients",
    "metrics",
    "order",
    "rollouts",
    "tokenizer",
    "trainer_inputs",
    "weights",
}
SOURCE = re.compile(r"seed 00[014]|report \d+|#\d+|source|defaults|sample|planted|tree|0\.7")


def test_every_fault_that_must_be_covered_is_there() -> None:
    wanted = {name for names in COVERED.values() for name in names.split()}
    assert len(wanted) >= 45
    assert wanted <= set(faults())


@pytest.mark.parametrize("fault", faults().values(), ids=list(faults()))
def test_a_fault_says_what_it_is_and_what_a_report_must_say(fault: Fault) -> None:
    assert fault.what.endswith(".")
    assert SOURCE.search(fault.field_report)
    assert fault.finding_id.partition(".")[0] == fault.rung.value
    assert re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+", fault.finding_id)
    assert set(fault.needs) <= ARTIFACTS
    assert fault.needs


@pytest.mark.parametrize("fault", faults().values(), ids=list(faults()))
def test_a_fault_is_one_change_and_its_configuration_shows_it_only_where_it_should(
    fault: Fault,
) -> None:
    reference = _leaves(to_tree(load_config(None, [*BASE, *fault.setting])))
    candidate = _leaves(to_tree(load_config(None, [*BASE, *fault.setting, *fault.overrides])))
    changed = {k for k in reference | candidate if reference.get(k) != candidate.get(k)}
    assert changed == {override.partition("=")[0] for override in fault.overrides}
    assert (len(changed) == 1) != (fault.change is not None)
    assert (fault.rung is Rung.CONFIG) == bool(fault.overrides)


def test_an_unknown_fault_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="rms_norm_eps"):
        fault_named("rms_norm_epsilon")


def _leaves(tree: dict, prefix: str = "") -> dict:
    leaves: dict = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves.update(_leaves(value, f"{prefix}{name}."))
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves
