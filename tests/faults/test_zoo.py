"""The zoo counts what a report says against the truth, and uses finished runs again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the zoo trains with the bundled stack, which needs torch")
pytest.importorskip("transformers", reason="the zoo trains with the bundled stack")

from align.core.errors import ConfigError, DocumentError
from align.core.finding import Finding, Severity
from align.core.report import Report, RunSummary
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.core.verdict import Confidence, Verdict, VerdictStatus
from align.stack import zoo
from align.stack.accuracy import (
    LOGS,
    ZOO,
    headline,
    headline_of_logs,
    markdown,
    markdown_of_logs,
    to_document,
    write_section,
)
from align.stack.clean_pairs import clean_pairs
from align.stack.faults.registry import fault_named
from align.stack.zoo import Outcome, judge, make_candidate, make_reference, run_zoo, trials

RUN = RunSummary("run", "stack", "0", "cpu", 1, 16, 3)
WORDS = Text("words", "文字")


def _report(
    finding_id: str | None,
    status: VerdictStatus = VerdictStatus.DIVERGED,
    title: str = "",
    severity: Severity = Severity.ERROR,
) -> Report:
    found = []
    if finding_id:
        rung = Rung(finding_id.partition(".")[0])
        text = Text(title, title)
        found = [Finding(finding_id, rung, severity, text, 1, 2, (), WORDS, WORDS)]
    verdict = Verdict(status, None, finding_id, WORDS, None, Confidence.NONE)
    result = RungResult(Rung.CONFIG, RungStatus.DIVERGED, WORDS, tuple(found))
    return Report(RUN, RUN, verdict, (result,))


def test_a_fault_counts_only_when_its_own_finding_is_named() -> None:
    fault = fault_named("rms_norm_eps")
    assert judge(fault, _report("config.model.rms_norm_eps"), acts=True).right
    assert not judge(fault, _report("config.model.rope_theta"), acts=True).right
    assert not judge(fault, _report(None), acts=True).right


def test_a_divergence_must_name_the_module_too() -> None:
    fault = fault_named("one_norm_eps")
    found = "forward.first_divergence"
    named = "model.layers.1.post_attention_layernorm output differs"
    assert judge(fault, _report(found, title=named), acts=True).right
    assert not judge(fault, _report(found, title="model.layers.1.mlp"), acts=True).right


def test_a_clean_pair_is_an_alarm_when_diverged_or_with_any_error() -> None:
    pair = clean_pairs()["padded"]
    undecided = VerdictStatus.UNDECIDED
    found = "config.model.remove_padding"
    assert judge(pair, _report(None, VerdictStatus.ALIGNED), acts=True).right
    assert judge(pair, _report(found, undecided, severity=Severity.WARNING), acts=True).right
    assert not judge(pair, _report(found, undecided), acts=True).right
    assert not judge(pair, _report(found), acts=True).right


def test_there_are_clean_pairs_enough_and_every_trial_has_one_name() -> None:
    assert len(clean_pairs()) >= 8
    names = [zoo.label(trial) for trial in trials()]
    assert len(names) == len(set(names))
    assert [zoo.label(trial) for trial in trials(["clean:padded", "kl_sign"])] == [
        "clean:padded",
        "kl_sign",
    ]
    with pytest.raises(ConfigError, match="neither a fault nor a clean pair"):
        trials(["padded"])


def test_the_other_spelling_spells_the_same_values() -> None:
    from align.stack.config import load_config
    from align.stack.pipeline import Pipeline

    overrides = clean_pairs()["spelling"].overrides
    reference, candidate = load_config(None, zoo.BASE), load_config(None, [*zoo.BASE, *overrides])
    assert reference != candidate
    steps = range(reference.trainer.total_training_steps)
    rate = Pipeline().learning_rate
    assert [rate(reference, step, 0) for step in steps] == [
        rate(candidate, step, 0) for step in steps
    ]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs of three steps without a warm-up."""
    few = ("trainer.total_training_steps=3", "stack.warmup.steps=0", "stack.data.num_rows=32")
    monkeypatch.setattr(zoo, "BASE", (*zoo.BASE, *few))


def test_a_run_is_trained_once_and_again_when_its_code_has_changed(tmp_path, short) -> None:
    run = make_reference((), tmp_path, "code")
    metrics = run / "metrics.jsonl"
    first = metrics.stat().st_mtime_ns
    assert make_reference((), tmp_path, "code") == run
    assert metrics.stat().st_mtime_ns == first
    make_reference((), tmp_path, "other code")
    assert metrics.stat().st_mtime_ns > first


def test_a_killed_and_resumed_candidate_is_bitwise_equal(tmp_path, short) -> None:
    from dataclasses import replace

    pair = replace(clean_pairs()["resumed"], setting=("trainer.save_freq=1",), killed_at=3)
    reference = make_reference(pair.setting, tmp_path, "code")
    candidate = make_candidate(pair, tmp_path, "code")
    assert not zoo.differ(reference, candidate)
    steps = [json.loads(line)["step"] for line in (candidate / "metrics.jsonl").open()]
    assert steps == [1, 2, 3]


