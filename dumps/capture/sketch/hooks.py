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

from dumps.capture.gradients import local as local_part
from dumps.capture.gradients import plain_name
from dumps.capture.sketch.held import gradient_share
from dumps.capture.sketch.local import Local, fits
from dumps.capture.sketch.pass_tokens import bounds_of, tokens_of_pass
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.targets import (
    Reading,
    Target,
    dense,
    first_tensor,
    output_targets,
    readings,
    targets_of,
)
from dumps.capture.sketch.token_keys import Tokens, num_sequences, part
from dumps.store.tensor_records import CLOSING, Phase


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
        patterns: shell patterns of module names, of those here or of those in the whole model.
        sequence_first: activations are [s, b, …]; matters only where s = b.
        local: what the modules are, where they are not the whole model's own.
    """

    def __init__(
        self,
        root: nn.Module,
        recorder: Recorder,
        log: Log,
        patterns: Sequence[str] = ("*",),
        *,
        sequence_first: bool = False,
        local: Local | None = None,
    ) -> None:
        self._recorder, self._log = recorder, log
        own = local or Local(sequence_first=sequence_first, gradient_share=gradient_share(root))
        self._local = own.of_modules(patterns)
        self._tokens: list[Tokens] = []
        self._part: Tokens | None = None
        self._depth = 0
        self._first_kind: bool | None = None
        self._records_forward = False
        self._said: Mapping[str, Tensor] = {}
        self._targets: dict[str, tuple[Target, ...]] = {}
        self._handles = [
            root.register_forward_pre_hook(self._enter, with_kwargs=True),
            root.register_forward_hook(self._leave, always_call=True),
        ]
        for plain, module in _hooked(root, recorder).items():
            if self._local.has(plain) or fits(plain, patterns):
                self._handles.append(module.register_forward_hook(self._hook(plain)))

    def expect(self, **said: Tensor) -> None:
        """Say of the next pass what its call does not: it is keyed as if called with this too.

        Args:
            said: attention_mask [b, s] (0 at padding), position_ids, cu_seqlens; or sequences, the
                whole ones [b, …], nested.
        """
        self._said = said

    def remove(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._depth += 1
        if self._depth > 1 or in_backward():
            return
        self._tokens, self._part = [], None
        grad = torch.is_grad_enabled()
        kwargs, self._said = {**kwargs, **self._said}, {}
        with self._log.kept("token keys"), torch.no_grad():
            self._tokens = tokens_of_pass(args, kwargs, self._local.sequences)
            if not self._tokens:
                self._recorder.problems.add("the model is not called with input_ids [b, s]")
                return
            self._part = part(self._tokens[0], self._local.tensor_rank, self._local.tensor_ranks)
            self._first_kind = grad if self._first_kind is None else self._first_kind
            self._records_forward = grad == self._first_kind
            if self._records_forward and self._local.is_first and not self._local.tensor_rank:
                self._record_positions(kwargs)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1

    def _record_positions(self, kwargs: Mapping[str, Any]) -> None:
        tokens, positions, bounds = self._tokens[0], kwargs.get("position_ids"), bounds_of(kwargs)
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
        inputs = targets_of(name, self._local.inputs)
        if self._local.outputs is None and any(fnmatchcase(name, p) for p in CLOSING):
            inputs = (Target(name),)

        place = f"sketch of {name}"

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not self._tokens:
                return
            with self._log.kept(place):
                tensor = first_tensor(args) if inputs or self._keeps_input(name) else None
                if tensor is not None and self._counts_forward:
                    if inputs:
                        given = tensor.detach()
                        self._record(given, Phase.INPUT, name, inputs, self._tokens_of(given))
                    else:
                        self._keep_input(name, tensor.detach())
                for reading in readings(name, output):
                    self._record_output(reading)

        return hook

    def _keeps_input(self, name: str) -> bool:
        """Tell whether a module's first input is kept whole; names must be the whole model's."""
        whole = self._recorder.whole
        return whole is not None and self._local.outputs is None and whole.wants(name)

    def _keep_input(self, name: str, tensor: Tensor) -> None:
        tokens = self._tokens_of(tensor)
        rows = (
            None
            if tokens is None
            else tokens.rows(tensor, sequence_first=self._local.sequence_first)
        )
        if tokens is not None and rows is not None:
            self._recorder.keep_whole(name, Phase.INPUT, rows, tokens, tensor.shape)

    @property
    def _counts_forward(self) -> bool:
        return self._records_forward and not in_backward()

    def _record_output(self, reading: Reading) -> None:
        name, known = reading.name, self._local.outputs
        if known is not None and name not in known:
            self._recorder.unaligned.add(name)
        targets = self._targets.get(name)
        if targets is None:
            targets = self._targets[name] = output_targets(name, self._local)
        if not targets:
            return
        tensor = reading.tensor.detach()
        found = self._tokens_of(tensor)
        if self._counts_forward:
            self._record(reading.dense(tensor), Phase.FORWARD, name, targets, found)
        if found is not None and reading.tensor.requires_grad and self._recorder.update == 0:
            self._watch_gradient(reading, targets, found)

    def _record(
        self,
        tensor: Tensor,
        phase: str,
        name: str,
        targets: Sequence[Target],
        found: Tokens | None,
    ) -> None:
        if found is None:
            self._recorder.unaligned.add(name)
        else:
            self._add(phase, self._counted(targets, found), tensor, found)

    def _watch_gradient(self, reading: Reading, targets: Sequence[Target], tokens: Tokens) -> None:
        counted = self._counted(targets, tokens)
        if not counted:
            return
        chosen, width = reading.chosen, reading.width  # the reading would keep its tensor alive
        place = f"sketch of the gradient of {reading.name}"

        def hook(gradient: Tensor) -> None:
            with self._log.kept(place), torch.no_grad():
                scaled, share = local_part(gradient), self._local.gradient_share
                if share != 1:
                    scaled = scaled * share
                self._add(Phase.GRADIENT, counted, dense(scaled, chosen, width), tokens)

        reading.tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def _add(self, phase: str, targets: Sequence[Target], tensor: Tensor, tokens: Tokens) -> None:
        first = self._local.sequence_first
        rows = tokens.rows(tensor, sequence_first=first) if targets else None
        if rows is None:
            return
        for target in targets:
            features = target.of(rows)
            shape = tensor.shape if target.columns is None else features.shape
            self._recorder.add_tokens(
                target.name, phase, features, tokens, shape, first_feature=target.first
            )

    def _counted(self, targets: Sequence[Target], tokens: Tokens) -> Sequence[Target]:
        """Return what no rank before this one of the tensor-parallel group has as well."""
        if not self._local.tensor_rank or tokens is self._part:
            return targets
        return [target for target in targets if not target.is_whole]

    def _tokens_of(self, tensor: Tensor) -> Tokens | None:
        candidates = self._tokens if self._part is None else [*self._tokens, self._part]
        return next((tokens for tokens in candidates if tokens.fits(tensor)), None)


def in_backward() -> bool:
    """Tell whether this runs inside a backward pass: a forward there is computed again.

    Source: torch.utils.checkpoint asks the same.
    """
    return bool(torch._C._current_graph_task_id() != -1)


def _hooked(root: nn.Module, recorder: Recorder) -> dict[str, nn.Module]:
    """Return the modules to hook by plain name: inside a wrapper, but around what is compiled.

    A hook inside a compiled region would become part of the compiled code, and stay there.
    """
    found: dict[str, nn.Module] = {}
    compiled: list[str] = []
    for name, module in root.named_modules():
        plain = plain_name(name)
        inside = any(name.startswith(prefix) for prefix in compiled)
        if hasattr(module, "_orig_mod"):
            compiled.append(f"{name}._orig_mod" if name else "_orig_mod")
        if module._compiled_call_impl is not None:
            compiled.append(name and f"{name}.")
            inside = True
        if not plain or isinstance(module, nn.ModuleList | nn.ModuleDict):
            continue
        if not inside:
            found[plain] = module
        elif plain not in found:
            recorder.unaligned.add(plain)
    return found
