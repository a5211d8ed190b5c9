"""Write a capture's statistics as msprobe dumps, which msprobe's own commands open.

``step{n}/rank{r}/`` gets ``dump.json`` (task statistics, level L0), ``construct.json`` and
``stack.json``. A capture keeps no class names and no call stacks, so every class is called
``Module``; sketches have no place in msprobe's format and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dumps.store.atomic import write_atomic
from dumps.store.tensor_records import Phase, SketchFile, TensorRecord

CLASS = "Module"
_STACK = ["File capture, line 1, in align, \n recorded by align, which keeps no call stacks"]


@dataclass
class _Module:
    """What is recorded of one module, by what it becomes in the dump."""

    inputs: list[TensorRecord] = field(default_factory=list)
    outputs: list[TensorRecord] = field(default_factory=list)
    gradients: list[TensorRecord] = field(default_factory=list)
    parameters: dict[str, TensorRecord] = field(default_factory=dict)
    parameter_gradients: dict[str, TensorRecord] = field(default_factory=dict)
    order: int = 0


_SECTIONS = {
    Phase.INPUT: "inputs",
    Phase.FORWARD: "outputs",
    Phase.GRADIENT: "gradients",
    Phase.PARAMETER: "parameters",
    Phase.PARAMETER_GRADIENT: "parameter_gradients",
}


def write_msprobe(files: Iterable[SketchFile], folder: Path) -> tuple[Path, ...]:
    """Write one dump a step and rank.

    Returns:
        The folders written; a file without module outputs makes none.
    """
    written = []
    for file in files:
        modules = _modules(file.records)
        if not modules:
            continue
        place = folder / f"step{file.step}" / f"rank{file.rank}"
        data = dict(_entries(modules))
        head = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None}
        _write(place / "dump.json", {**head, "data": data})
        _write(place / "construct.json", _construct(modules, data))
        forward = [key for key in data if key.endswith(".forward.0")]
        _write(place / "stack.json", {"0": [forward, _STACK]})
        written.append(place)
    return tuple(written)


def _modules(records: Iterable[TensorRecord]) -> dict[str, _Module]:
    """Gather the first optimizer step's records by module, in the order of their outputs."""
    taken = sorted((r for r in records if not r.update), key=lambda record: record.order)
    found: dict[str, _Module] = {}
    for record in taken:
        if record.phase == Phase.FORWARD:
            found.setdefault(record.name, _Module(order=record.order))
    for record in taken:
        section = _SECTIONS.get(record.phase)
        if section in ("parameters", "parameter_gradients"):
            module, _, own = record.name.rpartition(".")
            if module in found:
                getattr(found[module], section)[own] = record
        elif section is not None and record.name in found:
            getattr(found[record.name], section).append(record)
    return found


def _entries(modules: Mapping[str, _Module]) -> Iterable[tuple[str, dict[str, Any]]]:
    for name, module in modules.items():
        yield (
            _key(name, "forward"),
            {
                "input_args": [_leaf(record) for record in module.inputs],
                "input_kwargs": {},
                "output": [_leaf(record) for record in module.outputs],
                "parameters": {own: _leaf(r) for own, r in module.parameters.items()},
            },
        )
    backward = [(n, m) for n, m in modules.items() if m.gradients or m.parameter_gradients]
    for name, module in sorted(backward, key=lambda item: _backward_order(item[1])):
        if module.parameter_gradients:
            gradients = {own: [_leaf(r)] for own, r in module.parameter_gradients.items()}
            yield _key(name, "parameters_grad"), gradients
        if module.gradients:
            leaves = [_leaf(record) for record in module.gradients]
            yield _key(name, "backward"), {"input": leaves, "output": []}


def _backward_order(module: _Module) -> tuple[int, int]:
    """Order by when the output's gradient arrived; without one, against the forward order."""
    arrived = [record.order for record in module.gradients]
    return (0, arrived[0]) if arrived else (1, -module.order)


def _construct(modules: Mapping[str, _Module], data: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the parent of every call, parents before children."""
    found: dict[str, str | None] = {}
    for direction in ("forward", "backward"):
        known = {name: key for name in modules if (key := _key(name, direction)) in data}
        for name in sorted(known, key=lambda name: (modules[name].order, -name.count("."))):
            for inner in (*_above(name, known), name):
                above = _above(inner, known)
                found.setdefault(known[inner], known[above[-1]] if above else None)
    return found


def _above(name: str, known: Mapping[str, str]) -> tuple[str, ...]:
    """Return the recorded modules around one, outermost first."""
    parts = name.split(".")
    prefixes = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    return tuple(prefix for prefix in prefixes if prefix in known)


def _key(name: str, direction: str) -> str:
    return f"Module.{name}.{CLASS}.{direction}.0"


def _leaf(record: TensorRecord) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": f"torch.{record.dtype}",
        "shape": list(record.shape),
        "Max": record.maximum,
        "Min": record.minimum,
        "Mean": record.mean,
        "Norm": record.l2,
        "requires_grad": record.phase not in (Phase.GRADIENT, Phase.PARAMETER_GRADIENT),
    }


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """Write as msprobe does: NaN and infinity are JavaScript's words, not strings."""
    write_atomic(path, json.dumps(document, indent=1) + "\n")
