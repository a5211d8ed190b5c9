"""``align config diff`` and ``align config explain``: what is shown, chosen and left out."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from omegaconf import OmegaConf

from align.cli.config import command
from align.config.schema import FIELDS
from align.core.errors import ConfigError
from align.core.finding import Severity

# field -> key and the candidate's other value, with the rung each acts on
CHANGED = {
    "rollout.temperature": ("actor_rollout_ref.rollout.temperature", 0.7, "rollout"),
    "actor.lr": ("actor_rollout_ref.actor.optim.lr", 3e-6, "optimizer"),
    "data.shuffle": ("data.shuffle", False, "data"),
}


@pytest.fixture(scope="module")
def pair(reference_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Give verl 0.9's own composed configuration, and one with three settings changed."""
    folder = tmp_path_factory.mktemp("pair")
    config = OmegaConf.load(reference_runs / "ppo_trainer.resolved.yaml")
    paths = folder / "gpu.yaml", folder / "npu.yaml"
    OmegaConf.save(config, paths[0])
    for key, value, _ in CHANGED.values():
        OmegaConf.update(config, key, value)
    OmegaConf.save(config, paths[1])
    return paths


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def severe(run: Result) -> list[str]:
    findings = json.loads(run.stdout)["findings"]
    return [f["id"].removeprefix("config.") for f in findings if f["severity"] != "info"]


def width(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def test_a_difference_is_shown_with_keys_values_places_consequence_and_fix(
    pair: tuple[Path, Path],
) -> None:
    run = invoke("diff", *pair)
    assert run.exit_code == 1
    block = next(b for b in run.stdout.split("\n\n") if "rollout.temperature" in b.split("\n")[0])
    lines = [OmegaConf.load(path) for path in pair]
    assert lines[0].actor_rollout_ref.rollout.temperature == 1.0
    text = " ".join(block.split())
    assert text.startswith("ERROR rollout.temperature sampling temperature; acts on rollout")
    for side, value, path in (("reference", "1.0", pair[0]), ("candidate", "0.7", pair[1])):
        number = next(
            i
            for i, line in enumerate(path.read_text("utf-8").splitlines(), 1)
            if re.match(rf"    temperature: {value}$", line)
        )
        assert f"{side} {value} actor_rollout_ref.rollout.temperature" in text
        assert f"{path}:{number}" in text.replace(" ", "") or f"{path.name}:{number}" in text
    assert "Responses" in text or "responses" in text
    assert "Fix: Set actor_rollout_ref.rollout.temperature of the candidate to 1.0" in text


def test_errors_come_before_warnings_before_notes(pair: tuple[Path, Path]) -> None:
    run = invoke("diff", *pair, "--json")
    ranks = [Severity(f["severity"]).rank for f in json.loads(run.stdout)["findings"]]
    assert ranks == sorted(ranks)
    assert set(severe(run)) == set(CHANGED)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("options", [(), ("--all",)])
def test_no_line_is_wider_than_100_columns(
    pair: tuple[Path, Path], corpus: Path, lang: str, options: tuple[str, ...]
) -> None:
    configs = corpus / "verl_configs"
    for sides in (pair, (configs / "grpo_v03_a", configs / "grpo_v06")):
        run = invoke("diff", *sides, "--lang", lang, *options)
        assert run.exit_code == 1, run.output
        assert max(map(width, run.stdout.splitlines())) <= 100
        assert "\x1b" not in run.stdout  # colours are for terminals


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("rollout.temperature", {"rollout.temperature"}),
        ("actor_rollout_ref.*.optim.lr", {"actor.lr"}),  # an original key
        ("data", {"data.shuffle"}),  # a rung, and the beginning of names
        ("*.LR", {"actor.lr"}),
        ("error", set(CHANGED)),
        ("warning", set()),
    ],
)
def test_only_and_ignore_divide_the_findings(
    pair: tuple[Path, Path], pattern: str, chosen: set[str]
) -> None:
    assert set(severe(invoke("diff", *pair, "--json", "--only", pattern))) == chosen
    rest = invoke("diff", *pair, "--json", "--ignore", pattern)
    assert set(severe(rest)) == set(CHANGED) - chosen


