"""`align bisect PLAN`: trials are run, kept, resumed and told as they are."""

from __future__ import annotations

import itertools
import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from align.bisect.command import command_line, template
from align.bisect.drive import drive
from align.bisect.knob import Knob, KnobKind
from align.bisect.plan import ExitCodeTest, Plan
from align.bisect.read_plan import plan_of
from align.cli.main import cli
from align.core.errors import ConfigError, RunError

PAIR = 'case " {overrides} " in *" a=1 "*) case " {overrides} " in *" f=1 "*) exit 1;; esac;; esac'
COUNTED = 'echo "{overrides}" >> starts; sleep 0.05; ' + PAIR


def test_the_pair_that_turns_the_exit_code_is_named_with_its_evidence(tmp_path: Path) -> None:
    plan = written(tmp_path, command=PAIR, knobs=letters("abcdefgh"))
    result = called(plan, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [[k["name"] for k in s["knobs"]] for s in found["sets"]] == [["a", "f"]]
    assert found["complete"]
    assert found["num_trials"] == len(list((tmp_path / "plan-trials/trials").iterdir()))
    (bad,) = found["sets"][0]["bad_alone"]
    record = json.loads((tmp_path / "plan-trials/trials" / bad / "trial.json").read_text())
    assert record["outcome"] == "bad"
    assert [name for name, value in record["values"].items() if value] == ["a", "f"]
    assert json.loads((tmp_path / "plan-trials/result.json").read_text()) == found


def test_a_clean_twin_in_which_no_knob_matters_names_none(tmp_path: Path) -> None:
    plan = written(tmp_path, command="true {overrides}", knobs=letters("abcdefgh"))
    result = called(plan, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ending"], found["sets"]) == (0, "candidate_is_good", [])
    assert found["num_trials"] == 2


def test_trials_in_the_folder_are_used_again_only_when_asked(tmp_path: Path) -> None:
    plan = written(tmp_path, command=COUNTED, knobs=letters("abcdefgh"))
    first = called(plan, "--json")
    starts = (tmp_path / "starts").read_text()
    refused = called(plan)
    assert isinstance(refused.exception, RunError)
    again = called(plan, "--json", "--resume")
    assert (tmp_path / "starts").read_text() == starts
    assert again.stdout == first.stdout


def test_a_spent_budget_names_what_is_left_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    plan = written(tmp_path, command=COUNTED, knobs=letters("abcdefgh"))
    short = called(plan, "--json", "--budget-runs", "4")
    found = json.loads(short.stdout)
    assert (short.exit_code, found["ending"], found["num_trials"]) == (3, "budget", 4)
    assert "f" in found["suspects"]
    full = json.loads(called(plan, "--json", "--resume", "--budget-runs", "30").stdout)
    assert [k["name"] for k in full["sets"][0]["knobs"]] == ["a", "f"]
    starts = (tmp_path / "starts").read_text().splitlines()
    assert len(starts) == len(set(starts)) == full["num_trials"]


def test_spent_hours_start_no_further_trial(tmp_path: Path) -> None:
    plan = written(tmp_path, command="sleep 0.2; " + PAIR, knobs=letters("abcdefgh"))
    found = json.loads(called(plan, "--json", "--budget-hours", "0.0001").stdout)  # 0.36 s
    assert found["ending"] == "budget"
    assert found["num_trials"] <= 2


def test_several_jobs_run_at_the_same_time(tmp_path: Path) -> None:
    command = "date +%s.%N >> starts; sleep 0.3; date +%s.%N >> ends; " + PAIR
    plan = written(tmp_path, command=command, knobs=letters("abcdefgh"))
    found = json.loads(called(plan, "--json", "--jobs", "3").stdout)
    assert [k["name"] for k in found["sets"][0]["knobs"]] == ["a", "f"]
    second_start = sorted(map(float, (tmp_path / "starts").read_text().split()))[1]
    first_end = min(map(float, (tmp_path / "ends").read_text().split()))
    assert second_start < first_end


def test_killed_at_any_point_it_resumes_without_repeating_a_finished_trial(tmp_path: Path) -> None:
    """SIGKILL comes at random moments of a trial, its command goes on and is waited for."""
    plan = written(tmp_path, command=COUNTED, knobs=letters("abcdefghijkl"))
    starts = tmp_path / "starts"
    starts.touch()
    draws = random.Random(5)
    kills = 0
    while True:
        process = started(plan)
        goal = len(starts.read_text().splitlines()) + draws.randint(0, 2)
        while process.poll() is None and len(starts.read_text().splitlines()) < goal:
            time.sleep(0.005)
        time.sleep(draws.uniform(0, 0.2))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 3
    found = json.loads(called(plan, "--json", "--resume").stdout)
    assert [k["name"] for k in found["sets"][0]["knobs"]] == ["a", "f"]
    begun = starts.read_text().splitlines()
    assert len(begun) == len(set(begun)) == found["num_trials"]


@pytest.mark.parametrize("call", ["os.replace", "subprocess.Popen"])
@pytest.mark.parametrize("is_after", [False, True])
def test_killed_before_and_after_every_file_and_process_it_makes_it_resumes(
    tmp_path: Path, call: str, is_after: bool
) -> None:
    """Every place in turn: the process ends there as by SIGKILL, and another one resumes."""
    knobs = tuple(Knob(name, KnobKind.CONFIG, (0, 1)) for name in "abf")
    command = f'echo "{{overrides}}" >> starts; {PAIR}'
    place = num_killed = 0
    while True:
        folder = tmp_path / str(place)
        folder.mkdir()
        plan = Plan(str(folder / "plan.yaml"), command, knobs, ExitCodeTest())
        was_killed = ended_at(place, call, is_after, partial(drive, plan, folder / "out"))
        driven = drive(plan, folder / "out")
        begun = (folder / "starts").read_text().splitlines()
        assert len(begun) == len(set(begun)) == len(driven.trials)
        assert [[knobs[c.knob].name for c in found] for found in driven.search.sets] == [["a", "f"]]
        if not was_killed:
            break
        place, num_killed = place + 1, num_killed + 1
    assert num_killed >= len(driven.trials)


def ended_at(place: int, call: str, is_after: bool, work: Callable[[], object]) -> bool:
    """Do work in a process that ends at the n-th call of a function; tell whether it came there."""
    child = os.fork()
    if child:
        return bool(os.waitpid(child, 0)[1])
    module, name = call.split(".")
    original, counted = getattr(sys.modules[module], name), itertools.count()

    def counting(*given: Any, **named: Any) -> Any:
        is_here = next(counted) == place
        if is_here and not is_after:
            os._exit(9)
        made = original(*given, **named)
        if is_here:
            os._exit(9)
        return made

    setattr(sys.modules[module], name, counting)
    try:
        work()
    finally:
        os._exit(0)


def test_a_command_that_outlives_the_bisection_is_waited_for_and_counts(tmp_path: Path) -> None:
    command = "echo x >> starts; sleep 1.5; " + PAIR
    plan = written(tmp_path, command=command, knobs=letters("ab"))
    process = started(plan)
    waited_for(tmp_path / "starts")
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = json.loads(called(plan, "--json", "--resume", "--budget-runs", "1").stdout)
    assert (tmp_path / "starts").read_text() == "x\n"
    assert found["trials"][0]["outcome"] == "good"


def test_an_interrupt_ends_the_command_and_leaves_no_result(tmp_path: Path) -> None:
    command = "echo x >> starts; sleep 30; " + PAIR
    plan = written(tmp_path, command=command, knobs=letters("ab"))
    process = started(plan)
    waited_for(tmp_path / "starts")
    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 130
    assert not list(tmp_path.glob("plan-trials/trials/*/exit_code"))
    assert not list(tmp_path.glob("plan-trials/trials/*/trial.json"))


def test_two_bisections_do_not_work_in_one_folder(tmp_path: Path) -> None:
    plan = written(
        tmp_path, command="echo x >> starts; sleep 30; true {overrides}", knobs=letters("ab")
    )
    process = started(plan)
    waited_for(tmp_path / "starts")
    second = called(plan, "--resume")
    process.send_signal(signal.SIGINT)
    process.wait(90)
    assert isinstance(second.exception, RunError)
    assert "another bisection" in str(second.exception)


def test_a_changed_threshold_measures_the_recorded_trials_again(tmp_path: Path) -> None:
    command = (
        'echo x >> starts; case " {overrides} " in *" c=1 "*) v=0.9;; *) v=0.1;; esac; '
        'echo "{\\"step\\": 1, \\"data\\": {\\"critic/score/mean\\": $v}}" > {out}/metrics.jsonl'
    )
    knobs = letters("abcd")
    verdict = {"metric": "critic/score/mean", "above": 2.0}
    plan = written(tmp_path, command=command, knobs=knobs, verdict=verdict)
    assert json.loads(called(plan, "--json").stdout)["ending"] == "candidate_is_good"
    plan = written(tmp_path, command=command, knobs=knobs, verdict={**verdict, "above": 0.5})
    found = json.loads(called(plan, "--json", "--resume").stdout)
    assert [k["name"] for k in found["sets"][0]["knobs"]] == ["c"]
    assert len((tmp_path / "starts").read_text().split()) == found["num_trials"]


def test_a_metric_is_held_against_the_reference_run(tmp_path: Path) -> None:
    metrics(tmp_path / "ref" / "metrics.jsonl", [1.0, 2.0, 2.0])
    command = (
        'case " {overrides} " in *" b=1 "*) v=2.5;; *) v=2.02;; esac; '
        "for s in 2 3; do "
        'echo "{\\"step\\": $s, \\"data\\": {\\"critic/score/mean\\": $v}}"; done'
        " > {out}/metrics.jsonl"
    )
    verdict = {"metric": "critic/score/mean", "above": 0.04, "steps": 2, "reference": "ref"}
    plan = written(tmp_path, command=command, knobs=letters("abc"), verdict=verdict)
    found = json.loads(called(plan, "--json").stdout)
    assert [k["name"] for k in found["sets"][0]["knobs"]] == ["b"]
    said = {trial["said"] for trial in found["trials"]}
    assert "critic/score/mean 0.25 over 2 steps" in said  # |2.5 - 2| / 2
    assert "critic/score/mean 0.01 over 2 steps" in said


def test_a_metric_that_is_not_finite_is_bad_and_one_not_recorded_does_not_tell(
    tmp_path: Path,
) -> None:
    command = (
        'case " {overrides} " in *" b=1 "*) v=NaN;; *) v=1.0;; esac; '
        'echo "{\\"step\\": 1, \\"data\\": {\\"critic/score/mean\\": $v}}" > {out}/metrics.jsonl'
    )
    verdict = {"metric": "critic/score/mean", "above": 5}
    plan = written(tmp_path, command=command, knobs=letters("abc"), verdict=verdict)
    assert [k["name"] for k in json.loads(called(plan, "--json").stdout)["sets"][0]["knobs"]] == [
        "b"
    ]
    plan = written(
        tmp_path, command=command, knobs=letters("abc"), verdict={**verdict, "metric": "actor/lr"}
    )
    result = called(plan, "--json", "--resume")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ending"]) == (3, "unresolved")
    assert found["trials"][0]["said"] == "actor/lr is not recorded"


def test_versions_and_variables_are_searched_together(tmp_path: Path) -> None:
    knobs = [
        {"version": "torch", "values": ["2.4", "2.5", "2.6", "2.7"]},
        {"version": "cann", "values": [{"value": v, "command": f"CANN={v}"} for v in (8.0, 8.2)]},
        {"environment": "HCCL_DETERMINISTIC", "reference": "true", "candidate": None},
    ]
    command = 'echo "{torch} $CANN" >> seen; test {torch} \\< 2.6 || test -n "$HCCL_DETERMINISTIC"'
    plan = written(tmp_path, command=command, knobs=knobs)
    found = json.loads(called(plan, "--json").stdout)
    named = [(k["name"], k["last_good"], k["first_bad"]) for k in found["sets"][0]["knobs"]]
    assert named == [("torch", "2.5", "2.6"), ("HCCL_DETERMINISTIC", "true", None)]
    assert {"2.4 8.0", "2.7 8.2"} <= set((tmp_path / "seen").read_text().splitlines())


def test_the_commit_that_broke_it_is_found_without_touching_the_working_tree(
    tmp_path: Path,
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    git(code, "init", "-q")
    commits = []
    for number in range(12):
        (code / "answer").write_text(f"{number}\n")
        git(code, "add", "answer")
        git(code, "commit", "-q", "-m", str(number))
        commits.append(git(code, "rev-parse", "HEAD"))
    (code / "answer").write_text("not committed\n")
    knobs = [{"commit": "rev", "tree": "code", "reference": commits[0], "candidate": commits[-1]}]
    plan = written(tmp_path, command="test $(cat {tree}/answer) -lt 7", knobs=knobs)
    found = json.loads(called(plan, "--json").stdout)
    (knob,) = found["sets"][0]["knobs"]
    assert (knob["last_good"], knob["first_bad"]) == (commits[6], commits[7])
    assert found["num_trials"] <= 2 + 4 + 1
    assert (code / "answer").read_text() == "not committed\n"
    assert git(code, "worktree", "list").count("\n") == 0


def test_exit_code_125_does_not_tell(tmp_path: Path) -> None:
    command = 'case "{overrides}" in "a=1 b=1 c=0 d=0") exit 125;; *c=1*) exit 1;; esac'
    plan = written(tmp_path, command=command, knobs=letters("abcd"))
    found = json.loads(called(plan, "--json").stdout)
    assert [k["name"] for k in found["sets"][0]["knobs"]] == ["c"]
    assert "unresolved" in {trial["outcome"] for trial in found["trials"]}


def test_settings_that_cannot_be_tried_apart_are_named_without_more_certainty(
    tmp_path: Path,
) -> None:
    command = 'case "{overrides}" in *"b=1 c=0"*|*"b=0 c=1"*) exit 125;; *"b=1 c=1"*) exit 1;; esac'
    plan = written(tmp_path, command=command, knobs=letters("abcd"))
    found = json.loads(called(plan, "--json").stdout)
    assert [k["name"] for k in found["sets"][0]["knobs"]] == ["b", "c"]
    assert "whether fewer of them do could not be judged" in found["sentence"]


def test_what_a_command_prints_is_read_where_its_folder_holds_no_metrics(tmp_path: Path) -> None:
    command = (
        'case " {overrides} " in *" c=1 "*) v=0.9;; *) v=0.1;; esac; '
        'echo "step:1 - critic/score/mean:$v - actor/lr:1e-06"'
    )
    verdict = {"metric": "critic/score/mean", "above": 0.5}
    plan = written(tmp_path, command=command, knobs=letters("abcd"), verdict=verdict)
    found = json.loads(called(plan, "--json").stdout)
    assert [k["name"] for k in found["sets"][0]["knobs"]] == ["c"]


@pytest.mark.parametrize("test", [{"finding": "curves.nonfinite*"}, {"rung": "curves"}])
def test_a_finding_or_a_rung_of_the_report_is_the_verdict(
    tmp_path: Path, test: dict[str, str]
) -> None:
    metrics(tmp_path / "ref" / "metrics.jsonl", [1.0] * 40)
    command = (
        'case " {overrides} " in *" b=1 "*) v=NaN;; *) v=1.0;; esac; for s in $(seq 40); do '
        'echo "{\\"step\\": $s, \\"data\\": {\\"critic/score/mean\\": $v}}"; done'
        " > {out}/metrics.jsonl"
    )
    verdict = {"reference": "ref", **test}
    plan = written(tmp_path, command=command, knobs=letters("abc"), verdict=verdict)
    found = json.loads(called(plan, "--json").stdout)
    assert [k["name"] for k in found["sets"][0]["knobs"]] == ["b"]


def test_a_flaky_command_is_repeated_and_the_confidence_is_stated(tmp_path: Path) -> None:
    # every second call of a bad setting succeeds by accident
    command = (
        'case " {overrides} " in *" b=1 "*) ;; *) exit 0;; esac; '
        "r=$(basename $(dirname {out})); test ${r##*-r} = 2"
    )
    repeats = {"least": 2, "most": 7, "confidence": 0.9}
    plan = written(tmp_path, command=command, knobs=letters("abcd"), repeats=repeats)
    found = json.loads(called(plan, "--json").stdout)
    assert [k["name"] for k in found["sets"][0]["knobs"]] == ["b"]
    assert 0 < found["confidence"] < 1


def test_every_trial_is_a_line_away_from_a_terminal_and_a_row_of_a_table_on_one(
    tmp_path: Path,
) -> None:
    plan = written(tmp_path, command=PAIR, knobs=letters("abf"))
    found = called(plan)
    shown = [x for x in found.stderr.splitlines() if "at the candidate's value: " in x]
    assert len(shown) == len(list((tmp_path / "plan-trials/trials").iterdir()))
    assert shown[0].endswith("good (exit code 0); at the candidate's value: none")
    assert shown[1].endswith("bad (exit code 1); at the candidate's value: a, b, f")

    master, terminal = pty.openpty()
    process = started(plan, stderr=terminal)
    os.close(terminal)
    screen = b""
    with suppress(OSError):  # the terminal ends with its last process
        while block := os.read(master, 4096):
            screen += block
    assert process.wait(90) == 1
    assert b"verdict" in screen and b"a, b, f" in screen


def test_a_dry_run_shows_the_commands_and_runs_none(tmp_path: Path) -> None:
    plan = written(tmp_path, command="touch ran; true {overrides}", knobs=letters("ab"))
    result = called(plan, "--dry-run")
    assert result.exit_code == 0
    assert "true a=0 b=0" in result.stdout
    assert "true a=1 b=1" in result.stdout
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "plan-trials").exists()


def test_words_of_a_command_keep_their_meaning_and_placeholders_stay_open() -> None:
    words = ["train", "note=it's", "out={out}", "a b", "{overrides}"]
    assert template(words) == "train 'note=it'\"'\"'s' out={out} 'a b' {overrides}"
    assert template(["run.sh"]) == "run.sh {overrides}"


def test_overrides_are_written_as_the_framework_reads_them() -> None:
    values = (1e-6, None, True, (1, 2), "a b")
    knobs = tuple(Knob(f"k{i}", KnobKind.CONFIG, (v, 0)) for i, v in enumerate(values))
    plan = Plan("p", "run {overrides} ${HOME}", knobs, ExitCodeTest(), override="++{key}={value}")
    text = command_line(plan, (0,) * 5, Path("out"), None)
    assert text == ("run ++k0=1.0e-06 ++k1=null ++k2=true '++k3=[1,2]' '++k4=\"a b\"' ${HOME}")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"command": "run"}, "overrides"),
        ({"knobs": []}, "knobs"),
        ({"verdict": {"metric": "x"}}, "threshold"),
        ({"verdict": {"finding": "curves.*"}}, "reference run"),
        ({"verdict": {"finding": "curvs.*", "reference": "r"}}, "curvs"),
        ({"comand": "x"}, "comand"),
        ({"knobs": [{"config": "a", "reference": 1}]}, "candidate"),
        ({"knobs": [{"option": "a"}]}, "option"),
        ({"repeats": {"least": 9}}, "repeats"),
        ({"repeats": {"often": 9}}, "often"),
        ({"knobs": [{"config": "a", "reference": 1, "candidate": 2}] * 2}, "twice"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    good = {"command": "run {overrides}", "knobs": letters("ab")}
    plan_of(good, Path("plan.yaml"))
    with pytest.raises(ConfigError, match=named):
        plan_of({**good, **change}, Path("plan.yaml"))


def letters(names: str) -> list[dict[str, Any]]:
    return [{"config": name, "reference": 0, "candidate": 1} for name in names]


def written(folder: Path, **plan: Any) -> Path:
    """Write a plan; JSON is YAML."""
    path = folder / "plan.yaml"
    path.write_text(json.dumps(plan), encoding="utf-8")
    return path


def called(plan: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["bisect", str(plan), *options])


def started(plan: Path, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start the command as a process of its own, to be killed."""
    code = "from align.cli.main import main; main()"
    words = [sys.executable, "-c", code, "bisect", str(plan), "--resume"]
    silent = subprocess.DEVNULL
    return subprocess.Popen(
        words, stdout=silent, stderr=stderr, env=dict(os.environ), preexec_fn=_hears_interrupts
    )


def _hears_interrupts() -> None:
    """Undo what a shell does to a job in the background, where these tests may run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def waited_for(path: Path) -> None:
    end = time.monotonic() + 120
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert path.exists()


def metrics(path: Path, values: list[float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"step": i + 1, "data": {"critic/score/mean": v}} for i, v in enumerate(values)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *named, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
