"""What the rollout rung says of prompts asked, rows permuted, broken responses and groups."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.config_value import (
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    Provenance,
    ProvenanceKind,
)
from align.core.finding import Finding, Severity
from align.core.rung import RungResult, RungStatus
from align.core.text import Text
from align.rollout.moved import MOVED_SHARE
from align.rollout.reward_rules import is_right
from align.rollout.reward_rung import compare as compare_rewards
from align.rollout.rung import compare
from dumps.store.discover import discover
from dumps.store.response_flags import ResponseFlag, flags_of
from dumps.store.rollout_index import question_of
from dumps.store.run_data import RunData

Row = dict[str, Any]
N, PROMPTS = 4, 12
START, END, NEWLINE = 441, 442, 198


def rows_of(seed: int, *, steps: int = 2, answers: Callable[[int], str] = str) -> list[Row]:
    """Ask 12 questions, 4 responses each: text with ids, half of them right."""
    rng = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        for question in range(PROMPTS):
            for _ in range(N):
                right = rng.random() < 0.5
                answer = question if right else 100 + rng.randrange(900)
                thought = " ".join(rng.choices(["so", "we", "add", "then", "carry"], k=12))
                rows.append(
                    {
                        "input": f"user\nquestion {step}.{question}\nassistant\n",
                        "output": f"{thought} #{rng.randrange(10**9)} gives {answers(answer)}",
                        "gts": str(question),
                        "score": float(right),
                        "step": step,
                        "uid": f"{step}-{question}",
                        "prompt_ids": [START, 5, step, 10 + question, END, NEWLINE],
                        "response_ids": [rng.randrange(300) for _ in range(6)],
                        "finish_reason": "stop",
                    }
                )
    return rows


def run(folder: Path, rows: list[Row], *, tokenizer: bool = True) -> RunData:
    folder.mkdir(parents=True)
    for step in {row["step"] for row in rows}:
        lines = [json.dumps(row) + "\n" for row in rows if row["step"] == step]
        (folder / f"{step}.jsonl").write_text("".join(lines), "utf-8")
    if tokenizer:
        special = [
            {"id": START, "content": "<|im_start|>", "special": True},
            {"id": END, "content": "<|im_end|>", "special": True},
        ]
        content = {"version": "1.0", "truncation": None, "added_tokens": special}
        (folder / "tokenizer.json").write_text(json.dumps(content))
    return RunData(discover([folder]))


def asked(rows: list[Row], ask: Callable[[int, list[Row]], list[int]]) -> list[Row]:
    """Record what the engine was asked, as vLLM's output says it."""
    return [{**row, "prompt_token_ids": ask(i, rows)} for i, row in enumerate(rows)]


def as_filed(i: int, rows: list[Row]) -> list[int]:
    return list(rows[i]["prompt_ids"])


def not_interleaved(i: int, rows: list[Row]) -> list[int]:
    """Ask a b c a b c … where responses are filed under a a a a b b b b."""
    first = i - i % (PROMPTS * N)
    return list(rows[first + (i - first) % PROMPTS * N]["prompt_ids"])


def without_special(i: int, rows: list[Row]) -> list[int]:
    return [token for token in rows[i]["prompt_ids"] if token not in (START, END)]


def named(result: RungResult, id: str) -> Finding:
    return next(finding for finding in result.findings if finding.id == id)


def ids(result: RungResult) -> list[str]:
    return [finding.id for finding in result.findings]