def test_what_is_left_out_is_counted_and_does_not_fail(pair: tuple[Path, Path]) -> None:
    whole = json.loads(invoke("diff", *pair, "--json").stdout)["findings"]
    ignored = [word for field in CHANGED for word in ("--ignore", field)]
    run = invoke("diff", *pair, *ignored)
    assert run.exit_code == 0
    assert run.stdout.startswith("aligned: ")
    said = " ".join(run.stdout.split())
    assert f"{len(CHANGED)} findings are left out by --only or --ignore." in said
    zh = invoke("diff", *pair, "--only", "data", "--lang", "zh")
    assert f"略去了{len(whole) - 1}条发现" in "".join(zh.stdout.split())


def test_two_patterns_choose_what_fits_one_of_them(pair: tuple[Path, Path]) -> None:
    run = invoke("diff", *pair, "--json", "--only", "data.shuffle", "--only", "actor.lr")
    assert set(severe(run)) == {"data.shuffle", "actor.lr"}
    both = invoke("diff", *pair, "--json", "--only", "rollout.*", "--ignore", "*.temperature")
    assert severe(both) == []


def test_all_lists_what_is_equal_too(pair: tuple[Path, Path]) -> None:
    short, long = invoke("diff", *pair).stdout, invoke("diff", *pair, "--all").stdout
    assert "rollout.top_p" not in short and "rollout.top_p" in long
    only = invoke("diff", *pair, "--all", "--only", "rollout.top_p").stdout
    assert "rollout.top_p" in only and "rollout.top_k" not in only


