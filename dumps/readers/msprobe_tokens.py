"""Token tensors that ``save_data`` of msprobe wrote: ``debug.json`` and its ``.pt`` files.

MindSpeed-RL saves prompts, responses and further columns of a step this way. ``{name}.{k}.debug``
is the k-th time a name was saved within the step; equal k belong together.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from align.core.errors import AlignError, DumpError
from align.core.run import ArtifactKind
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.token_tensors import CANONICAL, TokenTensors, canonical, holds_ids
from dumps.readers.torch_tensors import as_arrays, load

if TYPE_CHECKING:
    from dumps.readers.token_tensors import Array

FORMAT = "msprobe_tokens"
_SAVED = re.compile(r"(?P<name>\w+)\.(?P<k>\d+)\.debug")
_SAVED_IDS = re.compile(
    rb'"(?:%s)\.\d+\.debug"' % "|".join(n for n in CANONICAL if holds_ids([n])).encode()
)
_STEP_FOLDER = re.compile(r"step_?(\d+)")


def read(path: Path, progress: Progress) -> tuple[TokenTensors, ...]:
    """Read the saved tensors of one process and step.

    Raises:
        DumpError: It is no whole JSON object, or has statistics in place of tensors.
        MissingPackageError: torch is not installed.
    """
    try:
        data = json.loads(path.read_bytes())["data"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _broken(path, f"is no debug.json of msprobe ({error})") from error
    progress(path.stat().st_size)
    batches: dict[int, dict[str, Array | Sequence[Array]]] = defaultdict(dict)
    problems = []
    for key, saved in data.items() if isinstance(data, Mapping) else ():
        named = _SAVED.fullmatch(key)
        if named is None or named["name"] not in CANONICAL:
            continue
        try:
            batches[int(named["k"])][named["name"]] = _tensor(path, saved)
        except AlignError as error:
            problems.append(str(error))
    found = {k: canonical(tensors) for k, tensors in sorted(batches.items())}
    whole = {k: tensors for k, tensors in found.items() if holds_ids(list(tensors))}
    if not whole:
        raise _broken(path, "; ".join(problems[:3]) or "has no saved token ids")
    step, last = _step(path), max(whole)
    return tuple(
        TokenTensors(
            f"{path}#{k}" if len(whole) > 1 else str(path),
            step,
            tensors,
            problems=tuple(problems) if k == last else (),
        )
        for k, tensors in whole.items()
    )


def _tensor(path: Path, saved: Any) -> Array | Sequence[Array]:
    names = list(_file_names(saved))
    if not names:
        raise _broken(path, "has statistics in place of tensors")
    arrays = [as_arrays(load(path.parent / "dump_tensor_data" / name)) for name in names]
    found = [array for array in arrays if array is not None and not isinstance(array, list)]
    return found[0] if len(found) == 1 and not isinstance(saved, list) else found


def _file_names(saved: Any) -> Iterator[str]:
    """Yield the tensor files of a saved value, in its own order."""
    if isinstance(saved, Mapping):
        name = saved.get("data_name")
        if isinstance(name, str) and "/" not in name and "\\" not in name:
            yield name
    elif isinstance(saved, list):
        for item in saved:
            yield from _file_names(item)


def _step(path: Path) -> int | None:
    """Return the number of the step folder; msprobe counts steps from 0."""
    named = (_STEP_FOLDER.fullmatch(parent.name) for parent in path.parents)
    return next((int(match[1]) for match in named if match), None)


def _broken(path: Path, problem: str) -> DumpError:
    return DumpError(
        where=str(path),
        problem=problem,
        fix='save them with task "tensor" and PrecisionDebugger.save_data, and keep the folder',
    )


def _sniff(glimpse: Glimpse) -> bool:
    head = glimpse.head
    return (
        glimpse.path.name.startswith("debug")
        and b'"level": "debug"' in head[:1024]
        and glimpse.search(_SAVED_IDS) is not None
    )


READER = Reader(FORMAT, ArtifactKind.TOKENS, _sniff, read)
