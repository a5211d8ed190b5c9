"""verl's workers: what each rank trains on, micro-batch by micro-batch.

One process can hold the actor, the reference model and the rollout engine's client. A step ends
when the weights are sent to the rollout engine (0.8 and later), or when the update returns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from dumps.capture.device import start_copy
from dumps.capture.invariants import broken_in_update
from dumps.capture.megatron_gradients import rank_gradient_squares
from dumps.capture.module_stats import ModuleOutput, hook_modules
from dumps.capture.plan import What
from dumps.capture.session import Session
from dumps.capture.step_sketches import Model, StepSketches
from dumps.capture.stop import stop
from dumps.capture.sync_step import announce_step
from dumps.capture.taps.verl_rank import Rank
from dumps.capture.update_record import UpdateRecord, step_file, writes
from dumps.capture.wrap import After

_RECORDED = (What.LOG_PROBS, What.GRAD_NORMS, What.RNG, What.MODULES)
_STEP_FOLDER = re.compile(r"global_step_(\d+)")


_worker = Rank()


def engine_ready(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """Hook the modules of an engine once it is built, and remember the actor's."""

    def ready(result: Any) -> None:
        if role_of(self) == "actor":
            _worker.module = self.module
            _worker.ulysses = int(getattr(self, "ulysses_sequence_parallel_size", 1))
            if session.takes(What.SKETCHES, What.WEIGHTS):
                _worker.sketches = StepSketches(session.log)
        if session.plan.modules and session.takes(What.MODULES):
            hook_modules(
                self.module,
                session.plan.modules,
                session.log,
                is_wanted=lambda: is_wanted(session),
                keep=_keep_module,
            )

    return ready


def engine_forward(
    session: Session,
    self: Any,
    micro_batch: Any,
    loss_function: Any = None,
    forward_only: bool = False,
    *args: Any,
    **kwargs: Any,
) -> After | None:
    """Note whose micro-batch the model is about to see, and where its sequences start."""
    role = role_of(self)
    _worker.phase = f"{role}.{'forward' if forward_only else 'train'}"
    if forward_only or role != "actor" or not is_wanted(session):
        return None
    _worker.record.begin_micro_batch()
    ids = micro_batch.get("input_ids", None)
    if session.takes(What.INPUTS) and ids is not None and ids.is_nested:
        _worker.record.keep({"input_ids": ids.values(), "cu_seqlens": ids.offsets()})
    return None


def policy_loss(session: Session, *args: Any, **kwargs: Any) -> After:
    """Look at the calls of the loss function that verl looks up by name."""

    def look(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*a: Any, **k: Any) -> Any:
            result = function(*a, **k)
            with session.log.kept("policy loss"):
                _keep_loss(session, result, *a, **k)
            return result

        return called

    return look


def policy_loss_called(session: Session, *args: Any, **kwargs: Any) -> After:
    """Look at a call of the loss function itself (verl 0.5)."""

    def after(result: Any) -> None:
        _keep_loss(session, result, *args, **kwargs)

    return after


def loss_terms(session: Session, *args: Any, **kwargs: Any) -> None:
    """Note which terms besides the policy's a micro-batch's loss is about to sum up, in order."""
    config, output = _called(args, kwargs, "config"), _called(args[1:], kwargs, "model_output")
    _worker.terms = []
    is_kept = session.takes(What.LOG_PROBS) and is_wanted(session) and _worker.has_rows
    if is_kept and _worker.phase == "actor.train":
        has_entropy = output.get("entropy", None) is not None
        _worker.terms += ["entropy"] * has_entropy + ["kl"] * bool(config.use_kl_loss)


def term_summed(session: Session, *args: Any, **kwargs: Any) -> After | None:
    """Keep a term's sum, and the entropy of every token."""
    if not _worker.terms:
        return None
    term = _worker.terms.pop(0)
    if term == "entropy":
        _worker.record.keep({"entropys": _called(args, kwargs, "loss_mat")})

    def after(result: Any) -> None:
        _worker.record.keep({f"{term}_loss": result})

    return after


def value_loss(session: Session, *args: Any, **kwargs: Any) -> After | None:
    """Keep what the critic's loss of a micro-batch is made of, and the loss."""
    if not (session.takes(What.LOG_PROBS) and is_wanted(session) and _worker.has_rows):
        return None
    names = ("vpreds", "returns", "values", "response_mask")
    tensors = dict(zip(names, args, strict=False)) | {n: kwargs[n] for n in names if n in kwargs}

    def after(result: Any) -> None:
        _worker.critic.begin_micro_batch()
        _worker.critic.keep({**tensors, "value_loss": result[0]})

    return after


def engine_update(session: Session, self: Any, *args: Any, **kwargs: Any) -> After | None:
    """Read the gradients just before the optimizer of an engine uses them (0.8 and later)."""
    role = role_of(self)
    if role == "critic":
        return critic_update(session)
    return update_of(session, self.module, self.optimizer) if role == "actor" else None


def critic_update(session: Session) -> After | None:
    """Keep the norm of the critic's gradient."""
    if not is_wanted(session):
        return None

    def after(result: Any) -> None:
        if session.takes(What.GRAD_NORMS):
            _worker.critic.keep_norm(result)
        _worker.critic.end_update()

    return after


def actor_update(session: Session, self: Any, *args: Any, **kwargs: Any) -> After | None:
    """Read the gradients just before the optimizer of an actor uses them (to 0.7)."""
    return update_of(session, self.actor_module, None)


