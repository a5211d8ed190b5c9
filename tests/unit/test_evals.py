"""Benchmark scores are compared with the error their questions leave, setting by setting.

Expected standard errors: those lm-eval prints itself, and the binomial formula by hand.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from align.core.evaluation import EvalResults, Score
from align.core.finding import Severity
from align.core.rung import RungResult, RungStatus
from align.evals.judge import Standing, cancelling, judge
from align.evals.pair import EvalPair, Measured, chance_of, known_benchmark, pair_scores
from align.evals.rung import compare
from dumps.readers.evals_table import read_evals_table
from dumps.readers.evalscope_report import read_evalscope
from dumps.readers.lm_eval_results import read_lm_eval
from dumps.store.discover import discover
from dumps.store.run_data import RunData


def run(path: Path) -> RunData:
    return RunData(discover([path]))


def diff(reference: Path, candidate: Path) -> RungResult:
    return compare(run(reference), run(candidate))


def table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(("dataset,score,num", *rows)) + "\n", encoding="utf-8")
    return path


def pair(
    reference: float, candidate: float, questions: int, name: str = "task", group: str | None = None
) -> EvalPair:
    sides = []
    for value in (reference, candidate):
        score = Score(name, "acc", value, num_samples=questions, group=group)
        error = math.sqrt(value * (1 - value) / questions)
        sides.append(Measured(score, "file", questions, error))
    return EvalPair(sides[0], sides[1], None)


def test_lm_evals_scores_errors_and_counts_are_read(corpus: Path) -> None:
    results = read_lm_eval(corpus / "evals" / "lm_eval_qwen2.5-1.5b.json")
    scores = {(s.task, s.metric): s for s in results.scores}
    hellaswag = scores["hellaswag", "acc_norm"]
    assert (hellaswag.value, hellaswag.stderr) == (0.678550089623581, 0.004660785616933772)
    assert hellaswag.num_samples == 10042 and hellaswag.higher_is_better
    perplexity = scores["lambada_openai", "perplexity"]
    assert not perplexity.is_share and not perplexity.higher_is_better
    assert scores["mmlu_formal_logic", "acc"].group == "mmlu_humanities"


def test_the_binomial_error_is_the_one_lm_eval_states(corpus: Path) -> None:
    results = read_lm_eval(corpus / "evals" / "lm_eval_qwen2.5-1.5b.json")
    for score in results.scores:
        if score.metric in ("acc", "acc_norm") and score.group is None and score.task != "mmlu":
            if score.num_samples is None or score.stderr is None:
                continue
            binomial = math.sqrt(score.value * (1 - score.value) / score.num_samples)
            # lm-eval divides by n - 1
            assert binomial == pytest.approx(score.stderr, rel=0.01), score.task


def test_evalscopes_report_is_read(corpus: Path) -> None:
    results = read_evalscope(corpus / "evals" / "evalscope_0.5b_gsm8k.json")
    (score,) = results.scores
    assert (score.task, score.metric, score.value) == ("gsm8k", "averageaccuracy", 0.4)
    assert score.num_samples == 10


def test_aisbenchs_table_gives_a_score_a_device(corpus: Path) -> None:
    results = read_evals_table(corpus / "evals" / "aisbench_gpu_vs_npu_table.md")
    scores = {(s.task, s.variant): s for s in results.scores}
    assert len(scores) == 6 and results.num_unread == 0
    assert scores["aime2025", "GPU"].repeats == 4 and scores["aime2025", "GPU"].value == 0.95
    assert scores["gsm8k", "NPU"].settings["max-model-len"] == "10240"


def test_one_table_can_be_both_sides_and_its_other_settings_are_named(corpus: Path) -> None:
    path = corpus / "evals" / "aisbench_gpu_vs_npu_table.md"
    result = diff(path, path)
    ids = {finding.id for finding in result.findings if finding.severity is Severity.WARNING}
    assert {"evals.settings.max_model_len", "evals.settings.repeats"} <= ids
    assert result.status is RungStatus.UNDECIDED
    gsm8k = next(row for row in result.tables[0].rows if row[0] == "gsm8k score")
    # 2 · 1.96 standard errors of 1319 questions at 96.7 % and 96.4 %, by hand
    assert gsm8k[1:5] == (0.9672, 0.9636, -0.36, 1.39)


def test_two_different_models_differ_and_one_and_itself_does_not(corpus: Path) -> None:
    small, large = (corpus / "evals" / f"lm_eval_qwen2.5-{size}.json" for size in ("1.5b", "3b"))
    assert diff(small, large).status is RungStatus.DIVERGED
    assert diff(small, small).findings == ()


def test_a_loss_of_ten_points_is_an_error_and_ten_questions_cannot_tell(tmp_path: Path) -> None:
    # field report: MMMU 0.64285 on GPU, 0.54145 on NPU; 900 questions
    reference = table(tmp_path / "a.csv", "mmmu,64.285,900")
    candidate = table(tmp_path / "b.csv", "mmmu,54.145,900")
    (finding,) = diff(reference, candidate).findings
    assert finding.id == "evals.mmmu.score" and finding.severity is Severity.ERROR
    few = table(tmp_path / "c.csv", "mmmu,64.285,10"), table(tmp_path / "d.csv", "mmmu,54.145,10")
    assert diff(*few).findings == ()
    assert diff(*few).status is RungStatus.UNDECIDED


@pytest.mark.parametrize(
    ("reference", "candidate", "questions", "standing"),
    [
        (0.50, 0.50, 40_000, Standing.WITHIN),
        (0.50, 0.55, 40_000, Standing.BEYOND),
        (0.50, 0.51, 500, Standing.UNDECIDED),
        (0.0, 0.0, 100, Standing.WITHIN),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_of_two_points(
    reference: float, candidate: float, questions: int, standing: Standing
) -> None:
    (found,) = judge([pair(reference, candidate, questions)])
    assert found.standing["trained"] is standing


def test_the_questions_needed_decide_it_when_they_are_asked() -> None:
    (found,) = judge([pair(0.6, 0.605, 300)])
    needed = found.questions_needed["trained"]
    assert needed is not None
    (again,) = judge([pair(0.6, 0.605, needed + 1)])
    assert again.standing["trained"] is Standing.WITHIN


def test_equal_models_give_a_false_error_in_fewer_than_one_of_a_hundred_comparisons() -> None:
    random = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        truth = random.uniform(0.2, 0.9, 60)
        drawn = random.binomial(400, np.tile(truth, (2, 1))) / 400
        alarms += any(j.is_real for j in judge([pair(a, b, 400) for a, b in drawn.T]))
    assert alarms / 300 <= 0.01 + 2 * math.sqrt(0.01 * 0.99 / 300)


def test_a_gain_and_a_loss_that_cancel_are_named_and_noise_is_not() -> None:
    shifted = [pair(0.6, 0.7, 2000, "math", "all"), pair(0.6, 0.5, 2000, "behaviour", "all")]
    ((group, gain, loss),) = cancelling(judge(shifted))
    assert (group, gain.pair.reference.score.task) == ("all", "math")
    assert loss.pair.reference.score.task == "behaviour"
    noise = [pair(0.6, 0.61, 500, "math", "all"), pair(0.6, 0.59, 500, "behaviour", "all")]
    assert cancelling(judge(noise)) == []


def test_guessing_is_named_on_the_side_that_guesses(tmp_path: Path) -> None:
    # field report: prefix cache with graph mode, MMLU 0.2584
    reference = table(tmp_path / "a.csv", "mmlu,70.0,1000")
    candidate = table(tmp_path / "b.csv", "mmlu,25.84,1000")
    result = diff(reference, candidate)
    assert "evals.chance.mmlu.score" in {finding.id for finding in result.findings}
    both = table(tmp_path / "c.csv", "mmlu,25.0,1000"), table(tmp_path / "d.csv", "mmlu,25.9,1000")
    assert not any("chance" in finding.id for finding in diff(*both).findings)


def test_a_data_set_is_known_in_every_spelling() -> None:
    for name in ("GPQA-Diamond", "gpqa_diamond", "gpqadiamond"):
        known = known_benchmark(name)
        assert known is not None and known.questions == 198
    assert chance_of("mmlu_formal_logic") == 0.25 and chance_of("gsm8k") is None


def test_opencompass_writes_a_column_a_model(tmp_path: Path) -> None:
    path = tmp_path / "summary.csv"
    path.write_text(
        "dataset,version,metric,mode,model_gpu,model_npu\n"
        "gsm8k,1d7fe4,accuracy,gen,79.53,78.92\n"
        "math-500,-,accuracy,gen,-,50.2\n",
        encoding="utf-8",
    )
    results = read_evals_table(path)
    assert [(s.task, s.variant) for s in results.scores] == [
        ("gsm8k", "model_gpu"),
        ("gsm8k", "model_npu"),
        ("math-500", "model_npu"),
    ]
    assert [s.value for s in results.scores] == pytest.approx([0.7953, 0.7892, 0.502])


def test_a_broken_file_is_named_and_the_other_compared(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        table(folder / "scores.csv", "gsm8k,79.0,1319")
    broken = {"results": {"gsm8k": {"acc,none": 0.5}}}
    (folders[0] / "lm_eval.json").write_text(json.dumps(broken)[:-2], encoding="utf-8")
    data = run(folders[0])
    result = compare(data, run(folders[1]))
    assert result.status is not RungStatus.MISSING
    assert any("is not valid JSON" in str(problem) for problem in data.problems)


def test_what_is_on_one_side_only_is_counted() -> None:
    ours = EvalResults("a", "f", (Score("gsm8k", "acc", 0.5), Score("math", "acc", 0.4)))
    theirs = EvalResults("b", "f", (Score("gsm8k", "acc", 0.5),))
    pairs, one_sided = pair_scores([ours], [theirs])
    assert [p.name for p in pairs] == ["gsm8k acc"] and one_sided == ["math acc"]
