"""The configuration a run prints is read whole from any log, and in part from a cut one."""

from __future__ import annotations

import ast
import math
import pprint
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.errors import AlignError, ConfigError
from dumps.readers.printed_config import READER, read_printed_config
from dumps.readers.reader import Glimpse, no_progress

CONFIG: dict[str, Any] = {
    "actor_rollout_ref": {
        "actor": {
            "betas": [0.9, 0.999],
            "checkpoint": {"load_contents": ["model", "optimizer", "extra"], "strict": True},
            "clip_ratio": 0.2,
            "optim": {"lr": 1e-06, "override_optimizer_config": None, "weight_decay": 0.01},
            "policy_loss": {},
            "stages": [],
        },
        "rollout": {"agents": [{"name": "a", "n": 1}, {"name": "b", "n": 2}], "n": 5},
        "model": {"path": "/模型/Qwen2.5-7B", "quote": "it's", "prompt": "one two three " * 12},
    },
    "algorithm": {"adv_estimator": "grpo", "gamma": 1.0, "limits": [[1, 2], [3]]},
    "trainer": {"logger": ["console"], "n_gpus_per_node": 8, "nnodes": 1, "x": -1},
}
PREFIX = "\x1b[36m(TaskRunner pid=17)\x1b[0m "


def leaves_of(value: Any, key: str = "") -> dict[str, Any]:
    """Flatten nested values as `RawConfig` states it, independently of the readers."""
    if isinstance(value, dict) and value:
        parts = [leaves_of(v, f"{key}.{k}" if key else str(k)) for k, v in value.items()]
    elif holds_dict(value):
        parts = [leaves_of(v, f"{key}[{i}]") for i, v in enumerate(value)]
    else:
        return {key: as_tuple(value)}
    return {k: v for part in parts for k, v in part.items()}


def holds_dict(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, dict) or holds_dict(v) for v in value)


def as_tuple(value: Any) -> Any:
    return tuple(map(as_tuple, value)) if isinstance(value, list | tuple | dict) else value


def read(tmp_path: Path, text: str) -> RawConfig:
    path = tmp_path / "run.log"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return read_printed_config(path, no_progress)


def values_of(config: RawConfig) -> dict[str, Any]:
    return {key: value.value for key, value in config.values.items()}


def printed_lines(prefix: str = PREFIX) -> list[str]:
    return [prefix + line for line in pprint.pformat(CONFIG).split("\n")]


def test_a_printed_dict_gives_every_value_with_its_line(tmp_path: Path) -> None:
    lines = ["step 0", "(raylet) hello", *printed_lines(), PREFIX + "step:1 - actor/lr:1e-06"]
    config = read(tmp_path, "\n".join(lines) + "\n")
    assert values_of(config) == leaves_of(CONFIG)
    assert (config.framework, config.truncated_at, config.num_unread_lines) == ("verl", None, 0)
    for key, value in config.values.items():
        name = re.split(r"[.\[]", re.sub(r"\[\d+\]$", "", key))[-1]
        line = value.provenance.line
        assert line is not None
        assert f"'{name}'" in lines[line - 1]
        assert value.provenance.kind is ProvenanceKind.PRINTED


FOREIGN = (
    "(WorkerDict pid=77) INFO 'lr': 3,",
    "(WorkerDict pid=77, ip=10.0.0.4)   'clip_ratio': 0.9,",
    "\x1b[36m(WorkerDict pid=9)\x1b[0m                      'gamma': 0.5,",
    PREFIX + "WARNING:2025-08-14 19:43:08,765:Waiting for register center",
    PREFIX + "/a/b.py:307: UserWarning: Disabled critic. {'actor': {}}",
    PREFIX + "  warnings.warn(",
    PREFIX + "  'seed': 3,",
    PREFIX,
    "Filtering prompts:  13%|█▎   | 2000/14973 [00:00<00:03, 4036.81 examples/s]\rdone\r",
    "\x1b[33m(raylet)\x1b[0m [2025-03-02 11:55:50,730 E 451181] over 95% full",
    "}}}",
    "'extra'],\x1b[32m [repeated 3x across cluster]\x1b[0m",
)


@pytest.mark.parametrize("foreign", FOREIGN)
def test_foreign_lines_anywhere_change_nothing(tmp_path: Path, foreign: str) -> None:
    lines = printed_lines()
    woven = [part for line in lines for part in (line, foreign)]
    config = read(tmp_path, "\n".join([foreign, *woven]))
    assert values_of(config) == leaves_of(CONFIG)
    assert config.truncated_at is None


@pytest.mark.parametrize("position", [1, 2, 3])
def test_a_foreign_line_among_the_first_three_is_no_obstacle(tmp_path: Path, position: int) -> None:
    lines = printed_lines()
    lines.insert(position, "\x1b[36m(WorkerDict pid=77)\x1b[0m INFO 12:00 model loaded")
    config = read(tmp_path, "\n".join(lines))
    assert values_of(config) == leaves_of(CONFIG)
    assert config.num_unread_lines == 1


