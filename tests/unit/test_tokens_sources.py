"""Token dumps of every kind: what is read, what is named and left out, and that both agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from align.cli.main import cli
from align.core.errors import AlignError
from align.core.run import ArtifactKind
from align.rollout.token_layout import batch_of
from align.rollout.token_row import Role, TokenBatch, likely_stops, roles
from align.rollout.token_rows import token_rows
from dumps.readers.reader import no_progress
from dumps.readers.registry import reader_named
from dumps.readers.token_lines import READER as LINES
from dumps.readers.token_tensors import TokenTensors
from dumps.store.discover import discover
from dumps.store.run_data import RunData

PAD, EOS, P, R = 0, 9, 8, 8
PROMPTS = [[11, 12, 13], [14, 15], [16, 17, 18, 19]]
RESPONSES = [[21, 22, EOS], [31, 32, 33, 34, 35, 36, 37, 38], [41, EOS]]
Whole = list[tuple[tuple[int, ...], tuple[int, ...]]]
EXPECTED: Whole = [(tuple(p), tuple(r)) for p, r in zip(PROMPTS, RESPONSES, strict=True)]


def left(rows: Sequence[Sequence[int]], width: int, pad: int = PAD) -> np.ndarray[Any, Any]:
    return np.array([[pad] * (width - len(row)) + list(row) for row in rows])


def right(rows: Sequence[Sequence[int]], width: int, pad: int = PAD) -> np.ndarray[Any, Any]:
    return np.array([list(row) + [pad] * (width - len(row)) for row in rows])


def verl() -> dict[str, Any]:
    ids = np.concatenate([left(PROMPTS, P), right(RESPONSES, R)], axis=1)
    seen = (ids != PAD).astype(np.int64)
    return {
        "input_ids": ids,
        "attention_mask": seen,
        "position_ids": np.maximum(seen.cumsum(1) - 1, 0),
        "responses": ids[:, P:],
        "response_mask": seen[:, P:],
    }


def mindspeed_rl(pad: int = PAD) -> dict[str, Any]:
    """Lay out the columns of the transfer dock: everything padded on the right, with lengths."""
    whole = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    return {
        "prompts": right(PROMPTS, P, pad),
        "prompt_length": np.array([[len(p)] for p in PROMPTS]),
        "responses": right(RESPONSES, R, pad),
        "response_length": np.array([[len(r)] for r in RESPONSES]),
        "input_ids": right(whole, P + R, pad),
    }


def trl() -> dict[str, Any]:
    return {
        "prompt_ids": left(PROMPTS, P),
        "completion_ids": right(RESPONSES, R),
        "completion_mask": (right(RESPONSES, R) != PAD).astype(np.int64),
    }


def whole(batches: Sequence[TokenBatch]) -> Whole:
    return [(row.prompt, row.response) for batch in batches for row in batch.rows]


def rows_of(path: Path) -> list[TokenBatch]:
    data = RunData(discover([path]))
    tokens = token_rows(data)
    assert tokens.unread == ()
    steps = [TokenBatch(s.source, s.step, s.rows()) for s in tokens.trainer]
    return [*steps, *tokens.plain]


def tensors(tensors: dict[str, Any]) -> TokenTensors:
    from dumps.readers.token_tensors import canonical

    return TokenTensors("made", None, canonical(tensors))


@pytest.mark.parametrize("layout", [verl, mindspeed_rl, trl])
def test_every_layout_gives_the_same_prompts_and_responses(layout: Any) -> None:
    assert whole([batch_of(tensors(layout()))]) == EXPECTED


def test_lengths_decide_where_pad_is_also_a_real_token() -> None:
    """MindSpeed-RL pads with eos where the tokenizer has no pad; the last eos is real."""
    assert whole([batch_of(tensors(mindspeed_rl(pad=EOS)))]) == EXPECTED


def test_plain_ids_with_labels_are_split_where_labels_begin() -> None:
    ids = right([p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)], P + R)
    labels = np.where(ids == PAD, -100, ids)
    for row, prompt in zip(labels, PROMPTS, strict=True):
        row[: len(prompt)] = -100
    seen = (ids != PAD).astype(int)
    made = batch_of(tensors({"input_ids": ids, "attention_mask": seen, "labels": labels}))
    assert whole([made]) == EXPECTED


def test_ids_alone_are_freed_of_padding_but_not_split() -> None:
    made = batch_of(tensors({"input_ids": verl()["input_ids"]}))
    assert [row.tokens for row in made.rows] == [p + r for p, r in EXPECTED]
    assert all(row.split is None for row in made.rows)


def test_roles_are_inferred_for_every_column() -> None:
    made = batch_of(tensors(verl()))
    found = list(roles(made.rows[0], likely_stops(made.rows)))
    expected = [Role.PAD] * 5 + [Role.PROMPT] * 3 + [Role.RESPONSE] * 2 + [Role.EOS]
    assert found == expected + [Role.PAD] * 5


def test_a_torch_file_is_read_without_running_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    torch.save({k: torch.tensor(v) for k, v in verl().items()}, tmp_path / "step_3.pt")
    (batch,) = rows_of(tmp_path)
    assert (whole([batch]), batch.step) == (EXPECTED, 3)
    torch.save({"model.weight": torch.zeros(2, 2)}, tmp_path / "weights.pt")
    assert len(rows_of(tmp_path)) == 1


def test_a_torch_file_with_code_in_it_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    torch.save({"input_ids": torch.tensor([[1, 2]]), "x": Path}, tmp_path / "batch.pt")
    tokens = token_rows(RunData(discover([tmp_path])))
    assert not tokens.plain
    assert "cannot be loaded as plain tensors" in tokens.unread[0]


def test_bfloat16_positions_are_read_as_the_numbers_they_are(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    count = 300
    torch.save(
        {
            "input_ids": torch.arange(100, 100 + count)[None],
            "position_ids": torch.arange(count)[None].bfloat16(),
        },
        tmp_path / "batch.pt",
    )
    tokens = token_rows(RunData(discover([tmp_path])))
    (row,) = tokens.plain[0].rows
    assert row.positions is not None
    expected = torch.arange(count).bfloat16().long()
    assert row.positions.tolist() == expected.tolist()
    assert "position_ids is stored as float32" in tokens.unread[0]


def test_numpy_files_beside_each_other_are_one_batch(tmp_path: Path) -> None:
    for name, array in verl().items():
        np.save(tmp_path / f"{name}_7.npy", array)
    np.save(tmp_path / "train_shuffle_idx.npy", np.arange(10))
    (batch,) = rows_of(tmp_path)
    assert (whole([batch]), batch.step) == (EXPECTED, 7)


def test_json_lines_of_ids_keep_their_lines_and_steps(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    rows = [{"step": 2, "prompt_ids": p, "response_ids": r} for p, r in EXPECTED]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (batch,) = rows_of(path)
    assert (whole([batch]), batch.step) == (EXPECTED, 2)
    assert [row.line for row in batch.rows] == [1, 2, 3]


def msprobe(folder: Path, saved: dict[str, Any], **entry: object) -> Path:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    place = folder / "step4" / "rank0"
    (place / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for name, array in saved.items():
        key = f"{name}.0.debug"
        torch.save(torch.tensor(array), place / "dump_tensor_data" / f"{key}.pt")
        data[key] = {"type": "torch.Tensor", "data_name": f"{key}.pt", **entry}
    document = {"task": "tensor", "level": "debug", "framework": "pytorch", "data": data}
    (place / "debug.json").write_text(json.dumps(document, indent=1))
    return folder


def test_tensors_that_msprobe_saved_are_one_step(tmp_path: Path) -> None:
    data = RunData(discover([msprobe(tmp_path, mindspeed_rl())]))
    msprobe_batches = [b for b in token_rows(data).plain if "debug.json" in b.source]
    assert whole(msprobe_batches) == EXPECTED
    assert msprobe_batches[0].step == 4


def test_statistics_of_msprobe_are_named_as_such(tmp_path: Path) -> None:
    folder = msprobe(tmp_path, mindspeed_rl(), data_name=None)
    tokens = token_rows(RunData(discover([folder / "step4" / "rank0" / "debug.json"])))
    assert not tokens.plain
    assert "statistics in place of tensors" in tokens.unread[0]


def test_saved_layers_of_msprobe_are_no_tokens(shared: Path) -> None:
    folder = shared / "reference" / "msprobe" / "debug_save"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}")
    assert not discover([folder]).of_kind(ArtifactKind.TOKENS)


def test_the_dump_of_a_real_agent_loop_is_read(reference_runs: Path) -> None:
    batches = rows_of(reference_runs / "agentloop_dump_tokens.jsonl")
    assert sum(len(batch.rows) for batch in batches) == 64
    lines = (reference_runs / "agentloop_dump_tokens.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert whole(batches)[0] == (tuple(first["prompt_ids"]), tuple(first["response_ids"]))
    assert {batch.step for batch in batches} == {int(json.loads(x)["key"][0]) for x in lines}


def test_a_real_agent_loop_dump_is_aligned_with_itself(reference_runs: Path) -> None:
    path = str(reference_runs / "agentloop_dump_tokens.jsonl")
    done = CliRunner().invoke(cli, ["tokens", "diff", path, path])
    assert done.exit_code == 0
    assert done.stdout.startswith("aligned: 64 rows paired: 64 with equal ids")


@pytest.mark.parametrize("saved", ["skip_rollout_tq", "skip_rollout_v0"])
def test_rollouts_that_verl_saved_are_read_in_both_layouts(
    reference_runs: Path, saved: str
) -> None:
    folder = reference_runs / saved / "tiny_recon" / "GBS8_N4_in64_out16"
    batches = rows_of(folder)
    steps = sorted(int(path.name) for path in folder.iterdir())
    assert sorted(batch.step or 0 for batch in batches) == steps
    for batch in batches:
        assert len(batch.rows) == 32
        for row in batch.rows:
            assert 0 < len(row.response) <= 16
            assert row.positions is not None
            assert row.positions[row.columns].tolist() == list(range(len(row.tokens)))


def test_layouts_of_two_frameworks_are_aligned_with_each_other(tmp_path: Path) -> None:
    np.savez(tmp_path / "verl.npz", allow_pickle=False, **verl())
    np.savez(tmp_path / "msrl.npz", allow_pickle=False, **mindspeed_rl())
    paths = [str(tmp_path / name) for name in ("verl.npz", "msrl.npz")]
    done = CliRunner().invoke(cli, ["tokens", "diff", *paths])
    assert (done.exit_code, done.stdout.split(":")[0]) == (0, "aligned")


def test_bad_lines_are_named_and_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    lines = [
        '{"input_ids": [1, 2, 3]}',
        '{"input_ids": [1, "2", 3]}',
        '{"input_ids": [1, "7"]}',
        '{"input_ids": [1, 99999999999999999999999]}',
        '{"input_ids": [1, 2',
        '{"text": "\\ud83d lone", "input_ids": [4, 5]}',
        '{"loss": 1.0}',
    ]
    path.write_text("\n".join(lines) + "\n")
    (dump,) = LINES.read(path, no_progress)
    assert [row.tokens for row in batch_of(dump).rows] == [(1, 2, 3), (4, 5)]
    told = "\n".join(dump.problems)
    assert "tokens.jsonl:2: input_ids mixes in str; 2 such lines left out" in told
    assert "mixes in float" in told and "not JSON" in told and "no list of token ids" in told


def test_ids_of_a_wrong_dtype_are_named(tmp_path: Path) -> None:
    arrays = {"input_ids": verl()["input_ids"] + 0.5}
    made = batch_of(tensors(arrays))
    assert "values that are no whole numbers" in made.problems[0]
    words = {"input_ids": np.array([["a", "b"]])}
    assert "has dtype <U1" in batch_of(tensors(words)).problems[0]


def test_turns_that_rewrite_the_turn_before_are_named(tmp_path: Path) -> None:
    def write(name: str, second: list[int]) -> Path:
        path = tmp_path / f"{name}.jsonl"
        turns = [[1, 2, 53122, 316], second]
        rows = [{"uid": "a", "turn": n, "input_ids": ids} for n, ids in enumerate(turns)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    kept = write("kept", [1, 2, 53122, 316, 7])
    rewritten = write("rewritten", [1, 2, 393, 30002, 7])  # the same " Pantom", encoded anew
    done = CliRunner().invoke(cli, ["tokens", "diff", str(kept), str(rewritten), "--json"])
    found = [finding["id"] for finding in json.loads(done.stdout)["findings"]]
    assert "tokens.prefix_broken" in found
    clean = CliRunner().invoke(cli, ["tokens", "diff", str(kept), str(kept), "--json"])
    assert json.loads(clean.stdout)["findings"] == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
names = st.sampled_from(["input_ids", "attention_mask", "labels", "position_ids", "step", "key"])


@given(st.lists(st.dictionaries(names, values), max_size=5))
def test_any_json_lines_are_read_or_refused_with_the_place(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "tokens.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        dumps = LINES.read(path, no_progress)
    except AlignError as error:
        assert str(path) in str(error)
        return
    for dump in dumps:
        for row in batch_of(dump).rows:
            assert len(row.ids) == len(row.attended)


@given(cut=st.integers(0, 3000), junk=st.binary(max_size=8))
def test_damaged_archives_raise_nothing_but_our_own_errors(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "batch.npz"
    np.savez(path, allow_pickle=False, **verl())
    path.write_bytes(path.read_bytes()[:cut] + junk)
    token_rows(RunData(discover([folder])))
    try:
        reader_named("numpy_tokens", ArtifactKind.TOKENS).read(path, no_progress)
    except AlignError as error:
        assert str(path) in str(error)
