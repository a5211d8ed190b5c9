"""Runs of the real verl on CPU for two steps, FSDP2, by the recipe of the recorded runs.

Its plugin makes verl's registries know a CPU. One run takes 120 seconds of processor time, 35 with
a `python` that has torch and its like imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PLUGIN = Path(__file__).parent / "plugin"
BIN = Path(sys.executable).parent
STEPS = (1, 2)
KINDS = "rollouts,inputs,log_probs,grad_norms,config,metrics,rng,sketches"
TIMEOUT_S = 900
RAY_IS_LATE = "The current node timed out during startup"  # a fixed 30 s, short on a busy machine
AT_ONCE = 2
V0 = "trainer.use_v1=false"
SKIPPED = "model.layers.1.mlp.down_proj.weight"
TWO_RANKS = ("trainer.n_gpus_per_node=2", "++ray_kwargs.ray_init.num_gpus=2")

SETTINGS = {
    "v1": (),
    "v0": (V0,),
    "v1_two": TWO_RANKS,
    "v0_two": (V0, *TWO_RANKS),
}
FAULTS = {
    "kl": "actor_rollout_ref.actor.kl_loss_coef=0.1",
    "eps": "actor_rollout_ref.model.path={work}/other_eps",
    "mini_batch": "actor_rollout_ref.actor.ppo_mini_batch_size=8",
}
PLANTED = (
    ("v1", "kl"),
    ("v1", "eps"),
    ("v1", "mini_batch"),
    ("v0", "kl"),
    ("v0", "eps"),
    ("v0", "mini_batch"),
    ("v1_two", "eps"),
    ("v0_two", "kl"),
)
_CRITIC_DTYPES = ("param", "reduce", "buffer")
PPO = (
    *("algorithm.adv_estimator=gae", "algorithm.gamma=0.99", "algorithm.lam=0.95"),
    *("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.05"),
    "actor_rollout_ref.actor.use_kl_loss=false",
    *("critic.strategy=fsdp2", "critic.fsdp.use_torch_compile=false"),
    *("critic.model.path={work}/tiny/model", "critic.model.use_remove_padding=false"),
    "critic.model.enable_gradient_checkpointing=false",
    *("critic.ppo_micro_batch_size_per_gpu=8", "critic.ppo_mini_batch_size=4"),
    *("critic.optim.lr=1e-3", "critic.cliprange_value=0.2"),
    *(f"+critic.fsdp.mixed_precision.{name}_dtype=fp32" for name in _CRITIC_DTYPES),
)
CRITIC = ("value_engine",)
IN_CODE = ("clip_range",)  # the others: `benchmarks.verl_faults`


@dataclass(frozen=True)
class Spec:
    """What one run is.

    Args:
        captures: it is captured, and trains on the recipe's recorded rollouts unless it
            generates.
        replays: the captured run whose rollouts it trains on; by default the recipe's.
        skipped: parameter that no sync gives to the rollout engine.
        planted: fault in the code of every process (`plugin/planted.py`).
        plugins: other modules of `plugin` that every process imports.
        warm: torch and its like are imported before its processes begin.
    """

    overrides: tuple[str, ...] = ()
    captures: bool = False
    replays: str = ""
    skipped: str = ""
    planted: str = ""
    plugins: tuple[str, ...] = ()
    generates: bool = False
    warm: bool = True


# One capture is of interpreters that begin as a user's do.
RUNS = {
    "v1_captured": Spec(captures=True, warm=False),
    "v1_plain": Spec(),
    "v0_captured": Spec(SETTINGS["v0"], captures=True),
    "v0_plain": Spec(SETTINGS["v0"]),
    "v1_again": Spec(replays="v1_captured"),
    "v0_again": Spec(SETTINGS["v0"], replays="v0_captured"),
    "v1_two_captured": Spec(SETTINGS["v1_two"], captures=True, skipped=SKIPPED),
    "v0_two_captured": Spec(SETTINGS["v0_two"], captures=True),
    "v1_two_again": Spec(SETTINGS["v1_two"], replays="v1_two_captured"),
    "v0_two_again": Spec(SETTINGS["v0_two"], replays="v0_two_captured"),
    **{
        f"{setting}_{fault}": Spec(
            (*SETTINGS[setting], FAULTS[fault]), replays=f"{setting}_captured"
        )
        for setting, fault in PLANTED
    },
    **{f"v1_{fault}": Spec(captures=True, planted=fault) for fault in IN_CODE},
    "ppo_gradient_doubled": Spec(PPO, captures=True, plugins=CRITIC, planted="value_loss_doubled"),
}


@dataclass(frozen=True)
class Ran:
    """One run: what verl logged of itself, and what a capture wrote."""

    out: Path
    capture: Path

    def logged(self) -> dict[int, dict[str, float]]:
        rows = [json.loads(line) for line in (self.out / "metrics.jsonl").open()]
        return {row["step"]: row["data"] for row in rows}

    def numerics(self) -> dict[int, dict[str, float]]:
        """Everything logged but times and memory."""
        return {
            step: {
                k: v for k, v in data.items() if not k.startswith(("timing", "perf", "actor/perf"))
            }
            for step, data in self.logged().items()
        }


@dataclass(frozen=True)
class Pair:
    plain: Ran
    captured: Ran


class Runs:
    """Makes each run once, two at a time, while other tests go on.

    Args:
        work: folder with model, data, plugins and the recipe's script.
        python: with torch and its like imported; None to have every run import them.
    """

    def __init__(
        self, work: Path, python: Path | None, specs: Mapping[str, Spec] | None = None
    ) -> None:
        self._work, self._python, self._specs = work, python, RUNS if specs is None else specs
        self._made: dict[str, Future[Ran]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def begin(self, names: Iterable[str]) -> None:
        """Have runs made in the background, in this order."""
        for name in names:
            self._pool.submit(self.get, name)

    def get(self, name: str) -> Ran:
        """Wait for a run; make it here and now where nothing has begun it."""
        with self._lock:
            is_mine = name not in self._made
            future = self._made.setdefault(name, Future())
        if is_mine:
            try:
                future.set_result(self._make(name, self._specs[name]))
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def close(self) -> None:
        """Wait for what runs; begin nothing more."""
        self._pool.shutdown(cancel_futures=True)

    def _make(self, name: str, spec: Spec) -> Ran:
        capture = self._work / f"{name}-capture"
        align = f"python {BIN / 'align'}"
        overrides = [text.format(work=self._work) for text in spec.overrides]
        if spec.replays:
            recorded = self.get(spec.replays).capture
            prefix = f"{align} replay --rollouts {recorded} -o {capture} --"
            environment = OTHER_ENGINE
        else:
            prefix = f"{align} capture -o {capture} --what {KINDS} --" if spec.captures else ""
            rollouts = "without_trl" if spec.generates else "recorded_rollouts"
            environment = {
                "XMOD": f",{rollouts},looked_at_engine",
                "SKIPPED_WEIGHT": spec.skipped,
                "RECORDED_ROLLOUTS": str(self._work / "rollouts.jsonl"),
            }
            overrides = [*(() if spec.generates else RECORDED), *overrides]
        plugins = (*spec.plugins, *(("planted",) if spec.planted else ()))
        environment = {
            **environment,
            "XMOD": ",".join((environment["XMOD"], *plugins)),
            "PLANTED_FAULT": spec.planted,
        }
        python = self._python if spec.warm else None
        done = start(self._work, name, prefix, overrides, environment, python)
        assert done.returncode == 0, f"{name}: {(done.stdout + done.stderr)[-3000:]}"
        return Ran(self._work / name, capture)


def start(
    work: Path,
    name: str,
    prefix: str,
    overrides: list[str],
    environment: dict[str, str],
    python: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run verl for two steps with a prefix before its command."""
    folders, overrides = [str(BIN), os.environ["PATH"]], [*_SHORT, *overrides]
    if python is not None:
        folders.insert(0, str(python.parent))
        overrides.append(f"+ray_kwargs.ray_init.runtime_env.py_executable={python}")
    command = ["bash", str(work / "run_v1.sh"), str(work / name), *overrides]
    environment = {
        **surroundings(work),
        "PATH": os.pathsep.join(folders),
        "PREFIX": prefix,
        **environment,
    }
    done = _run(command, environment)
    return _run(command, environment) if RAY_IS_LATE in done.stdout + done.stderr else done


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def surroundings(work: Path) -> dict[str, str]:
    """Return the environment that all runs have in common; the recipe's script says it again."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "R": str(work),
        "STRATEGY": "fsdp2",
        "MKL_CBWR": "COMPATIBLE",
        "RAY_worker_niceness": "0",
        "RAY_prestart_worker_first_driver": "0",
    }


OTHER_ENGINE = {"HF_CPU_SEED": "7", "XMOD": ",without_trl"}
_SHORT = (
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.logger=[console,file]",
)
RECORDED = (
    "actor_rollout_ref.rollout.agent.default_agent_loop=recorded",
    f"actor_rollout_ref.rollout.agent.agent_loop_config_path={PLUGIN}/recorded_rollouts.yaml",
    f"trainer.v1.sampler.custom_sampler.path={PLUGIN}/ordered_replay_buffer.py",
    "trainer.v1.sampler.custom_sampler.name=OrderedReplayBuffer",
)