def test_a_prefix_glued_into_a_line_is_cut_off(tmp_path: Path) -> None:
    lines = [line + "(WorkerDict pid=8) junk" for line in printed_lines()]
    lines = ["tqdm 3/62 [00:00<?, ?it/s]" + line for line in lines]
    assert values_of(read(tmp_path, "\n".join(lines))) == leaves_of(CONFIG)


@pytest.mark.parametrize(
    "margin", ["", "    ", "> ", "2026-01-0{n} 00:00:0{n} INFO ", "[0;31m(TaskRunner pid=3)[0m "]
)
def test_any_margin_before_the_lines_is_removed(tmp_path: Path, margin: str) -> None:
    lines = pprint.pformat(CONFIG).split("\n")
    text = "\n".join(margin.replace("{n}", str(i % 10)) + line for i, line in enumerate(lines))
    assert values_of(read(tmp_path, text)) == leaves_of(CONFIG)


@pytest.mark.parametrize(
    "text",
    [
        pprint.pformat(CONFIG).replace("\n", "\r\n"),
        "Config: " + pprint.pformat(CONFIG),
        "config = " + repr(CONFIG) + " loaded",
        re.sub(r"\n +", "\n", pprint.pformat(CONFIG)),
        re.sub(r" +", " ", pprint.pformat(CONFIG)).replace("three one", "three one"),
        pprint.pformat(CONFIG, width=200),
        pprint.pformat(CONFIG, width=1),
        pprint.pformat(CONFIG, sort_dicts=False, indent=4),
    ],
    ids=["crlf", "label", "repr", "unindented", "collapsed", "wide", "narrow", "indented"],
)
def test_other_layouts_are_read_as_well(tmp_path: Path, text: str) -> None:
    assert values_of(read(tmp_path, text)) == leaves_of(CONFIG)


def test_a_lost_line_loses_its_own_values_alone(tmp_path: Path) -> None:
    lines = printed_lines("")
    expected = leaves_of(CONFIG)
    for i in range(1, len(lines)):
        found = values_of(read(tmp_path, "\n".join(lines[:i] + lines[i + 1 :]) + "\n"))
        wrong = {k: v for k, v in found.items() if k not in expected or expected[k] != v}
        # Without its middle a list or a wrapped string is shorter; nothing else may change.
        assert set(wrong) <= {
            "actor_rollout_ref.actor.checkpoint.load_contents",
            "actor_rollout_ref.model.prompt",
            "algorithm.limits",
        }
        assert len(found) >= len(expected) - 8


def test_a_cut_at_any_byte_gives_a_part_of_the_truth(tmp_path: Path) -> None:
    expected = leaves_of(CONFIG)
    whole = "\n".join(printed_lines()).encode()
    path = tmp_path / "cut.log"
    most = 0
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        try:
            config = read_printed_config(path, no_progress)
        except AlignError:
            assert end < whole.index(b"'checkpoint'")
            continue
        found = values_of(config)
        assert found.items() <= expected.items()
        assert config.truncated_at == list(config.values)[-1]
        assert len(found) >= most
        most = len(found)
    assert most >= len(expected) - 2


@given(data=st.data())
def test_arbitrary_bytes_in_the_middle_raise_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "run.log"
    whole = "\n".join(printed_lines()).encode()
    cut = data.draw(st.integers(0, len(whole)))
    noise = data.draw(
        st.one_of(
            st.binary(max_size=200), st.text("{}[]()'\",: \n\\au0", max_size=200).map(str.encode)
        )
    )
    path.write_bytes(whole[:cut] + noise + whole[cut:])
    try:
        config = read_printed_config(path, no_progress)
    except AlignError:
        return
    assert config.values


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda children: (
            st.lists(children, max_size=4)
            | st.dictionaries(st.text("abcdefg_", min_size=1), children, max_size=4)
        ),
        max_leaves=25,
    )
)
def test_whatever_python_prints_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    config = {"actor_rollout_ref": {"actor": value, "z": 1}, "trainer": {"nnodes": 1}}
    path = tmp_path_factory.mktemp("pprint") / "run.log"
    path.write_bytes(pprint.pformat(config).encode("utf-8", "surrogatepass"))
    found = values_of(read_printed_config(path, no_progress))
    assert found == leaves_of(config)


def test_not_finite_numbers_and_objects_stay_what_they_are(tmp_path: Path) -> None:
    text = (
        "{'actor_rollout_ref': {'a': nan,\n"
        "                       'b': -inf,\n"
        "                       'c': <AdvantageEstimator.GRPO: 'grpo'>,\n"
        "                       'd': PosixPath('/tmp/x'),\n"
        "                       'e': torch.bfloat16},\n"
        " 'trainer': {'t': (1, 2)}}"
    )
    found = {k.rpartition(".")[2]: v for k, v in values_of(read(tmp_path, text)).items()}
    assert math.isnan(found.pop("a"))
    assert found == {
        "b": -math.inf,
        "c": "<AdvantageEstimator.GRPO: 'grpo'>",
        "d": "PosixPath('/tmp/x')",
        "e": "torch.bfloat16",
        "t": (1, 2),
    }


