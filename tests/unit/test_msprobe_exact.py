"""Two tensors compared number by number: against float64, PyTorch and NumPy's own functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from align.core.errors import DumpError
from align.layers import exact
from align.layers.exact import Values, exact_difference, exact_differences, rearranged
from dumps.readers.mapped_tensor import mapped_tensor

FINITE = st.floats(-1e6, 1e6, width=32)


@pytest.fixture(params=[False, True], ids=["numpy", "numba"], scope="module", autouse=True)
def fused(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with NumPy's passes, and with the compiled one from the first number on."""
    if request.param:
        pytest.importorskip("numba", reason="needs the extra fast")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_WORTH", 0 if request.param else math.inf)
        yield


def float32(values: Any) -> Values:
    return Values("float32", np.asarray(values, dtype=np.float32))


@given(
    arrays.arrays(np.float32, st.integers(1, 300), elements=FINITE),
    st.integers(0, 2**32 - 1),
)
def test_measures_are_those_of_float64_arithmetic(one: Any, seed: int) -> None:
    noise = np.random.default_rng(seed).standard_normal(one.shape).astype(np.float32)
    other = one + np.float32(1e-3) * noise
    found = exact_difference(float32(one), float32(other))
    a, b = one.astype(np.float64), other.astype(np.float64)
    if np.linalg.norm(a):
        assert math.isclose(
            found.relative, np.linalg.norm(b - a) / np.linalg.norm(a), rel_tol=1e-9, abs_tol=1e-300
        )
    assert found.max_abs == np.abs(b - a).max()
    assert found.max_abs == 0 or np.abs(b - a)[found.max_abs_at] == found.max_abs
    assert found.unequal == np.count_nonzero(a != b)
    assert found.sign_flips == np.count_nonzero(a * b < 0)
    assert found.beyond == np.count_nonzero(np.abs(b - a) > 4 * 2.0**-24 * np.abs(a))


@given(arrays.arrays(np.float32, st.integers(1, 50), elements=FINITE), st.integers(0, 1000))
def test_ulps_count_the_numbers_in_between(one: Any, steps: int) -> None:
    other = one.copy()
    target = np.float32(np.inf if steps % 2 else -np.inf)
    for _ in range(steps % 7):
        other = np.nextafter(other, target)
    assert exact_difference(float32(one), float32(other)).max_ulp == steps % 7


def test_ulps_across_zero_count_both_sides_and_zeros_are_one_number() -> None:
    tiny = np.float32(1.4e-45)
    assert exact_difference(float32([-tiny]), float32([tiny])).max_ulp == 2
    assert exact_difference(float32([-0.0]), float32([0.0])).max_ulp == 0


@given(
    arrays.arrays(np.uint16, 40, elements=st.integers(0, 0x7F7F)),
    arrays.arrays(np.uint16, 40, elements=st.integers(0, 0x7F7F)),
    st.booleans(),
)
def test_bfloat16_is_compared_by_its_numbers_with_and_without_changes_of_sign(
    one: Any, other: Any, turned: bool
) -> None:
    signs = np.uint16(0x8000) * (np.arange(40) % 3 == 0).astype(np.uint16)
    one, other = one | signs, other ^ (np.uint16(0x8000) if turned else signs)
    a, b = ((bits.astype(np.uint32) << 16).view(np.float32).astype(float) for bits in (one, other))
    found = exact_difference(Values("bfloat16", one), Values("bfloat16", other))
    places = [np.where(bits & 0x8000, -1, 1) * (bits & 0x7FFF).astype(int) for bits in (one, other)]
    assert found.unequal == np.count_nonzero(a != b)
    assert found.sign_flips == np.count_nonzero(np.sign(a) * np.sign(b) < 0)
    assert found.max_ulp == np.abs(places[0] - places[1]).max()
    assert found.product == pytest.approx(float(a @ b), rel=1e-9, abs=1e-12 * float(a @ a + b @ b))


