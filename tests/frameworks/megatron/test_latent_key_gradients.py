"""Megatron's own fault in latent attention that is cut over ranks, proved and named.

With the down-projection cut over tensor ranks, the gradient of the keys' positional features, which
all ranks' heads share, is that of the heads of one rank: of the rank that has their rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="megatron-core needs torch")
pytest.importorskip("transformers", reason="the other side is a transformers model")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import torch
from torch import Tensor
from transformers.models.deepseek_v3 import modeling_deepseek_v3

from align.layers import backward_rung
from dumps.store.tensor_records import Phase
from tests.frameworks.megatron.cases import MENDED, UNMENDED
from tests.frameworks.megatron.sketched import hugging_face_step, run_of, step_of
from tests.frameworks.megatron.test_sketch_parity import LIMIT, errors
from tests.unit.weight_models import CONFIGS

CONTENT, POSITIONS = (CONFIGS["deepseek_v3"][key] for key in ("kv_lora_rank", "qk_rope_head_dim"))
LAST = CONFIGS["deepseek_v3"]["num_hidden_layers"] - 1


def down_projection(folder: Path, layer: int) -> Tensor:
    """Return Megatron's gradient of a layer's down-projection, float64 [rows, hidden]."""
    ranks = (torch.load(folder / f"seen_{rank}.pt")["watched"] for rank in range(2))
    ending = f"decoder.layers.{layer}.self_attention.linear_kv_down_proj.weight"
    return torch.cat([g.double() for seen in ranks for name, g in seen.items()
                      if name.endswith(ending)])  # fmt: skip


def test_next_to_the_loss_only_the_positional_rows_of_the_gradient_are_wrong(trained: Path) -> None:
    cases = MENDED, UNMENDED.case
    mended, own = (down_projection(trained / case.label, LAST) for case in cases)
    apart = (own - mended).norm(dim=1) / mended.norm(dim=1)
    print(f"content {apart[:CONTENT].max():.2g}, positions {apart[CONTENT:].tolist()}")
    assert len(apart) == CONTENT + POSITIONS
    assert apart[:CONTENT].max() == 0
    assert apart[CONTENT:].min() > 0.3


def test_transformers_that_leaves_out_the_same_gradient_agrees_with_megatron_everywhere(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = modeling_deepseek_v3.eager_attention_forward

    def of_the_second_rank(module: Any, query: Any, key: Tensor, *args: Any, **named: Any) -> Any:
        """Let keys' positions of the first half of the heads have no gradient."""
        contents, positions = key[..., :-POSITIONS], key[..., -POSITIONS:]
        first, second = positions.chunk(2, dim=1)
        key = torch.cat((contents, torch.cat((first.detach(), second), 1)), -1)
        return attend(module, query, key, *args, **named)

    monkeypatch.setattr(modeling_deepseek_v3, "eager_attention_forward", of_the_second_rank)
    hugging_face_step(trained / "deepseek_v3", tmp_path)
    steps = step_of(tmp_path), step_of(trained / UNMENDED.case.label)
    for phase in (Phase.FORWARD, Phase.GRADIENT, Phase.PARAMETER_GRADIENT):
        found = errors(*steps, phase)
        print(f"{phase}: {len(found)} addresses, worst {max(found.values()):.2g}")
        assert max(found.values()) <= LIMIT


def test_the_report_says_that_the_positional_features_alone_differ(trained: Path) -> None:
    reference, candidate = UNMENDED.case.reference, UNMENDED.case.label
    result = backward_rung.compare(run_of(trained / reference), run_of(trained / candidate))
    (finding,) = result.findings
    total = CONTENT + POSITIONS
    assert f"features {CONTENT}-{total - 1} of {total}" in finding.why.en
    assert "reductions over tensor-parallel ranks" in finding.fix.en
