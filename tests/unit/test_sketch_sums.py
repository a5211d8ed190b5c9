"""Sketches: linear, and true to the tensors they stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from align.core.errors import DumpError
from align.layers.captured import merged
from align.layers.measure import between
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.token_keys import tokens_of
from dumps.capture.sketch.write import write_step
from dumps.readers.sketches import READER, read
from dumps.store.discover import discover
from dumps.store.tensor_records import SketchFile, TensorRecord

IDS = torch.arange(60).reshape(3, 20)


def written(folder: Path, recorder: Recorder, rank: int = 0) -> SketchFile:
    path = write_step(folder, 4, rank, recorder)
    assert path is not None
    return read(path, lambda _: None)


def only(file: SketchFile) -> TensorRecord:
    (record,) = file.records
    return record


def test_statistics_are_those_of_the_tensor(tmp_path: Path) -> None:
    values = torch.randn(3, 20, 8, generator=torch.Generator().manual_seed(1)) * 3 + 1
    recorder, tokens = Recorder(), tokens_of(IDS)
    rows = tokens.rows(values)
    assert rows is not None
    recorder.add_tokens("m", "forward", rows, tokens, values.shape)
    record, wide = only(written(tmp_path, recorder)), values.double()
    assert record.mean == pytest.approx(float(wide.mean()), rel=1e-5)
    assert record.std == pytest.approx(float(wide.std(correction=0)), rel=1e-5)
    assert record.l2 == pytest.approx(float(wide.norm()), rel=1e-6)
    assert record.absmax == float(wide.abs().max())
    assert (record.minimum, record.maximum) == (float(wide.min()), float(wide.max()))
    assert (record.num_elements, record.shape) == (480, (3, 20, 8))


def test_nan_and_infinities_are_counted(tmp_path: Path) -> None:
    values = torch.ones(4, 5)
    values[0, :2], values[1, 0], values[2, :3] = torch.nan, torch.inf, -torch.inf
    recorder = Recorder()
    recorder.add_weight("w", "parameter", values)
    record = only(written(tmp_path, recorder))
    assert (record.nan, record.positive_inf, record.negative_inf) == (2, 1, 3)
    assert not record.is_finite


def test_zeros_and_elements_of_bfloat16_are_counted_where_asked(tmp_path: Path) -> None:
    recorder = Recorder()
    values = torch.tensor([[1.0, 1.0 + 2.0**-7, 1.0 + 2.0**-8, 0.1, 0.0]])  # bfloat16 has 8 bits
    recorder.add_weight("w", "exp_avg", values, counts_bfloat16=True)
    record = only(written(tmp_path, recorder))
    assert (record.bfloat16, record.zeros) == (3, 1)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 39), st.integers(0, 2**31))
def test_shards_and_micro_batches_add_up(rows: int, width: int, cut: int, seed: int) -> None:
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    cut = min(cut, rows)
    whole, parts = Recorder(), Recorder()
    whole.add_weight("w", "parameter", weight)
    parts.add_weight("w", "parameter", weight[:cut])
    parts.add_weight("w", "parameter", weight[cut:], first_row=cut)
    own, other = whole.sums["w", "parameter", 0], parts.sums["w", "parameter", 0]
    torch.testing.assert_close(own.sketch, other.sketch, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(own.squares, other.squares)
    torch.testing.assert_close(own.total, other.total, rtol=1e-5, atol=1e-4)
    assert (own.minimum, own.maximum) == (other.minimum, other.maximum)
    assert own.digest.equal(other.digest)
    assert own.num_elements == other.num_elements


def test_ranks_add_up(tmp_path: Path) -> None:
    weight = torch.randn(10, 6, generator=torch.Generator().manual_seed(2))
    whole, first, second = Recorder(), Recorder(), Recorder()
    whole.add_weight("w", "parameter", weight)
    first.add_weight("w", "parameter", weight[:7])
    second.add_weight("w", "parameter", weight[7:], first_row=7)
    one = merged([written(tmp_path / "one", whole)]).of("parameter")["w", 0]
    both = [written(tmp_path / "two", first, 0), written(tmp_path / "two", second, 1)]
    two = merged(both).of("parameter")["w", 0]
    assert between(one.sketch, two.sketch).relative < 1e-6
    assert (one.digest, one.num_elements) == (two.digest, two.num_elements)


@pytest.mark.parametrize("size", [1e-4, 1e-2, 0.5])
def test_the_relative_error_is_estimated_within_a_tenth(size: float) -> None:
    generator = torch.Generator().manual_seed(5)
    estimates = []
    for _ in range(20):
        own = torch.randn(300, 64, generator=generator)
        error = torch.randn(300, 64, generator=generator) * size
        estimates.append(between(_sketch(own), _sketch(own + error)).relative / size)
    # 256 numbers estimate a norm within 1/sqrt(512) = 4.4 %
    assert np.mean(estimates) == pytest.approx(1, abs=0.03)
    assert max(abs(np.array(estimates) - 1)) < 0.2


def test_a_factor_is_told_from_what_is_left_over() -> None:
    generator = torch.Generator().manual_seed(6)
    own = torch.randn(300, 64, generator=generator)
    found = between(_sketch(own), _sketch(own * 1.5))
    assert found.gain == pytest.approx(1.5)
    assert found.residual < 1e-6


def test_a_file_cut_off_is_named(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.add_weight("w", "parameter", torch.ones(4, 5))
    path = write_step(tmp_path, 4, 0, recorder)
    assert path is not None
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DumpError, match="cannot be read as sketches"):
        read(path, lambda _: None)


def test_a_run_folder_shows_its_sketches(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.add_weight("w", "parameter", torch.ones(4, 5))
    path = write_step(tmp_path, 4, 0, recorder)
    run = discover([tmp_path])
    assert [(a.format, a.path) for a in run.artifacts] == [(READER.format, path)]
    assert run.unknown == ()


def test_equal_steps_give_equal_bytes(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        recorder = Recorder()
        recorder.add_weight("w", "parameter", torch.arange(20.0).reshape(4, 5))
        paths.append(write_step(tmp_path / name, 4, 0, recorder))
    assert paths[0] is not None and paths[1] is not None
    assert paths[0].read_bytes() == paths[1].read_bytes()


def _sketch(values: torch.Tensor) -> np.ndarray:
    recorder = Recorder()
    recorder.add_weight("w", "parameter", values)
    return recorder.sums["w", "parameter", 0].sketch[:16, :16].double().numpy()
