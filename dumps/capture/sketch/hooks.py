"""Sketch what the modules of a model compute, by forward hooks and tensor hooks alone.

Tensor hooks look at a gradient and leave the graph as it is; module backward hooks would add nodes
to it and change the order in which gradients are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dumps.capture.gradients import local, plain_name
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.token_keys import Tokens, kept, num_sequences, tokens_of
from dumps.store.tensor_records import CLOSING, Phase

_BOUNDS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens")


class Log(Protocol):
    """Keeps failures out of training (`dumps.capture.failures.FailureLog`)."""

    def kept(self, place: str) -> AbstractContextManager[None]:
        """Keep an exception of a block away from its surroundings."""
        ...


class ModuleHooks:
    """Hooks on a model, from its construction until `remove`.

    The forward of a step is that of its first kind of pass, without gradients or with them: the
    pass for log_probs, say, and not the update's as well. A forward that gradient checkpointing
    computes again is not counted again.

    Args:
        root: called with the ids of the tokens.
        patterns: shell patterns of module names.
        sequence_first: activations are [s, b, …]; matters only where s = b.
    """

    def __init__(
        self,
        root: nn.Module,
        recorder: Recorder,
        log: Log,
        patterns: Sequence[str] = ("*",),
        *,
        sequence_first: bool = False,
    ) -> None:
        self._recorder, self._log, self._sequence_first = recorder, log, sequence_first
        self._tokens: list[Tokens] = []
        self._depth = 0
        self._first_kind: bool | None = None
        self._records_forward = False
        self._handles = [
            root.register_forward_pre_hook(self._enter, with_kwargs=True),
            root.register_forward_hook(self._leave, always_call=True),
        ]
        for name, module in root.named_modules():
            plain = plain_name(name)
            if name and any(fnmatchcase(plain, pattern) for pattern in patterns):
                self._handles.append(module.register_forward_hook(self._hook(plain)))

    def remove(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._depth += 1
        if self._depth > 1 or in_backward():
            return
        self._tokens = []
        grad = torch.is_grad_enabled()
        with self._log.kept("token keys"), torch.no_grad():
            self._tokens = self._keyed(args, kwargs)
            self._first_kind = grad if self._first_kind is None else self._first_kind
            self._records_forward = grad == self._first_kind
            if self._tokens and self._records_forward:
                self._record_positions(kwargs)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1

    def _keyed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tokens]:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
            self._recorder.problems.add("the model is not called with input_ids [b, s]")
            return []
        tokens = tokens_of(
            ids, kwargs.get("attention_mask"), kwargs.get("position_ids"), _bounds(kwargs)
        )
        fewer = kept(tokens, kwargs.get("logits_to_keep", 0))
        return [tokens] if fewer is None else [tokens, fewer]

    def _record_positions(self, kwargs: Mapping[str, Any]) -> None:
        tokens, positions, bounds = self._tokens[0], kwargs.get("position_ids"), _bounds(kwargs)
        if positions is None or positions.numel() != tokens.shape[0] * tokens.shape[1]:
            return
        rows = tokens.rows(positions.reshape(*tokens.shape, 1).float())
        if rows is not None:
            self._recorder.add_tokens("position_ids", Phase.INPUT, rows, tokens, positions.shape)
        if bounds is not None:
            facts = self._recorder.facts
            for name, count in (
                ("sequences_by_bounds", len(bounds) - 1),
                ("sequences_by_positions", num_sequences(tokens, positions)),
            ):
                facts[name] = facts.get(name, 0) + count

    def _hook(self, name: str) -> Callable[..., None]:
        closes = any(fnmatchcase(name, pattern) for pattern in CLOSING)

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if self._tokens:
                with self._log.kept(f"sketch of {name}"):
                    if closes and args:
                        self._record(name, Phase.INPUT, args[0])
                    self._record(name, Phase.FORWARD, output)

        return hook

    def _record(self, name: str, phase: str, output: Any) -> None:
        tensor = _first_tensor(output)
        if tensor is None:
            return
        found = self._rows(tensor)
        if found is None:
            self._recorder.unaligned.add(name)
            return
        rows, tokens = found
        if self._records_forward and not in_backward():
            self._recorder.add_tokens(name, phase, rows, tokens, tensor.shape)
        if phase == Phase.FORWARD and tensor.requires_grad and self._recorder.update == 0:
            tensor.register_hook(self._gradient_hook(name, tokens))  # type: ignore[no-untyped-call]

    def _gradient_hook(self, name: str, tokens: Tokens) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            with self._log.kept(f"sketch of the gradient of {name}"):
                rows = tokens.rows(local(gradient), sequence_first=self._sequence_first)
                if rows is not None:
                    self._recorder.add_tokens(name, Phase.GRADIENT, rows, tokens, gradient.shape)

        return hook

    def _rows(self, tensor: Tensor) -> tuple[Tensor, Tokens] | None:
        for tokens in self._tokens:
            rows = tokens.rows(tensor.detach(), sequence_first=self._sequence_first)
            if rows is not None:
                return rows, tokens
        return None


def in_backward() -> bool:
    """Tell whether this runs inside a backward pass: a forward there is computed again.

    Source: torch.utils.checkpoint asks the same.
    """
    return bool(torch._C._current_graph_task_id() != -1)


def _bounds(kwargs: Mapping[str, Any]) -> Tensor | None:
    packed = kwargs.get("packed_seq_params")
    found = [kwargs.get(name, getattr(packed, name, None)) for name in _BOUNDS]
    return next((bounds for bounds in found if isinstance(bounds, Tensor)), None)


def _first_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Mapping):
        output = next(iter(output.values()), None)
    elif isinstance(output, tuple | list):
        output = output[0] if output else None
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return None
    return local(output)
