"""What a family of models is: its tensors, and how each framework spells and bundles them."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal

from align.core.errors import ConfigError
from align.layout.ops import Op, Rename
from align.layout.sizes import Sizes

Build = Callable[[Sizes, int, int], Op]  # sizes, tensor-parallel ranks, experts in the tensor
Where = Literal["once", "every", "dense", "experts"]


def rename(sizes: Sizes, ranks: int, experts: int) -> Op:
    """Build the operation of a tensor that only has another name."""
    return Rename()


def always(sizes: Sizes) -> bool:
    """Say that every model of the family has the tensor."""
    return True


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor under its Hugging Face name, of which one expert is one tensor.

    Args:
        name: without "model.layers.N." in a layer; "{e}" stands for the expert.
        shape: names of lengths in `Sizes`.
        axis: along which tensor parallelism cuts it, None where every rank holds all.
        units: name of the count that is indivisible along the axis, such as "groups".
        repeats: name of the count of heads that the tensor is applied to one by one.
    """

    name: str
    shape: tuple[str, ...]
    axis: int | None = None
    units: str = ""
    repeats: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """How one dialect keeps the parts of a rule: one tensor, made by an operation.

    A name with "{e}" is one tensor an expert; one without it holds all experts of the rank.
    """

    name: str
    build: Build = rename


@dataclass(frozen=True, slots=True)
class Rule:
    """Parts that some dialect bundles, and the forms they take.

    A dialect without a form has the parts as they are, under their Hugging Face names.
    """

    parts: tuple[Part, ...]
    forms: Mapping[str, Form] = field(default_factory=dict)
    where: Where = "every"
    when: Callable[[Sizes], bool] = always

    def form(self, dialect: tuple[str, ...]) -> Form | None:
        """Return the first form the dialect has."""
        return next((self.forms[key] for key in dialect if key in self.forms), None)


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one architecture.

    Args:
        model_types: of ``config.json``.
        rules: for every tensor.
        modules: Megatron's modules that hold no tensor of their own -> Hugging Face's.
    """

    model_types: tuple[str, ...]
    rules: tuple[Rule, ...]
    modules: Mapping[str, str]


@cache
def families() -> tuple[Family, ...]:
    """Return every family of the folder ``families``."""
    import align.layout.families as folder

    names = sorted(info.name for info in pkgutil.iter_modules(folder.__path__))
    return tuple(import_module(f"{folder.__name__}.{name}").FAMILY for name in names)


def family_of(config: Mapping[str, Any], *, where: str) -> Family:
    """Return the family a ``config.json`` belongs to.

    Raises:
        ConfigError: None knows its model_type.
    """
    kind = config.get("model_type")
    for family in families():
        if kind in family.model_types:
            return family
    known = ", ".join(name for family in families() for name in family.model_types)
    raise ConfigError(
        where=where,
        key="model_type",
        problem=f"is {kind!r}; the known families are {known}",
        fix="add a file for it to align/layout/families",
    )