def test_one_side_may_be_a_file_and_the_other_a_folder(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_bytes(pair[1].read_bytes())
    assert severe(invoke("diff", pair[0], folder, "--json")) == severe(
        invoke("diff", *pair, "--json")
    )


def test_a_file_given_by_name_is_read_whatever_it_looks_like(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a.txt", tmp_path / "b.txt"
    ours.write_text("actor_rollout_ref.rollout.n: 4\nrollout: {n: 4}\nalgorithm: {lam: 1}\n")
    theirs.write_text("3\n")
    run = invoke("diff", ours, theirs)
    assert isinstance(run.exception, ConfigError)
    assert str(theirs) in run.exception.where


MISSPELLED = """\
megatron_training: {model: m, global_batch_size: 32, stage: ray_grpo, bf16: true}
rl_config:
  n_samples_per_prompt: 8
  mini_batch_size: 32
  temprature: 0.7
  my_forks_own_key: 1
generate_config:
  dtype: bfloat16
  sampling_config: {top_p: 1.0}
model:
  m: {hidden_size: 64, num_attention_heads: 4, num_layers: 2}
"""


def misspelled(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    path = tmp_path / "grpo.yaml"
    path.write_text(text, encoding="utf-8")
    run = invoke("diff", path, path, "--json")
    return list(json.loads(run.stdout)["findings"])


def test_a_misspelled_key_that_matters_is_a_warning_with_the_value_in_effect(
    tmp_path: Path,
) -> None:
    findings = misspelled(tmp_path, MISSPELLED)
    (warning,) = [f for f in findings if f["severity"] == "warning"]
    assert warning["id"] == "config.misspelled.rollout.temperature"
    assert warning["title"] == (
        "rl_config.temprature is not read; sampling temperature "
        "(generate_config.sampling_config.temperature) stays at its default 0.2"
    )
    assert warning["evidence"][0]["line"] == 5
    assert "generate_config.sampling_config.temperature: 0.7" in warning["fix"]
    assert "仍为默认值 0.2" in warning["zh"]["title"]


def test_every_unknown_key_is_in_one_note_with_the_nearest_spelling(tmp_path: Path) -> None:
    (note,) = [f for f in misspelled(tmp_path, MISSPELLED) if f["id"] == "config.unknown_keys"]
    assert note["severity"] == "info"
    assert "rl_config.temprature" in note["title"] and "my_forks_own_key" in note["title"]
    assert "resembles generate_config.sampling_config.temperature" in note["why"]


@pytest.mark.parametrize(
    "text",
    [
        MISSPELLED.replace("{top_p: 1.0}", "{top_p: 1.0, temperature: 0.7}"),  # it is set
        MISSPELLED.replace("temprature: 0.7", "temprature: 0.2"),  # what was meant holds
        MISSPELLED.replace("temprature", "temprature_of_the_moon"),
        MISSPELLED.replace("  temprature: 0.7\n", ""),
    ],
    ids=["set", "default", "another", "absent"],
)
def test_no_warning_where_the_value_meant_is_in_effect(text: str, tmp_path: Path) -> None:
    assert not [f for f in misspelled(tmp_path, text) if "misspelled" in f["id"]]


def explained(key: str) -> dict[str, Any]:
    run = invoke("explain", key, "--json")
    assert run.exit_code == 0, run.exception
    return dict(json.loads(run.stdout))


@pytest.mark.parametrize(
    "key",
    [
        "rollout.temperature",
        "actor_rollout_ref.rollout.temperature",
        "generate_config.sampling_config.temperature",
    ],
)
def test_a_key_of_any_framework_leads_to_the_field(key: str) -> None:
    (field,) = explained(key)["fields"]
    assert field["field"] == "rollout.temperature"
    places = {(p["framework"], *p["keys"]) for p in field["places"]}
    assert ("verl", "actor_rollout_ref.rollout.temperature") in places
    assert ("mindspeed_rl", "generate_config.sampling_config.temperature") in places
    assert field["acts_on"] == "rollout" and field["severity"] == "error"


def defaults(key: str, framework: str) -> dict[str, Any]:
    """Return the default by version, of the frameworks' facts."""
    (field,) = explained(key)["fields"]
    spans = [d for d in field["defaults"] if d["framework"] == framework]
    spans = [d for d in spans if d["variant"] in (None, "FSDP")]
    return {f"{d['first']} {d['last']}": d["value"] for d in spans}


def test_a_default_that_changed_is_given_with_its_versions() -> None:
    # facts/verl.md: use_remove_padding is off by default up to 0.6.1 and on from 0.7
    spans = defaults("actor_rollout_ref.model.use_remove_padding", "verl")
    assert [value for value in spans.values()] == [False, True]
    before, since = spans
    assert before.endswith(" 0.6.1") and since.startswith("0.7.0 ")


def test_the_dangerous_default_of_mindspeed_rl_is_told() -> None:
    # facts/mindspeed_rl.md: temperature 0.2 where sampling_config does not say
    assert set(defaults("rollout.temperature", "mindspeed_rl").values()) == {0.2}


def test_a_dead_key_is_told_with_the_versions_that_do_not_read_it() -> None:
    # facts/verl.md: actor.grad_clip is read by no engine worker, from 0.8 on
    (field,) = explained("actor_rollout_ref.actor.grad_clip")["fields"]
    dead = [d for d in field["dead"] if d["key"] == "actor_rollout_ref.actor.grad_clip"]
    assert dead and {v for d in dead for v in d["versions"]} >= {"0.8.0", "0.9.1"}
    assert all(d["why"] and d["zh"]["why"] for d in dead)


def test_rules_and_formulas_are_told() -> None:
    (field,) = explained("actor.micro_batch_size")["fields"]
    assert "micro_batch" in {rule["rule"] for rule in field["rules"]}
    (heads,) = explained("model.num_key_value_heads")["fields"]
    formulas = {p["formula"] for p in heads["places"] if p["framework"] == "mindspeed_rl"}
    assert "num_query_groups with group_query_attention, else num_attention_heads" in formulas


def test_a_harmless_key_has_its_reason() -> None:
    document = explained("trainer.project_name")
    assert document["fields"] == []
    assert {h["framework"] for h in document["harmless"]} == {"verl"}
    assert document["harmless"][0]["zh"]["why"]


def test_the_last_part_of_a_key_is_enough() -> None:
    names = {field["field"] for field in explained("kl_loss_coef")["fields"]}
    assert names == {"loss.kl_coef"}


def test_an_unknown_key_gets_the_nearest_spellings() -> None:
    run = invoke("explain", "actor_rollout_ref.rollout.temprature")
    assert isinstance(run.exception, ConfigError)
    assert "actor_rollout_ref.rollout.temperature" in run.exception.fix
    far = invoke("explain", "zzzzqqqq")
    assert isinstance(far.exception, ConfigError) and far.exception.fix


def test_every_field_can_be_explained_in_both_languages() -> None:
    for name in FIELDS:
        for lang in ("en", "zh"):
            run = invoke("explain", name.replace("*", "x"), "--lang", lang)
            assert run.exit_code == 0, (name, run.exception)
            assert FIELDS[name].meaning.in_language(lang) in run.stdout
