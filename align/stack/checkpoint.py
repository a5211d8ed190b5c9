"""Save a run after a step and continue it exactly.

``checkpoints/global_step_N/`` holds safetensors of the models and optimizers and ``state.json``.
No random state is saved: every step derives its own from the seeds.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from align.core.errors import RunError
from align.stack import sharding
from align.stack.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    from align.stack.setup import Setup

_STEP_FOLDER = "global_step_"


def save(out: Path, step: int, setup: Setup) -> None:
    """Write the checkpoint of a finished step; it appears whole or not at all."""
    folder = out / "checkpoints" / f"{_STEP_FOLDER}{step}"
    part = folder.with_name(f".{folder.name}.part")
    tensors_by_file = _tensors(setup)
    if sharding.rank():
        return
    shutil.rmtree(part, ignore_errors=True)
    for name, tensors in tensors_by_file.items():
        write_tensors(part / f"{name}.safetensors", tensors)
    state = {"step": step, "num_consumed": setup.num_consumed, "kl_coef": setup.kl_coefficient}
    (part / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)


def latest_step(out: Path) -> int:
    """Return the step of the newest checkpoint, 0 without any."""
    folders = (out / "checkpoints").glob(f"{_STEP_FOLDER}*")
    return max((int(f.name.removeprefix(_STEP_FOLDER)) for f in folders), default=0)


def restore(out: Path, step: int, setup: Setup) -> None:
    """Load a checkpoint into a run that was just set up; the order is not moved.

    Raises:
        RunError: The checkpoint is of another model or algorithm.
    """
    folder = out / "checkpoints" / f"{_STEP_FOLDER}{step}"
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    setup.num_consumed, setup.kl_coefficient = state["num_consumed"], state["kl_coef"]
    try:
        _load(setup.model, setup.optimizer, folder, "actor")
        if setup.critic is not None and setup.critic_optimizer is not None:
            _load(setup.critic, setup.critic_optimizer, folder, "critic")
    except (OSError, RuntimeError, KeyError) as error:
        raise RunError(
            where=str(folder),
            problem=f"does not fit this configuration ({str(error).splitlines()[0]})",
            fix="resume with the configuration the run was started with",
        ) from error


def resume_order(order: Iterator[list[int]], num_consumed: int) -> Iterator[list[int]]:
    """Skip the entries of the order that the run has consumed."""
    return islice(order, num_consumed, None)


def _tensors(setup: Setup) -> dict[str, Mapping[str, Tensor]]:
    tensors: dict[str, Mapping[str, Tensor]] = {
        "actor": _model_tensors(setup.model),
        "actor_optimizer": _optimizer_tensors(setup.optimizer),
    }
    if setup.critic is not None and setup.critic_optimizer is not None:
        tensors["critic"] = _model_tensors(setup.critic)
        tensors["critic_optimizer"] = _optimizer_tensors(setup.critic_optimizer)
    return tensors


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: sharding.whole(tensor) for name, tensor in model.state_dict().items()}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Name an optimizer's states by parameter number and name: ``3.exp_avg``."""
    states = optimizer.state_dict()["state"]
    return {
        f"{i}.{name}": sharding.whole(tensor)
        for i, state in states.items()
        for name, tensor in state.items()
    }


def _load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, name: str) -> None:
    weights = read_tensors(folder / f"{name}.safetensors")
    for key, tensor in model.state_dict().items():
        sharding.fill(tensor, weights[key])
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in read_tensors(folder / f"{name}_optimizer.safetensors").items():
        number, state = key.split(".", 1)
        own = sharding.part_of(tensor, parameters[int(number)])
        states.setdefault(int(number), {})[state] = own
    optimizer.load_state_dict(
        {"state": states, "param_groups": optimizer.state_dict()["param_groups"]}
    )