def test_of_two_printed_configurations_the_last_is_used_and_the_difference_noted(
    tmp_path: Path,
) -> None:
    first = printed_lines()
    second = [line.replace("'gamma': 1.0", "'gamma': 0.9") for line in first]
    config = read(tmp_path, "\n".join([*first, "Traceback", *second]))
    assert values_of(config)["algorithm.gamma"] == 0.9
    assert any("2 configurations" in note.en for note in config.notes)
    assert any("algorithm.gamma" in note.en for note in config.notes)


def test_a_cut_configuration_does_not_continue_in_the_next_one(tmp_path: Path) -> None:
    first = printed_lines()[:10]
    second = [line.replace("'n': 5", "'n': 6") for line in printed_lines()]
    config = read(tmp_path, "\n".join([*second, *first]))
    assert values_of(config)["actor_rollout_ref.rollout.n"] == 6
    assert config.truncated_at is None


@pytest.mark.parametrize(
    "text", ["\n", "step:1 - a:1", "{'actor_rollout_ref': {", "{'data': {'x': 1}}"]
)
def test_a_log_without_a_configuration_says_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.log: prints no configuration"):
        read(tmp_path, text)


def test_every_corpus_log_that_prints_a_configuration_gives_all_of_it(corpus: Path) -> None:
    logs = sorted([*(corpus / "verl_logs").iterdir(), *(corpus / "verl_configs").glob("printed_*")])
    printing = [p for p in logs if b"{'actor_rollout_ref': {" in p.read_bytes()]
    assert len(printing) == 12
    for path in logs:
        glimpse = Glimpse(path, path.stat().st_size)
        assert READER.sniff(glimpse) == (path in printing), path.name
    for path in printing:
        config = read_printed_config(path, no_progress)
        assert config.framework == "verl"
        assert config.truncated_at is None, path.name
        assert values_of(config) == leaves_of(filtered_literal(path)), path.name


def filtered_literal(path: Path) -> Any:
    """Parse the same dict a second way: one process's lines, through Python's own parser."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", path.read_text("utf-8", "replace"))
    start = text.index("{'actor_rollout_ref': {")
    owner = re.findall(r"\(\w+ pid=\d+[^)]*\) ", text[:start])[-1]
    lines = text[text.rindex("\n", 0, start) + 1 if "\n" in text[:start] else 0 :].split("\n")
    own = [line.removeprefix(owner) for line in lines if line.startswith(owner)]
    like_config = [line for line in own if re.match(r"\s*(?:\{?'[^']*'[:,}\]]|'|[\d-])", line)]
    ends = [i for i, line in enumerate(like_config) if re.search(r"\}\}$", line)]
    for end in ends:
        try:
            return ast.literal_eval("\n".join(like_config[: end + 1]))
        except SyntaxError:
            continue
    raise AssertionError(f"{path.name}: no second reading")


RUN_TIME_CHANGES = {"transfer_queue.enable", "actor_rollout_ref.rollout.enable_sleep_mode"}


@pytest.mark.parametrize("run", ["v091_v1_fsdp2", "v091_v1_vllmcpu", "v091_v1_vllmcpu_bf16rollout"])
def test_the_printed_configuration_is_hydras_apart_from_run_time_changes(
    reference_runs: Path, run: str
) -> None:
    from omegaconf import OmegaConf

    folder = reference_runs / run
    resolved = OmegaConf.to_container(OmegaConf.load(folder / "hydra/config.yaml"), resolve=True)
    hydra = leaves_of(resolved)
    config = read_printed_config(folder / "console_full.log", no_progress)
    printed = values_of(config)
    assert config.truncated_at is None
    assert hydra.keys() - printed.keys() == set()
    assert {k for k in printed if k not in hydra or printed[k] != hydra[k]} <= RUN_TIME_CHANGES


def test_config_pprint_equals_pythons_own_reading_and_has_the_default_keys(
    reference_runs: Path,
) -> None:
    from omegaconf import OmegaConf

    path = reference_runs / "v091_v1_fsdp2/config_pprint.txt"
    found = values_of(read_printed_config(path, no_progress))
    text = path.read_text()
    assert found == leaves_of(ast.literal_eval(text[: text.index("}}\n") + 2]))
    defaults = leaves_of(
        OmegaConf.to_container(OmegaConf.load(reference_runs / "ppo_trainer.resolved.yaml"))
    )
    # A key that was an empty dict by default and was given keys by an override.
    assert defaults.keys() - found.keys() == {"actor_rollout_ref.model.override_config"}
