"""A captured worker's configuration is the one its YAML states.

MindSpeed-RL's own classes read its own files, of a checkout in $MINDSPEED_RL_SRC; what a capture
writes of them is compared with the file.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from omegaconf import OmegaConf

from align.cli.main import cli
from align.core.run import RunManifest
from dumps.capture.plan import CapturePlan, What
from dumps.capture.session import Session
from dumps.capture.taps.mindspeed_rl_run import describe_run
from dumps.store.manifest import read_manifest, write_manifest

SOURCE = os.environ.get("MINDSPEED_RL_SRC")
if SOURCE is None:
    pytest.skip("needs a checkout of MindSpeed-RL (set MINDSPEED_RL_SRC)", allow_module_level=True)

CONFIGS = Path(SOURCE) / "configs"
RECIPES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if not path.stem.startswith("dpo"))
VERSION = "master"


@pytest.fixture(scope="module")
def classes() -> Iterator[SimpleNamespace]:
    """Give MindSpeed-RL's configuration classes; its packages are entered without running them."""
    before = dict(sys.modules)
    for name in ("mindspeed_rl", "mindspeed_rl.config_cls"):
        package = ModuleType(name)
        package.__path__ = [str(Path(SOURCE or "", name.replace(".", "/")))]
        sys.modules[name] = package
    utils: Any = ModuleType("mindspeed_rl.utils")
    utils.Loggers = lambda *args: None
    sys.modules["mindspeed_rl.utils"] = utils
    names = ("megatron", "rl", "generate")
    found = {n: importlib.import_module(f"mindspeed_rl.config_cls.{n}_config") for n in names}
    yield SimpleNamespace(
        megatron=found["megatron"].MegatronConfig,
        rl=found["rl"].RLConfig,
        generate=found["generate"].GenerateConfig,
    )
    for name in set(sys.modules) - set(before):
        if name.startswith("mindspeed_rl"):
            del sys.modules[name]


def worker_of(classes: SimpleNamespace, recipe: str, **changed: Any) -> Any:
    """Build what the command line of MindSpeed-RL builds an actor's worker with."""
    config: Any = OmegaConf.load(CONFIGS / f"{recipe}.yaml")  # as Hydra gives it
    models: dict[str, Any] = {}
    defaults: Any = OmegaConf.to_container(config["defaults"])
    for entry in defaults:
        for name in entry.get("model", ()) if isinstance(entry, dict) else ():
            models |= yaml.safe_load((CONFIGS / "model" / f"{name}.yaml").read_text())
    training = {**config["megatron_training"], **config["actor_config"]}
    megatron, rl = (
        classes.megatron(training, models),
        classes.rl({**config["rl_config"], **changed}),
    )
    # its launcher gives every worker the sequences of a step, by the name of its prompts
    megatron.update({"global_batch_size": megatron.global_batch_size * rl.n_samples_per_prompt})
    return SimpleNamespace(
        megatron_config=megatron,
        rl_config=rl,
        generate_config=classes.generate(config["generate_config"]),
        tokenizer=SimpleNamespace(),
    )


def difference(folder: Path, recipe: str, worker: Any) -> list[dict[str, Any]]:
    """Return the findings that change results, of the file against the captured worker."""
    run = folder / "captured"
    session = Session(CapturePlan(run, (What.CONFIG,)))
    assert describe_run(session, worker, 0) is None  # this tokenizer makes no texts
    session.drain()
    assert read_manifest(run).framework == "mindspeed_rl"
    write_manifest(run, RunManifest(framework="mindspeed_rl", framework_version=VERSION))
    stated = folder / "stated"
    (stated / "model").mkdir(parents=True)
    text = (CONFIGS / f"{recipe}.yaml").read_text()
    (stated / f"{recipe}.yaml").write_text(text)
    for path in (CONFIGS / "model").glob("*.yaml"):
        if path.stem in text:
            (stated / "model" / path.name).write_text(path.read_text())
    write_manifest(stated, RunManifest(framework="mindspeed_rl", framework_version=VERSION))
    done = CliRunner().invoke(cli, ["config", "diff", str(stated), str(run), "--json"])
    findings = json.loads(done.stdout)["findings"]
    return [f for f in findings if f["severity"] in ("error", "warning")]


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_a_worker_was_built_with_is_what_its_file_states(
    classes: SimpleNamespace, recipe: str, tmp_path: Path
) -> None:
    assert difference(tmp_path, recipe, worker_of(classes, recipe)) == []


def test_responses_are_recorded_as_texts_too_with_the_workers_tokenizer(tmp_path: Path) -> None:
    tokenizer = SimpleNamespace(batch_decode=lambda rows, **_: ["".join(map(chr, r)) for r in rows])
    worker = SimpleNamespace(tokenizer=SimpleNamespace(tokenizer=tokenizer))
    text_of = describe_run(Session(CapturePlan(tmp_path, (What.ROLLOUTS,))), worker, 0)
    assert text_of is not None
    assert text_of([(72, 105), (33,)]) == ["Hi", "!"]


def test_a_value_that_the_worker_has_otherwise_is_found(
    classes: SimpleNamespace, tmp_path: Path
) -> None:
    recipe = "grpo_qwen25_7b_A3"
    worker = worker_of(classes, recipe, mini_batch_size=16)
    (finding,) = difference(tmp_path, recipe, worker)
    assert (finding["id"], finding["reference"], finding["candidate"]) == (
        "config.actor.mini_batch_size",
        32,
        16,
    )
