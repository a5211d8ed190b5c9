"""Configurations: what is refused, with which words, and what is filled in."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the stack needs torch")
pytest.importorskip("transformers", reason="the stack needs transformers")

from omegaconf import OmegaConf

from align.core.errors import ConfigError
from align.stack.config import StackConfig, build, known_keys, load_config, to_tree
from align.stack.run_folder import overrides

_ACTOR = "actor_rollout_ref.actor"

REFUSED = (
    ("data.train_batchsize=4", "data.train_batchsize", "data.train_batch_size"),
    ("actor.clip_ratio=0.1", "actor.clip_ratio", f"{_ACTOR}.clip_ratio"),
    (f"{_ACTOR}.optim.learning_rate=1", f"{_ACTOR}.optim.learning_rate", f"{_ACTOR}.optim.lr"),
    ("data.train_batch_size=10", f"{_ACTOR}.ppo_mini_batch_size", "use 10"),
    (f"{_ACTOR}.ppo_mini_batch_size=5", f"{_ACTOR}.ppo_mini_batch_size", "use 4"),
    ("actor_rollout_ref.model.path=/no/model", "actor_rollout_ref.model.path", "tiny-qwen2"),
    ("data.train_files=/no/file.parquet", "data.train_files", "arithmetic"),
    ("stack.algorithm=grpoo", "stack.algorithm", "grpo"),
    ("algorithm.adv_estimator=gea", "algorithm.adv_estimator", "gae"),
    ("algorithm.adv_estimator=gae", "algorithm.adv_estimator", "stack.algorithm=ppo"),
    (f"{_ACTOR}.loss_agg_mode=token_mean", f"{_ACTOR}.loss_agg_mode", "token-mean"),
    (f"{_ACTOR}.kl_loss_type=low_var", f"{_ACTOR}.kl_loss_type", "low_var_kl"),
    ("trainer.total_training_steps=many", "trainer.total_training_steps", "int"),
    ("actor_rollout_ref.rollout.temperature=0", "actor_rollout_ref.rollout.temperature", "greedy"),
    ("stack.numerics.profile=float16", "stack.numerics.profile", "bfloat16"),
    (f"{_ACTOR}.fsdp_config.dtype=bfloat16", f"{_ACTOR}.fsdp_config.dtype", "profile"),
    (f"{_ACTOR}.optim.lr_scheduler_type=linear", f"{_ACTOR}.optim.lr_scheduler_type", "cosine"),
    (f"{_ACTOR}.ppo_micro_batch_size_per_gpu=6", f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "use 4"),
    ("trainer.n_gpus_per_node=3", f"{_ACTOR}.ppo_mini_batch_size", "3 ranks"),
    ("trainer.balance_batch=true", "trainer.balance_batch", "leave it out"),
    ("trainer.device=tpu", "trainer.device", "npu"),
)


@pytest.mark.parametrize(("setting", "key", "fix"), REFUSED)
def test_a_bad_setting_is_refused_with_its_key_and_a_valid_spelling(
    setting: str, key: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, [setting])
    assert refused.value.key == key
    assert fix in f"{refused.value.problem} {refused.value.fix}"


def test_a_file_that_is_missing_or_no_yaml_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("data: [1, 2\n", encoding="utf-8")
    text = tmp_path / "list.yaml"
    text.write_text("- 1\n", encoding="utf-8")
    for path in (tmp_path / "absent.yaml", broken, text):
        with pytest.raises(ConfigError) as refused:
            load_config(path)
        assert str(path) in refused.value.where
    with pytest.raises(ConfigError):
        load_config(None, ["data.seed"])


def test_file_then_overrides_and_numbers_as_omegaconf_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "data:\n  train_batch_size: 8\n  seed: null\n"
        "actor_rollout_ref:\n  actor:\n    ppo_mini_batch_size: 4\n    optim:\n      lr: 1e-6\n",
        encoding="utf-8",
    )
    config = load_config(file, ["data.train_batch_size=12", "++data.shuffle=false"])
    assert (config.data.train_batch_size, config.data.seed, config.data.shuffle) == (
        12,
        None,
        False,
    )
    assert config.actor.optim.lr == 1e-6
    assert config.actor.optim.total_training_steps == config.trainer.total_training_steps


def test_an_algorithm_brings_its_settings_unless_the_user_has_his_own() -> None:
    dapo = load_config(None, ["stack.algorithm=dapo"])
    assert (dapo.actor.clip_ratio_high, dapo.actor.use_kl_loss) == (0.28, False)
    own = load_config(None, ["stack.algorithm=dapo", f"{_ACTOR}.clip_ratio_high=0.4"])
    assert own.actor.clip_ratio_high == 0.4
    assert load_config(None, ["stack.algorithm=ppo"]).algorithm.adv_estimator == "gae"


def test_a_resolved_configuration_and_its_overrides_give_it_back(tmp_path: Path) -> None:
    config = load_config(None, ["stack.algorithm=dapo", f"{_ACTOR}.optim.betas=[0.9,0.95]"])
    file = tmp_path / "config.yaml"
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(to_tree(config))), encoding="utf-8")
    assert load_config(file) == config
    assert load_config(None, overrides(config)) == config


def test_every_key_of_the_stack_is_known_to_the_config_rung() -> None:
    from align.config.keys import field_of, why_ignored
    from align.frameworks.config_table import config_tables

    tables = config_tables("stack")
    assert tables is not None
    formulas = {key for formula in tables.formulas for key in formula.keys}
    unknown = [
        key
        for key in known_keys()
        if field_of(tables, key) is None and not why_ignored(tables, key) and key not in formulas
    ]
    sections = ("override_config", "override_optimizer_config")  # their members are known
    assert [key for key in unknown if not key.endswith(sections)] == []


def test_defaults_are_valid() -> None:
    assert build(StackConfig, {}, where="defaults") == StackConfig()
    load_config()
