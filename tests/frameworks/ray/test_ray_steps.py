"""A Ray cluster compares every step as one process does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("ray", reason="Ray is not installed")

import ray
import torch

from align.layers.all_steps import AllSteps, common_files, compare_steps
from align.layers.spread import Spread, on_ray
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.write import write_step
from dumps.store.discover import discover
from dumps.store.run_data import RunData

STEPS, FAULTY_FROM, LAYERS = 5, 3, 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    root = str(Path(__file__).parents[3])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}},
    )
    yield "auto"
    ray.shutdown()


def runs(folder: Path, steps: int) -> tuple[RunData, RunData]:
    """Write gradients of two runs; one layer's is wrong from a step on."""
    for side in ("reference", "candidate"):
        generator = torch.Generator().manual_seed(0)
        for step in range(1, steps + 1):
            recorder = Recorder()
            for layer in range(LAYERS):
                value = torch.randn(8, 16, generator=generator)
                wrong = side == "candidate" and layer == 2 and step >= FAULTY_FROM
                name = f"model.layers.{layer}.mlp.up_proj.weight"
                recorder.add_weight(name, "parameter_gradient", value * (1.5 if wrong else 1))
            write_step(folder / side, step, 0, recorder)
    both = (RunData(discover([folder / side])) for side in ("reference", "candidate"))
    return next(both), next(both)


def without_columns(found: AllSteps) -> AllSteps:
    """Leave the heat map out: its NaN equal nothing."""
    return replace(found, addresses=tuple(replace(a, by_columns=[]) for a in found.addresses))


@pytest.mark.parametrize("steps", [STEPS, 1])
def test_a_cluster_gives_the_result_of_one_process(
    cluster: str, tmp_path: Path, steps: int
) -> None:
    files = common_files(*runs(tmp_path, steps))
    with on_ray(cluster) as spread:
        assert spread.workers == 2
        remote, problems = compare_steps(files, spread)
    local, _ = compare_steps(files, Spread(map, 1))
    assert not problems
    for field in ("steps", "columns", "departure", "num_records", "not_compared", "addresses"):
        assert getattr(without_columns(remote), field) == getattr(without_columns(local), field)
    if steps == STEPS:
        assert remote.departure is not None
        assert remote.departure.step == FAULTY_FROM
        assert remote.departure.key[1] == "model.layers.2.mlp.up_proj.weight"
