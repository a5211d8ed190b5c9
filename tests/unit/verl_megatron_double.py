"""A small double of verl's Megatron engine (0.8 and later) and Megatron actor (to 0.7).

Names and signatures are those of verl's tags v0.5.0 to v0.9.0 and of 0.9.1, in `SIGNATURES`; a test
holds them against the double, another against the verl that is installed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.unit.mindspeed_rl_double import CONFIG, Actor, Optimizer

SIGNATURES = {
    "MegatronEngine.initialize": ("self",),
    "MegatronEngine.optimizer_step": ("self",),
    "MegatronEngine.get_per_tensor_param": ("self", "base_sync_done", "kwargs"),
    "MegatronEngine.get_per_tensor_param_shard": ("self", "kwargs"),
    "MegatronEngineWithLMHead.prepare_model_inputs": ("self", "batch"),
    "MegatronEngineWithLMHead.forward_step": (
        *("self", "batch_iter", "model"),
        *("logits_processor_func", "postprocess_micro_batch_func"),
    ),
}


class Engine:
    """Keeps its parameters away from the device, which leaves NaN, but where it works on them."""

    def __init__(
        self, *, forward_only: bool = False, has_rows: bool = True, **settings: Any
    ) -> None:
        self.engine_config = SimpleNamespace(forward_only=forward_only, **settings)
        self.model_config = SimpleNamespace(hf_config=SimpleNamespace(to_dict=lambda: dict(CONFIG)))
        self.peft_cls, self._qat_enabled, self.has_rows = None, False, has_rows

    def is_mp_src_rank_with_outputs(self) -> bool:
        return self.has_rows

    def initialize(self) -> None:
        torch.manual_seed(4)
        self.module: list[nn.Module] = [Actor()]
        self.optimizer = None if self.engine_config.forward_only else Optimizer(self.module[0])
        self.offload()

    def offload(self) -> None:
        parameters = list(self.module[0].parameters())
        self.kept = [parameter.detach().clone() for parameter in parameters]
        for parameter in parameters:
            parameter.data.fill_(float("nan"))

    def load(self) -> None:
        for parameter, value in zip(self.module[0].parameters(), self.kept, strict=True):
            parameter.data.copy_(value)

    def optimizer_step(self) -> float:
        assert self.optimizer is not None
        return self.optimizer.step()[1]

    def get_per_tensor_param(self, base_sync_done: bool = False, **kwargs: Any) -> Any:
        self.load()
        return iter(self.module[0].state_dict().items()), None

    def get_per_tensor_param_shard(self, **kwargs: Any) -> Any:
        self.load()
        return iter(self.module[0].state_dict().items()), None

    def train(self, rows: list[Tensor], *, forward_only: bool = False) -> None:
        """Do what `forward_backward_batch` and `optimizer_step` do with one micro-batch."""
        self.load()
        process = functools.partial(_process, forward_only=forward_only)
        batch = {"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
        step = functools.partial(
            self.forward_step,  # type: ignore[attr-defined]
            logits_processor_func=None,
            postprocess_micro_batch_func=process,
        )
        with torch.set_grad_enabled(not forward_only):
            logits = step(iter([batch]), self.module[0])
        if not forward_only:
            for parameter in self.module[0].parameters():
                parameter.grad = None
            logits.log_softmax(-1)[..., 3].mean().neg().backward()
            self.optimizer_step()
        self.offload()


def _process(output: Any, forward_only: bool) -> Any:
    return output


class Worker:
    """Has the rollout's settings, which `ActorRolloutRefWorker.update_weights` is hooked for."""

    config = SimpleNamespace(rollout=SimpleNamespace(dtype="float32"))

    def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> None:
        """Send nothing anywhere."""


def engine_module() -> ModuleType:
    """Return a module whose classes can be hooked without others being so."""

    class MegatronEngine(Engine):
        """Of all roles."""

    class MegatronEngineWithLMHead(MegatronEngine):
        """The actor's and the reference's."""

        def prepare_model_inputs(self, batch: Any) -> Any:
            return {"input_ids": batch["input_ids"]}

        def forward_step(
            self,
            batch_iter: Iterator[Any],
            model: nn.Module,
            logits_processor_func: Any,
            postprocess_micro_batch_func: Any,
        ) -> Any:
            ids = self.prepare_model_inputs(next(batch_iter))["input_ids"]
            padded = ids.to_padded_tensor(0)
            places = torch.arange(padded.shape[1]).expand_as(padded)
            return model(input_ids=padded, position_ids=places, attention_mask=None)

    class MegatronEngineWithValueHead(MegatronEngineWithLMHead):
        """The critic's."""

    made = ModuleType("verl.workers.engine.megatron.transformer_impl")
    for kind in (MegatronEngine, MegatronEngineWithLMHead, MegatronEngineWithValueHead):
        setattr(made, kind.__name__, kind)
    return made