def test_responses_to_other_prompts_than_they_are_filed_under_are_named(tmp_path: Path) -> None:
    reference = run(tmp_path / "a", asked(rows_of(1), as_filed))
    candidate = run(tmp_path / "b", asked(rows_of(2), not_interleaved))
    finding = named(compare(reference, candidate), "rollout.responses_permuted")
    assert finding.severity is Severity.ERROR and finding.mechanism is not None
    # Row i of a step is asked for prompt i % 12 and filed under i // 4; 6 of 48 agree by chance.
    same = sum(i % PROMPTS == i // N for i in range(PROMPTS * N))
    assert (finding.reference, finding.candidate) == (0, 2 * (48 - same))
    assert "asked of the engine: [441, 5, 1, 11, 442, 198]" in str(finding.evidence[0].text)
    assert "filed under: [441, 5, 1, 10, 442, 198]" in str(finding.evidence[1].text)


def test_a_prompt_that_lost_its_special_tokens_is_named_with_them(tmp_path: Path) -> None:
    reference = run(tmp_path / "a", asked(rows_of(1), as_filed))
    candidate = run(tmp_path / "b", asked(rows_of(2), without_special))
    finding = named(compare(reference, candidate), "rollout.prompt_special_tokens")
    assert finding.severity is Severity.ERROR
    assert "<|im_start|> = 441, <|im_end|> = 442" in finding.title.en
    assert finding.candidate == 96
    assert "cb82020" in finding.fix.en


def test_without_a_tokenizer_other_ids_are_not_called_special(tmp_path: Path) -> None:
    reference = run(tmp_path / "a", asked(rows_of(1), as_filed), tokenizer=False)
    candidate = run(tmp_path / "b", asked(rows_of(2), without_special), tokenizer=False)
    assert "rollout.engine_prompt" in ids(compare(reference, candidate))


def test_prompts_asked_as_filed_are_no_finding(tmp_path: Path) -> None:
    runs = [run(tmp_path / str(seed), asked(rows_of(seed), as_filed)) for seed in (1, 2)]
    assert compare(runs[0], runs[1]).findings == ()


def test_what_both_runs_do_is_no_difference(tmp_path: Path) -> None:
    runs = [run(tmp_path / str(seed), asked(rows_of(seed), without_special)) for seed in (1, 2)]
    (finding,) = compare(runs[0], runs[1]).findings
    assert finding.severity is Severity.INFO and finding.mechanism is None


def test_the_trainers_input_tells_as_well_what_was_asked(tmp_path: Path) -> None:
    save_file = pytest.importorskip(
        "safetensors.numpy", reason="the trainer's tensors are safetensors: install [torch]"
    ).save_file
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed, folder in enumerate(folders):
        rows = rows_of(seed, steps=1)
        filed = np.array([row["prompt_ids"] for row in rows])
        if folder.name == "b":
            rows = [{**row, "prompt_ids": without_special(i, rows)} for i, row in enumerate(rows)]
        run(folder, rows)
        responses = np.array([row["response_ids"] for row in rows])
        whole = np.concatenate([filed, responses], axis=1)
        (folder / "trainer_inputs").mkdir()
        save_file(
            {"input_ids": whole, "attention_mask": np.ones_like(whole), "responses": responses},
            folder / "trainer_inputs" / "1.safetensors",
        )
    result = compare(RunData(discover([folders[0]])), RunData(discover([folders[1]])))
    assert named(result, "rollout.prompt_special_tokens").candidate == 48


def test_the_same_responses_under_other_prompts_are_named_from_text_alone(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if not k.endswith("ids")} for row in rows_of(1, steps=1)]
    moved = []
    for i, row in enumerate(rows):
        other = rows[i % PROMPTS * N + i // PROMPTS]  # a b c a b c filed as a a a b b b
        right = other["output"].rsplit(" ", 1)[1] == row["gts"]
        moved.append({**row, "output": other["output"], "score": float(right)})
    result = compare(run(tmp_path / "a", rows), run(tmp_path / "b", moved))
    finding = named(result, "rollout.responses_permuted")
    assert "the candidate has the same responses under other prompts" in finding.title.en
    assert "42 of 48 rows at step 1" in finding.title.en
    back = compare(run(tmp_path / "c", moved), run(tmp_path / "d", rows))
    assert "the reference has the same" in named(back, "rollout.responses_permuted").title.en


@pytest.mark.parametrize("again", [False, True], ids=["moved", "sampled again"])
def test_scores_that_do_not_tell_leave_it_to_the_engines_log_probs(
    tmp_path: Path, again: bool
) -> None:
    rng = random.Random(2)
    rows = [
        {**row, "score": 0.25, "rollout_log_probs": [-rng.random() for _ in range(6)]}
        for row in rows_of(1, steps=1)
    ]
    texts = ("output", "response_ids", "rollout_log_probs")
    other = [{**row, **{t: rows[i - N][t] for t in texts}} for i, row in enumerate(rows)]
    if again:
        other = [{**row, "rollout_log_probs": [-rng.random() for _ in range(6)]} for row in other]
    result = compare(run(tmp_path / "a", rows), run(tmp_path / "b", other))
    assert ("rollout.responses_permuted" in ids(result)) is not again


def test_a_model_that_heeds_no_prompt_is_not_called_permuted(tmp_path: Path) -> None:
    rows = [{**row, "score": 0.25} for row in rows_of(1, steps=1)]
    texts = [row["output"] for row in rows]
    random.Random(0).shuffle(texts)
    other = [{**row, "output": text} for row, text in zip(rows, texts, strict=True)]
    result = compare(run(tmp_path / "a", rows), run(tmp_path / "b", other))
    assert "rollout.responses_permuted" not in ids(result)


@given(st.integers(2, 400), st.integers(8, 300), st.integers(0, 2**32))
def test_independent_samples_share_fewer_single_texts_than_the_limit(
    num_texts: int, num_rows: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shares = []
    for _ in range(20):
        once = []
        for _ in range(2):
            values, counts = np.unique(rng.integers(0, num_texts, num_rows), return_counts=True)
            once.append(values[counts == 1])
        shares.append(len(np.intersect1d(*once)) / num_rows)
    assert np.mean(shares) < MOVED_SHARE.value - 0.05


@pytest.mark.parametrize(
    ("broken", "id"),
    [("!" * 60, "token0"), ("\x01\x02" * 8, "non_printing"), ("  ", "empty")],
)
def test_broken_responses_of_one_run_are_named_without_a_common_prompt(
    tmp_path: Path, broken: str, id: str
) -> None:
    other = [{**row, "input": f"another {row['input']}"} for row in rows_of(2)]
    sick = [{**r, "output": broken if i % 3 == 0 else r["output"]} for i, r in enumerate(other)]
    healthy = compare(run(tmp_path / "a", rows_of(1)), run(tmp_path / "b", other))
    assert healthy.findings == ()
    result = compare(run(tmp_path / "c", rows_of(1)), run(tmp_path / "d", sick))
    finding = named(result, f"rollout.{id}")
    assert result.status is RungStatus.DIVERGED
    assert finding.reference is None and finding.candidate == pytest.approx(1 / 3)
    assert finding.symptom is not None and finding.symptom.step == 1


@pytest.mark.parametrize(
    ("change", "id"),
    [
        (lambda row: {"finish_reason": "length"}, "truncated"),
        (lambda row: {"output": "答案是这个问题的结果，因为我们需要计算。" * 2}, "chinese"),
        (lambda row: {"output": f"the sum is 我们需要计算 {row['uid']} then"}, "mixed_languages"),
    ],
)
def test_a_share_that_differs_at_the_first_step_is_named(
    tmp_path: Path, change: Callable[[Row], Row], id: str
) -> None:
    rng = random.Random(3)
    rows = [{**row, **(change(row) if rng.random() < 0.7 else {})} for row in rows_of(2)]
    result = compare(run(tmp_path / "a", rows_of(1)), run(tmp_path / "b", rows))
    assert named(result, f"rollout.{id}").severity is Severity.ERROR


def test_a_missing_eos_is_judged_only_where_dumps_keep_special_tokens(tmp_path: Path) -> None:
    kept = [[{**r, "output": f"{r['output']}<|im_end|>"} for r in rows_of(s)] for s in (1, 2)]
    half = [
        {**row, "output": row["output"].removesuffix("<|im_end|>" if i % 2 else "")}
        for i, row in enumerate(kept[1])
    ]
    result = compare(run(tmp_path / "a", kept[0]), run(tmp_path / "b", half))
    finding = named(result, "rollout.missing_eos")
    assert (finding.reference, finding.candidate) == (0.0, 0.5)
    stripped = compare(run(tmp_path / "c", kept[0]), run(tmp_path / "d", rows_of(2)))
    assert stripped.findings == ()


def test_a_run_that_does_not_record_why_it_stopped_is_not_tested_for_truncation(
    tmp_path: Path,
) -> None:
    cut = [{**row, "finish_reason": "length"} for row in rows_of(1)]
    silent = [{k: v for k, v in row.items() if k != "finish_reason"} for row in rows_of(2)]
    assert compare(run(tmp_path / "a", cut), run(tmp_path / "b", silent)).findings == ()


def test_prompts_with_missing_responses_in_one_run_are_counted(tmp_path: Path) -> None:
    lossy = [row for i, row in enumerate(rows_of(2)) if i not in (1, 2, 9)]
    result = compare(run(tmp_path / "a", rows_of(1)), run(tmp_path / "b", lossy))
    finding = named(result, "rollout.incomplete_groups")
    assert finding.severity is Severity.WARNING
    assert "2 of 12 prompts of the candidate do not have 4 responses" in finding.title.en
    assert finding.candidate == 2


def _config(n: int) -> EffectiveConfig:
    place = Provenance(ProvenanceKind.OVERRIDE, "overrides.yaml", 3, "- rollout.n=8")
    value = EffectiveValue("rollout.n", n, ConfigValue("actor_rollout_ref.rollout.n", n, place))
    return EffectiveConfig("verl", None, {"rollout.n": value})


def test_another_group_size_than_configured_is_named_with_the_setting(tmp_path: Path) -> None:
    runs = [run(tmp_path / str(seed), rows_of(seed)) for seed in (1, 2)]
    result = compare(runs[0], runs[1], lambda data: _config(8 if data is runs[1] else N))
    (finding,) = result.findings
    assert finding.id == "rollout.group_size_not_configured"
    assert "configured for 8 responses per prompt, and its dump has 4" in finding.title.en
    assert (finding.evidence[0].source, finding.evidence[0].line) == ("overrides.yaml", 3)
    assert compare(runs[0], runs[1], lambda _: _config(N)).findings == ()


@pytest.mark.parametrize(
    "prompt",
    [
        "user\nWhat is 1?\nassistant\n",
        "<|im_start|>user\nWhat is 1?<|im_end|>\n<|im_start|>assistant\n",
        "Human: What is 1?\nAssistant: ",
        "<s>[INST] What is 1? [/INST]",
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is 1?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "user\n\nWhat is 1?assistant\n\n",
        "<｜User｜>What is 1?<｜Assistant｜>",
        "What   is\n1?",
    ],
)
def test_a_question_is_known_without_special_tokens_and_role_markers(prompt: str) -> None:
    assert question_of(prompt) == "What is 1?"


def test_words_that_only_look_like_roles_stay() -> None:
    text = "The user asks: is the system stable?\nmodel: none of the assistants knows"
    assert question_of(text) == "The user asks: is the system stable? none of the assistants knows"
    assert question_of("a user") == "a user"


def test_prompts_rendered_by_other_templates_are_paired(tmp_path: Path) -> None:
    bare = [
        {**row, "input": row["input"].replace("user\n", "Human: ").replace("assistant\n", "")}
        for row in rows_of(2)
    ]
    result = compare(run(tmp_path / "a", rows_of(1)), run(tmp_path / "b", bare))
    steps = result.tables[0]
    assert [row[1] for row in steps.rows] == [PROMPTS, PROMPTS]
    assert all(table.id != "rollout.unpaired" for table in result.tables)


def test_prompts_of_one_run_alone_are_listed(tmp_path: Path) -> None:
    rows = [{**r, "input": "only here"} if r["uid"] == "2-3" else r for r in rows_of(2)]
    result = compare(run(tmp_path / "a", rows_of(1)), run(tmp_path / "b", rows))
    table = next(table for table in result.tables if table.id == "rollout.unpaired")
    assert [row[:4] for row in table.rows] == [
        (Text("reference", "参考"), 1, 2, "user\\nquestion 2.3\\nassistant\\n"),
        (Text("candidate", "被测"), 1, 2, "only here"),
    ]


def test_nearly_equal_responses_are_paired_after_equal_ones(tmp_path: Path) -> None:
    rows = rows_of(1)
    near = [
        {**row, "output": f"{row['output']} indeed"} if i % 4 == 1 else row
        for i, row in enumerate(reversed(rows))
    ]
    result = compare(run(tmp_path / "a", rows), run(tmp_path / "b", near))
    assert "72 are the same word by word" in result.summary.en
    assert "Of 24 others 24 are nearly the same" in result.summary.en
    alike = compare(run(tmp_path / "c", rows), run(tmp_path / "d", rows_of(2)))
    assert "nearly" not in alike.summary.en


def test_responses_are_counted_by_task(tmp_path: Path) -> None:
    rows = [
        [{**row, "data_source": "gsm8k" if i % 2 else "math"} for i, row in enumerate(rows_of(s))]
        for s in (1, 2)
    ]
    rows[1] = [{**r, "score": 1.0} if r["data_source"] == "math" else r for r in rows[1]]
    result = compare(run(tmp_path / "a", rows[0]), run(tmp_path / "b", rows[1]))
    table = next(table for table in result.tables if table.id == "rollout.tasks")
    column = [c.key for c in table.columns].index("mean_score.candidate")
    assert [row[0] for row in table.rows] == ["gsm8k", "math"]
    assert table.rows[1][column] == 1.0
    expected = np.mean([r["score"] for r in rows[1] if r["data_source"] == "gsm8k"])
    assert table.rows[0][column] == pytest.approx(expected)


def test_scores_at_other_rows_are_found_by_scoring_again(tmp_path: Path) -> None:
    sound, rows = rows_of(1), rows_of(2)
    for boxed in (False, True):
        both = [
            [{**r, "output": f"\\boxed{{{r['output'].rsplit(' ', 1)[1]}}} 7"} for r in side]
            if boxed
            else side
            for side in (sound, rows)
        ]
        moved = [
            {**row, "score": both[1][i - i % 48 + (i + 5) % 48]["score"]}
            for i, row in enumerate(both[1])
        ]
        folder = tmp_path / str(boxed)
        result = compare_rewards(run(folder / "a", both[0]), run(folder / "b", moved))
        finding = named(result, "reward.permuted")
        wrong = sum(a["score"] != b["score"] for a, b in zip(both[1], moved, strict=True))
        assert finding.candidate == wrong and finding.reference == 0
        assert ("boxed" if boxed else "last number") in finding.why.en
        clean = compare_rewards(run(folder / "c", both[0]), run(folder / "d", both[1]))
        assert "reward.permuted" not in ids(clean)


def test_another_reward_rule_is_not_called_permuted(tmp_path: Path) -> None:
    strict = [{**r, "score": r["score"] * (i % 2)} for i, r in enumerate(rows_of(2))]
    result = compare_rewards(run(tmp_path / "a", rows_of(1)), run(tmp_path / "b", strict))
    assert "reward.permuted" not in ids(result)


@pytest.mark.parametrize(
    ("rule", "response", "truth", "right"),
    [
        ("#### ANSWER", "so 3\n#### 1,234", "1234", True),
        ("#### ANSWER", "1234", "1234", False),
        ("\\boxed{ANSWER}", "\\boxed{1} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}", True),
        ("<answer>ANSWER</answer>", "<answer> 7 </answer>", "7", True),
        ("last number", "from 3 to -4.5.", "-4.5", True),
        ("last number", "none", "4", False),
        ("whole response", " 12 ", "12", True),
    ],
)
def test_rules_find_the_answer(rule: str, response: str, truth: str, right: bool) -> None:
    assert is_right(rule, response, truth) is right


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("fine\ntext\twith 答案", ResponseFlag(0)),
        ("\x00\x01\x02\x03\x04\x05\x06\x07", ResponseFlag.NON_PRINTING),
        ("\x00\x01\x02 a", ResponseFlag(0)),
        ("\ufffd" * 8, ResponseFlag.NON_PRINTING | ResponseFlag.REPLACED),
        ("答案是七", ResponseFlag.CHINESE),
        ("答案是 the sum", ResponseFlag.MIXED),
        ("7<|im_end|>\n", ResponseFlag.SPECIAL_END),
        ("a > b", ResponseFlag(0)),
    ],
)
def test_flags_are_what_they_are_defined_as(text: str, flags: ResponseFlag) -> None:
    assert ResponseFlag(flags_of(text)) == flags


def test_bad_lines_and_scores_are_named_and_the_rest_is_compared(tmp_path: Path) -> None:
    rows = [{**r, "score": "bad" if i == 3 else int(r["score"])} for i, r in enumerate(rows_of(2))]
    data = run(tmp_path / "b", [{**rows[0], "output": "cut \ud83d"}, *rows[1:]])
    path = tmp_path / "b" / "1.jsonl"
    path.write_text(path.read_text() + '{"input": "user\\nquest')
    result = compare(run(tmp_path / "a", rows_of(1)), RunData(discover([tmp_path / "b"])))
    assert "Not read: 0 and 1 lines" in result.summary.en and "1.jsonl:49" in result.summary.en
    assert len(data.rollouts) == 96
    index = replace(data.rollouts)
    assert int(np.isnan(index.score).sum()) == 1
    assert any("1 values of 'score' are no numbers" in note for note in index.notes)
