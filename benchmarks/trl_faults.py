"""Faults planted into the code of the real TRL, and clean pairs of it: what a report names first.

    .venv-frameworks/bin/python tests/frameworks/start.py benchmarks.trl_faults FOLDER [NAME ...]

Every run is the real TRL 1.16 on a CPU: four optimizer steps of GRPO, two a generation, captured
with sketches (`align capture`); one a fault (`tests/frameworks/trl/planted.py`), none of which
shows in a configuration. Faults of rewards, advantages, order and tokens sample their own
responses, the others train on the reference's (`align replay`). Runs that are in the folder already
are not made again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fault_table import Must, judge, table
from tests.frameworks.start import TESTS
from tests.frameworks.trl.grpo_process import EVERYTHING

MODEL = Path(__file__).parents[2] / "shared/reference/verl_runs/tiny_model_tokenizer_data/model"
ALIGN = str(Path(sys.executable).with_name("align"))


@dataclass(frozen=True)
class Spec:
    """A run.

    Args:
        plant: what of `planted.py`.
        settings: of GRPOConfig, each as KEY=VALUE.
        replays: the run whose responses it trains on; by default it samples its own.
        environment: variables of its own.
    """

    plant: str = "nothing"
    settings: tuple[str, ...] = ()
    replays: str = ""
    environment: dict[str, str] = field(default_factory=dict)


FAULTS = {
    "wrong_groups": Must(("advantage.groups",)),
    "std_left_out": Must(("advantage.normalization",)),
    "rewards_rolled": Must(("advantage.scores_moved",)),
    "scores_moved": Must(("reward.permuted",)),
    "weak_extraction": Must(("reward.same_response_other_score",)),
    "kl_sign": Must(("loss.kl_sign",)),
    "kl_estimator": Must(("loss.kl_estimator",)),
    "aggregation": Must(("loss.aggregation",)),
    "clip_range": Must(("loss.clip_range",)),
    "mask_shifted": Must(("loss.mask_shifted",)),
    "temperature_missing": Must(("forward.temperature",), reference="cooler"),
    "one_norm_eps": Must(("forward.first_divergence",), "layers.1.post_attention_layernorm"),
    "attention_scale": Must(("forward.first_divergence",), "layers.1.self_attn"),
    "gelu": Must(("forward.first_divergence",), "layers.0.mlp"),
    "rounded_mlp": Must(("forward.first_divergence", "forward.dtype"), "layers.1.mlp"),
    "detached_layer": Must(("backward.first_divergence",), "layers.1.mlp"),
    "loss_doubled": Must(("backward.scale",)),
    "lost_micro_batch": Must(("backward.first_divergence", "backward.scale")),
    "vectors_decayed": Must(("optimizer.weight_decay",)),
    "states_bfloat16": Must(("optimizer.state_dtype",)),
    "adam_epsilon": Must(("optimizer.update",)),
    "rate_halved": Must(("optimizer.lr_schedule",)),
    "reversed_order": Must(("data.order.first_divergent_step",)),
    "prompt_token_lost": Must(("rollout.engine_prompt",)),
    "response_cut": Must(("tokens.response_differs",)),
    # planted after the misses among those above were mended, and not looked at before
    "biased_std": Must(("advantage.normalization", "advantage.scaled")),
    "truncated_scored_zero": Must(("reward.same_response_other_score",)),
    "after_eos": Must(("tokens.after_eos",)),
    "template_space": Must(("data.prompt_template", "tokens.prompt_differs")),
    "old_log_probs_renewed": Must(("loss.old_log_probs",)),
    "ratio_by_sequence": Must(("loss.mode",)),
    "low_clip_missing": Must(("loss.clip_range",)),
    "reference_follows": Must(("forward.ref_log_prob",)),
    "interleaved_rotary": Must(("forward.first_divergence",), "layers.0.self_attn"),
    "norm_gradient": Must(("backward.first_divergence",), "layers.1.post_attention_layernorm"),
    "stale_gradients": Must(("backward.first_divergence", "backward.scale")),
    "always_clipped": Must(("optimizer.clipping",)),
    "bias_correction_missing": Must(("optimizer.update",)),
    "weights_bfloat16": Must(("optimizer.update",)),
}
SAMPLE_THEIR_OWN = {
    *("wrong_groups", "std_left_out", "rewards_rolled", "scores_moved", "weak_extraction"),
    *("reversed_order", "prompt_token_lost", "response_cut"),
    *("biased_std", "truncated_scored_zero", "after_eos", "template_space"),
}
CLEAN = {
    "repeat": Spec(),
    "replayed": Spec(replays="reference"),
    "no_checkpointing": Spec(settings=("gradient_checkpointing=false",)),
    "larger_micro_batches": Spec(
        settings=("per_device_train_batch_size=8", "gradient_accumulation_steps=2")
    ),
    "other_draws": Spec("other_draws"),
    "loader_workers": Spec(settings=("dataloader_num_workers=2",)),
    "two_threads": Spec(environment={"OMP_NUM_THREADS": "2"}),
    "replayed_in_micro_batches": Spec(
        settings=("per_device_train_batch_size=2", "gradient_accumulation_steps=8"),
        replays="reference",
    ),
}
_COOLER = ("temperature=0.7",)


def specs() -> dict[str, Spec]:
    """Return every run."""
    return {
        "reference": Spec(),
        "cooler": Spec(settings=_COOLER),
        **CLEAN,
        **{
            name: Spec(
                name,
                _COOLER if must.reference == "cooler" else (),
                "" if name in SAMPLE_THEIR_OWN else must.reference,
            )
            for name, must in FAULTS.items()
        },
    }


def main() -> int:
    """Make the runs that are not there, and print one row for each fault and clean pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="faults and clean pairs; all by default")
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_intermixed_args()
    names = arguments.names or [*FAULTS, *CLEAN]
    references = {name: FAULTS[name].reference if name in FAULTS else "reference" for name in names}
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys((*references.values(), *names)):
        if not _is_made(folder, name):
            said = make(folder, name, specs()[name], arguments.model)
            print(f"{name}: {said}", file=sys.stderr, flush=True)
    judged = [
        judge(name, FAULTS.get(name), _capture(folder, reference), _capture(folder, name))
        for name, reference in references.items()
    ]
    print(table(judged))
    return 0 if all(each.is_right for each in judged) else 1


def make(folder: Path, name: str, spec: Spec, model: Path) -> str:
    """Make a run; say how it ended."""
    script = (str(TESTS / "frameworks/start.py"), "tests.frameworks.trl.planted")
    train = (sys.executable, *script, str(model), str(folder / f"{name}.json"), spec.plant)
    kind = ("replay", "--rollouts", str(folder / spec.replays)) if spec.replays else ("capture",)
    command = [ALIGN, *kind, "-o", str(folder / name), "--what", EVERYTHING, "--", *train]
    threads = {"MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *spec.settings],
        env={**os.environ, **threads, **spec.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return (done.stdout + done.stderr)[-3000:]
    (folder / f"{name}.made").touch()
    return "made"


def _capture(folder: Path, name: str) -> Path | None:
    return folder / name if _is_made(folder, name) else None


def _is_made(folder: Path, name: str) -> bool:
    return (folder / f"{name}.made").exists()


if __name__ == "__main__":
    sys.exit(main())
