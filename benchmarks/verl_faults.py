"""Faults planted into the code of the real verl, and clean pairs of it: what a report names first.

    .venv-frameworks/bin/python tests/frameworks/start.py benchmarks.verl_faults FOLDER [NAME ...]

Every run is the real verl 0.9.1 on a CPU: two steps of GRPO on FSDP2, captured with sketches
(`align capture`); one a fault (`tests/frameworks/verl/plugin/planted.py`), none of which shows in a
configuration. Runs that are in the folder already are not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.fault_table import Must, docstrings, judge, table
from tests.frameworks.verl.runs import (
    AT_ONCE,
    CRITIC,
    PLUGIN,
    PPO,
    SETTINGS,
    Ran,
    Runs,
    Spec,
    surroundings,
)
from tests.frameworks.verl.warm.warm_python import warm_python
from tests.frameworks.verl.work import LAYER_FAULTS, lay_out

SHARED = Path(__file__).parents[2] / "shared"


FAULTS = {
    "wrong_groups": Must(("advantage.groups",)),
    "std_left_out": Must(("advantage.normalization",)),
    "rewards_rolled": Must(("advantage.scores_moved",)),
    "weak_extraction": Must(("reward.same_response_other_score",)),
    "kl_sign": Must(("loss.kl_sign",)),
    "kl_estimator": Must(("loss.kl_estimator",)),
    "aggregation": Must(("loss.aggregation",)),
    "clip_range": Must(("loss.clip_range",)),
    "mask_shifted": Must(("tokens.mask_differs",)),
    "temperature_missing": Must(("forward.temperature",), reference="cooler"),
    "one_norm_eps": Must(("forward.first_divergence",), "layers.1.post_attention_layernorm"),
    "attention_scale": Must(("forward.first_divergence",), "layers.1.self_attn"),
    "gelu": Must(("forward.first_divergence",), "layers.0.mlp"),
    "rounded_mlp": Must(("forward.first_divergence", "forward.dtype"), "layers.1.mlp"),
    "positions_doubled": Must(("forward.position_ids",)),
    "detached_layer": Must(("backward.first_divergence",), "layers.1.mlp"),
    "loss_doubled": Must(("backward.scale",)),
    "lost_micro_batch": Must(("backward.first_divergence", "backward.scale")),
    "grad_norm_doubled": Must(("backward.grad_norm",)),
    "vectors_not_decayed": Must(("optimizer.weight_decay",)),
    "states_bfloat16": Must(("optimizer.state_dtype",)),
    "adam_epsilon": Must(("optimizer.update",)),
    "rate_halved": Must(("optimizer.lr_schedule",)),
    "stale_weights": Must(("weight_sync.stale", "weight_sync.not_synced")),
    "heads_interleaved": Must(("weight_sync.permuted",)),
    "scaled_embedding": Must(("weight_sync.scaled",)),
    "reversed_order": Must(("data.order.first_divergent_step",)),
    "special_token_lost": Must(("rollout.prompt_special_tokens", "tokens.prompt_differs")),
    "response_cut": Must(("rollout.responses_cut",)),
    # planted after the misses among those above were mended, and not looked at before
    "advantages_clipped": Must(("advantage.recomputed_differs",)),
    "scores_doubled": Must(("reward.same_response_other_score",)),
    "log_probs_rounded": Must(("forward.log_probs",)),
    "rope_base": Must(("forward.first_divergence",), "rotary_emb"),
    "heads_repeated_otherwise": Must(("forward.first_divergence",), "layers.0.self_attn"),
    "dropout": Must(("loss.training_pass",)),
    "one_weight": Must(("forward.weights",), "layers.1.mlp.down_proj"),
    "other_reference": Must(("forward.ref_log_prob",)),
    "frozen_matrix": Must(("backward.first_divergence",), "layers.1.mlp.up_proj"),
    "second_beta": Must(("optimizer.betas",)),
    "lost_update": Must(("optimizer.no_update",)),
    "layer_not_sent": Must(("weight_sync.missing", "weight_sync.stale", "weight_sync.not_synced")),
    "sent_in_bfloat16": Must(("weight_sync.rounded",)),
    "next_prompts_response": Must(("rollout.responses_permuted",)),
    # and these after the misses among those
    "residual_scaled": Must(("forward.first_divergence",), "layers.1"),
    "logits_rounded": Must(("forward.first_divergence", "forward.dtype"), "lm_head"),
    "no_causal_mask": Must(("forward.first_divergence",), "layers.0.self_attn"),
    "embedding_scaled": Must(("forward.first_divergence",), "embed_tokens"),
    "every_epsilon": Must(("forward.first_divergence",), "layers.0.input_layernorm"),
    "attention_gradient_doubled": Must(("backward.first_divergence",), "layers.0.self_attn"),
    "coupled_decay": Must(("optimizer.update", "optimizer.weight_decay")),
    "moments_reset": Must(("optimizer.update",)),
    "scores_shifted": Must(("reward.same_response_other_score",)),
    "advantages_negated": Must(("advantage.scaled",)),
    "neighbours_swapped": Must(("data.order.first_divergent_step",)),
    "response_longer": Must(("rollout.responses_cut",)),
    "matrix_transposed": Must(("weight_sync.permuted",)),
    "head_from_embedding": Must(("weight_sync.differs",), "1/27"),
    # PPO: GAE, KL in the reward and a critic; planted before any rule looked at a critic
    **{
        name: Must(findings, reference="ppo")
        for name, findings in {
            "gae_lambda": ("advantage.discount",),
            "gae_gamma": ("advantage.discount",),
            "not_whitened": ("advantage.normalization",),
            "values_late": ("advantage.values",),
            "values_missing": ("advantage.values",),
            "rewards_moved": ("advantage.scores_moved",),
            "reward_kl_sign": ("reward.kl_penalty",),
            "reward_kl_left_out": ("reward.kl_penalty",),
            "value_loss_doubled": ("loss.critic_gradient",),
            "value_clip": ("loss.value_loss",),
            "returns_moved": ("loss.value_loss",),
            "critic_epsilon": ("loss.critic_values",),
            "critic_activation": ("loss.critic_values",),
            "values_rounded": ("loss.critic_values",),
            "critic_not_updated": ("loss.critic_update",),
            "critic_adam_epsilon": ("loss.critic_update",),
            # planted after the misses among those above were mended, and not looked at before
            "bootstrapped_end": ("advantage.values", "advantage.recomputed_differs"),
            "whitened_rows": ("advantage.normalization",),
            "biased_variance": ("advantage.normalization",),
            "whitened_returns": ("advantage.recomputed_differs",),
            "score_on_first_token": ("advantage.scores_moved", "advantage.recomputed_differs"),
            "kl_of_rollout": ("reward.kl_penalty",),
            "advantages_late": ("loss.advantages_moved", "loss.recomputed_differs"),
            "lesser_value_loss": ("loss.value_loss",),
            "critic_dropout": ("loss.training_pass", "loss.value_loss", "loss.critic_gradient"),
            "critic_clipped_lower": ("optimizer.clipping", "loss.critic_update"),
            "critic_gradient_kept": ("loss.critic_gradient",),
            "values_stale": ("loss.critic_values",),
        }.items()
    },
}
CLEAN = {
    "repeat": Spec(captures=True),
    "two_ranks": Spec(SETTINGS["v1_two"], captures=True),
    "v0_trainer": Spec(SETTINGS["v0"], captures=True),
    "smaller_micro_batches": Spec(
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",), captures=True
    ),
    "gradient_checkpointing": Spec(
        ("actor_rollout_ref.model.enable_gradient_checkpointing=true",), captures=True
    ),
    "fsdp1": Spec(("actor_rollout_ref.actor.strategy=fsdp",), captures=True),
    "replayed": Spec(replays="reference"),
    "generated_again": Spec(captures=True, generates=True),
    "ppo_repeat": Spec(PPO, captures=True, plugins=CRITIC),
    "ppo_two_ranks": Spec((*PPO, *SETTINGS["v1_two"]), captures=True, plugins=CRITIC),
    "ppo_v0_trainer": Spec((*PPO, *SETTINGS["v0"]), captures=True, plugins=CRITIC),
    "ppo_smaller_micro_batches": Spec(
        (*PPO, "critic.ppo_micro_batch_size_per_gpu=4"), captures=True, plugins=CRITIC
    ),
    "ppo_replayed": Spec(PPO, replays="ppo", plugins=CRITIC),
    "ppo_fsdp1_critic": Spec((*PPO, "critic.strategy=fsdp"), captures=True, plugins=CRITIC),
    "ppo_gradient_checkpointing": Spec(
        (*PPO, "critic.model.enable_gradient_checkpointing=true"), captures=True, plugins=CRITIC
    ),
}
CLEAN_REFERENCE = {
    "generated_again": "generated",
    **{name: "ppo" for name in CLEAN if name.startswith("ppo_")},
}
BFLOAT16 = tuple(
    f"++actor_rollout_ref.{role}.fsdp_config.mixed_precision.param_dtype=bf16"
    for role in ("actor", "ref")
)
_COOLER = ("actor_rollout_ref.rollout.temperature=0.7",)


def specs(overrides: tuple[str, ...] = ()) -> dict[str, Spec]:
    """Return every run.

    Args:
        overrides: of all of them.
    """
    every = {
        "reference": Spec(captures=True),
        "generated": Spec(captures=True, generates=True),
        "cooler": Spec(_COOLER, captures=True, generates=True),
        "ppo": Spec(PPO, captures=True, plugins=CRITIC),
        **CLEAN,
        **{name: _planted(name, must) for name, must in FAULTS.items()},
    }
    return {n: replace(s, overrides=(*s.overrides, *overrides)) for n, s in every.items()}


def _planted(name: str, must: Must) -> Spec:
    if must.reference == "cooler":
        return Spec(_COOLER, replays=must.reference, planted=name)
    if must.reference == "ppo":
        return Spec(PPO, captures=True, plugins=CRITIC, planted=name)
    return Spec(captures=True, planted=name)


def main() -> int:
    """Make the runs that are not there, and print one row for each fault and clean pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="faults and clean pairs; all by default")
    parser.add_argument(
        "--bfloat16", action="store_true", help="actor and reference compute in it; other folder"
    )
    parser.add_argument("--shared", type=Path, default=SHARED)
    arguments = parser.parse_intermixed_args()
    names = arguments.names or [*FAULTS, *CLEAN]
    references = {name: _reference(name) for name in names}
    wanted = [*dict.fromkeys(references.values()), *names]
    folder = arguments.folder.resolve()
    if not folder.exists():
        folder.mkdir(parents=True)
        reference = arguments.shared / "reference"
        lay_out(folder, reference / "verl_cpu", reference / "verl_runs")
    overrides = BFLOAT16 if arguments.bfloat16 else ()
    make(folder, [name for name in wanted if not _is_made(folder, name)], overrides)
    judged = [
        judge(name, FAULTS.get(name), _capture(folder, reference), _capture(folder, name))
        for name, reference in references.items()
    ]
    sources = (LAYER_FAULTS, PLUGIN / "planted.py", PLUGIN / "critic_faults.py")
    words = {name: text for source in sources for name, text in docstrings(source).items()}
    print(table(judged, words))
    return 0 if all(each.is_right for each in judged) else 1


