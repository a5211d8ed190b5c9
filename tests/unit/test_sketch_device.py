"""Sketches on any device: the same numbers, its own settings left alone, one copy to the host."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch

import dumps.capture
from align.layers.captured import captured_steps
from align.layers.measure import difference
from dumps.capture.device import full_float32, square_sum, start_copy
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.hash import SIDE, signs, splitmix64
from dumps.capture.sketch.recorder import Recorder
from dumps.capture.sketch.sums import COLUMN_SALT, ROW_SALT, IndexSigns, sums_of
from dumps.capture.sketch.write import submit_step
from dumps.capture.writer import Writer
from dumps.readers.sketches import read
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from dumps.store.tensor_records import Phase, sketch_path
from tests.unit.layer_runs import recorded
from tests.unit.npu_sketch import KEYS

ROOT = Path(__file__).parents[2]
WHOLE = 1 << 64


@pytest.fixture(scope="module")
def npu(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A step sketched on an npu device that PyTorch's Python backend makes on the CPU."""
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no Python backend for a device of one's own")
    folder = tmp_path_factory.mktemp("npu")
    command = [sys.executable, "-m", "tests.unit.npu_sketch", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_an_npu_gives_the_sketches_of_the_cpu(
    npu: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, said = npu
    assert (said["device"], said["on_npu"]) == ("npu", "npu")
    own = captured_steps(RunData(discover([folder])))[1]
    other = captured_steps(recorded(tmp_path))[1]
    for phase in (Phase.FORWARD, Phase.INPUT, Phase.GRADIENT, Phase.PARAMETER_GRADIENT):
        records, others = own.of(phase), other.of(phase)
        assert records.keys() == others.keys() != set()
        for address, record in records.items():
            assert record.digest == others[address].digest
            assert difference(record, others[address]).relative < 2e-6
    assert not (folder / "capture.log").exists()


def test_no_product_of_the_capture_uses_hf32_and_training_goes_on_with_it(
    npu: tuple[Path, dict[str, Any]],
) -> None:
    _, said = npu
    bare, captured = said["products_with_hf32"]
    assert bare == captured > 0
    assert said["hf32_after"]
    assert said["same_gradients"]


def test_hashes_and_signs_are_those_of_plain_integers_on_every_device(
    npu: tuple[Path, dict[str, Any]],
) -> None:
    hashes = [_hashed(key) for key in KEYS]
    expected = [
        [1.0 if _hashed(hashed + 2) >> j & 1 else -1.0 for j in range(16)] for hashed in hashes
    ]
    keys = torch.tensor(KEYS)
    _, said = npu
    for found in (splitmix64(keys).tolist(), said["hashes"]):
        assert [value % WHOLE for value in found] == hashes
    for found in (signs(keys, 2, 16).tolist(), said["signs"]):
        assert found == expected


def test_only_one_module_of_the_capture_names_a_kind_of_device() -> None:
    (folder,) = dumps.capture.__path__
    named = {
        path.name
        for path in Path(folder).rglob("*.py")
        if re.search(r"\bcuda\b|\.is_cuda\b", path.read_text(encoding="utf-8"))
    }
    assert named == {"device.py"}


@pytest.mark.parametrize("style", ["old", "new", "global"])
def test_reduced_precision_is_off_within_and_back_afterwards(style: str) -> None:
    backends: Any = torch.backends
    cpu = torch.device("cpu")
    new = hasattr(backends.mkldnn, "matmul")
    if style != "old" and not new:
        pytest.skip("this torch has the old setting alone")

    def state() -> list[str]:
        if style == "old":
            return [torch.get_float32_matmul_precision()]
        return [backends.mkldnn.matmul.fp32_precision, backends.cuda.matmul.fp32_precision]

    try:
        if style == "old":
            torch.set_float32_matmul_precision("medium")
        elif style == "new":
            backends.mkldnn.matmul.fp32_precision = "bf16"
        else:
            backends.fp32_precision = "tf32"
        before = state()
        with torch.autocast("cpu", torch.bfloat16):
            with full_float32(cpu):
                one = torch.full((4, 4), 1 + 2.0**-12)  # needs more bits than bfloat16 has
                assert (one @ torch.eye(4)).equal(one)
                if new:
                    assert backends.mkldnn.matmul.fp32_precision == "ieee"
                assert not torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_enabled("cpu")
        assert state() == before
    finally:
        backends.fp32_precision = "none"
        if new:
            backends.mkldnn.matmul.fp32_precision = "none"
            backends.cuda.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


def test_a_large_tensor_is_summed_up_in_blocks_as_exactly_as_a_small_one() -> None:
    tensor = torch.rand(3000, 1000, generator=torch.Generator().manual_seed(0)) + 1
    tensor[0, 0], tensor[2999, 1] = torch.nan, torch.inf
    made = IndexSigns()
    cpu = torch.device("cpu")
    rows, columns = made.rows(0, 3000, cpu), made.columns(0, 1000, cpu)
    whole = sums_of(tensor, rows, columns)
    assert whole.special is not None
    assert whole.special.tolist() == [1, 1, 0]
    assert whole.num_elements == 3_000_000
    tensor[0, 0], tensor[2999, 1] = 0.0, 0.0
    whole = sums_of(tensor, rows, columns, counts_bfloat16=True)
    wide = tensor.double()
    assert float(whole.squares) == pytest.approx(float(wide.square().sum()), rel=4e-6)
    assert whole.special is None
    assert whole.exact is not None
    assert int(whole.exact[0]) == 2
    assert float(whole.total) == pytest.approx(float(wide.sum()), rel=1e-6)
    exact = rows[0].double() @ wide @ columns[0].double()
    assert float((whole.products - exact).norm() / exact.norm()) < 2e-6
    assert int(whole.digest) == int(rows[1] * columns[1])


def test_a_sum_of_squares_over_many_elements_keeps_its_digits() -> None:
    block = torch.rand(1 << 20, generator=torch.Generator().manual_seed(0)) + 1
    assert float(square_sum(block)) == pytest.approx(float(block.double().square().sum()), rel=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 64), (1, 1), (5, 3000), (700, 100), (64, 1500), (9000, 70)])
