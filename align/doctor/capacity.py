"""How many sequences the rollout engine gets at once, and so how large its limits need to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """Sequences for each replica of the rollout engine.

    Args:
        replicas: data-parallel size of the engine: devices / (tensor × pipeline size).
        sequences: prompts a step · n / replicas: the largest useful rollout micro-batch, and what
            max_num_seqs has to allow for all of them to run at once.
    """

    replicas: float
    sequences: float

    @property
    def is_whole(self) -> bool:
        """Whether the sequences can be shared out evenly."""
        return float(self.sequences).is_integer()


def capacity(
    prompts: float, responses: float, devices: float, tensor: float, pipeline: float
) -> Capacity | None:
    """Return what each replica gets; None where the sizes cannot be."""
    if tensor < 1 or pipeline < 1 or devices < tensor * pipeline:
        return None
    replicas = devices / (tensor * pipeline)
    return Capacity(replicas, prompts * responses / replicas)
