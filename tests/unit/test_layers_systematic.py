"""Errors below the noise that point one way are named; noise of the same size is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("transformers", reason="needs the extra torch")

import torch
from click.testing import CliRunner

from align.cli.layers import command
from align.cli.report import command as report_command
from align.core.errors import RunError
from align.core.finding import Finding, Severity
from align.core.rung import RungResult, RungStatus
from align.layers import backward_rung, forward_rung
from align.stack import numerics
from dumps.store.run_data import RunData
from tests.unit.layer_runs import Edit, recorded

STEPS = 3
SMALL_WEIGHTS = 0.02  # transformers' own
LAYER = "model.layers.1"


def computing_in(profile: str, edit: Edit = lambda model: None) -> Edit:
    def changed(model: Any) -> None:
        edit(model)
        numerics.apply(profile, model)

    return changed


def run(folder: Path, profile: str, edit: Edit = lambda model: None) -> RunData:
    return recorded(
        folder, computing_in(profile, edit), steps=STEPS, initializer_range=SMALL_WEIGHTS
    )


def perturbed(seed: int) -> Edit:
    def edit(model: Any) -> None:
        def hook(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            generator = torch.Generator().manual_seed(seed)
            up = torch.randint(0, 2, output.shape, generator=generator) * 2 - 1
            return (output * (1 + up * 2.0**-8)).to(output.dtype)

        model.model.embed_tokens.register_forward_hook(hook)

    return edit


def scale(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 1.02


def louder(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, x, output: output * 1.008)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("systematic")


@pytest.fixture(scope="module")
def reference(folder: Path) -> RunData:
    return run(folder / "reference", "bfloat16")


@pytest.fixture(scope="module")
def noise(folder: Path) -> list[RunData]:
    return [run(folder / f"noise{i}", "bfloat16", perturbed(i)) for i in range(2)]


@pytest.fixture(scope="module")
def referee(folder: Path) -> RunData:
    return run(folder / "referee", "float64")


def first(result: RungResult) -> Finding:
    return result.findings[0]


def test_a_scale_of_scores_below_the_noise_shows_in_the_gradients_of_q_and_k(
    reference: RunData, noise: list[RunData], tmp_path: Path
) -> None:
    candidate = run(tmp_path, "bfloat16_split_k", scale)
    assert forward_rung.compare(reference, candidate, noise).status is RungStatus.ALIGNED
    found = first(backward_rung.compare(reference, candidate, noise))
    assert found.id == "backward.first_divergence"
    assert f"in one direction first at {LAYER}.self_attn: " in found.title.en
    assert "that of v does not: attention scores are scaled by another factor" in found.why.en
    assert "scale of the scores" in found.fix.en
    assert "2 more runs of the reference" in str(found.evidence[2].text)


def test_a_factor_below_the_noise_is_named_where_it_begins(
    reference: RunData, noise: list[RunData], tmp_path: Path
) -> None:
    found = first(forward_rung.compare(reference, run(tmp_path, "bfloat16_split_k", louder), noise))
    assert (found.id, found.severity) == ("forward.first_divergence", Severity.ERROR)
    assert f"in one direction first at {LAYER}.mlp: 1.0" in found.title.en


@pytest.mark.parametrize("with_noise", [True, False])
def test_noise_has_no_direction(
    reference: RunData, noise: list[RunData], tmp_path: Path, with_noise: bool
) -> None:
    candidate, runs = run(tmp_path, "bfloat16_split_k"), noise if with_noise else []
    for rung in (forward_rung, backward_rung):
        result = rung.compare(reference, candidate, runs)
        assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), result.summary.en


def test_the_referee_says_which_side_is_wrong(
    reference: RunData, referee: RunData, tmp_path: Path
) -> None:
    wrong = run(tmp_path, "bfloat16_split_k", lambda model: louder_by_half(model))
    for runs, side in (((reference, wrong), "candidate"), ((wrong, reference), "reference")):
        found = first(forward_rung.compare(*runs, referee=[referee]))
        assert f"at {LAYER}.mlp, " in found.title.en
        assert f"the {side} is wrong" in found.why.en


def louder_by_half(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, x, output: output * 1.5)


def test_against_a_referee_two_sound_devices_are_aligned(
    reference: RunData, referee: RunData, tmp_path: Path
) -> None:
    candidate = run(tmp_path, "bfloat16_split_k")
    for rung in (forward_rung, backward_rung):
        result = rung.compare(reference, candidate, referee=[referee])
        assert (result.status, result.findings) == (RungStatus.ALIGNED, ()), result.summary.en


def test_the_command_takes_noise_runs(
    reference: RunData, noise: list[RunData], folder: Path, tmp_path: Path
) -> None:
    run(tmp_path, "bfloat16_split_k", scale)
    given = ["gradients", str(folder / "reference"), str(tmp_path)]
    for i in range(len(noise)):
        given += ["--noise", str(folder / f"noise{i}")]
    result = CliRunner().invoke(command, given)
    assert result.exit_code == 1, result.output
    assert f"first at {LAYER}.self_attn" in result.output


def test_a_report_takes_noise_runs(
    reference: RunData, noise: list[RunData], folder: Path, tmp_path: Path
) -> None:
    run(tmp_path, "bfloat16_split_k", scale)
    given = [str(folder / "reference"), str(tmp_path), "--json"]
    for i in range(len(noise)):
        given += ["--noise", str(folder / f"noise{i}")]
    result = CliRunner().invoke(report_command, given)
    assert result.exit_code == 1, result.output
    assert json.loads(result.stdout)["verdict"]["finding_id"] == "backward.first_divergence"


def test_a_noise_run_of_other_tokens_is_refused(reference: RunData, tmp_path: Path) -> None:
    def other(model: Any) -> None:
        def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, "input_ids": (kwargs["input_ids"] + 1) % 128}

        model.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)

    with pytest.raises(RunError, match="no step with the same tokens and weights"):
        forward_rung.compare(reference, reference, [run(tmp_path, "bfloat16", other)])
