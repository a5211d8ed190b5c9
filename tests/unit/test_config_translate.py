"""A translated configuration, read back from its files, means what the original means."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from align.cli.config_translate import translate as command
from align.config.diff import compare_configs
from align.config.normalise import effective
from align.config.rung import manifest_of
from align.config.translate import Translation, translate
from align.config.translation_text import files, literal
from align.core.config_value import EffectiveConfig
from align.core.errors import ConfigError
from align.core.finding import Severity
from align.core.run import RunManifest
from dumps.store.discover import discover
from dumps.store.run_data import RunData

# What the other framework fixes in its code or has no key for (facts of both frameworks): a filter
# of another strictness, the dual clip, rules by name against a file, how the loss is normalised,
# when the schedule advances, Megatron's exemption from weight decay, and MindSpeed-RL's own engine,
# sampler and, before 2025-05, epsilon and row order.
NO_COUNTERPART = {
    "data.length_filter",
    "loss.dual_clip",
    "loss.normalization",
    "reward.function",
    "reward.rules",
    "actor.lr_advances",
    "actor.weight_decay_exempt",
    "rollout.engine",
    "data.sampler",
    "data.guarantee_order",
    "advantage.std_eps",
}
MINDSPEED_RL = (
    "grpo_qwen25_7b_A3.yaml",
    "grpo_qwen25_32b_A2.yaml",
    "grpo_qwen3_235b_a22b_A2.yaml",
    "ppo_qwen25_32b_A3.yaml",
    "dapo_qwen25_32b_A3.yaml",
    "old_2025-05/grpo_trainer_qwen25_7b.yaml",
)
VERL = (
    "corpus/verl_configs/grpo_v02/.hydra",
    "corpus/verl_configs/grpo_v03_a/.hydra",
    "corpus/verl_configs/grpo_v03_b/.hydra",
    "corpus/verl_configs/grpo_v06/.hydra",
    "corpus/verl_configs/grpo_v07/.hydra",
    "corpus/verl_configs/printed_dapo_gpu.txt",
    "corpus/verl_configs/printed_grpo_npu.txt",
    "corpus/verl_configs/printed_grpo_gpu_v08.txt",
    "reference/verl_runs/v091_v1_vllmcpu/hydra",
    "reference/verl_runs/v091_v0_fsdp2",
)


def meaning(path: Path) -> EffectiveConfig:
    data = RunData(discover([path]))
    return effective(data.configs, manifest_of(data))


def written(translation: Translation, folder: Path) -> EffectiveConfig:
    for name, text in files(translation).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    data = RunData(discover([folder]))
    assert not data.problems
    manifest = RunManifest(framework=translation.target, framework_version=translation.version)
    return effective(data.configs, manifest)


def differing(first: EffectiveConfig, second: EffectiveConfig) -> dict[str, tuple[object, object]]:
    return {
        row.name: (row.reference.value, row.candidate.value)
        for row in compare_configs(first, second).compared
        if row.finding is not None and row.finding.severity is not Severity.INFO
    }


@pytest.mark.parametrize("name", MINDSPEED_RL)
def test_a_real_mindspeed_rl_configuration_means_the_same_in_verl(
    name: str, shared: Path, tmp_path: Path
) -> None:
    original = meaning(shared / "corpus" / "mindspeed_rl" / name)
    translation = translate(original, "verl")
    assert differing(original, written(translation, tmp_path)).keys() <= NO_COUNTERPART


@pytest.mark.parametrize("name", VERL)
def test_a_real_verl_configuration_means_the_same_in_mindspeed_rl(
    name: str, shared: Path, tmp_path: Path
) -> None:
    original = meaning(shared / name)
    translation = translate(original, "mindspeed_rl")
    assert differing(original, written(translation, tmp_path)).keys() <= NO_COUNTERPART


@pytest.mark.parametrize("name", VERL)
def test_what_differs_after_reading_back_is_what_the_header_names(
    name: str, shared: Path, tmp_path: Path
) -> None:
    original = meaning(shared / name)
    translation = translate(original, "mindspeed_rl")
    named = {left.source.field for left in translation.left if left.matters}
    assert differing(original, written(translation, tmp_path)).keys() <= named
    text = files(translation)["train.yaml"]
    assert all(f"#   {field} = " in text for field in named)


def test_there_and_back_again_nothing_differs(shared: Path, tmp_path: Path) -> None:
    original = meaning(shared / "corpus" / "mindspeed_rl" / "grpo_qwen25_7b_A3.yaml")
    translation = translate(original, "verl")
    in_verl = written(translation, tmp_path / "verl")
    again = written(translate(in_verl, "mindspeed_rl"), tmp_path / "mindspeed_rl")
    unsaid = {left.source.field for left in translation.left}
    assert differing(original, again).keys() <= unsaid


@pytest.mark.parametrize("packs", [True, False])
def test_packed_rows_are_kept_apart_where_mindspeed_rl_asks_for_it(
    packs: bool, shared: Path, tmp_path: Path
) -> None:
    """Its `validate_rl_args` refuses use_remove_padding without reset_attention_mask."""
    original = meaning(shared / "corpus" / "mindspeed_rl" / "grpo_qwen25_7b_A3.yaml")
    in_verl = written(translate(original, "verl"), tmp_path)
    script = tmp_path / "train.sh"
    said = f"actor_rollout_ref.model.use_remove_padding={str(packs).lower()}"
    script.write_text(
        re.sub(r"actor_rollout_ref\.model\.use_remove_padding=\w+", said, script.read_text())
    )
    assert in_verl.values["model.remove_padding"] is not None
    made = translate(meaning(tmp_path), "mindspeed_rl")
    asked = {each.key for each in made.written}
    assert ("megatron_training.reset_attention_mask" in asked) is packs


def test_a_misspelt_translation_would_be_noticed(shared: Path, tmp_path: Path) -> None:
    original = meaning(shared / "corpus" / "mindspeed_rl" / "grpo_qwen25_7b_A3.yaml")
    written(translate(original, "verl"), tmp_path)
    script = tmp_path / "train.sh"
    script.write_text(script.read_text().replace("rollout.n=8", "rollout.n=4"), encoding="utf-8")
    data = RunData(discover([tmp_path]))
    manifest = RunManifest(framework="verl", framework_version="0.9")
    assert "rollout.n" in differing(original, effective(data.configs, manifest))


def test_bash_passes_every_override_of_the_script_to_verl(shared: Path, tmp_path: Path) -> None:
    original = meaning(shared / "corpus" / "mindspeed_rl" / "grpo_qwen25_7b_A3.yaml")
    translation = translate(original, "verl")
    script = files(translation)["train.sh"].replace("python3 -m", "printf '%s\\n'")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[:2] == ["verl.trainer.main_ppo", "--config-name=ppo_megatron_trainer"]
    assert [w.lstrip("+").partition("=")[0] for w in words[2:]] == [
        w.key for w in translation.written
    ]


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**12), 10**12)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)


@given(NUMBERS | st.booleans() | st.none())
def test_numbers_and_flags_are_the_same_to_pyyaml_and_omegaconf(value: object) -> None:
    text = f"key: {literal(value)}"  # type: ignore[arg-type]
    by_omegaconf = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(by_omegaconf, dict)
    for read in (yaml.safe_load(text)["key"], by_omegaconf["key"]):
        assert type(read) is type(value)
        assert read == value


@given(WORDS)
def test_texts_are_the_same_to_pyyaml(value: str) -> None:
    assert yaml.safe_load(f"key: {literal(value)}")["key"] == value


def test_the_command_refuses_what_is_the_targets_already(shared: Path) -> None:
    original = meaning(shared / "corpus" / "mindspeed_rl" / "grpo_qwen25_7b_A3.yaml")
    with pytest.raises(ConfigError, match="already"):
        translate(original, "mindspeed_rl")


def test_the_command_writes_files_once_and_says_what_it_left(shared: Path, tmp_path: Path) -> None:
    source = str(shared / "corpus" / "mindspeed_rl" / "grpo_qwen25_7b_A3.yaml")
    arguments = [source, "--to", "verl", "-o", str(tmp_path), "--json"]
    first = CliRunner().invoke(command, arguments)
    assert first.exit_code == 0
    document = json.loads(first.stdout)
    assert document["values"]["actor_rollout_ref.rollout.n"] == 8
    assert "data.length_filter" in {left["field"] for left in document["left"] if left["matters"]}
    assert (tmp_path / "train.sh").is_file() and (tmp_path / "model" / "config.json").is_file()
    second = CliRunner().invoke(command, arguments)
    assert second.exit_code != 0