def test_products_and_totals_are_those_of_float64_whatever_the_shape(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    block = (torch.randn(shape, generator=generator) + 0.5).to(dtype)
    cpu, made = torch.device("cpu"), IndexSigns()
    found = sums_of(block, made.rows(3, shape[0], cpu), made.columns(5, shape[1], cpu))
    row_signs = signs(torch.arange(3, 3 + shape[0]), ROW_SALT, SIDE).double()
    column_signs = signs(torch.arange(5, 5 + shape[1]), COLUMN_SALT, SIDE).double()
    exact = row_signs.T @ block.double() @ column_signs
    assert float((found.sketch - exact).norm() / exact.norm()) < 1e-6
    assert float(found.total) == pytest.approx(float(block.double().sum()), rel=1e-6)
    assert (float(found.minimum), float(found.maximum)) == (float(block.min()), float(block.max()))
    assert found.dtype == str(dtype).removeprefix("torch.")


def test_copies_keep_names_values_and_types() -> None:
    tensors = {"b": torch.arange(3), "a": torch.ones(2, 2, dtype=torch.bfloat16)}
    host = start_copy(tensors)()
    assert list(host) == ["b", "a"]
    assert all(host[name].equal(tensor) for name, tensor in tensors.items())


def _recorder(value: float) -> Recorder:
    recorder = Recorder()
    recorder.add_weight("w", "parameter", torch.full((4, 5), value))
    return recorder


STEPS = """
import sys, time, os, signal
from pathlib import Path
from dumps.capture.failures import FailureLog
from dumps.capture.sketch.write import submit_step
from dumps.capture.writer import Writer
from tests.unit.test_sketch_device import _recorder
run = Path(sys.argv[1])
writer = Writer(run, "sketches-0", FailureLog(run, "test"))
for step in range(1, 4):
    submit_step(writer, step, 0, _recorder(step))
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("writer.drain(); submit_step(writer, 4, 0, _recorder(4)); os.kill(os.getpid(), 9)", -9),
        ("raise RuntimeError('the run breaks')", 1),
    ],
)
def test_a_run_that_ends_early_loses_at_most_the_step_in_progress(
    tmp_path: Path, end: str, code: int
) -> None:
    assert int(signal.SIGKILL) == 9
    command = [sys.executable, "-c", STEPS + end, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    for step in (1, 2, 3):
        (record,) = read(sketch_path(tmp_path, step, 0), lambda _: None).records
        assert record.maximum == step


def test_a_file_that_cannot_be_written_goes_to_the_log(tmp_path: Path) -> None:
    (tmp_path / "sketches").write_text("in the way", encoding="utf-8")
    writer = Writer(tmp_path, "sketches-0", FailureLog(tmp_path, "test"))
    submit_step(writer, 1, 0, _recorder(1))
    writer.drain()
    assert "writing step" in (tmp_path / "capture.log").read_text(encoding="utf-8")


def _hashed(value: int) -> int:
    """Splitmix64 of its authors, in plain integers."""
    state = (value + 0x9E3779B97F4A7C15) % WHOLE
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % WHOLE
    state = (state ^ state >> 27) * 0x94D049BB133111EB % WHOLE
    return state ^ state >> 31
