"""Saved rollouts against verl itself: what it wrote is read alike, what we write it loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from align.core.errors import DumpError
from dumps.readers.verl_skip_rollout import read_saved
from dumps.store.rollout_convert import convert

torch = pytest.importorskip("torch", reason="saved rollouts are torch tensors")
pytest.importorskip("tensordict", reason="tq_batch.pt is a pickle of tensordict's classes")
verl = pytest.importorskip("verl", reason="verl is not installed")

STEP = "GBS8_N4_in64_out16/1"


@pytest.fixture
def saved(reference_runs: Path) -> dict[str, Path]:
    """verl 0.9.1's own saved rollouts."""
    return {
        "tq_batch": reference_runs / f"skip_rollout_tq/tiny_recon/{STEP}/0/tq_batch.pt",
        "gen_batch": reference_runs / f"skip_rollout_v0/tiny_recon/{STEP}/gen_batch.dp",
    }


def test_saved_rollouts_are_read_as_torch_and_verl_read_them(saved: dict[str, Path]) -> None:
    theirs = torch.load(saved["tq_batch"], weights_only=False)["tensordict"]
    for i, row in enumerate(read_saved(saved["tq_batch"]).records):
        assert row.prompt_ids == tuple(theirs["prompts"][i].tolist())
        assert row.response_ids == tuple(theirs["responses"][i].tolist())
        assert row.log_probs == tuple(theirs["rollout_log_probs"][i].tolist())
        assert row.ground_truth == theirs["reward_model"][i]["ground_truth"]
    batch = verl.DataProto.load_from_disk(saved["gen_batch"])
    for i, row in enumerate(read_saved(saved["gen_batch"]).records):
        made = batch.batch["response_mask"][i].bool()
        assert row.response_ids == tuple(batch.batch["responses"][i][made].tolist())
        assert row.log_probs == tuple(batch.batch["rollout_log_probs"][i][made].tolist())


def test_text_alone_is_not_made_into_token_ids(reference_runs: Path, tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="token ids, which 32 of 32 rows lack"):
        convert(reference_runs / "v091_v1_fsdp2" / "rollout", tmp_path, "tq_batch")


@pytest.mark.parametrize("to", ["tq_batch", "gen_batch"])
def test_what_is_written_for_verl_comes_back(
    saved: dict[str, Path], tmp_path: Path, to: str
) -> None:
    for source in saved.values():
        rows = read_saved(source).records
        (file,) = convert(source, tmp_path / source.name, to).files
        again = read_saved(file).records
        for row, same in zip(rows, again, strict=True):
            assert (row.prompt_ids, row.response_ids) == (same.prompt_ids, same.response_ids)
            assert (row.log_probs, row.score, row.step) == (same.log_probs, same.score, same.step)
            assert row.extras.get("raw_prompt") == same.extras.get("raw_prompt")
            if to == "tq_batch" and row.uid is not None:
                assert (row.uid, row.sample_index, row.ground_truth) == (
                    same.uid,
                    same.sample_index,
                    same.ground_truth,
                )


def test_verl_loads_what_is_written_for_it(saved: dict[str, Path], tmp_path: Path) -> None:
    (file,) = convert(saved["gen_batch"], tmp_path, "gen_batch").files
    theirs = verl.DataProto.load_from_disk(saved["gen_batch"])
    ours = verl.DataProto.load_from_disk(file)
    assert json.loads((file.parent / "meta.json").read_text()) == {"global_steps": 1}
    assert (tmp_path / "1" / "gen_batch.dp") == file
    width = ours.batch["prompts"].shape[1]
    for name in ("responses", "response_mask", "rollout_log_probs", "rm_scores"):
        shown = theirs.batch["response_mask"].bool()[:, : ours.batch[name].shape[1]]
        a, b = ours.batch[name], theirs.batch[name][:, : ours.batch[name].shape[1]]
        if name == "rm_scores":
            assert torch.equal(a.sum(1), b.sum(1))
        else:
            assert torch.equal(a.where(shown, 0), b.where(shown, 0))
    cut = theirs.batch["attention_mask"][
        :, 64 - width : 64 - width + ours.batch["input_ids"].shape[1]
    ]
    assert torch.equal(ours.batch["attention_mask"], cut)
    assert torch.equal(
        ours.batch["position_ids"],
        theirs.batch["position_ids"][:, 64 - width : 64 - width + cut.shape[1]],
    )
