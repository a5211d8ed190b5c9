"""What the modules and parameters of one process are, in a model cut over many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise

import torch
from torch import Tensor

from align.layout.address import Address
from align.layout.blocks import ROUTING
from align.layout.rank_weights import RankWeight

Gather = Callable[[Tensor], Sequence[Tensor]]
"""Returns the tensors of all ranks that share sequences, in rank order."""


@dataclass(frozen=True, slots=True)
class SharedSequences:
    """How ranks share the tokens of sequences (context parallelism, Ulysses).

    Args:
        gather: collects their ids and positions.
        zigzag: a rank has the two chunks r and 2n - 1 - r of 2n, so that causal attention costs
            every rank the same (Megatron); else one chunk of n.
    """

    rank: int
    ranks: int
    gather: Gather
    zigzag: bool = True

    def places(self, length: int, bounds: Tensor | None) -> list[Tensor]:
        """Return where each rank's tokens lie in the whole row.

        Args:
            length: of one rank's row.
            bounds: cumulated lengths of the packed sequences, padding included; each is shared.

        Returns:
            int64 [length] a rank.
        """
        total = length * self.ranks
        whole = torch.arange(total)
        if not self.zigzag:
            return list(whole.chunk(self.ranks))
        ends = [0, total] if bounds is None else bounds.tolist()
        parts: list[list[Tensor]] = [[] for _ in range(self.ranks)]
        for start, end in pairwise(ends):
            chunks = whole[start:end].chunk(2 * self.ranks)
            for rank, part in enumerate(parts):
                part += [chunks[rank], chunks[-1 - rank]]
        return [torch.cat(part) for part in parts]


@dataclass(frozen=True, slots=True)
class Local:
    """The part of a model that one process has, in the terms of the whole model.

    Without any argument: modules and parameters are the whole model's, under their own names.

    Args:
        outputs: addresses of what each module puts out, None where names say it.
        inputs: likewise of the inputs to record, of row-parallel modules.
        weights: what each parameter is, None where names say it.
        tensor_rank, tensor_ranks: of its tensor-parallel group.
        replica: its number among the processes with the same parameters.
        expert_replica: the same for the parameters of experts.
        is_first: it has the embedding.
        gradient_share: factor by which data parallelism averages gradients; those of activations
            are recorded with it, so that they belong to the loss of the whole batch.
        sequence_first: activations are [s, b, …] and their flattened form is [s * b, …].
        sequences: how ranks share sequences, None where each has whole ones.
    """

    outputs: Mapping[str, tuple[Address, ...]] | None = None
    inputs: Mapping[str, tuple[Address, ...]] = field(default_factory=dict)
    weights: Mapping[str, RankWeight] | None = None
    tensor_rank: int = 0
    tensor_ranks: int = 1
    replica: int = 0
    expert_replica: int = 0
    is_first: bool = True
    gradient_share: float = 1.0
    sequence_first: bool = False
    sequences: SharedSequences | None = None

    def of_modules(self, patterns: Sequence[str]) -> Local:
        """Return the same with the addresses alone that fit shell patterns.

        A pattern is of the module here, or of what it is in the whole model: of a fused layer
        only some outputs may fit.
        """
        if self.outputs is None:
            return self
        return replace(
            self,
            outputs=_fitting(self.outputs, patterns),
            inputs=_fitting(self.inputs, patterns),
        )

    def has(self, module: str) -> bool:
        """Tell whether anything of a module here has an address."""
        known = (self.outputs or {}, self.inputs)
        names = (module, f"{module}.{ROUTING}")
        return any(addresses.get(name) for addresses in known for name in names)


def fits(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a name fits one of some shell patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _fitting(
    addresses: Mapping[str, tuple[Address, ...]], patterns: Sequence[str]
) -> dict[str, tuple[Address, ...]]:
    return {
        module: tuple(a for a in known if fits(module, patterns) or fits(a.name, patterns))
        for module, known in addresses.items()
    }
