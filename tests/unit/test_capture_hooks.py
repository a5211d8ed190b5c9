"""Hooks go in at import, in every process, and neither fail nor change what they look at."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from align.cli.capture import command
from align.cli.capture_view import as_text
from align.core.errors import RunError
from align.frameworks.hook_point import HookPoint
from dumps.capture import ray_workers
from dumps.capture.environment import STARTUP, child_environment, without_ours
from dumps.capture.failures import FailureLog, RunStopped
from dumps.capture.install import TABLES, hook_points, put_in
from dumps.capture.launch import outcome, run_captured
from dumps.capture.plan import BY_DEFAULT, CapturePlan, What, read_plan, write_plan
from dumps.capture.session import Session, timed
from dumps.capture.wrap import wrap

REPOSITORY = Path(__file__).resolve().parents[2]


def double(x: int) -> int:
    """Twice."""
    return 2 * x


async def double_later(x: int) -> int:
    return 2 * x


class Worker:
    @staticmethod
    def fixed(x: int) -> int:
        return 3 * x

    def own(self, x: int) -> int:
        return 4 * x


def owner(**functions: Any) -> SimpleNamespace:
    return SimpleNamespace(**functions)


def fails(*args: Any, **kwargs: Any) -> None:
    raise ValueError("broken tap")


def test_a_failing_tap_changes_nothing_and_is_logged_thrice_at_most(tmp_path: Path) -> None:
    module = owner(double=double)
    wrap(module, "double", "m:double", fails, FailureLog(tmp_path, "driver-0"))
    assert [module.double(x) for x in range(5)] == [0, 2, 4, 6, 8]
    log = (tmp_path / "capture.log").read_text()
    assert log.count("failed: m:double") == 3 and "broken tap" in log


def test_a_tap_that_fails_after_the_call_changes_nothing(tmp_path: Path) -> None:
    module = owner(double=double)
    wrap(module, "double", "m:double", lambda *a, **k: fails, FailureLog(tmp_path, "driver-0"))
    assert module.double(2) == 4
    assert "broken tap" in (tmp_path / "capture.log").read_text()


def test_an_exception_of_the_function_reaches_its_caller_as_it_is(tmp_path: Path) -> None:
    module = owner(fails=fails)
    wrap(module, "fails", "m:fails", lambda *a, **k: None, FailureLog(tmp_path, "driver-0"))
    with pytest.raises(ValueError, match="broken tap"):
        module.fails()
    assert not (tmp_path / "capture.log").exists()


def test_only_a_broken_invariant_reaches_training(tmp_path: Path) -> None:
    def stops(*args: Any) -> None:
        raise RunStopped("NaN")

    module = owner(double=double)
    wrap(module, "double", "m:double", stops, FailureLog(tmp_path, "driver-0"))
    with pytest.raises(RunStopped, match="NaN"):
        module.double(1)


def test_a_wrapped_function_looks_like_the_original(tmp_path: Path) -> None:
    double.attrs_3141562937 = {"dispatch_mode": 1}  # type: ignore[attr-defined]
    module = owner(double=double, later=double_later)
    seen: list[int] = []
    for name in ("double", "later"):
        wrap(module, name, name, lambda x: seen.append(x), FailureLog(tmp_path, "driver-0"))
    assert (module.double.__name__, module.double.__doc__) == ("double", "Twice.")
    assert module.double.attrs_3141562937 == {"dispatch_mode": 1}
    assert pickle.dumps(double) and inspect.isfunction(module.double)
    assert inspect.iscoroutinefunction(module.later) and asyncio.run(module.later(3)) == 6
    assert seen == [3]


def test_methods_and_static_methods_stay_what_they_are(tmp_path: Path) -> None:
    class Copy(Worker):
        fixed = staticmethod(Worker.fixed)

        def own(self, x: int) -> int:
            return super().own(x)

    log, seen = FailureLog(tmp_path, "driver-0"), []
    wrap(Copy, "fixed", "fixed", lambda x: seen.append(x), log)
    wrap(Copy, "own", "own", lambda self, x: seen.append(x), log)
    assert (Copy().fixed(1), Copy.fixed(1), Copy().own(2)) == (3, 3, 8)
    assert seen == [1, 1, 2]


def test_an_absent_hook_point_is_an_error_of_the_hooking_alone(tmp_path: Path) -> None:
    session = Session(CapturePlan(tmp_path))
    point = HookPoint("m", "Gone.method", "stack:step", "npu-align", (0, 0), "nothing")
    with pytest.raises(AttributeError):
        put_in(session, ModuleType("m"), point)


def test_every_hook_point_names_a_tap_that_exists() -> None:
    from importlib import import_module

    for point in hook_points():
        module, _, function = point.tap.partition(":")
        assert callable(getattr(import_module(f"dumps.capture.taps.{module}"), function)), point


def test_hook_tables_fit_the_versions_they_name() -> None:
    tables = {name: [p for p in hook_points() if p.package == name] for name in ("verl", "trl")}
    assert all(tables.values()) and len(TABLES) == 4
    names = {v: {p.name for p in tables["verl"] if p.fits(v)} for v in ((0, 5), (0, 7), (0, 9))}
    assert (
        "verl.workers.fsdp_workers:ActorRolloutRefWorker.update_actor" in names[0, 5] & names[0, 7]
    )
    assert "verl.workers.actor.dp_actor:compute_policy_loss" in names[0, 5] - names[0, 7]
    assert not {name for name in names[0, 9] if "dp_actor" in name or "fsdp_workers" in name}
    assert "verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit" in names[0, 9] - names[0, 7]


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = CapturePlan(tmp_path, (What.RNG,), ((1, 3),), (0,), "*.mlp", True)
    assert read_plan(write_plan(plan)) == plan
    assert plan.takes_step(3) and not plan.takes_step(4)
    assert plan.takes_rank(0) and not plan.takes_rank(1)


def test_a_plan_written_by_hand_needs_its_version_alone(tmp_path: Path) -> None:
    (tmp_path / "capture.json").write_text('{"schema_version": 1}')
    assert read_plan(tmp_path / "capture.json") == CapturePlan(tmp_path / ".", BY_DEFAULT)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema_version": 2}', '{"schema_version": 1, "what": ["x"]}']
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "capture.json").write_text(text)
    with pytest.raises(RunError, match="no capture plan"):
        read_plan(tmp_path / "capture.json")


def test_the_childs_environment_keeps_what_is_there_and_can_be_undone(tmp_path: Path) -> None:
    before = {"PYTHONPATH": "/a:/b", "VERL_USE_EXTERNAL_MODULES": "mine", "HOME": "/h"}
    child = child_environment(tmp_path / "capture.json", before)
    assert child["PYTHONPATH"] == f"{STARTUP}:/a:/b"
    assert child["VERL_USE_EXTERNAL_MODULES"] == "mine,dumps.capture.install_now"
    assert without_ours(child) == before
    assert without_ours(child_environment(tmp_path / "p", {"HOME": "/h"})) == {"HOME": "/h"}


def test_ray_workers_get_the_capture_beside_what_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALIGN_CAPTURE", "/run/capture.json")
    calls: list[dict[str, Any]] = []
    ray = ModuleType("ray")
    ray.init = lambda *args, **kwargs: calls.append(kwargs)  # type: ignore[attr-defined]
    ray_workers.hook_ray(ray, FailureLog(tmp_path, "driver-0"))
    given = {"env_vars": {"A": "1"}, "working_dir": None}
    ray.init("auto", runtime_env=given, num_cpus=2)
    ray.init()
    variables = {"ALIGN_CAPTURE": "/run/capture.json", "PYTHONPATH": f"{STARTUP}:${{PYTHONPATH}}"}
    assert calls[0]["runtime_env"] == {"env_vars": {"A": "1", **variables}, "working_dir": None}
    assert calls[0]["num_cpus"] == 2 and calls[1]["runtime_env"] == {"env_vars": variables}
    assert given == {"env_vars": {"A": "1"}, "working_dir": None}


def captured(tmp_path: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    plan = write_plan(CapturePlan(tmp_path / "run"))
    environment = child_environment(plan, {**os.environ, **variables})
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )


def test_the_sitecustomize_that_ours_hides_runs_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['MINE'] = 'ran'\n")
    script = (
        "import os, sys, json\n"
        "print(json.dumps([os.environ['MINE'], 'dumps.capture.install' in sys.modules,"
        " sys.modules['sitecustomize'].__file__, sys.path]))"
    )
    done = captured(tmp_path, script, PYTHONPATH=str(own))
    ran, hooked, file, path = json.loads(done.stdout)
    assert (ran, hooked, file) == ("ran", True, str(own / "sitecustomize.py"))
    assert str(STARTUP) not in path and str(own) in path


def test_a_process_without_a_plan_imports_nothing_of_ours(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(sorted(m for m in sys.modules if 'dumps' in m))"],
        env={**os.environ, "PYTHONPATH": str(STARTUP)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_with_a_pth_file_one_variable_is_enough(tmp_path: Path) -> None:
    line = 'import os; os.environ.get("ALIGN_CAPTURE") and __import__("dumps.capture.install_now")'
    (tmp_path / "align_capture.pth").write_text(line + "\n")
    script = (
        "import site, sys; site.addsitedir(sys.argv[1]);"
        " print('dumps.capture.install' in sys.modules)"
    )
    plan = write_plan(CapturePlan(tmp_path / "run"))
    for variables, hooked in (({"ALIGN_CAPTURE": str(plan)}, "True"), ({}, "False")):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout.strip(), done.stderr) == (hooked, "")


def test_a_plan_that_cannot_be_read_does_not_stop_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "print('trained')"],
        env=child_environment(tmp_path / "gone.json", os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "trained\n"
    assert "not hooked" in done.stderr and "gone.json" in done.stderr


def test_a_command_starts_without_torch_or_pyarrow(tmp_path: Path) -> None:
    script = (
        "import sys; print([m for m in ('torch', 'pyarrow', 'numpy', 'ray') if m in sys.modules])"
    )
    assert captured(tmp_path, script).stdout.strip() == "[]"


def test_capture_hands_on_the_commands_exit_code_and_says_what_it_recorded(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    script = "import sys; sys.exit(7)"
    result = CliRunner().invoke(command, ["-o", run, "--", sys.executable, "-c", script])
    assert result.exit_code == 7
    assert "nothing was recorded" in result.output and "exited with 7" in result.output


def test_an_option_of_the_command_needs_the_two_dashes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = CliRunner().invoke(command, ["-o", str(run), sys.executable, "-c", "pass"])
    assert result.exit_code == 2 and not run.exists()


def test_a_command_ended_by_a_signal_gives_its_number(tmp_path: Path) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    outcome = run_captured(CapturePlan(tmp_path / "run"), [sys.executable, "-c", script])
    assert outcome.exit_code == 128 + 9


def test_a_folder_that_holds_a_capture_is_not_written_into_again(tmp_path: Path) -> None:
    from dumps.store.run_index import append_file

    (tmp_path / "x").write_text("x")
    append_file(tmp_path, "driver-0", tmp_path / "x", None)
    with pytest.raises(RunError, match="already holds a captured run"):
        run_captured(CapturePlan(tmp_path), ["true"])


def test_a_command_that_does_not_exist_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be run"):
        run_captured(CapturePlan(tmp_path / "run"), ["no-such-command-here"])


@pytest.mark.parametrize(
    "options",
    [["--what", "rollout"], ["--what", "modules"], ["--ranks", "a"], ["--steps", "x"]],
)
def test_a_wrong_option_is_refused_before_anything_runs(tmp_path: Path, options: list[str]) -> None:
    result = CliRunner().invoke(command, ["-o", str(tmp_path / "run"), *options, "--", "true"])
    assert isinstance(result.exception, RunError)
    assert not (tmp_path / "run").exists()


def test_plan_only_writes_the_plan_and_runs_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert CliRunner().invoke(command, ["-o", str(run), "--plan-only"]).exit_code == 0
    assert read_plan(run / "capture.json").run == run
    assert [path.name for path in run.iterdir()] == ["capture.json"]


def test_the_summary_tells_why_a_run_was_stopped_apart_from_failures(tmp_path: Path) -> None:
    log = FailureLog(tmp_path, "driver-0")
    with pytest.raises(RunStopped), log.kept("m:double"):
        raise RunStopped("step 2: NaN")
    log.write("dropped: step 3: the disk is too slow")
    ended = outcome(tmp_path, 1)
    assert ended.stopped == "step 2: NaN"
    assert ended.failures == ("dropped: step 3: the disk is too slow",)
    assert "stopped: step 2: NaN" in as_text(tmp_path, ended)


def test_the_time_of_a_tap_is_counted_to_the_step_it_records(tmp_path: Path) -> None:
    session = Session(CapturePlan(tmp_path))

    def tap(session: Session, step: int) -> None:
        session.note_time("driver-0", step)
        time.sleep(0.05 * step)

    module = owner(double=double)
    wrap(module, "double", "m:double", timed(session, tap), session.log)
    for step in (1, 3, 2):
        module.double(step)
    lines = (tmp_path / "capture_timings/driver-0.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [1, 3, 2]
    assert all(row["tap_s"] >= 0.05 * row["step"] for row in rows)
