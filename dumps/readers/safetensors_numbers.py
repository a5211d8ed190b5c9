"""Numbers of a safetensors file as NumPy has them; bfloat16, which it lacks, as float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dumps.readers.weights_safetensors import read_header


def numbers(path: Path, file: Any, name: str) -> npt.NDArray[np.generic]:
    """Read one tensor; float32 holds every bfloat16 number exactly.

    Args:
        file: the path, opened by ``safetensors.safe_open`` for NumPy.

    Raises:
        DumpError: The header is damaged.
        TypeError, AttributeError: NumPy has no such dtype, and it is not bfloat16.
    """
    if file.get_slice(name).get_dtype() != "BF16":
        tensor: npt.NDArray[np.generic] = file.get_tensor(name)
        return tensor
    header, start = read_header(path)
    begin, end = header[name]["data_offsets"]
    bits = np.fromfile(path, np.uint16, count=(end - begin) // 2, offset=start + begin)
    wide = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide.reshape(header[name]["shape"])


def are_bfloat16(numbers: npt.NDArray[np.generic]) -> bool:
    """Tell whether bfloat16 holds all numbers; of float32 ones it holds one in 65,536."""
    bits = np.ascontiguousarray(numbers.astype(np.float32)).view(np.uint32)
    return not bool((bits & np.uint32(0xFFFF)).any())
