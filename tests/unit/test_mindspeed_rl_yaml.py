"""MindSpeed-RL's main files bring their model files along; each value keeps its file and line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from align.core.config_value import RawConfig
from align.core.errors import AlignError, ConfigError
from align.core.run import ArtifactKind
from dumps.readers.mindspeed_rl_yaml import READERS, read_main, read_model
from dumps.readers.reader import Glimpse, no_progress
from dumps.readers.yaml_config import READERS as YAML_READERS

MAIN, MODEL, DATASET = READERS

MAIN_TEXT = """defaults:
  - model:
      - tiny

megatron_training:
  model: tiny
  global_batch_size: 32
actor_config:
  lr: 1e-6
rl_config:
  n_samples_per_prompt: 8
"""
MODEL_TEXT = (
    "tiny:\n  num_layers: 2\n  hidden_size: 64\n  norm_epsilon: 1e-6\n  rotary_base: 10000\n"
)


def values_of(config: RawConfig) -> dict[str, Any]:
    return {key: value.value for key, value in config.values.items()}


def glimpse(path: Path) -> Glimpse:
    return Glimpse(path, path.stat().st_size)


def plant(folder: Path, main: str = MAIN_TEXT, model: str | None = MODEL_TEXT) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "grpo.yaml").write_text(main)
    if model is not None:
        (folder / "model/tiny.yaml").write_text(model)
    return folder / "grpo.yaml"


def test_the_model_file_lands_under_its_group_with_its_own_lines(tmp_path: Path) -> None:
    config = read_main(plant(tmp_path), no_progress)
    assert config.framework == "mindspeed_rl"
    assert values_of(config) == {
        "megatron_training.model": "tiny",
        "megatron_training.global_batch_size": 32,
        "actor_config.lr": 1e-6,
        "rl_config.n_samples_per_prompt": 8,
        "model.tiny.num_layers": 2,
        "model.tiny.hidden_size": 64,
        "model.tiny.norm_epsilon": 1e-6,
        "model.tiny.rotary_base": 10000,
    }
    epsilon = config.values["model.tiny.norm_epsilon"].provenance
    assert (Path(epsilon.source).name, epsilon.line) == ("tiny.yaml", 4)
    rate = config.values["actor_config.lr"].provenance
    assert (Path(rate.source).name, rate.line, rate.text) == ("grpo.yaml", 9, "lr: 1e-6")
    assert config.notes == ()


@pytest.mark.parametrize("place", ["model", "../model"])
@pytest.mark.parametrize("spelling", ["- model:\n      - tiny", "- model: tiny", "- model: [tiny]"])
def test_the_model_file_is_found_beside_and_above(
    tmp_path: Path, place: str, spelling: str
) -> None:
    (tmp_path / "configs" / place).mkdir(parents=True)
    main = tmp_path / "configs/x.yaml"
    main.write_text(MAIN_TEXT.replace("- model:\n      - tiny", spelling))
    (tmp_path / "configs" / place / "tiny.yaml").write_text(MODEL_TEXT)
    assert "model.tiny.num_layers" in read_main(main, no_progress).values


def test_a_missing_model_file_is_named_and_nothing_is_made_up(tmp_path: Path) -> None:
    config = read_main(plant(tmp_path, model=None), no_progress)
    assert not [key for key in config.values if key.startswith("model.")]
    (note,) = config.notes
    assert "line 3 names model/tiny.yaml" in note.en or "line 2 names model/tiny.yaml" in note.en
    assert "norm_epsilon" in note.en


def test_an_unreadable_model_file_is_named(tmp_path: Path) -> None:
    main = plant(tmp_path, model=": : :\n\t")
    config = read_main(main, no_progress)
    assert config.values["actor_config.lr"].value == 1e-6
    assert "tiny.yaml" in config.notes[0].en


def test_what_a_shell_would_fill_in_stays_text_and_is_named(tmp_path: Path) -> None:
    text = MAIN_TEXT.replace("global_batch_size: 32", "data_path: ${DATA_DIR}/x")
    config = read_main(plant(tmp_path, text), no_progress)
    assert config.values["megatron_training.data_path"].value == "${DATA_DIR}/x"
    assert "megatron_training.data_path (line 7)" in config.notes[0].en


def test_a_model_file_that_a_main_file_reads_is_no_second_configuration(tmp_path: Path) -> None:
    plant(tmp_path)
    model = tmp_path / "model/tiny.yaml"
    assert MODEL.sniff(glimpse(model))
    config = read_model(model, no_progress)
    assert not config.values
    assert [n.en for n in config.notes] == [f"is read as part of {tmp_path / 'grpo.yaml'}"]


def test_a_model_file_beside_a_main_file_that_does_not_name_it_is_none_either(
    tmp_path: Path,
) -> None:
    plant(tmp_path)
    other = tmp_path / "model/other.yaml"
    other.write_text(MODEL_TEXT.replace("tiny", "other"))
    config = read_model(other, no_progress)
    assert not config.values
    assert [n.en for n in config.notes] == [f"{tmp_path / 'grpo.yaml'} does not name it"]


def test_a_model_file_alone_is_all_that_is_known(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(MODEL_TEXT)
    config = read_model(path, no_progress)
    assert config.values["model.tiny.norm_epsilon"].value == 1e-6
    assert "only the model is known" in config.notes[0].en


def test_the_corpus_files_give_omegaconfs_values_and_their_models(corpus: Path) -> None:
    folder = corpus / "mindspeed_rl"
    mains = sorted([*folder.glob("*.yaml"), *folder.glob("old_*/*.yaml")])
    assert len(mains) == 7
    for path in mains:
        assert MAIN.sniff(glimpse(path)), path.name
        config = read_main(path, no_progress)
        assert config.framework == "mindspeed_rl"
        own = {k: v for k, v in values_of(config).items() if not k.startswith("model.")}
        assert own == flat(OmegaConf.to_container(OmegaConf.load(path)))
        name = yaml.safe_load(path.read_text())["defaults"][0]["model"][0]
        model = folder / "model" / f"{name}.yaml"
        models = {k: v for k, v in values_of(config).items() if k.startswith("model.")}
        if model.exists():
            expected = flat({"model": OmegaConf.to_container(OmegaConf.load(model))})
            assert models == expected
            assert config.notes == ()
        else:
            assert path.name == "grpo_qwen3_235b_a22b_A2.yaml"
            assert models == {} and len(config.notes) == 1
        for value in config.values.values():
            lines = Path(value.provenance.source).read_text().splitlines()
            line = lines[(value.provenance.line or 0) - 1]
            assert value.key.rpartition(".")[2] in line


def flat(value: Any, key: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {key: tuple(value) if isinstance(value, list) else value}
    parts = [
        flat(v, f"{key}.{k}" if key else k) for k, v in value.items() if key or k != "defaults"
    ]
    return {k: v for part in parts for k, v in part.items()}


def test_the_effective_epsilon_of_each_corpus_model_is_the_one_its_file_states(
    corpus: Path,
) -> None:
    folder = corpus / "mindspeed_rl"
    small = read_main(folder / "grpo_qwen25_7b_A3.yaml", no_progress).values
    large = read_main(folder / "grpo_qwen25_32b_A2.yaml", no_progress).values
    assert small["model.qwen25_7b.norm_epsilon"].value == 1e-6
    assert large["model.qwen25_32b.norm_epsilon"].value == 1e-5
    moe = read_main(folder / "dpo_qwen3_30b_a3b_A3.yaml", no_progress).values
    assert "model.qwen3_30b_a3b.norm_epsilon" not in moe
    assert moe["megatron_training.norm_epsilon"].value == 1e-6


def test_model_and_dataset_files_are_recognised_as_what_they_are(corpus: Path) -> None:
    folder = corpus / "mindspeed_rl"
    for path in folder.glob("model/*.yaml"):
        assert MODEL.sniff(glimpse(path))
        assert not MAIN.sniff(glimpse(path)) and not DATASET.sniff(glimpse(path))
        assert not any(reader.sniff(glimpse(path)) for reader in YAML_READERS)
    for path in folder.glob("datasets/*.yaml"):
        assert DATASET.sniff(glimpse(path)) and DATASET.kind is ArtifactKind.DATA
        assert not MAIN.sniff(glimpse(path)) and not MODEL.sniff(glimpse(path))
        assert not any(reader.sniff(glimpse(path)) for reader in YAML_READERS)


def test_a_verl_configuration_is_not_mindspeed_rls(corpus: Path) -> None:
    for path in corpus.glob("verl_configs/*/.hydra/*.yaml"):
        assert not any(reader.sniff(glimpse(path)) for reader in READERS)


@given(data=st.data())
def test_a_cut_main_file_raises_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    shutil.copytree(corpus / "mindspeed_rl/model", folder / "model")
    whole = (corpus / "mindspeed_rl/grpo_qwen25_7b_A3.yaml").read_bytes()
    end = data.draw(st.integers(0, len(whole)))
    path = folder / "main.yaml"
    path.write_bytes(whole[:end] + data.draw(st.binary(max_size=30)))
    for reader in READERS:
        reader.sniff(glimpse(path))
        try:
            reader.read(path, no_progress)
        except AlignError:
            continue


def test_an_empty_main_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"empty\.yaml"):
        read_main(path, no_progress)
