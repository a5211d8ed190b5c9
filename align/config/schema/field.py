"""A field of the common schema: what it means and what a difference in it can do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text


class ValueKind(str, Enum):
    """How values of a field are brought into one form and compared."""

    NUMBER = "number"  # 1e-6 = '1e-6' = 1.0e-06
    FLAG = "flag"  # True = 'true' = 1
    DTYPE = "dtype"  # bf16 = bfloat16 = torch.bfloat16
    NAME = "name"  # one word, case does not matter
    MODEL_NAME = "model_name"  # a path or hub id; only the model it names is compared
    PATH = "path"  # the last component is compared, the folders before it are not
    SET = "set"  # 151645 = [151645], [151645, 151643] = [151643, 151645]
    ANY = "any"  # numbers as numbers, lists item by item, paths as paths, the rest as text


@dataclass(frozen=True, slots=True)
class Field:
    """One quantity of the common schema.

    Args:
        name: dotted; a family of keys ends in ``.*``.
        acts_on: first rung whose quantities it changes within one training step.
        meaning: what it sets, as a noun phrase.
        kind: how values are compared.
        unit: unit of the value, "" where it has none.
        severity: of a difference, before rules look at the rest of the configuration.
        strength: size of effect of a difference.
        signature: metric patterns a difference explains at any size.
        why: what a difference does, as a sentence; a general one where None.
        only_if: name of a flag; a difference has no effect while that is off on both sides, and
            is reported with the flag where that differs.
        follows: fields this one is often set from; where one of them differs too, the difference
            is reported there.
        between_frameworks: whether values of two frameworks can be compared at all.
    """

    name: str
    acts_on: Rung
    meaning: Text
    kind: ValueKind = ValueKind.NUMBER
    unit: str = ""
    severity: Severity = Severity.ERROR
    strength: Strength = Strength.SEMANTIC
    signature: tuple[str, ...] = ()
    why: Text | None = None
    only_if: str | None = None
    follows: tuple[str, ...] = ()
    between_frameworks: bool = True
