"""Data rung: the same prompts at every step, by text where dumped and by length otherwise."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from align.core.config_value import ConfigValue, Provenance, ProvenanceKind, RawConfig
from align.core.finding import Severity, Strength
from align.core.rung import Rung, RungResult, RungStatus
from align.data import rung
from align.data.constant_edit import edit_between, find_constant_edit
from dumps.store.discover import discover
from dumps.store.run_data import RunData

Row = dict[str, Any]
Lengths = dict[int, tuple[float, int, int]]  # step -> mean, max, min

SYSTEM = "system\nYou are a helpful assistant.\n"
QUESTIONS = [
    f"{name} has {a} apples and buys {b} more every week. How many after {a + b} weeks?"
    for a, name in enumerate(["Alice", "Bob", "Carol", "Dan", "Eve", "Frank", "Grace", "Heidi"], 3)
    for b in range(2, 14)
]


def rollouts(folder: Path, rows: list[Row]) -> RunData:
    folder.mkdir(parents=True)
    for step in {row["step"] for row in rows}:
        lines = (json.dumps(row) + "\n" for row in rows if row["step"] == step)
        (folder / f"{step}.jsonl").write_text("".join(lines), "utf-8")
    return RunData(discover([folder]))


def metrics(folder: Path, lengths: Lengths) -> RunData:
    folder.mkdir(parents=True)
    names = ("prompt_length/mean", "prompt_length/max", "prompt_length/min")
    lines = (
        json.dumps({"step": step, "data": dict(zip(names, values, strict=True))}) + "\n"
        for step, values in lengths.items()
    )
    (folder / "metrics.jsonl").write_text("".join(lines), "utf-8")
    return RunData(discover([folder]))


def rows(
    questions: list[str], *, template: str = "user\n{}\nassistant\n", batch: int = 16, n: int = 2
) -> list[Row]:
    return [
        {
            "input": template.format(question),
            "output": f"answer {i} {k}",
            "gts": str(len(question)),
            "score": 1.0,
            "step": 1 + i // batch,
        }
        for i, question in enumerate(questions)
        for k in range(n)
    ]


def compare_rows(tmp_path: Path, reference: list[Row], candidate: list[Row]) -> RungResult:
    return rung.compare(
        rollouts(tmp_path / "a" / "r", reference), rollouts(tmp_path / "b" / "r", candidate)
    )


def compare_lengths(tmp_path: Path, reference: Lengths, candidate: Lengths) -> RungResult:
    return rung.compare(metrics(tmp_path / "a", reference), metrics(tmp_path / "b", candidate))


def lengths(seed: int, steps: int = 20) -> Lengths:
    rng = random.Random(seed)
    batches = [[rng.randint(40, 400) for _ in range(64)] for _ in range(steps)]
    return {i: (sum(b) / 64, max(b), min(b)) for i, b in enumerate(batches, 1)}


def compare_paths(paths: Sequence[Path]) -> RungResult:
    reference, candidate = (RunData(discover([path])) for path in paths)
    return rung.compare(reference, candidate)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ("v091_v0_fsdp2", "v091_v1_fsdp2"),
        ("v091_v1_vllmcpu", "v091_v1_vllmcpu_bf16rollout"),
        ("v091_v0_fsdp2", "v091_v1_vllmcpu"),
    ],
)
def test_real_runs_of_one_seed_saw_the_same_prompts(
    reference_runs: Path, reference: str, candidate: str
) -> None:
    folders = [reference_runs / run / "rollout" for run in (reference, candidate)]
    steps = sorted(
        {int(p.stem) for p in folders[0].iterdir()} & {int(p.stem) for p in folders[1].iterdir()}
    )
    for step in steps:  # the truth, by the json module alone
        texts = [(folder / f"{step}.jsonl").read_text("utf-8").split("\n") for folder in folders]
        prompts = [Counter(json.loads(line)["input"] for line in side if line) for side in texts]
        assert prompts[0] == prompts[1]
    result = compare_paths(folders)
    assert result.name is Rung.DATA and result.status is RungStatus.ALIGNED
    assert result.findings == ()
    assert [(row[0], row[-1]) for row in result.tables[0].rows] == [(s, True) for s in steps]


def test_the_near_repeats_on_npu_agree_at_all_58_steps_but_that_is_no_proof(corpus: Path) -> None:
    logs = [corpus / "verl_logs" / f"grpo_npu_sync_repeat_{x}.txt" for x in "ab"]
    result = compare_paths(logs)
    assert result.status is RungStatus.ALIGNED and result.findings == ()
    assert "all 58 common steps" in result.summary.en
    assert "not proof" in result.summary.en


def test_constant_prompt_lengths_prove_nothing(reference_runs: Path) -> None:
    files = [reference_runs / run / "metrics.jsonl" for run in ("v091_v0_fsdp2", "v091_v1_fsdp2")]
    result = compare_paths(files)
    assert result.status is RungStatus.UNDECIDED and result.findings == ()
    assert result.missing[0].how_to_record.en


def test_another_shuffle_of_the_same_rows_is_an_order_difference(tmp_path: Path) -> None:
    shuffled = QUESTIONS[:16] + random.Random(1).sample(QUESTIONS[16:], len(QUESTIONS) - 16)
    result = compare_rows(tmp_path, rows(QUESTIONS), rows(shuffled))
    assert result.status is RungStatus.DIVERGED
    (finding,) = result.findings
    assert finding.id == "data.order.first_divergent_step"
    assert finding.severity is Severity.ERROR
    assert finding.reference == 2
    assert "the order differs" in finding.why.en
    assert finding.mechanism is not None
    assert finding.mechanism.acts_on is Rung.DATA
    assert finding.mechanism.strength is Strength.SEMANTIC
    assert all(e.line and e.text and e.text.startswith("user\\n") for e in finding.evidence)


def test_order_within_a_step_is_no_difference(tmp_path: Path) -> None:
    reordered = random.Random(2).sample(rows(QUESTIONS), 2 * len(QUESTIONS))
    assert compare_rows(tmp_path, rows(QUESTIONS), reordered).status is RungStatus.ALIGNED


def test_another_number_of_responses_is_no_data_difference(tmp_path: Path) -> None:
    result = compare_rows(tmp_path, rows(QUESTIONS, n=2), rows(QUESTIONS, n=5))
    assert result.status is RungStatus.ALIGNED


def test_lost_rows_are_counted(tmp_path: Path) -> None:
    result = compare_rows(tmp_path, rows(QUESTIONS), rows(QUESTIONS[:20] + QUESTIONS[24:]))
    (finding,) = result.findings
    assert finding.id == "data.order.first_divergent_step" and finding.reference == 2
    assert "12 of 16" in finding.title.en
    assert f"{len(QUESTIONS) - 4} distinct prompts are common" in finding.why.en


def test_a_dump_that_breaks_off_has_no_other_data(tmp_path: Path) -> None:
    result = compare_rows(tmp_path, rows(QUESTIONS), rows(QUESTIONS)[:-9])
    assert result.status is RungStatus.ALIGNED


@pytest.mark.parametrize(
    ("template", "span"),
    [
        (SYSTEM + "user\n{}\nassistant\n", "You are a helpful assistant."),
        ("Human: {}\n\nAssistant:", "Human:"),
        ("user\n{}\nThink step by step.\nassistant\n", "Think step by step."),
    ],
)
def test_another_template_is_named_with_its_span(tmp_path: Path, template: str, span: str) -> None:
    result = compare_rows(tmp_path, rows(QUESTIONS), rows(QUESTIONS, template=template))
    (finding,) = result.findings
    assert finding.id == "data.prompt_template"
    assert span in " ".join(str(value) for value in finding.evidence[-1].values)


def test_special_tokens_in_one_dump_alone_are_no_template(tmp_path: Path) -> None:
    kept = rows(QUESTIONS, template="<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")
    stripped = rows(QUESTIONS, template="user\n{}\nassistant\n")
    assert compare_rows(tmp_path, stripped, kept).status is RungStatus.ALIGNED


def test_a_dump_without_steps_is_compared_where_its_order_proves_them(tmp_path: Path) -> None:
    reference = rollouts(tmp_path / "a" / "r", rows(QUESTIONS))
    (tmp_path / "b").mkdir()
    lines = (
        json.dumps({"prompt": row["input"], "response": "x", "label": row["gts"], "acc": 1.0})
        for row in rows(QUESTIONS)
    )
    (tmp_path / "b" / "rollout.log").write_text("\n".join(lines) + "\n")
    result = rung.compare(reference, RunData(discover([tmp_path / "b"])))
    assert result.status is RungStatus.ALIGNED
    assert "has no step" in result.summary.en


def test_other_labels_of_the_same_prompts_are_named(tmp_path: Path) -> None:
    relabelled = [
        {**row, "gts": "0"} if "Alice" in row["input"] else row for row in rows(QUESTIONS)
    ]
    result = compare_rows(tmp_path, rows(QUESTIONS), relabelled)
    (finding,) = result.findings
    assert finding.id == "data.ground_truth"
    assert "12 of 96" in finding.title.en
    assert finding.mechanism is not None and finding.mechanism.acts_on is Rung.REWARD


def test_labels_written_another_way_throughout_are_no_finding(tmp_path: Path) -> None:
    rewritten = [{**row, "gts": f"#### {row['gts']}"} for row in rows(QUESTIONS)]
    assert compare_rows(tmp_path, rows(QUESTIONS), rewritten).findings == ()


def test_equal_lengths_are_strong_evidence(tmp_path: Path) -> None:
    printed = {step: (round(m, 3), b, c) for step, (m, b, c) in lengths(1).items()}
    result = compare_lengths(tmp_path, lengths(1), printed)
    assert result.status is RungStatus.DIVERGED  # full precision was stored on both sides
    same = compare_lengths(tmp_path / "2", lengths(1), lengths(1))
    assert same.status is RungStatus.ALIGNED


def test_three_printed_decimals_carry_their_resolution(tmp_path: Path) -> None:
    data = lengths(1)
    console = "".join(
        f"step:{step} - prompt_length/mean:{mean:.3f} - prompt_length/max:{high:.3f} - "
        f"prompt_length/min:{low:.3f} - actor/lr:0.000 - actor/pg_loss:0.012 - "
        f"critic/score/mean:0.123\n"
        for step, (mean, high, low) in data.items()
    )
    (tmp_path / "a.log").write_text(console)
    reference, candidate = RunData(discover([tmp_path / "a.log"])), metrics(tmp_path / "b", data)
    assert rung.compare(reference, candidate).status is RungStatus.ALIGNED


def test_the_first_step_with_other_lengths_is_named(tmp_path: Path) -> None:
    other = {**lengths(1), **{s: v for s, v in lengths(2).items() if s >= 8}}
    result = compare_lengths(tmp_path, lengths(1), other)
    (finding,) = result.findings
    assert finding.id == "data.order.first_divergent_step"
    assert "step 8" in finding.title.en and "7 of 20" in finding.title.en
    assert finding.evidence[0].values[0] == 8


def test_prompts_longer_by_a_constant_are_another_template(tmp_path: Path) -> None:
    longer = {s: (m + 21, b + 21, c + 21) for s, (m, b, c) in lengths(1).items()}
    (finding,) = compare_lengths(tmp_path, lengths(1), longer).findings
    assert finding.id == "data.prompt_template"
    assert "candidate's prompts are 21 tokens longer" in finding.title.en


def test_runs_that_count_steps_from_another_number_are_recognised(tmp_path: Path) -> None:
    from_zero = {step - 1: values for step, values in lengths(1).items()}
    result = compare_lengths(tmp_path, lengths(1), from_zero)
    assert result.status is RungStatus.ALIGNED
    assert "+1 is added" in result.summary.en


def test_a_skipped_first_batch_is_an_order_difference(tmp_path: Path) -> None:
    skipped = {step - 1: values for step, values in lengths(1).items() if step > 1}
    result = compare_lengths(tmp_path, lengths(1), skipped)
    assert [f.id for f in result.findings] == ["data.order.first_divergent_step"]


def test_prompts_dropped_by_score_are_not_called_another_order(tmp_path: Path) -> None:
    reference, candidate = metrics(tmp_path / "a", lengths(1)), metrics(tmp_path / "b", lengths(2))
    provenance = Provenance(ProvenanceKind.FILE, "config.yaml", line=3)
    value = ConfigValue("algorithm.filter_groups.enable", True, provenance)
    candidate.configs = (RawConfig("config.yaml", "yaml", "verl", {value.key: value}),)
    result = rung.compare(reference, candidate)
    assert result.status is RungStatus.UNDECIDED and result.findings == ()
    assert "filter_groups.enable" in result.summary.en


def test_nothing_recorded_is_missing_on_the_side_that_lacks_it(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    empty = RunData(discover([tmp_path / "b"]))
    recorded = metrics(tmp_path / "a", lengths(1))
    assert rung.compare(recorded, empty).missing[0].side == "candidate"
    assert rung.compare(empty, empty).missing[0].side == "both"


def test_an_edit_is_constant_only_if_every_pair_shows_it() -> None:
    plain = [f"user\n{q}\nassistant\n" for q in QUESTIONS[:6]]
    system = [SYSTEM + text for text in plain]
    found = find_constant_edit(plain, system)
    assert found is not None and found.num_pairs == 6
    assert "".join(new for _, new in found.spans) == SYSTEM
    mixed = [*system[:5], plain[5].replace("apples", "pears")]
    assert find_constant_edit(plain, mixed) is None
    assert find_constant_edit(plain[:2], system[:2]) is None
    assert find_constant_edit(plain[:3], [f"user\n{q}\n" for q in ("x", "y", "z")]) is None


def test_edits_put_together_make_the_other_text() -> None:
    assert edit_between("a b c", "a x c") == (("b", "x"),)
    assert edit_between("a b", "a b") == ()
