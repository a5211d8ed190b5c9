"""`align capture --backend msprobe`, on a double of msprobe that notes how it is called.

The real msprobe is driven in tests/frameworks/trl/test_trl_msprobe.py where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch", reason="taps look at torch's tensors")

from align.cli.main import cli
from align.core.errors import MissingPackageError
from dumps.capture.install import hook_points
from dumps.capture.plan import Backend, CapturePlan, read_plan, write_plan
from dumps.capture.session import Session
from dumps.capture.taps import msprobe, verl_worker
from dumps.store.run_index import read_index

needs_none = pytest.mark.skipif(
    importlib.util.find_spec("msprobe") is not None, reason="msprobe is installed here"
)


class PrecisionDebugger:
    """Notes calls; writes a dump where msprobe does, with no process group."""

    calls: list[Any] = []  # noqa: RUF012
    folder = Path()
    now = 0

    def __init__(self, config_path: str) -> None:
        type(self).folder = Path(json.loads(Path(config_path).read_text())["dump_path"])

    def set_init_step(self, step: int) -> None:
        self.calls.append(("step", step))
        type(self).now = step

    def start(self, model: Any) -> None:
        self.calls.append(("start", model))

    def stop(self) -> None:
        self.calls.append("stop")

    def step(self) -> None:
        self.calls.append("end")
        path = self.folder / f"step{self.now}" / f"proc{os.getpid()}" / "dump.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Give a session with the double in msprobe's place."""
    from dumps.capture.msprobe_backend import prepare

    for name in ("msprobe", "msprobe.pytorch"):
        made = ModuleType(name)
        made.__spec__ = importlib.util.spec_from_loader(name, None)
        monkeypatch.setitem(sys.modules, name, made)
    sys.modules["msprobe.pytorch"].PrecisionDebugger = PrecisionDebugger  # type: ignore[attr-defined]
    monkeypatch.setattr(PrecisionDebugger, "calls", [])
    monkeypatch.setattr(verl_worker, "_worker", SimpleNamespace(step=1))
    plan = CapturePlan(tmp_path, steps=((2, 3),), backend=Backend.MSPROBE)
    prepare(plan)
    return Session(plan)


def updates(session: Session) -> list[tuple[str, Callable[[int], Any]]]:
    """Return how each framework's update is tapped at a step, as what its worker is."""

    def verl(step: int) -> Any:
        verl_worker._worker.step = step
        worker = SimpleNamespace(actor=SimpleNamespace(engine=SimpleNamespace(module="model")))
        return msprobe.verl_update(session, worker, None)

    def older_verl(step: int) -> Any:
        verl_worker._worker.step = step
        return msprobe.verl_update(session, SimpleNamespace(actor_module_fsdp="model"), None)

    def mindspeed_rl(step: int) -> Any:
        worker = SimpleNamespace(model="model", iteration=step - 1)
        return msprobe.mindspeed_rl_update(session, worker, None)

    return [("verl", verl), ("older verl", older_verl), ("MindSpeed-RL", mindspeed_rl)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_actors_update_is_looked_at_in_the_steps_asked_for(
    session: Session, number: int
) -> None:
    _, update = updates(session)[number]
    for step in (1, 2, 3, 4):
        update(step)(None)
    assert PrecisionDebugger.calls == [
        *(("step", 2), ("start", "model"), "stop", "end"),
        *(("step", 3), ("start", "model"), "stop", "end"),
    ]
    index = read_index(session.plan.run)
    assert index.whole_steps == (2, 3)
    entered = sorted(file.file for file in index.files)
    assert [name.split("/")[:2] for name in entered] == [["msprobe", "step2"], ["msprobe", "step3"]]


def test_trl_is_looked_at_from_the_first_loss_to_the_last_backward_of_a_step(
    session: Session,
) -> None:
    model = SimpleNamespace(training=True)
    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=1), accelerator=SimpleNamespace(sync_gradients=False)
    )
    for is_last in (False, True):
        trainer.accelerator.sync_gradients = is_last
        after = msprobe.trl_step(session, trainer, model, {})
        msprobe.trl_loss(session, trainer, model, {})
        after(None)
    assert PrecisionDebugger.calls == [("step", 2), ("start", model), "stop", "end"]


def test_an_evaluation_is_not_looked_at(session: Session) -> None:
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=1))
    msprobe.trl_loss(session, trainer, SimpleNamespace(training=False), {})
    assert not PrecisionDebugger.calls


def test_the_configuration_asks_for_statistics_of_modules(session: Session) -> None:
    config = json.loads((session.plan.run / "msprobe" / "config.json").read_text())
    assert (config["task"], config["level"]) == ("statistics", "L0")
    assert config["dump_path"] == str(session.plan.run / "msprobe")


def test_the_backend_is_part_of_the_plan(tmp_path: Path) -> None:
    plan = CapturePlan(tmp_path, backend=Backend.MSPROBE)
    assert read_plan(write_plan(plan)) == plan
    assert read_plan(write_plan(CapturePlan(tmp_path))).backend is Backend.ALIGN


def test_msprobe_is_hooked_only_where_it_is_asked_for() -> None:
    taps = [{point.tap.split(":")[0] for point in hook_points(backend)} for backend in Backend]
    assert ["msprobe" in each for each in taps] == [False, True]


@needs_none
def test_without_the_package_the_run_is_not_begun(tmp_path: Path) -> None:
    began = tmp_path / "began"
    arguments = ["capture", "--backend", "msprobe", "-o", str(tmp_path / "run"), "--", "touch"]
    done = CliRunner().invoke(cli, [*arguments, str(began)])
    assert isinstance(done.exception, MissingPackageError)
    assert "pip install mindstudio-probe" in str(done.exception)
    assert not began.exists()