def test_a_planted_fault_is_seen_to_act(tmp_path, short) -> None:
    fault = fault_named("kl_sign")
    reference = make_reference(fault.setting, tmp_path, "code")
    assert zoo.differ(reference, make_candidate(fault, tmp_path, "code"))


def _broken(reference: Path, candidate: Path) -> Report:
    raise ZeroDivisionError(f"a bug met on {candidate.name}")


def _aligned(reference: Path, candidate: Path) -> Report:
    return _report(None, VerdictStatus.ALIGNED)


def test_a_comparison_that_fails_is_a_miss_and_the_others_go_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(zoo, "ProcessPoolExecutor", _Inline)
    monkeypatch.setattr(zoo, "_trained", lambda out, *rest: out)
    monkeypatch.setattr(zoo, "differ", lambda reference, candidate: True)
    chosen = trials(["kl_sign", "clean:padded"])
    done: list[str] = []
    outcomes = run_zoo(chosen, tmp_path, _broken, on_done=done.append)
    assert [o.right for o in outcomes] == [False, False]
    assert outcomes[0].problem == "ZeroDivisionError: a bug met on kl_sign"
    assert set(done) == {"reference", "kl_sign", "clean:padded"}
    assert [o.right for o in run_zoo(chosen, tmp_path, _aligned)] == [False, True]


class _Inline:
    """An executor that works at once, in this process."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function, *arguments):
        from concurrent.futures import Future

        future: Future = Future()
        try:
            future.set_result(function(*arguments))
        except ZeroDivisionError as error:
            future.set_exception(error)
        return future


OUTCOMES = [
    Outcome("rope_theta", "config", "config.model.rope_theta", "config.model.rope_theta",
            "diverged", ("config.model.rope_theta",), True, True, blamed=True),
    Outcome("kl_sign", "loss", "loss.kl_sign", "config.data.seed", "diverged", (), False, True,
            blamed=True),
    Outcome("clean:padded", None, None, None, "aligned", (), True, True),
    Outcome("clean:threads", None, None, "curves.reward.drift", "diverged", (), False, True),
]  # fmt: skip


def test_the_document_counts_hits_wrong_causes_and_false_alarms() -> None:
    document = to_document(OUTCOMES)
    figures = {k: v for k, v in document.items() if k != "table"}
    assert figures == {
        "schema_version": 1,
        "faults": 2,
        "faults_named_first": 1,
        "wrong_causes": 1,
        "clean_pairs": 2,
        "false_alarms": 1,
    }
    assert [row["name"] for row in document["table"]] == [o.name for o in OUTCOMES]
    assert json.loads(json.dumps(document)) == document
    assert "1 of 2" in headline(OUTCOMES)


def test_of_logs_alone_only_a_wrong_link_or_silence_counts_against_the_report(tmp_path) -> None:
    said = [
        Outcome("named", "loss", "loss.kl_sign", "loss.aggregation", "diverged", (), False, True,
                "loss", False, True),
        Outcome("unknown", "loss", "loss.kl_sign", "curves.reward", "diverged", (), False, True,
                "curves", True, False),
        Outcome("blamed", "loss", "loss.kl_sign", "config.data.seed", "diverged", (), False, True,
                "config", True, True),
        Outcome("silent", "loss", "loss.kl_sign", None, "aligned", (), False, True),
        Outcome("clean:padded", None, None, None, "aligned", (), True, True),
    ]  # fmt: skip
    assert [o.is_honest for o in said] == [True, True, False, False, True]
    assert headline_of_logs(said) == (
        "right link named: 1 of 4, said to be unknown, with what to do next: 1, wrong: 2; "
        "false alarms: 0 of 1 clean pairs"
    )
    path = tmp_path / "accuracy.md"
    write_section(path, ZOO, "the zoo\n")
    write_section(path, LOGS, markdown_of_logs(said, date="2026-01-02", commit="abc"))
    text = path.read_text(encoding="utf-8")
    assert text.index("the zoo") < text.index("| loss | blamed |")


def test_the_section_is_replaced_and_the_rest_of_the_document_kept(tmp_path) -> None:
    path = tmp_path / "accuracy.md"
    path.write_text("# Accuracy\n\nWords before.\n", encoding="utf-8")
    write_section(path, ZOO, markdown(OUTCOMES, date="2026-01-02", commit="abc"))
    first = path.read_text(encoding="utf-8")
    path.write_text(f"{first}\nWords after.\n", encoding="utf-8")
    write_section(path, ZOO, markdown(OUTCOMES, date="2026-03-04", commit="def"))
    second = path.read_text(encoding="utf-8")
    assert second == f"{first}\nWords after.\n".replace("2026-01-02", "2026-03-04").replace(
        "abc", "def"
    )
    assert "| loss | kl_sign | loss.kl_sign |" in second
    path.write_text(second.replace("<!-- zoo: end -->", ""), encoding="utf-8")
    with pytest.raises(DocumentError, match="zoo: end"):
        write_section(path, ZOO, "")
