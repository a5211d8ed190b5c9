"""Forward rung on real modules: planted bugs are named by module, rounding and layout are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch

from align.core.rung import RungResult, RungStatus
from align.layers.forward_rung import compare
from align.stack import numerics
from dumps.store.run_data import RunData
from tests.unit.layer_runs import Edit, recorded

LAYER = "model.layers.1"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Give the untouched model's run."""
    return recorded(tmp_path_factory.mktemp("reference"))


def layer(model: Any) -> Any:
    return model.model.layers[1]


def scale(model: Any) -> None:
    layer(model).self_attn.scaling *= 1.01


def epsilon(model: Any) -> None:
    layer(model).post_attention_layernorm.variance_epsilon = 1e-2


def no_bias(model: Any) -> None:
    def hook(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output - module.bias

    layer(model).self_attn.q_proj.register_forward_hook(hook)


def bfloat16_mlp(model: Any) -> None:
    gate = layer(model).mlp.gate_proj
    gate.register_forward_pre_hook(lambda module, inputs: (inputs[0].bfloat16().float(),))


def halved(model: Any) -> None:
    layer(model).mlp.down_proj.register_forward_hook(lambda module, inputs, output: output / 2)


def rotated_features(model: Any) -> None:
    layer(model).mlp.up_proj.register_forward_hook(
        lambda module, inputs, output: output.roll(1, -1)
    )


def infinite(model: Any) -> None:
    def hook(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output + torch.where(output == output.max(), torch.inf, 0)

    layer(model).mlp.act_fn.register_forward_hook(hook)


BUGS = [
    (scale, f"the input of {LAYER}.self_attn.o_proj", "scale of the scores"),
    (epsilon, f"{LAYER}.post_attention_layernorm", "epsilon"),
    (no_bias, f"{LAYER}.self_attn.q_proj", "bias, the same at every token"),
    (bfloat16_mlp, f"{LAYER}.mlp.gate_proj", "one rounding to bfloat16"),
    (halved, f"{LAYER}.mlp.down_proj", "the reference times 0.5"),
    (rotated_features, f"{LAYER}.mlp.up_proj", "the same values in another order"),
    (infinite, f"{LAYER}.mlp.act_fn", "NaN or infinity"),
]


@pytest.mark.parametrize(
    ("edit", "module", "said"), BUGS, ids=lambda bug: getattr(bug, "__name__", "")
)
def test_a_planted_bug_is_named_by_its_module(
    reference: RunData, tmp_path: Path, edit: Edit, module: str, said: str
) -> None:
    result = compare(reference, recorded(tmp_path, edit))
    (finding,) = result.findings
    assert (result.status, finding.id) == (RungStatus.DIVERGED, "forward.first_divergence")
    assert f"first at {module}, " in finding.title.en
    assert said in finding.why.en + finding.fix.en


def with_positions(change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    """Call the model with other position_ids."""

    def hook(model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = kwargs["attention_mask"]
        own = kwargs.get("position_ids", (mask.cumsum(1) - 1).clamp(min=0))
        return args, {**kwargs, "position_ids": change(own)}

    return lambda model: model.register_forward_pre_hook(hook, with_kwargs=True)


def test_other_positions_are_named_where_activations_follow_them(tmp_path: Path) -> None:
    own, doubled = (
        recorded(tmp_path / name, with_positions(partial(torch.mul, other=by)))
        for name, by in (("own", 1), ("doubled", 2))
    )
    (finding,) = compare(own, doubled).findings
    assert finding.id == "forward.position_ids"
    assert "0 to 15 in the reference, 0 to 30 in the candidate" in finding.title.en


def test_positions_that_all_begin_later_are_no_difference(tmp_path: Path) -> None:
    own, later = (
        recorded(tmp_path / name, with_positions(partial(torch.add, other=by)))
        for name, by in (("own", 0), ("later", 5))
    )
    result = compare(own, later)
    assert (result.findings, result.status) == ((), RungStatus.MISSING)
    assert "other position_ids" in result.summary.en


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_padding_and_another_order_of_sums_are_no_difference(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    def split(model: Any) -> None:
        numerics.apply("float32_split_k" if dtype is torch.float32 else "bfloat16_split_k", model)

    own = recorded(tmp_path / "own", dtype=dtype)
    other = recorded(tmp_path / "other", split, side="left", dtype=dtype)
    result = compare(own, other)
    assert_aligned(result)
    assert len(result.tables[0].rows) > 40


@pytest.mark.parametrize(
    ("edit", "module"),
    [(rotated_features, f"{LAYER}.mlp.up_proj"), (halved, f"{LAYER}.mlp.down_proj")],
)
def test_a_bug_is_named_under_bfloat16_noise_of_another_device(
    tmp_path: Path, edit: Edit, module: str
) -> None:
    def noisy(model: Any) -> None:
        numerics.apply("bfloat16_split_k", model)
        edit(model)

    own = recorded(tmp_path / "own", dtype=torch.bfloat16)
    (finding,) = compare(own, recorded(tmp_path / "other", noisy, dtype=torch.bfloat16)).findings
    assert f"first at {module}, " in finding.title.en


def test_an_all_reduce_in_bfloat16_is_rounding(reference: RunData, tmp_path: Path) -> None:
    def reduced(model: Any) -> None:
        numerics.apply("float32_bfloat16_all_reduce", model)

    assert_aligned(compare(reference, recorded(tmp_path, reduced)))


def test_other_tokens_are_said_and_no_layer_is_blamed(reference: RunData, tmp_path: Path) -> None:
    def other_ids(model: Any) -> None:
        model.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs, "input_ids": kwargs["input_ids"] + 1}),
            with_kwargs=True,
            prepend=True,
        )

    result = compare(reference, recorded(tmp_path, other_ids))
    assert (result.status, result.findings) == (RungStatus.MISSING, ())
    assert "other tokens" in result.summary.en


def test_one_other_weight_is_named_and_no_computation_is_blamed(
    reference: RunData, tmp_path: Path
) -> None:
    def other_weight(model: Any) -> None:
        with torch.no_grad():
            layer(model).mlp.down_proj.weight[0, 0] += 0.1

    result = compare(reference, recorded(tmp_path, other_weight))
    (finding,) = result.findings
    assert finding.id == "forward.weights"
    assert finding.title.en.startswith("1 of 39 parameters differ")
    assert f"{LAYER}.mlp.down_proj.weight" in finding.title.en


def test_weights_that_all_differ_are_another_training(reference: RunData, tmp_path: Path) -> None:
    def trained(model: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.001

    result = compare(reference, recorded(tmp_path, trained))
    assert (result.status, result.findings) == (RungStatus.MISSING, ())
    assert "other weights" in result.summary.en


def test_a_run_without_sketches_is_told_how_to_record_them(
    reference: RunData, tmp_path: Path
) -> None:
    from dumps.store.discover import discover

    result = compare(reference, RunData(discover([tmp_path])))
    assert result.status is RungStatus.MISSING
    assert "align train" in result.missing[0].how_to_record.en


def assert_aligned(result: RungResult) -> None:
    assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), result.summary.en
