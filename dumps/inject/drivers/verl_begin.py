"""verl's trainer before its first step: checks, and the row order."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dumps.capture.install import installed_version
from dumps.inject.drivers.fixed_order import FixedOrder
from dumps.inject.drivers.verl_order import ordered_positions
from dumps.inject.drivers.verl_prompts import Templating, templating, upcoming
from dumps.inject.drivers.verl_state import state
from dumps.inject.plan import ReplayPlan, Source
from dumps.inject.preflight import Candidate
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt
from dumps.inject.replay import Replay


def fit(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare the whole record with the run, then let it begin."""
    config = self.config
    rollout, data = config.actor_rollout_ref.rollout, config.data
    state.trainer, state.makes = self, templating(self.tokenizer, data)
    first = _steps_done(self) + 1
    wanted = range(first, int(self.total_training_steps) + 1)
    run = Candidate(
        num_samples=int(rollout.n),
        max_prompt_length=int(data.max_prompt_length),
        max_response_length=int(data.max_response_length),
        eos_ids=_eos_ids(self.tokenizer, config.actor_rollout_ref.model.path),
        asks_log_probs=bool(rollout.get("calculate_log_probs", False)),
    )
    asked = _asked(replay, self, state.templating, wanted) if first == 1 else {}
    replay.check(run, wanted, asked, self.tokenizer, _not_possible(replay.plan, self))
    return original(self, *args, **kwargs)


def sampler(
    replay: Replay, original: Any, data_config: Any, dataset: Any, *args: Any, **kwargs: Any
) -> Any:
    """V1: give the recorded rows in the recorded order."""
    own = original(data_config, dataset, *args, **kwargs)
    if not replay.plan.sets_order:
        return own
    return _fixed(replay, dataset, data_config, dataset.tokenizer, own)


def loader(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """V0: the same, where the sampler is handed to the trainer."""
    if not replay.plan.sets_order:
        return original(self, *args, **kwargs)
    bound = inspect.signature(original).bind(self, *args, **kwargs).arguments
    given = bound.get("train_sampler")
    if given is None or bound.get("train_dataset") is None:
        replay.refuse([Problem("--order: this run hands no sampler to its trainer")])
    bound["train_sampler"] = _fixed(
        replay, bound["train_dataset"], self.config.data, self.tokenizer, given
    )
    return original(**bound)


def _fixed(replay: Replay, dataset: Any, data_config: Any, tokenizer: Any, own: Any) -> FixedOrder:
    batch_size = int(data_config.get("gen_batch_size") or data_config.train_batch_size)
    makes = templating(tokenizer, data_config)
    return FixedOrder(ordered_positions(replay, dataset, makes), batch_size, own)


def _asked(
    replay: Replay, trainer: Any, makes: Templating, wanted: range
) -> dict[int, list[Prompt]]:
    """Return the prompts of the recorded steps that a run begins with."""
    if _filters(trainer.config):
        return {}
    begun = 0
    while begun < len(wanted) and wanted[begun] in replay.steps:
        begun += 1
    size = int(trainer.config.data.train_batch_size)
    return dict(zip(wanted, upcoming(trainer.train_dataloader, makes, size, begun), strict=False))


def _not_possible(plan: ReplayPlan, trainer: Any) -> Iterator[Problem]:
    """Yield settings with which recorded rollouts cannot be given."""
    config = trainer.config
    if _filters(config) and not plan.sets_order:
        yield Problem(
            "algorithm.filter_groups draws prompts until enough groups have a signal, and only "
            "the groups that stayed are recorded; pass --order with the recorded run",
            is_missing=True,
        )
    version = installed_version("verl")
    if plan.rewards is Source.RECORDED and version is not None and version < (0, 7):
        yield Problem("--rewards recorded needs verl 0.7 or later")
    if not hasattr(trainer, "parameter_sync_step"):
        return  # V0
    if plan.log_probs is Source.RECOMPUTED and config.actor_rollout_ref.rollout.calculate_log_probs:
        yield Problem(
            "verl's V1 trainer looks for the engine's log_probs: with --log-probs recomputed add "
            "actor_rollout_ref.rollout.calculate_log_probs=false to the command"
        )
    mode = str((config.trainer.get("v1") or {}).get("trainer_mode", "sync"))
    if mode != "sync":
        yield Problem(
            f"trainer.v1.trainer_mode is {mode}: it mixes rows of several steps by the clock; "
            "set it to sync"
        )


def _filters(config: Any) -> bool:
    return bool((config.algorithm.get("filter_groups") or {}).get("enable"))


def _steps_done(trainer: Any) -> int:
    """Return the step a run goes on after: V1 has loaded its checkpoint, V0 does it later."""
    done = int(getattr(trainer, "global_steps", 0) or 0)
    settings = trainer.config.trainer
    if done or settings.get("resume_mode", "disable") == "disable":
        return done
    path = Path(str(settings.get("default_local_dir"))) / "latest_checkpointed_iteration.txt"
    return int(path.read_text()) if path.is_file() else 0


def _eos_ids(tokenizer: Any, model: str) -> frozenset[int]:
    ids = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    path = Path(str(model)) / "generation_config.json"
    if path.is_file():
        given = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        ids |= set(given if isinstance(given, list) else [] if given is None else [given])
    return frozenset(ids)
