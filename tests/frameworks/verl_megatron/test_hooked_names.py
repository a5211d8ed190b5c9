"""The verl that is installed has the names and signatures that its double has."""

from __future__ import annotations

import ast
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed")

from align.frameworks.verl_hooks import HOOKS
from tests.unit.verl_megatron_double import SIGNATURES

ENGINE = "verl.workers.engine.megatron.transformer_impl"


def parameters() -> dict[str, tuple[str, ...]]:
    """Return the parameters of every method of the module, which needs a device to be imported."""
    spec = find_spec("verl")
    assert spec is not None and spec.origin is not None
    file = Path(spec.origin).parent.joinpath(*ENGINE.split(".")[1:]).with_suffix(".py")
    return {
        f"{kind.name}.{function.name}": names(function.args)
        for kind in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(kind, ast.ClassDef)
        for function in kind.body
        if isinstance(function, ast.FunctionDef)
    }


def names(given: ast.arguments) -> tuple[str, ...]:
    own = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return tuple(each.arg for each in (*own, *filter(None, (given.vararg, given.kwarg))))


def test_hooked_names_of_the_megatron_engine_have_the_signatures_of_the_double() -> None:
    major, minor = map(int, version("verl").split(".")[:2])
    hooked = {p.attribute for p in HOOKS if p.module == ENGINE and p.fits((major, minor))}
    found = parameters()
    assert {name: found[name] for name in hooked} == {name: SIGNATURES[name] for name in hooked}