def weights_sent(
    session: Session, self: Any, global_steps: int | None = None, *args: Any, **kwargs: Any
) -> None:
    """End the step: its weights go to the rollout engine now. verl says its number.

    Without one, and before any update, the weights of the step in progress are sent once more.
    """
    worker, is_again = _worker, global_steps is None and not _worker.record.update
    if not is_again:
        worker.step = worker.step if global_steps is None else int(global_steps)
        _end_step(session, self)
    elif worker.sketches is not None:
        announce_step(session.plan.run, worker.step)


def actor_updated(session: Session, self: Any, *args: Any, **kwargs: Any) -> After:
    """End the step after the actor's update (to 0.7, which does not say its number)."""

    def after(result: Any) -> None:
        _end_step(session)

    return after


def resumed(session: Session, self: Any, local_path: Any = None, *args: Any, **kwargs: Any) -> None:
    """Count steps from where a run resumes, as its checkpoint's folder says."""
    found = _STEP_FOLDER.search(str(kwargs.get("checkpoint_path", local_path)))
    if found:
        _worker.step = int(found[1]) + 1


def this_rank() -> Rank:
    """Return what this process records."""
    return _worker


def step_in_progress() -> int:
    """Return the number of the step that this process trains."""
    return _worker.step


def role_of(engine: Any) -> str:
    """Return whose engine it is: "actor", "ref" or "critic"."""
    if getattr(engine.engine_config, "forward_only", False):
        return "ref"
    return "critic" if "ValueHead" in type(engine).__name__ else "actor"


def is_wanted(session: Session) -> bool:
    """Tell whether this rank's part of the step in progress is recorded."""
    plan = session.plan
    return plan.takes_step(_worker.step) and plan.takes_rank(_worker.rank)


def _called(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    return kwargs[name] if name in kwargs else args[0]


def _keep_module(output: ModuleOutput) -> None:
    _worker.record.keep_module(_worker.phase, output)


def _keep_loss(
    session: Session,
    result: Any,
    old_log_prob: Any = None,
    log_prob: Any = None,
    advantages: Any = None,
    response_mask: Any = None,
    **kwargs: Any,
) -> None:
    if not session.takes(What.LOG_PROBS) or not is_wanted(session) or not _worker.has_rows:
        return
    if _worker.phase != "actor.train":  # to 0.7 no engine has said that a micro-batch begins
        _worker.record.begin_micro_batch()
    loss = result[0] if isinstance(result, tuple) else result
    _worker.record.keep(
        {
            "old_log_probs": old_log_prob,
            "log_probs": log_prob,
            "advantages": advantages,
            "response_mask": response_mask,
            "policy_loss": loss,
        }
    )


def update_of(session: Session, module: Model, optimizer: Any) -> After | None:
    """Read the gradients of an actor before its optimizer uses them; then its norm, given that."""
    if not is_wanted(session):
        return None
    record = _worker.record
    if session.takes(What.GRAD_NORMS):
        names, squares = rank_gradient_squares(module, optimizer)
        record.keep_rows(f"update.{record.update}.gradient_squares", names, squares)
    sketched = None
    if _worker.sketches is not None:
        with session.sketching("the gradients"):
            sketched = _worker.sketches.update(module, optimizer)

    def after(result: Any) -> None:
        if sketched is not None:
            with session.sketching("the update"):
                sketched()
        if session.takes(What.GRAD_NORMS):
            record.keep_norm(result)
        record.end_update()

    return after


def _end_step(session: Session, rollout_worker: Any = None) -> None:
    """Have this step's files written, and begin the next step.

    Args:
        rollout_worker: verl's, whose rollout engine is given the weights now.
    """
    worker, record, critic, step = _worker, _worker.record, _worker.critic, _worker.step
    wanted = session.takes(*_RECORDED) and is_wanted(session) and record.update > 0
    parts = worker.end_sketches(session, rollout_worker)
    worker.record, worker.critic, worker.step = UpdateRecord(), UpdateRecord(), step + 1
    if not (wanted or parts or critic.update):
        return
    tensors, sums = record.on_device() if wanted else {}, dict[str, torch.Tensor]()
    valued = {f"critic/{name}": tensor for name, tensor in critic.on_device().items()}
    with session.sketching("the step"):
        sums = {name: tensor for part in parts for name, tensor in part.tensors().items()}
    host = start_copy({**tensors, **valued, **sums})()
    files = {}
    if critic.update:
        notes = critic.notes(step, worker.rank, "critic", losses_add_up=True)
        own = {name.removeprefix("critic/"): host[name] for name in valued}
        files[step_file(step, f"critic-{worker.rank}")] = writes(own, notes)
    if wanted:
        by_engine = worker.phase.endswith(".train")  # 0.8 and later: divided by the update
        notes = record.notes(step, worker.rank, "actor", losses_add_up=by_engine)
        files[step_file(step, worker.name)] = writes({name: host[name] for name in tensors}, notes)
    for part in parts:
        files.update(part.writes(host))
    writer = session.writer(worker.name)
    writer.submit(step if wanted else None, lambda: files)
    session.note_time(worker.name, step)
    # Ray ends its workers without notice; without sketches this is next to nothing
    with session.sketching("files") if parts else nullcontext():
        writer.drain()
    if wanted and session.plan.stops_on_error:
        stop(session, step, _broken(host))


def _broken(host: dict[str, torch.Tensor]) -> Iterator[str]:
    first = {name: host.get(f"update.0.micro.0.{name}") for name in _FIRST}
    old, new, mask = (first[name] for name in _FIRST)
    if old is not None and new is not None and mask is not None:
        yield from broken_in_update(old, new, mask)
    squares = [t.sum() for name, t in host.items() if name.endswith("gradient_squares")]
    if not all(bool(torch.isfinite(total)) for total in squares):
        yield "gradients are NaN or infinite"


_FIRST = ("old_log_probs", "log_probs", "response_mask")
