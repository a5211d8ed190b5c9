"""Every module imports from earlier stages alone, in the order CONTRIBUTING.md gives."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
OURS = ("align", "dumps", "reports", "tokenizer_check")
ORDER: tuple[tuple[str, ...], ...] = (
    ("align.core",),
    ("align.frameworks", "align.layout"),
    ("dumps",),
    (
        "align.environment",
        "align.config",
        "align.data",
        "align.rollout",
        "align.objective",
        "align.weights",
        "align.curves",
        "align.evals",
        "tokenizer_check",
    ),
    ("align.layers", "align.referee"),
    ("align.stack", "align.ladder"),
    (
        "align.acceptance",
        "align.bisect",
        "align.doctor",
        "align.inventory",
        "align.next",
        "align.watch",
    ),
    ("reports",),
    ("align.cli",),
)
STAGE = {part: number for number, parts in enumerate(ORDER) for part in parts}


def test_every_module_imports_earlier_stages_alone() -> None:
    assert complaints(REPOSITORY) == []


def test_the_core_imports_the_standard_library_alone() -> None:
    assert foreign_imports_of_core(REPOSITORY) == []


def test_the_real_tree_is_what_is_read() -> None:
    assert {"align", "align.core", "dumps", "reports", "tokenizer_check"} <= set(
        _modules(REPOSITORY)
    )


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("align/core/finding.py", "from align.frameworks import verl"),
        ("dumps/readers/jsonl.py", "from align.config.read import read_yaml"),
        ("dumps/readers/jsonl.py", "def read():\n    import align.curves"),
        ("align/config/diff.py", "from ..curves import read"),
        ("align/config/diff.py", "from .. import ladder"),
        ("align/config/diff.py", "import tokenizer_check.read"),
        ("align/config/diff.py", "from align import cli"),
        ("align/ladder.py", "from align.bisect.plan import Plan"),
        ("align/ladder.py", "import importlib\nimportlib.import_module('reports.build')"),
        ("reports/build.py", "from align.cli.main import main"),
        ("align/core/run.py", "if TYPE_CHECKING:\n    from dumps.store import Index"),
        ("align/__init__.py", "from align.core import finding"),
        ("align/helpers.py", "import json"),
    ],
)
def test_an_import_of_a_later_stage_is_named(tmp_path: Path, name: str, source: str) -> None:
    _plant(tmp_path, name, source)
    (complaint,) = complaints(tmp_path)
    assert complaint.startswith(name)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("align/core/finding.py", "from .severity import Severity\nimport align"),
        ("align/cli/main.py", "from align import __version__\nimport reports.build\nimport click"),
        ("align/config/rules/dtype.py", "from ..diff import diff\nfrom align.core import finding"),
        ("align/config/__init__.py", "from . import diff\nfrom .diff import Diff"),
        ("align/ladder.py", "from align.layers import judge\nimport tokenizer_check"),
        ("reports/build.py", "from align.ladder import climb\nimport aligned"),
    ],
)
def test_an_import_of_an_earlier_stage_is_left_alone(
    tmp_path: Path, name: str, source: str
) -> None:
    _plant(tmp_path, name, source)
    assert complaints(tmp_path) == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import numpy as np", ["align/core/x.py:1 imports numpy"]),
        ("def f():\n    from rich import print", ["align/core/x.py:2 imports rich"]),
        ("import json, os.path\nfrom .y import z\nfrom align.core.y import z", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy", []),
        (
            "if TYPE_CHECKING:\n    pass\nelse:\n    import numpy",
            ["align/core/x.py:4 imports numpy"],
        ),
    ],
)
def test_a_foreign_import_of_the_core_is_named(
    tmp_path: Path, source: str, named: list[str]
) -> None:
    _plant(tmp_path, "align/core/x.py", source)
    assert foreign_imports_of_core(tmp_path) == named


def complaints(root: Path) -> list[str]:
    """Say which modules have no stage, and which imports go to a later or a sibling stage."""
    modules = _modules(root)
    return [line for name in sorted(modules) for line in _complaints_of(name, modules, root)]


def _complaints_of(name: str, modules: dict[str, Path], root: Path) -> Iterator[str]:
    where = modules[name].relative_to(root)
    part = _part(name)
    if part is None and name != "align":
        yield f"{where} belongs to no stage: put it into one, or give it one in ORDER"
        return
    for line, target in _imports(name, modules[name]):
        other = _part(target)
        if other is None or other == part:
            continue
        if part is None or STAGE[other] >= STAGE[part]:
            yield f"{where}:{line} imports {target}: {other} is no earlier stage than {part}"


def foreign_imports_of_core(root: Path) -> list[str]:
    """Say which imports of align.core, types aside, come from outside the standard library."""
    found = []
    for name, path in sorted(_modules(root).items()):
        if _part(name) == "align.core":
            for line, target in _imports(name, path, types=False):
                top = target.partition(".")[0]
                if top not in sys.stdlib_module_names and top != "align":
                    found.append(f"{path.relative_to(root)}:{line} imports {target}")
    return found


def _part(module: str) -> str | None:
    """Find the part of ORDER that holds this module; `align` itself is in none."""
    names = module.split(".")
    prefixes = (".".join(names[:length]) for length in (2, 1))
    return next((prefix for prefix in prefixes if prefix in STAGE), None)


def _modules(root: Path) -> dict[str, Path]:
    found = {}
    for package in OURS:
        for path in (root / package).rglob("*.py"):
            names = path.relative_to(root).with_suffix("").parts
            found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


def _imports(module: str, path: Path, *, types: bool = True) -> Iterator[tuple[int, str]]:
    """Yield line and full name of all that a module imports, at any depth."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    skipped = set() if types else set(_for_types(tree))
    for node in ast.walk(tree):
        if node not in skipped:
            for target in _targets(node, package):
                yield getattr(node, "lineno", 0), target


def _targets(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, package)
        if base in OURS:  # `from align import config` imports align.config
            yield from (f"{base}.{alias.name}" for alias in node.names)
        else:
            yield base
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        name = node.args[0] if node.args else None
        if isinstance(name, ast.Constant) and str(name.value).partition(".")[0] in OURS:
            yield str(name.value)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    names = package.split(".")
    return ".".join([*names[: len(names) - node.level + 1], *filter(None, [node.module])])


def _for_types(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for statement in node.body:
                yield from ast.walk(statement)


def _plant(root: Path, name: str, source: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