def test_nan_equals_no_number_and_its_first_position_is_named() -> None:
    one, other = float32([1, 2, np.nan, 4]), float32([1, np.nan, np.nan, 4.5])
    found = exact_difference(one, other)
    assert found.not_finite == (1, 2)
    assert found.not_finite_at == 1
    assert found.relative == math.inf
    assert (found.max_abs, found.max_abs_at, found.unequal) == (0.5, 3, 2)
    same = exact_difference(one, one)
    assert (same.not_finite_at, same.relative, same.is_equal) == (-1, 0.0, True)


def test_a_result_does_not_depend_on_chunks_tasks_and_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(5)
    one = generator.standard_normal(10_001, dtype=np.float32)
    other = one + np.float32(1e-5) * generator.standard_normal(10_001, dtype=np.float32)
    other[7_777] = -3
    whole = exact_difference(float32(one), float32(other))
    monkeypatch.setattr(exact, "CHUNK", 64)
    monkeypatch.setattr(exact, "TASK", 640)
    (parts,) = exact_differences([(float32(one), float32(other))], workers=3)
    assert (parts.max_abs_at, parts.max_ulp, parts.beyond, parts.sign_flips, parts.unequal) == (
        whole.max_abs_at,
        whole.max_ulp,
        whole.beyond,
        whole.sign_flips,
        whole.unequal,
    )
    assert math.isclose(parts.relative, whole.relative, rel_tol=1e-12)
    assert whole.max_abs_at == 7_777


def test_gain_and_residual_tell_a_factor_from_noise() -> None:
    one = np.random.default_rng(1).standard_normal(1000)
    found = exact_difference(float32(one), float32(1.01 * one))
    assert math.isclose(found.gain, 1.01, rel_tol=1e-6)
    assert found.residual < 1e-6 < found.relative
    assert math.isclose(found.cosine, 1.0, rel_tol=1e-9)


def test_permuted_axes_are_found_and_other_numbers_are_not() -> None:
    one = np.random.default_rng(2).standard_normal((3, 4, 5))
    found = rearranged(float32(one), float32(one.transpose(2, 0, 1)), 0.0)
    assert found is not None
    assert (found.axes, found.difference.is_equal) == ((1, 2, 0), True)
    assert rearranged(float32(one), float32(one[::-1].transpose(2, 0, 1)), 1e-3) is None


def test_numbers_too_large_to_be_squared_differ_without_an_error() -> None:
    one, other = (Values("float64", np.full(9, size)) for size in (1e200, 3e200))
    assert exact_difference(one, other).relative == math.inf


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        exact_difference(float32([1, 2]), float32([1, 2, 3]))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "bool"])
def test_a_torch_file_maps_to_what_torch_loads(dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    tensor = (torch.arange(24).reshape(2, 3, 4) - 11).to(getattr(torch, dtype))
    torch.save(tensor, tmp_path / "x.pt")
    torch.save(tensor.transpose(0, 2), tmp_path / "y.pt")
    for name, expected in (("x", tensor), ("y", tensor.transpose(0, 2))):
        found = mapped_tensor(tmp_path / f"{name}.pt")
        assert found.dtype == dtype
        assert found.values.shape == tuple(expected.shape)
        own = exact_difference(Values(dtype, found.values), Values(dtype, found.values))
        assert math.isclose(own.reference_square, float(expected.double().square().sum()))


@given(cut=st.integers(0, 1200), flip=st.integers(0, 1200))
def test_a_damaged_torch_file_is_an_error_with_its_place(
    cut: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    path = tmp_path_factory.mktemp("damaged") / "x.pt"
    torch.save(torch.ones(8), path)
    whole = bytearray(path.read_bytes())
    whole[flip % len(whole)] ^= 0xFF
    path.write_bytes(whole[: max(1, len(whole) - cut)])
    try:
        mapped_tensor(path)
    except DumpError as error:
        assert error.where == str(path)


def test_a_pickle_that_names_a_function_is_not_run(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")

    class Evil:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "made"), "w"))

    torch.save(Evil(), tmp_path / "evil.pt")
    with pytest.raises(DumpError):
        mapped_tensor(tmp_path / "evil.pt")
    assert not (tmp_path / "made").exists()


def test_a_numpy_file_maps_too(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(2, 3))
    found = mapped_tensor(tmp_path / "x.npy")
    assert (found.dtype, found.values.tolist()) == ("float64", [[0, 1, 2], [3, 4, 5]])
