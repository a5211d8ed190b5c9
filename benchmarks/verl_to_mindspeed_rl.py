"""Faults in the code of MindSpeed-RL, replayed a run of verl: what a report names first.

    MINDSPEED_RL_SRC=... .venv-frameworks/bin/python tests/frameworks/start.py \\
        benchmarks.verl_to_mindspeed_rl FOLDER [NAME ...]

The reference is the real verl 0.9.1 on FSDP2, two steps of GRPO; the candidate the real
MindSpeed-RL's integrated worker on Megatron-core, told to train as verl did
(`tests/frameworks/mindspeed_rl/verl_pair.py`), on verl's rollouts (`align replay`); both on a CPU,
captured with sketches. Each fault is in the code (`verl_pair_faults.py`); none shows in a
configuration. Runs that are in the folder already are not made again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.fault_table import Must, judge, table
from tests.frameworks.mindspeed_rl.verl_pair import prepare, replay, run_verl

FAULTS = {
    "wrong_groups": Must(("advantage.groups",)),
    "std_left_out": Must(("advantage.normalization",)),
    "rewards_rolled": Must(("advantage.scores_moved",)),
    "weak_extraction": Must(("reward.same_response_other_score",)),
    "kl_sign": Must(("loss.kl_sign",)),
    "kl_estimator": Must(("loss.kl_estimator",)),
    "clip_range": Must(("loss.clip_range",)),
    "mask_shifted": Must(("tokens.mask_shifted", "tokens.response_mask", "loss.mask_shifted")),
    "one_norm_eps": Must(("forward.first_divergence",), "layers.1.post_attention_layernorm"),
    "attention_scale": Must(("forward.first_divergence",), "layers.1.self_attn"),
    "rope_base": Must(("forward.first_divergence",), "layers.0.self_attn"),
    "gelu": Must(("forward.first_divergence",), "layers.0.mlp"),
    "rounded_mlp": Must(("forward.first_divergence", "forward.dtype"), "layers.1.mlp"),
    "detached_layer": Must(("backward.first_divergence",), "layers.1.mlp"),
    "loss_doubled": Must(("backward.scale",)),
    "grad_norm_doubled": Must(("backward.grad_norm",)),
    "adam_epsilon": Must(("optimizer.update",)),
    "all_decayed": Must(("optimizer.weight_decay",)),
    "states_bfloat16": Must(("optimizer.state_dtype",)),
    "rate_halved": Must(("optimizer.lr_schedule",)),
    "stale_weights": Must(("weight_sync.stale", "weight_sync.not_synced")),
    "scaled_weight": Must(("weight_sync.scaled",)),
    "swapped_halves": Must(("weight_sync.permuted",)),
    # planted after the misses among those above were mended, and not looked at before
    "query_rows_by_kind": Must(("forward.weights", "forward.first_divergence"), "self_attn"),
    "rotary_interleaved": Must(("forward.first_divergence",), "layers.0.self_attn"),
    "products_rounded": Must(("forward.first_divergence", "forward.dtype"), "layers.0.self_attn"),
    "bias_left_out": Must(("backward.first_divergence",), "layers.1.self_attn"),
    "gradients_kept": Must(("backward.first_divergence",)),
    "gradients_bfloat16": Must(("backward.first_divergence",)),
    "ratio_always_one": Must(("loss.old_log_probs",)),
    "padded_mean": Must(("loss.aggregation",)),
    "end_left_out": Must(("tokens.mask_differs", "tokens.response_mask", "tokens.mask_shifted")),
    "advantages_exchanged": Must(("loss.advantages_moved",)),
    "reference_follows": Must(("forward.ref_log_prob",)),
    "std_of_batch": Must(("advantage.normalization",)),
    "no_bias_correction": Must(("optimizer.update",)),
    "layer_sent_twice": Must(("weight_sync.differs",)),
}
CLEAN = {"tp1": 1, "tp2": 2}
"""Tensor-parallel ranks."""


def main() -> int:
    """Make the runs that are not there, and print one row for each fault and clean pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="faults and clean pairs; all by default")
    arguments = parser.parse_intermixed_args()
    folder: Path = arguments.folder.resolve()
    work = folder / "verl"
    made = work / "verl-capture"
    reference = made if made.is_dir() else run_verl(work)
    names = arguments.names or [*FAULTS, *CLEAN]
    judged = [
        judge(name, FAULTS.get(name), reference, candidate(folder, reference, name))
        for name in names
    ]
    print(table(judged))
    return 0 if all(each.is_right for each in judged) else 1


def candidate(folder: Path, reference: Path, name: str) -> Path | None:
    """Return the run folder of a fault or a clean pair; None where the run failed."""
    ranks = CLEAN.get(name, 1)
    prepared = folder / f"mindspeed-rl-{ranks}"
    if not prepared.is_dir():
        prepare(reference, folder / "verl", prepared, ranks)
    run, made = prepared / f"{name}-run", prepared / f"{name}.made"
    if not made.is_file():
        done = replay(reference, prepared, name, ranks, name if name in FAULTS else "")
        print(f"{name}: {'made' if not done.returncode else done.stderr[-3000:]}", file=sys.stderr)
        if done.returncode:
            return None
        made.touch()
    return run


if __name__ == "__main__":
    sys.exit(main())
