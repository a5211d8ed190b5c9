"""Updates of a run that does one a step: their log_probs are old_log_probs, recorded or not."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from align.core.config_value import EffectiveConfig
from align.core.errors import AlignError
from align.core.run import ArtifactKind
from align.referee.report import logged_losses
from align.referee.update import (
    NEEDED,
    OPTIONAL,
    Update,
    matrix,
    roundoff_of,
    tensors_by_step,
)
from dumps.readers.trainer_inputs import TrainerInputs
from dumps.store.run_data import RunData


def on_policy_updates(
    run: RunData, config: EffectiveConfig, step: int | None = None
) -> Iterator[Update]:
    """Yield one update a recorded batch, with the losses the run logged; none off policy.

    Rounding can make a second forward pass differ, so a loss that does not fit proves nothing.
    """
    on_policy = config.values.get("derived.on_policy")
    if on_policy is None or on_policy.value is not True:
        return
    for number, batch in sorted(tensors_by_step(run, ArtifactKind.TOKENS).items()):
        if step in (None, number):
            try:
                update = _update(number, batch, run)
            except AlignError as error:
                run.keep_problem(error)
                continue
            if update is not None:
                yield update


def _update(step: int, batch: TrainerInputs, run: RunData) -> Update | None:
    reported, resolution = logged_losses(run, step)
    columns = {name: matrix(batch, name) for name in (*NEEDED, *OPTIONAL)}
    mask, old, advantages = (columns[name] for name in NEEDED)
    if mask is None or old is None or advantages is None or not reported:
        return None
    recorded = batch.tensor("old_log_probs")
    assert recorded is not None
    return Update(
        step=step,
        number=0,
        source=batch.path,
        rows=torch.arange(len(mask)),
        micro_batches=torch.zeros(len(mask), dtype=torch.int64),
        log_probs=old,
        entropys=None,
        mask=mask,
        old_log_probs=old,
        advantages=advantages,
        ref_log_prob=columns["ref_log_prob"],
        rollout_log_probs=columns["rollout_log_probs"],
        reported=reported,
        norm_of_gradients=None,
        roundoff=roundoff_of(recorded),
        resolution=resolution,
    )
