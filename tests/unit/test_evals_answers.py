"""avg@k from single answers: its error, the paired error of two runs, and who writes such files.

Expected errors: closed forms of the normal and binomial distributions, and numpy's variances.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from align.acceptance.eval_clauses import judge_evaluations
from align.acceptance.policy import Clause, Formula
from align.core.evaluation import Answers, EvalResults, Score
from align.core.run import ArtifactKind
from align.core.rung import RungResult
from align.core.threshold import Threshold
from align.curves.criterion import Outcome
from align.evals.average import answering_stderr, paired_stderr, stderr_of
from align.evals.pair import pair_scores
from align.evals.rung import compare
from dumps.readers.evals_table import read_evals_table
from dumps.readers.evalscope_reviews import read_evalscope_reviews
from dumps.readers.lm_eval_samples import read_lm_eval_samples
from dumps.readers.opencompass_details import read_opencompass_details
from dumps.store.discover import discover
from dumps.store.run_data import RunData


def answers(rows: Iterable[Sequence[float]]) -> Answers:
    return Answers({str(n): tuple(map(float, row)) for n, row in enumerate(rows)})


def drawn(rng: np.random.Generator, shares: np.ndarray, k: int) -> Answers:
    return answers(rng.binomial(1, shares[:, None], (len(shares), k)))


def diff(reference: Path, candidate: Path) -> RungResult:
    return compare(*(RunData(discover([path])) for path in (reference, candidate)))


def cell(result: RungResult, row: str, key: str) -> object:
    table = next(t for t in result.tables if t.id == "evals.scores")
    at = [column.key for column in table.columns].index(key)
    return next(r for r in table.rows if r[0] == row)[at]


def test_the_error_of_one_answer_a_question_is_lm_evals() -> None:
    # lm-eval's mean_stderr: sample standard deviation over sqrt(n).
    values = np.array([1, 0, 1, 1, 0, 1, 0, 1, 1, 1], dtype=float)
    expected = values.std(ddof=1) / math.sqrt(10)
    assert stderr_of(answers(values[:, None])) == pytest.approx(expected, rel=1e-14)
    assert stderr_of(answers([[1.0]])) is None


@pytest.mark.parametrize("k", [1, 4, 32])
def test_the_error_of_avg_at_k_is_that_of_drawing_questions_and_answers(k: int) -> None:
    # Shares drawn from Beta(2, 2): variance 1/20, mean of p (1 - p) = 1/5.
    rng, num = np.random.default_rng(k), 200
    expected = math.sqrt((1 / 20 + 1 / 5 / k) / num)
    runs = [drawn(rng, rng.beta(2, 2, num), k) for _ in range(400)]
    assert np.std([run.mean for run in runs]) == pytest.approx(expected, rel=0.12)
    stated = [stderr_of(run) for run in runs]
    assert np.mean([e for e in stated if e is not None]) == pytest.approx(expected, rel=0.02)


def test_the_part_that_more_answers_take_away_is_that_of_the_same_questions_again() -> None:
    rng, k, num = np.random.default_rng(5), 8, 100
    shares = rng.beta(2, 2, num)
    expected = math.sqrt(float((shares * (1 - shares)).sum()) / k) / num
    runs = [drawn(rng, shares, k) for _ in range(400)]
    assert np.std([run.mean for run in runs]) == pytest.approx(expected, rel=0.12)
    stated = [answering_stderr(run) for run in runs]
    assert np.mean([e for e in stated if e is not None]) == pytest.approx(expected, rel=0.02)
    assert answering_stderr(answers([[1.0], [0.0]])) is None


def test_the_paired_error_is_that_of_the_differences_and_smaller_than_of_strangers() -> None:
    rng, num = np.random.default_rng(6), 300
    shares = rng.beta(0.5, 0.5, num)  # questions that are mostly known or mostly not
    ours, theirs = drawn(rng, shares, 4), drawn(rng, shares, 4)
    of = [np.array(list(side.of_questions.values())) for side in (ours, theirs)]
    paired = paired_stderr(ours, theirs)
    assert paired == pytest.approx((of[1] - of[0]).std(ddof=1) / math.sqrt(num), rel=1e-12)
    alone = [stderr_of(side) for side in (ours, theirs)]
    assert paired is not None and paired < 0.6 * math.hypot(*(e for e in alone if e is not None))
    other = Answers({f"other {q}": v for q, v in theirs.scores.items()})
    assert paired_stderr(ours, other) is None


def test_equal_models_are_called_different_in_one_comparison_of_a_hundred_at_most() -> None:
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(300):
        shares = rng.beta(0.5, 0.5, 200)
        sides = [
            EvalResults("f", "f", (Score("t", "acc", a.mean, num_samples=200, answers=a),))
            for a in (drawn(rng, shares, 4), drawn(rng, shares, 4))
        ]
        (pair,) = pair_scores(sides[:1], sides[1:])[0]
        assert pair.is_paired and pair.stderr is not None
        alarms += abs(pair.difference) > 2.575829 * pair.stderr
    assert alarms / 300 <= 0.01 + 2 * math.sqrt(0.01 * 0.99 / 300)


def rows_of(kind: str, values: Sequence[Sequence[float]]) -> tuple[str, str]:
    """Return a file as a tool writes it: its name and text."""
    rows: list[dict[str, object]]
    if kind == "lm_eval":
        rows = [
            {
                "doc_id": n,
                "doc": {"question": "1 + 1"},
                "target": "2",
                "arguments": {"gen_args_0": {"arg_0": "1 + 1", "arg_1": {"until": ["Q:"]}}},
                "resps": [["2"]],
                "filtered_resps": ["2"],
                "filter": name,
                "metrics": ["exact_match"],
                "doc_hash": "a",
                "exact_match": value[0],
            }
            for n, value in enumerate(values)
            for name in ("strict-match", "flexible-extract")
        ]
        return "samples_gsm8k_2025-11-30T08-00-00.000000.jsonl", jsonl(rows)
    if kind == "evalscope":
        rows = [
            {
                "index": len(value) * n + i,
                "target": "2",
                "messages": [{"role": "user", "content": "1 + 1"}],
                "sample_score": {
                    "score": {"value": {"acc": each}, "prediction": "2", "metadata": {}},
                    "sample_id": len(value) * n + i,
                    "group_id": n,
                },
            }
            for n, value in enumerate(values)
            for i, each in enumerate(value)
        ]
        return "gsm8k_main.jsonl", jsonl(rows)
    details = [
        {
            "example_abbr": f"{'algebra' if n % 2 else 'geometry'}_{n}",
            "pred": ["2"] * len(value),
            "answer": ["2"] * len(value),
            "correct": [bool(each) for each in value],
        }
        for n, value in enumerate(values)
    ]
    mean = 100 * float(np.mean(values))
    document = {f"accuracy ({len(values[0])} runs average)": mean, "details": details}
    return "math.json", json.dumps(document, indent=4)


def jsonl(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(folder: Path, kind: str, values: Sequence[Sequence[float]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    name, text = rows_of(kind, values)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def values(seed: int, shift: float = 0.0, k: int = 4, num: int = 400) -> list[list[float]]:
    """Draw scores of one set of questions; ``seed`` is of the answers alone."""
    shares = np.clip(np.random.default_rng(99).beta(0.6, 0.6, num) + shift, 0, 1)
    drawn_values = np.random.default_rng(seed).binomial(1, shares[:, None], (num, k))
    return [[float(v) for v in row] for row in drawn_values]


READERS = {
    "lm_eval": (read_lm_eval_samples, "gsm8k exact_match,strict-match", 1),
    "evalscope": (read_evalscope_reviews, "gsm8k_main acc", 4),
    "opencompass": (read_opencompass_details, "math accuracy", 4),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_file_of_single_answers_is_known_by_its_content_and_averaged(
    kind: str, tmp_path: Path
) -> None:
    read, name, k = READERS[kind]
    drawn_values = [row[:k] for row in values(1)]
    path = write(tmp_path / "run", kind, drawn_values)
    (artifact,) = discover([path]).of_kind(ArtifactKind.EVALS)
    results = read(path)
    assert artifact.format == results.format and results.num_unread == 0
    score = next(s for s in results.scores if f"{s.task} {s.metric}" == name)
    assert score.value == pytest.approx(float(np.mean(drawn_values)), rel=1e-12)
    assert (score.num_samples, score.repeats) == (400, k)


@pytest.mark.parametrize("kind", READERS)
def test_a_loss_is_named_with_its_paired_error_and_its_clean_twin_is_not(
    kind: str, tmp_path: Path
) -> None:
    _, name, k = READERS[kind]
    sides = {
        side: write(tmp_path / side, kind, [row[:k] for row in drawn_values]).parent
        for side, drawn_values in (
            ("reference", values(2)),
            ("twin", values(3)),
            ("worse", values(4, shift=-0.15)),
        )
    }
    twin = diff(sides["reference"], sides["twin"])
    assert twin.findings == ()
    assert str(cell(twin, name, "error")) == "each question on both sides"
    assert cell(twin, name, "answers") == f"{k} / {k}"
    worse = diff(sides["reference"], sides["worse"])
    assert any(f.id.startswith(f"evals.{name.split()[0]}") for f in worse.findings)


def test_acceptance_judges_answers_question_by_question(tmp_path: Path) -> None:
    runs = [
        RunData(discover([write(tmp_path / side, "evalscope", drawn_values)]))
        for side, drawn_values in (("a", values(8, k=16)), ("b", values(9, k=16)))
    ]
    clause = Clause(Formula.EVALUATION, limit=Threshold(0.04, source="test"))
    (result,) = judge_evaluations(clause, runs[0].evals, runs[1].evals)
    assert "question by question" in result.criterion.formula.en
    # Of independent questions 1.96 sqrt(2 x 0.114 / 400), 4.7 points: undecided at 4.
    assert result.outcome is Outcome.PASS and result.criterion.high < 0.04


def test_subdivisions_of_opencompass_are_a_group_of_their_task(tmp_path: Path) -> None:
    results = read_opencompass_details(write(tmp_path / "run", "opencompass", values(5)))
    groups = {score.task: score.group for score in results.scores}
    assert groups == {"math": None, "math:algebra": "math", "math:geometry": "math"}


def test_details_of_older_opencompass_are_a_mapping_by_number(tmp_path: Path) -> None:
    path = tmp_path / "ceval.json"
    details = {
        str(n): {"prompt": "?", "predictions": "A", "references": "A", "correct": n % 4 > 0}
        for n in range(8)
    }
    path.write_text(json.dumps({"accuracy": 75.0, "details": {"type": "GEN", **details}}))
    results = read_opencompass_details(path)
    (score,) = results.scores
    assert (score.value, score.num_samples, results.num_unread) == (0.75, 8, 1)


def test_a_broken_line_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "run", "evalscope", values(6, num=20))
    path.write_text(path.read_text() + '{"index": 80, "sample_sc\n')
    results = read_evalscope_reviews(path)
    assert (results.num_unread, results.scores[0].num_samples) == (1, 20)
    run = RunData(discover([path]))
    assert len(run.evals) == 1
    (problem,) = run.problems
    assert problem.where == str(path)
    assert "1 rows or entries hold no score" in problem.problem


def test_single_answers_stand_for_the_mean_of_the_same_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", "lm_eval", [row[:1] for row in values(7)]).parent
    mean = float(np.mean([row[0] for row in values(7)]))
    results = {"results": {"gsm8k": {"exact_match,strict-match": mean}}}
    (folder / "results_2025-11-30.json").write_text(json.dumps(results))
    table = diff(folder, folder).tables[0]
    assert [row[0] for row in table.rows].count("gsm8k exact_match,strict-match") == 1


CATEGORIES = (
    "dataset,category,score,num\n"
    "gsm8k,Math,{math},4000\nmath500,Math,{math},4000\n"
    "ifeval,Behaviour,{behaviour},4000\nmtbench,Behaviour,{behaviour},4000\n"
)
HEADED = (
    "dataset,version,metric,mode,model\n"
    "--------- Math ---------,-,-,-,-\n"
    "gsm8k,a,accuracy,gen,{math}\nmath,a,accuracy,gen,{math}\n"
    "--------- Behaviour ---------,-,-,-,-\n"
    "mmlu,a,accuracy,gen,{behaviour}\nhellaswag,a,accuracy,gen,{behaviour}\n"
)
MARKDOWN = (
    "| Dataset | Category | Score | Num |\n|---|---|---|---|\n"
    "| GSM8K | Math | {math} | 4000 |\n| MATH | Math | {math} | 4000 |\n"
    "| IFEval | Behaviour | {behaviour} | 4000 |\n| MTBench | Behaviour | {behaviour} | 4000 |\n"
)


@pytest.mark.parametrize("text", [CATEGORIES, HEADED, MARKDOWN])
def test_tables_name_categories_and_a_gain_that_hides_a_loss_is_found(
    text: str, tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for path, math_score, behaviour in zip(
        paths, (60.0, 66.0, 60.4), (60.0, 54.0, 59.6), strict=True
    ):
        path.write_text(text.format(math=math_score, behaviour=behaviour))
    groups = {score.group for score in read_evals_table(paths[0]).scores}
    assert groups == {"math", "behaviour"}
    hidden = diff(paths[0], paths[1])
    found = [f for f in hidden.findings if f.id.startswith("evals.cancelling.total")]
    assert len(found) == 1 and "math +6.0 and behaviour -6.0" in found[0].title.en
    table = next(t for t in hidden.tables if t.id == "evals.categories")
    assert {str(row[0]): str(row[5]) for row in table.rows} == {"math": "yes", "behaviour": "yes"}
    twin = diff(paths[0], paths[2])
    assert not [f for f in twin.findings if "cancelling" in f.id]
