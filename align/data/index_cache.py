"""The index file that MindSpeed-RL leaves beside its data and reads again, whoever made it.

Since 2025-05-16 it holds the rows in file order, repeated; its name does not say so. One of before,
or one shuffled in another way, is taken as it is, and the loader shuffles it once more.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from align.core.errors import DumpError
from align.data.samplers.mindspeed_rl import MindSpeedRL


def find_index(data_source: str, sampler: MindSpeedRL) -> Path | None:
    """Find the file that a run with this sampler reads; None where there is none.

    Source: MindSpeed-RL `_build_index_mappings`.
    """
    name = (
        f"_train_indexmap_{sampler.num_samples}ns_{sampler.seed}s_nb{sampler.num_rows}"
        "_decoder_packed_shuffle_idx.npy"
    )
    prefix = Path(data_source).name.partition("_packed_")[0]
    path = Path(data_source).with_name(prefix + name)
    return path if path.is_file() else None


def is_stale(index: tuple[int, ...], sampler: MindSpeedRL) -> bool:
    """Tell whether an index is none that the sampler's own release would make."""
    fresh = np.tile(np.arange(sampler.num_rows), sampler.num_repeats)
    return not np.array_equal(fresh, np.array(index))


def read_index(path: Path) -> tuple[int, ...]:
    """Read MindSpeed-RL's cached ``*_decoder_packed_shuffle_idx.npy``.

    Raises:
        DumpError: It is no array of whole numbers.
    """
    try:
        index = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DumpError(
            where=str(path),
            problem=f"is no NumPy array ({str(error)[:120]})",
            fix="give the file MindSpeed-RL wrote beside its .idx",
        ) from error
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        raise DumpError(
            where=str(path),
            problem=f"is no list of row numbers but {index.dtype} {index.shape}",
            fix="give the file that ends in _decoder_packed_shuffle_idx.npy",
        )
    return tuple(index.tolist())
