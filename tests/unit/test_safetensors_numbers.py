"""Recorded tensors in bfloat16, which NumPy lacks, are read as the float32 numbers they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("safetensors", reason="needs the extra torch")

import torch
from safetensors.torch import save_file

from align.referee.update import roundoff_of
from dumps.capture.update_record import UpdateRecord, writes
from dumps.readers import captured_step, trainer_inputs
from dumps.readers.reader import no_progress

DTYPES = ["bfloat16", "float16", "float32", "float64", "int64", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batchs_tensors_are_those_that_torch_reads(tmp_path: Path, dtype: str) -> None:
    numbers = torch.arange(-6, 6).reshape(3, 4).mul(0.37).to(getattr(torch, dtype))
    save_file({"values": numbers, "other": torch.ones(5)}, tmp_path / "1.safetensors")
    found = trainer_inputs.read(tmp_path / "1.safetensors", no_progress).tensor("values")
    assert found is not None and found.shape == (3, 4)
    np.testing.assert_array_equal(found.astype(np.float64), numbers.double().numpy())


def test_a_ranks_part_of_a_step_in_bfloat16_is_read(tmp_path: Path) -> None:
    record, given = UpdateRecord(), torch.randn(2, 3).bfloat16()
    record.begin_micro_batch()
    record.keep({"vpreds": given})
    record.end_update()
    path = tmp_path / "critic-0.safetensors"
    writes(record.to_host(), record.notes(1, 0, "critic"))(path)
    found = captured_step.read(path).tensors["update.0.micro.0.vpreds"]
    np.testing.assert_array_equal(found.astype(np.float64), given.double().numpy())


def test_the_roundoff_of_bfloat16_numbers_is_known_though_they_come_as_float32() -> None:
    exact = np.random.default_rng(0).standard_normal(99, dtype=np.float32)
    narrow = (exact.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert roundoff_of(narrow) == 2.0**-8
    assert roundoff_of(exact) == 2.0**-24
    assert roundoff_of(np.zeros(3, np.float32)) == 2.0**-24
    assert roundoff_of(narrow.astype(np.float64)) == 2.0**-53
