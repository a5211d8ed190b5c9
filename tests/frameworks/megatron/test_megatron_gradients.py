"""Squared gradients of the real Megatron-core on a CPU, whichever way a model is spread.

Tensor, pipeline and data parallelism and the distributed optimizer hold one model and train on one
batch; what the ranks count must add up to one sum a parameter, and to the norm that Megatron's own
optimizer computes.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="gradients are torch's")
pytest.importorskip("megatron.core", reason="Megatron-core is not installed")

from tests.frameworks.megatron.ranks import run

START = Path(__file__).resolve().parents[1] / "start.py"
Found = tuple[dict[str, float], set[float]]
WAYS: dict[str, tuple[int, dict[str, Any]]] = {  # how many ranks, and how they share the work
    "alone": (1, {}),
    "tied": (1, {"tied": True}),
    "tensor": (2, {"tensor": 2}),  # with sequence parallelism, so norms are repeated and reduced
    "pipeline": (2, {"pipeline": 2}),
    "data": (2, {}),
    "distributed optimizer": (2, {"distributed": True}),
    "tied on two stages": (2, {"pipeline": 2, "tied": True}),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Give squares summed over ranks and the norms that ranks were told, by way of spreading."""
    folder = tmp_path_factory.mktemp("megatron")
    jobs = {
        world: [
            {"tensor": 1, "pipeline": 1, "tied": False, "distributed": False, **job}
            | {"out": str(folder / name)}
            for name, (ranks, job) in WAYS.items()
            if ranks == world
        ]
        for world in (1, 2)
    }
    run(jobs, folder, str(START), "tests.frameworks.megatron.train_once")
    return {name: summed(folder / name, ranks) for name, (ranks, _) in WAYS.items()}


def summed(out: object, world: int) -> Found:
    total: dict[str, float] = {}
    norms = set()
    for rank in range(world):
        told = json.loads(Path(f"{out}.{rank}.json").read_text())
        norms.add(told["norm"])
        for name, square in told["squares"].items():
            total[name] = total.get(name, 0.0) + square
    return total, norms


@pytest.mark.parametrize("way", WAYS)
def test_squares_add_up_to_the_norm_of_megatrons_own_optimizer(
    found: dict[str, Found], way: str
) -> None:
    squares, norms = found[way]
    assert len(norms) == 1
    assert math.sqrt(sum(squares.values())) == pytest.approx(norms.pop(), rel=1e-6)


@pytest.mark.parametrize("way", ["tensor", "pipeline", "data", "distributed optimizer"])
def test_ranks_add_up_to_what_one_rank_counts(found: dict[str, Found], way: str) -> None:
    alone = found["alone"][0]
    assert len(alone) == 3 + 4 * 7
    assert found[way][0] == pytest.approx(alone, rel=1e-5)


def test_a_tied_embedding_on_two_stages_is_counted_once(found: dict[str, Found]) -> None:
    alone = found["tied"][0]
    assert "output_layer.weight" not in alone
    assert found["tied on two stages"][0] == pytest.approx(alone, rel=1e-5)
