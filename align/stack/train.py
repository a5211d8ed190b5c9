"""The training loop, from the first step to the last. Read this file first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from align.stack import checkpoint, metrics, sharding
from align.stack.actor import update_actor
from align.stack.algorithms.dapo import penalise_overlong
from align.stack.batch import TrainBatch
from align.stack.collect import Collected, collect
from align.stack.config import StackConfig
from align.stack.critic import compute_values, update_critic
from align.stack.device import seed_step
from align.stack.frozen_log_probs import frozen_log_probs, with_old_log_probs
from align.stack.kl_penalty import with_kl_penalty
from align.stack.pipeline import Pipeline
from align.stack.run_folder import RunFolder
from align.stack.setup import Setup, set_up
from align.stack.sketches import Sketches
from align.stack.update_log import UpdateLog

Metrics = dict[str, float]


def train(
    config: StackConfig,
    out: Path,
    pipeline: Pipeline | None = None,
    *,
    resume: bool = False,
    warmup_cache: Path | None = None,
) -> None:
    """Run a configuration and write its run folder.

    Args:
        config: checked, from `load_config`.
        out: the run folder; an older run in it is replaced.
        pipeline: the stages; the real ones by default.
        resume: continue after the newest checkpoint in ``out``, if there is any.
        warmup_cache: folder of starting weights that several runs share; ``out/warmup`` by default.
    """
    pipeline = pipeline or Pipeline()
    setup = set_up(config, pipeline, warmup_cache or out / "warmup")
    done = checkpoint.latest_step(out) if resume else 0
    if done:
        checkpoint.restore(out, done, setup)
        setup.order = pipeline.resume_order(setup.order, setup.num_consumed)
    folder = RunFolder(out, config, setup)
    folder.open(done)
    sketches = Sketches(
        out, config.trainer.total_training_steps, is_on=config.stack.record_sketches
    )
    pipeline = sketches.of(pipeline)
    for step in range(done + 1, config.trainer.total_training_steps + 1):
        timings: Metrics = {}
        updates = UpdateLog()
        with sketches.step(setup.model, step):
            collected, batch, values = train_step(setup, config, pipeline, step, timings, updates)
        folder.write_step(step, collected, batch, updates.tensors(), values, timings)
        if _saves(config, step):
            checkpoint.save(out, step, setup)
    folder.close()
    sharding.leave()


def train_step(
    setup: Setup,
    config: StackConfig,
    pipeline: Pipeline,
    step: int,
    timings: Metrics,
    updates: UpdateLog,
) -> tuple[Collected, TrainBatch, Metrics]:
    """Do one step, numbered from 1: generate, score, judge, update."""
    seed_step(config.actor.fsdp_config.seed + sharding.rank(), step)
    with _timed(timings, "gen"):
        pipeline.sync_weights(setup.model, setup.rollout_model)
        collected = collect(setup, config, pipeline, step)
    batch = pipeline.assemble(collected.responses, collected.scores, setup.tokenizer, config)
    batch = batch.to(setup.device)
    totals = [score.total for score in collected.scores]
    values: Metrics = pipeline.summarise_scores(collected.scores, collected.rows)
    if config.reward_model.reward_kwargs.overlong_buffer_cfg.enable:
        batch = penalise_overlong(batch, config)
    with _timed(timings, "old_log_prob"):
        batch, entropy = with_old_log_probs(setup.model, batch, config, pipeline)
    values |= metrics.entropy_metric(entropy, batch, config) | metrics.mismatch_metrics(batch)
    if setup.reference is not None:
        with _timed(timings, "ref"):
            reference, _ = frozen_log_probs(setup.reference, batch, config, pipeline)
            batch = replace(batch, ref_log_prob=reference)
    if setup.critic is not None:
        batch = replace(batch, values=compute_values(setup.critic, batch, config))
    if config.algorithm.use_kl_in_reward:
        batch, kl, setup.kl_coefficient = with_kl_penalty(batch, setup.kl_coefficient, config)
        values |= kl
    values |= metrics.data_metrics(batch, totals, config)
    with _timed(timings, "adv"):
        batch = pipeline.advantages(batch, config)
    values |= metrics.advantage_metrics(batch)
    if setup.critic is not None and setup.critic_optimizer is not None:
        with _timed(timings, "update_critic"):
            values |= update_critic(setup.critic, setup.critic_optimizer, batch, config, step - 1)
    if step > config.trainer.critic_warmup:
        with _timed(timings, "update_actor"):
            values |= update_actor(
                setup.model, setup.optimizer, batch, config, pipeline, step - 1, updates
            )
    values["training/global_step"] = step
    return collected, batch, dict(sorted(values.items()))


def _saves(config: StackConfig, step: int) -> bool:
    every = config.trainer.save_freq
    return step == config.trainer.total_training_steps or (every > 0 and step % every == 0)


@contextmanager
def _timed(timings: Metrics, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[f"timing_s/{name}"] = time.perf_counter() - start
