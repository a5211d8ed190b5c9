"""The table of arguments against Megatron's own parser, from $MEGATRON_SRC, a checkout of it."""

from __future__ import annotations

import argparse
import enum
import importlib
import os
import sys
from types import ModuleType

import pytest

from align.frameworks.megatron_arguments import arguments

SOURCE = os.environ.get("MEGATRON_SRC")
if SOURCE is None:
    pytest.skip("needs Megatron-LM at core_v0.12.1 (set MEGATRON_SRC)", allow_module_level=True)
pytest.importorskip("torch")


def parser() -> argparse.ArgumentParser:
    """Build Megatron's parser without the parts of its package that need a GPU."""
    training = ModuleType("megatron.training")
    training.__path__ = [f"{SOURCE}/megatron/training"]
    helpers = ModuleType("megatron.training.utils")
    helpers.get_device_arch_version = helpers.update_use_dist_ckpt = print  # type: ignore[attr-defined]
    before = dict(sys.modules)
    sys.path.insert(0, str(SOURCE))
    try:
        for name in [n for n in sys.modules if n.partition(".")[0] == "megatron"]:
            del sys.modules[name]
        importlib.import_module("megatron")
        sys.modules |= {"megatron.training": training, "megatron.training.utils": helpers}
        module = importlib.import_module("megatron.training.arguments")
        made = argparse.ArgumentParser(allow_abbrev=False)
        module.add_megatron_arguments(made)
        return made
    finally:
        sys.path.remove(str(SOURCE))
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
        sys.modules.update(before)


def test_every_flag_default_and_action_is_that_of_megatrons_parser() -> None:
    kinds = {"_StoreTrueAction": "store_true", "_StoreFalseAction": "store_false"}
    own = {name: a for name, a in arguments().items() if a.is_megatron}
    seen = set()
    for action in parser()._actions:
        if action.dest == "help":
            continue
        argument = own[action.dest]
        default = action.default.name if isinstance(action.default, enum.Enum) else action.default
        default = tuple(default) if isinstance(default, list) else default
        assert argument.megatron == default, action.dest
        assert argument.action == kinds.get(type(action).__name__, "store"), action.dest
        assert set(action.option_strings) <= set(argument.flags), action.dest
        seen.add(action.dest)
    assert seen == set(own) and len(seen) == 455
