"""Special tokens: what must be named, with which weight, and where the rung stays silent."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from align.core.finding import Finding, Severity, Side
from align.core.rung import Rung, RungResult, RungStatus
from align.core.verdict import VerdictStatus
from align.ladder import climb
from dumps.store.discover import discover
from dumps.store.run_data import RunData
from tokenizer_check.rung import compare

Files = dict[str, dict[str, Any]]

# Values of Qwen2.5-7B and Qwen2.5-7B-Instruct.
_DECODER = {
    "151643": {"content": "<|endoftext|>", "special": True},
    "151645": {"content": "<|im_end|>", "special": True},
}


def model(eos: int, *generation_eos: int) -> Files:
    sizes = {"model_type": "qwen2", "hidden_size": 3584, "vocab_size": 152064}
    stop: int | list[int] = list(generation_eos) if len(generation_eos) > 1 else generation_eos[0]
    return {
        "config.json": {**sizes, "bos_token_id": 151643, "eos_token_id": eos},
        "generation_config.json": {
            "bos_token_id": 151643,
            "pad_token_id": 151643,
            "eos_token_id": stop,
            "transformers_version": "4.43.1",
        },
    }


def tokenizer(eos: str, pad: str | None = "<|endoftext|>", bos: str | None = None) -> Files:
    return {
        "tokenizer_config.json": {
            "added_tokens_decoder": _DECODER,
            "bos_token": bos,
            "eos_token": eos,
            "pad_token": pad,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        }
    }


BASE = {**model(151643, 151643), **tokenizer("<|endoftext|>")}
INSTRUCT = {**model(151645, 151645, 151643), **tokenizer("<|im_end|>")}


def only(files: Files, *names: str) -> Files:
    return {name: files[name] for name in names}


def edited(files: Files, name: str, **values: Any) -> Files:
    return {**files, name: {**files[name], **values}}


def run(folder: Path, files: Files) -> RunData:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return RunData(discover([folder]))


def compared(tmp_path: Path, reference: Files, candidate: Files) -> RungResult:
    return compare(run(tmp_path / "a", reference), run(tmp_path / "b", candidate))


def weights(result: RungResult) -> dict[str, Severity]:
    return {finding.id: finding.severity for finding in result.findings}


def the(result: RungResult, id: str) -> Finding:
    return next(finding for finding in result.findings if finding.id == id)


def test_the_instruct_tokenizer_under_a_base_models_name_is_the_first_cause(tmp_path: Path) -> None:
    tokenizer_alone = ["tokenizer_config.json", "generation_config.json"]
    sides = [only(files, *tokenizer_alone) for files in (BASE, INSTRUCT)]
    verdict = climb(run(tmp_path / "c", sides[0]), run(tmp_path / "d", sides[1])).verdict
    assert (verdict.status, verdict.rung) == (VerdictStatus.DIVERGED, Rung.TOKENIZER)
    assert verdict.finding_id == "tokenizer.eos_token_id"
    result = compared(tmp_path, BASE, INSTRUCT)
    assert result.name is Rung.TOKENIZER
    finding = the(result, "tokenizer.eos_token_id")
    assert (finding.reference, finding.candidate) == (
        "<|endoftext|> (151643)",
        "<|im_end|> (151645)",
    )
    assert "takes for padding is stripped" in finding.why.en
    assert (
        "In MindSpeed-RL the candidate's engine also stops at 151643, which is its padding and "
        "not its tokenizer's eos (151645): the eos would be stripped as padding." in finding.why.en
    )
    assert "In the reference end token and padding are one token" in finding.why.en
    assert "The reference's end token is the candidate's padding" in finding.why.en
    assert "参考的结束符正是被测的填充符" in finding.why.zh
    assert {Path(e.source).name for e in finding.evidence} == {
        "tokenizer_config.json",
        "generation_config.json",
        "config.json",
    }
    for evidence in finding.evidence:
        lines = Path(evidence.source).read_text().splitlines()
        assert evidence.text == lines[(evidence.line or 0) - 1].strip()


@pytest.mark.parametrize("files", [BASE, INSTRUCT], ids=["base", "instruct"])
def test_the_same_folder_on_both_sides_is_silent(tmp_path: Path, files: Files) -> None:
    result = compared(tmp_path, files, files)
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
    assert "Not compared, as not in the files of both runs: chat template" in result.summary.en


@pytest.mark.parametrize("names", [["config.json"], ["generation_config.json"]])
def test_one_of_the_files_is_enough(tmp_path: Path, names: list[str]) -> None:
    result = compared(tmp_path, only(BASE, *names), only(INSTRUCT, *names))
    assert weights(result) == {"tokenizer.eos_token_id": Severity.ERROR}
    silent = compared(tmp_path / "clean", only(BASE, *names), only(BASE, *names))
    assert (silent.status, silent.findings) == (RungStatus.ALIGNED, ())


def test_end_tokens_are_a_set(tmp_path: Path) -> None:
    name = "generation_config.json"
    swapped = edited(INSTRUCT, name, eos_token_id=[151643, 151645])
    assert compared(tmp_path, INSTRUCT, swapped).findings == ()
    single = edited(INSTRUCT, name, eos_token_id=151645)
    assert weights(compared(tmp_path / "b", INSTRUCT, single)) == {
        "tokenizer.eos_token_id": Severity.ERROR
    }


def test_config_json_does_not_count_where_what_replaces_it_agrees(tmp_path: Path) -> None:
    edited_config = edited(INSTRUCT, "config.json", eos_token_id=151643)
    result = compared(tmp_path, INSTRUCT, edited_config)
    assert result.status is RungStatus.ALIGNED
    assert weights(result) == {"tokenizer.eos_token_id": Severity.INFO}
    assert the(result, "tokenizer.eos_token_id").mechanism is None


def test_padding_that_becomes_the_end_token_is_a_warning_other_padding_is_not(
    tmp_path: Path,
) -> None:
    alone = only(INSTRUCT, "tokenizer_config.json")
    result = compared(tmp_path, alone, tokenizer("<|im_end|>", pad="<|im_end|>"))
    assert result.status is RungStatus.UNDECIDED
    assert weights(result) == {"tokenizer.pad_token_id": Severity.WARNING}
    other = compared(tmp_path / "c", alone, tokenizer("<|im_end|>", pad="<|vision_pad|>"))
    assert other.status is RungStatus.ALIGNED
    assert weights(other) == {"tokenizer.pad_token_id": Severity.INFO}


def test_a_begin_token_matters_where_the_tokenizer_has_it(tmp_path: Path) -> None:
    a, b = (tokenizer("<|im_end|>", bos=bos) for bos in ("<s>", "<|endoftext|>"))
    assert weights(compared(tmp_path, a, b)) == {"tokenizer.bos_token_id": Severity.WARNING}
    edited_model = edited(INSTRUCT, "generation_config.json", bos_token_id=1)
    result = compared(tmp_path / "c", INSTRUCT, edited_model)
    assert weights(result) == {"tokenizer.bos_token_id": Severity.INFO}


def test_a_token_written_as_an_object_is_the_same_token(tmp_path: Path) -> None:
    as_object = edited(
        INSTRUCT, "tokenizer_config.json", eos_token={"content": "<|im_end|>", "lstrip": False}
    )
    assert compared(tmp_path, INSTRUCT, as_object).findings == ()


def test_a_nested_text_config_states_ids_too(tmp_path: Path) -> None:
    def composite(eos: int) -> Files:
        text = {"hidden_size": 8, "vocab_size": 9, "eos_token_id": eos}
        return {"config.json": {"model_type": "qwen2_5_vl", "text_config": text}}

    assert weights(compared(tmp_path, composite(151643), composite(151645))) == {
        "tokenizer.eos_token_id": Severity.ERROR
    }
    assert compared(tmp_path / "c", composite(151645), composite(151645)).findings == ()


def test_a_token_on_one_side_only_is_shown_and_not_judged(tmp_path: Path) -> None:
    result = compared(
        tmp_path, tokenizer("<|im_end|>", pad=None), tokenizer("<|im_end|>", bos="<s>")
    )
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
    table = next(table for table in result.tables if table.id == "tokenizer.special_tokens")
    rows = {row[0]: row[2:5] for row in table.rows}
    assert rows["pad"] == (None, None, "<|endoftext|> (151643)")
    assert rows["eos"] == ("=", "<|im_end|> (151645)", "<|im_end|> (151645)")


def test_files_that_contradict_each_other_within_a_run_are_named_and_not_compared(
    tmp_path: Path,
) -> None:
    base_model = {f"ref/{k}": v for k, v in model(151643, 151643).items()}
    both = {**{f"actor/{k}": v for k, v in INSTRUCT.items()}, **base_model}
    result = compared(tmp_path, INSTRUCT, both)
    assert result.status is RungStatus.ALIGNED
    assert weights(result) == {"tokenizer.contradicting_files": Severity.INFO}
    evidence = the(result, "tokenizer.contradicting_files").evidence
    assert {e.side for e in evidence} == {Side.CANDIDATE} and len(evidence) == 4
    copies = {f"{folder}/{k}": v for folder in ("actor", "ref") for k, v in INSTRUCT.items()}
    assert compared(tmp_path / "clean", INSTRUCT, copies).findings == ()


@pytest.mark.parametrize(
    ("reference", "candidate", "side"),
    [(INSTRUCT, {}, "candidate"), ({}, INSTRUCT, "reference"), ({}, {}, "both")],
)
def test_a_side_without_such_files_says_what_to_copy(
    tmp_path: Path, reference: Files, candidate: Files, side: str
) -> None:
    result = compared(tmp_path, reference, candidate)
    assert result.status is RungStatus.MISSING
    assert result.missing[0].side == side
    assert "tokenizer_config.json" in result.missing[0].how_to_record.en


def test_different_kinds_of_files_are_not_compared_with_each_other(tmp_path: Path) -> None:
    result = compared(tmp_path, only(BASE, "config.json"), tokenizer("<|im_end|>"))
    assert (result.status, result.findings) == (RungStatus.MISSING, ())
    assert "different files" in result.summary.en


def test_real_folders_pairwise(corpus: Path, reference_runs: Path) -> None:
    folders = {path.name: path for path in (corpus / "tokenizers").iterdir()}
    folders["tiny"] = reference_runs / "tiny_model_tokenizer_data" / "model"
    results = {
        (a, b): compare(*(RunData(discover([folders[name]])) for name in (a, b)))
        for a, b in itertools.product(folders, folders)
    }
    for (a, b), result in results.items():
        if a == b:
            assert (result.status, result.findings) == (RungStatus.ALIGNED, ())
        else:
            assert weights(result)["tokenizer.eos_token_id"] is Severity.ERROR
    # known traps: Llama-3 with <|end_of_text|>, the base model's eos, padding with a vision token
    assert the(results["llama-3-8b", "tiny"], "tokenizer.eos_token_id").reference == (
        "<|end_of_text|> (128001)"
    )
    coder = results["qwen2.5-7b", "qwen2.5-coder-1.5b"]
    assert the(coder, "tokenizer.pad_token_id").candidate == "<|vision_pad|> (151654)"
    assert the(coder, "tokenizer.added_tokens").reference is None
    encoded = the(results["qwen2.5-7b", "tiny"], "tokenizer.encoding")
    assert encoded.evidence[0].values[0] == 0  # the first ids differ already
    story = the(results["qwen2.5-7b", "qwen2.5-coder-1.5b"], "tokenizer.eos_token_id")
    assert (story.reference, story.candidate) == ("<|endoftext|> (151643)", "<|im_end|> (151645)")
