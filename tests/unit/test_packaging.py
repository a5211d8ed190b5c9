"""The distribution holds what it needs, and the command starts without what it does not."""

from __future__ import annotations

import ast
import re
import resource
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("align", "dumps", "reports", "tokenizer_check")
LIGHT_FOLDERS = ("align/cli", "align/core", "align/frameworks")
HEAVY = frozenset(
    (
        *("jinja2", "matplotlib", "numpy", "omegaconf", "pandas", "pyarrow", "ray"),
        *("tensorboard", "torch", "torch_npu", "transformers", "verl", "wandb"),
    )
)
HELP = """
import sys
sys.argv = ["align", "--help"]
from align.cli.main import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print("loaded:", *sorted(sys.modules), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_help_loads_no_heavy_package() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    loaded = set(done.stderr.rpartition("loaded:")[2].split())
    assert "align.cli.main" in loaded
    assert sorted(loaded & HEAVY) == []


def test_help_answers_within_a_quarter_second_of_python_itself() -> None:
    align = str(Path(sys.executable).with_name("align"))
    assert _extra_seconds([align, "--help"], over=[sys.executable, "-c", "pass"]) <= 0.25


def test_the_align_script_runs_the_command_line() -> None:
    (script,) = (e for e in metadata.distribution("npu-align").entry_points if e.name == "align")
    assert script.group == "console_scripts"
    assert script.value == "align.cli.main:main"


def test_the_distribution_carries_the_version_of_the_package() -> None:
    import align

    assert metadata.version("npu-align") == align.__version__


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (REPOSITORY / package / "py.typed").is_file()


def test_the_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    assert sorted(set(_package_files()) - held) == []
    outside = {name.partition("/")[0] for name in held} - set(PACKAGES)
    assert all(name.endswith(".dist-info") for name in outside), outside


def test_the_wheel_carries_the_license_and_the_readme(wheel: zipfile.ZipFile) -> None:
    (license_file,) = (name for name in wheel.namelist() if name.endswith("/LICENSE"))
    assert "Apache License" in wheel.read(license_file).decode()
    (metadata_file,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    told = Parser().parsestr(wheel.read(metadata_file).decode())
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Requires-Python"] == "<3.13,>=3.10"
    assert told.get_payload() == (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_every_dependency_says_why_it_is_there() -> None:
    lines = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    specifiers = [line for line in lines if re.match(r'  "[\w-]+(\[[\w,]+\])?[<>=!~]', line)]
    assert len(specifiers) > 25
    assert [line for line in specifiers if "#" not in line] == []


def test_every_dependency_is_pinned() -> None:
    pinned = _pinned()
    requirements = metadata.requires("npu-align") or []
    names = {_normalised(re.split(r"[\[<>=!~; ]", line)[0]) for line in requirements}
    assert {"click", "torch", "verl", "mypy"} <= names
    assert sorted(names - set(pinned) - {"npu-align"}) == []


def test_what_is_installed_is_what_is_pinned() -> None:
    pinned = _pinned()
    needed = (*_runtime_requirements("npu-align"), "pytest", "hypothesis", "ruff", "mypy")
    assert {name: metadata.version(name) for name in needed} == {n: pinned[n] for n in needed}


def test_torch_is_pinned_in_the_constraints_alone() -> None:
    assert _pinned()["torch"] == "2.13.0"
    assert "torch==" not in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", LIGHT_FOLDERS)
def test_heavy_packages_are_imported_where_they_are_used(folder: str) -> None:
    modules = sorted((REPOSITORY / folder).rglob("*.py"))
    assert modules, f"no module in {folder}"
    found = {str(m.relative_to(REPOSITORY)): heavy_at_top(m.read_text("utf-8")) for m in modules}
    assert {name: heavy for name, heavy in found.items() if heavy} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pandas as pd",
        "from matplotlib.figure import Figure",
        "try:\n    import torch\nexcept ImportError:\n    torch = None",
        "class Table:\n    import pandas",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import pandas",
    ],
)
def test_a_heavy_import_at_the_top_is_named(source: str) -> None:
    assert heavy_at_top(source)


@pytest.mark.parametrize(
    "source",
    [
        "def read():\n    import pandas",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas",
        "import typing\nif typing.TYPE_CHECKING:\n    from torch import Tensor",
        "import json\nfrom .torch import name",
    ],
)
def test_a_heavy_import_inside_a_function_or_for_types_is_left_alone(source: str) -> None:
    assert heavy_at_top(source) == []


def heavy_at_top(source: str) -> list[str]:
    """List the heavy packages that importing this module would load."""
    return sorted({name for name in _imported_at_top(ast.parse(source).body) if name in HEAVY})


def _imported_at_top(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0] if node.level == 0 else ""
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _imported_at_top(node.orelse)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = [child for child in ast.walk(node) if isinstance(child, ast.ExceptHandler)]
            for part in (node, *inner):
                for name in ("body", "orelse", "finalbody"):
                    yield from _imported_at_top(getattr(part, name, []))


def _extra_seconds(command: list[str], *, over: list[str], rounds: int = 7) -> float:
    """Run both commands in turn and subtract the medians of their processor time.

    Nothing in ``align --help`` waits, so on a free core this is the time a user sees; unlike that
    it does not depend on what else the machine is doing.
    """
    taken_s: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(rounds):
        for which, argv in enumerate((command, over)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(argv, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken_s[which].append(
                after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            )
    return statistics.median(taken_s[0]) - statistics.median(taken_s[1])


def _package_files() -> Iterator[str]:
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(REPOSITORY).as_posix()


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pinned() -> dict[str, str]:
    """Read constraints.txt: every line is a comment or an exact version."""
    pinned = {}
    for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, version = re.fullmatch(r"([\w.-]+)==([\w.]+)(?: ;.*)?", line).groups()  # type: ignore[union-attr]
            pinned[_normalised(name)] = version
    return pinned


def _runtime_requirements(distribution: str) -> list[str]:
    requirements = metadata.requires(distribution) or []
    return [re.split(r"[<>=!~; ]", line)[0] for line in requirements if "extra ==" not in line]
