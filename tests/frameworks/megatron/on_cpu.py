"""What the real Megatron-core needs to train on a CPU, besides the stand-ins of `real_model`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import (
    OptimizerConfig,
    distrib_optimizer,
    get_megatron_optimizer,
)
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class CudaMeansCpu(TorchFunctionMode):
    """Make tensors on the CPU where CUDA is asked for by name."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = torch.device("cpu")
        return func(*args, **given)


def cuda_type(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Say CUDA's name of a tensor's type, which Megatron's optimizers insist on."""
    named = _TYPE(self, *args, **kwargs)
    if args or kwargs or ".cuda." in named:
        return named
    return named.replace("torch.", "torch.cuda.")


_TYPE = Tensor.type
_TENSOR: Any = Tensor
_TENSOR.type = cuda_type


def quantize_nothing(parameters: list[Any], *others: Any) -> None:
    """Quantize no parameter, which 0.12 refuses to do without TransformerEngine."""
    assert not parameters


distrib_optimizer.quantize_param_shard = quantize_nothing


def trainable(
    config: Any,
    models: list[nn.Module],
    *,
    distributed: bool = False,
    lr: float = 1e-2,
    epsilon: float = 1e-8,
) -> tuple[list[Any], Any]:
    """Wrap models as Megatron trains them, with gradient buffers and its own optimizer."""
    buffers = DistributedDataParallelConfig(use_distributed_optimizer=distributed)
    chunks = [DistributedDataParallel(config, buffers, model) for model in models]
    config.finalize_model_grads_func = finalize_model_grads
    settings = OptimizerConfig(
        optimizer="adam",
        lr=lr,
        adam_eps=epsilon,
        clip_grad=1.0,
        use_distributed_optimizer=distributed,
    )
    return chunks, get_megatron_optimizer(settings, chunks, use_gloo_process_groups=False)


def log_softmax_loss(labels: Tensor, output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean cross entropy of logits [b, s, v / tp] that are sharded over ranks."""
    losses = tensor_parallel.vocab_parallel_cross_entropy(output.contiguous(), labels)
    return losses.mean(), {}


def loss_of(labels: Tensor) -> Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]:
    """Return the loss function of a micro-batch."""
    return partial(log_softmax_loss, labels)