def make(folder: Path, names: list[str], overrides: tuple[str, ...]) -> None:
    """Make runs, two at a time, each in processes that begin with torch imported."""
    if not names:
        return
    with _warm(folder) as python:
        runs = _Kept(folder, python, specs(overrides))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for name, done in zip(names, pool.map(lambda n: _made(runs, n), names), strict=True):
                print(f"{name}: {done}", file=sys.stderr, flush=True)


class _Kept(Runs):
    """Runs of which those that are in the folder already are not made again."""

    def get(self, name: str) -> Ran:
        if _is_made(self._work, name):
            return Ran(self._work / name, self._work / f"{name}-capture")
        return super().get(name)


def _reference(name: str) -> str:
    if name in FAULTS:
        return FAULTS[name].reference
    return CLEAN_REFERENCE.get(name, "reference")


def _capture(folder: Path, name: str) -> Path | None:
    return folder / f"{name}-capture" if _is_made(folder, name) else None


def _is_made(folder: Path, name: str) -> bool:
    return (folder / f"{name}.made").exists()


def _made(runs: Runs, name: str) -> str:
    try:
        ran = runs.get(name)
    except AssertionError as error:
        return str(error)
    ran.out.with_suffix(".made").touch()
    return "made"


@contextlib.contextmanager
def _warm(folder: Path) -> Iterator[Path]:
    warm = folder / "warm"
    warm.mkdir(exist_ok=True)
    environment: Mapping[str, str] = surroundings(folder)
    with warm_python(warm, dict(environment)) as python:
        yield python


if __name__ == "__main__":
    sys.exit(main())
