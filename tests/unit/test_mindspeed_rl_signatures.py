"""Every function we hook in MindSpeed-RL is where we look for it, and our taps take its arguments.

Against signatures recorded from branches 2.0.0 to 2.3.0 and master; where MINDSPEED_RL_SRC names a
checkout, the source itself is held against them too.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="taps look at torch's tensors")

from align.frameworks.hook_point import HookPoint
from align.frameworks.mindspeed_rl_hooks import HOOKS as CAPTURED
from align.frameworks.mindspeed_rl_replay import HOOKS as REPLAYED
from align.frameworks.msprobe_hooks import HOOKS as PROBED
from tests.unit.mindspeed_rl_signatures import RELEASES, signatures

SOURCE = os.environ.get("MINDSPEED_RL_SRC")
SINCE_2_2 = ("dapo", "ppo")  # losses that the first two branches have not
TAPPED = [
    *(("dumps.capture.taps", 1, p) for p in CAPTURED),
    *(("dumps.capture.taps", 1, p) for p in PROBED if p.package == "mindspeed_rl"),
    *(("dumps.inject.drivers", 2, p) for p in REPLAYED),
]


def points() -> Iterable[HookPoint]:
    return {point.name: point for _, _, point in TAPPED}.values()


@pytest.mark.parametrize("point", points(), ids=lambda point: point.name)
def test_a_hooked_function_is_in_every_branch_that_can_have_it(point: HookPoint) -> None:
    late = point.since == (2, 2) or any(f".{k}_actor_loss_func" in point.module for k in SINCE_2_2)
    assert set(signatures(point.name)) == set(RELEASES[2:] if late else RELEASES)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("package", "given", "point"), TAPPED)
def test_what_we_put_in_takes_the_arguments_of_every_branch(
    package: str, given: int, point: HookPoint, release: str
) -> None:
    """By name, as MindSpeed-RL calls them; ours come first (a session, or replay and original)."""
    arguments = signatures(point.name).get(release)
    if arguments is None:
        return
    module, _, function = point.tap.partition(":")
    tap = inspect.signature(getattr(import_module(f"{package}.{module}"), function))
    plain = [name for name in arguments if not name.startswith("**")]
    own = [None] * (given + (plain[0] == "self"))
    tap.bind(*own, **{name: None for name in plain if name != "self"})


@pytest.mark.skipif(SOURCE is None, reason="set MINDSPEED_RL_SRC")
@pytest.mark.parametrize("point", points(), ids=lambda point: point.name)
def test_the_checkout_has_one_of_the_recorded_signatures(point: HookPoint) -> None:
    path = Path(SOURCE or "", *point.module.split(".")).with_suffix(".py")
    if not path.is_file() and set(signatures(point.name)) < set(RELEASES):
        pytest.skip("this branch has no such loss")
    owner, _, name = point.attribute.partition(".")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner)
    (method,) = (n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == name)
    rest = [f"**{method.args.kwarg.arg}"] if method.args.kwarg else []
    arguments = [argument.arg for argument in method.args.args] + rest
    assert arguments in signatures(point.name).values()
