"""The folder that runs of verl start from: model, data, plugins and the recipe's script."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.frameworks.verl.runs import PLUGIN

SCRIPT = "run_v1.sh"
LAYER_FAULTS = Path(__file__).parents[1] / "layer_faults.py"


def lay_out(folder: Path, recipe: Path, recorded: Path) -> None:
    """Fill an empty folder.

    Args:
        recipe: for verl on CPU.
        recorded: what runs by that recipe left.
    """
    (folder / "tiny").symlink_to(recorded / "tiny_model_tokenizer_data")
    shutil.copytree(recipe / "plugin", folder / "plugin")
    shutil.copytree(PLUGIN, folder / "plugin", dirs_exist_ok=True)
    shutil.copy(LAYER_FAULTS, folder / "plugin")
    shutil.copy(recorded / "agentloop_dump_tokens.jsonl", folder / "rollouts.jsonl")
    script = (recipe / SCRIPT).read_text()
    assert "exec timeout" in script
    (folder / SCRIPT).write_text(script.replace("exec timeout", "exec $PREFIX timeout"))
    _with_another_epsilon(folder / "tiny" / "model", folder / "other_eps")


def _with_another_epsilon(model: Path, copy: Path) -> None:
    shutil.copytree(model, copy)
    config = json.loads((model / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-6
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
