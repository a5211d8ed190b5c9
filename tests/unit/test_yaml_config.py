"""YAML and Hydra's run folders are read as OmegaConf reads them, with the line of every value."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.errors import AlignError, ConfigError
from align.core.run import ArtifactKind
from dumps.readers.hydra_bookkeeping import READER as BOOKKEEPING
from dumps.readers.hydra_override import parse_override
from dumps.readers.reader import Glimpse, no_progress
from dumps.readers.yaml_config import READERS, read_hydra_overrides, read_yaml_config

CONFIG, OVERRIDES = READERS


def leaves_of(value: Any, key: str = "") -> dict[str, Any]:
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


def by_omegaconf(path: Path) -> dict[str, Any]:
    return leaves_of(OmegaConf.to_container(OmegaConf.load(path), resolve=True))


def read(tmp_path: Path, text: str | bytes) -> RawConfig:
    path = tmp_path / "any name"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_yaml_config(path, no_progress)


def values_of(config: RawConfig) -> dict[str, Any]:
    return {key: value.value for key, value in config.values.items()}


def glimpse(path: Path) -> Glimpse:
    return Glimpse(path, path.stat().st_size)


def sniffs(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "file"
    path.write_text(text)
    return [r.format for r in (*READERS, BOOKKEEPING) if r.sniff(glimpse(path))]


def test_numbers_are_omegaconfs_not_pyyamls(tmp_path: Path) -> None:
    text = (
        "a: 1e-6\nb: 1E5\nc: 5e-8\nd: .5\ne: 1_000\nf: '1e-6'\ng: .nan\nh: -.inf\ni: 2024-01-01\n"
    )
    assert yaml.safe_load(text)["a"] == "1e-6"
    found = values_of(read(tmp_path, text))
    expected = dict(OmegaConf.create(text))
    assert math.isnan(found.pop("g")) and math.isnan(expected.pop("g"))
    assert found == expected
    assert found["a"] == 1e-6 and found["f"] == "1e-6" and found["h"] == -math.inf


def test_every_leaf_has_the_line_and_text_of_its_key(tmp_path: Path) -> None:
    config = read(tmp_path, "# top\na:\n  b: 1\n\n  'n': [x,\n    y]\nl:\n- k: 2\n- k: 3\n")
    lines = {key: value.provenance.line for key, value in config.values.items()}
    assert lines == {"a.b": 3, "a.n": 5, "l[0].k": 8, "l[1].k": 9}
    assert config.values["a.n"].provenance.text == "'n': [x,"
    assert config.values["a.n"].value == ("x", "y")
    assert config.values["a.b"].provenance.kind is ProvenanceKind.FILE


def test_crlf_and_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    text = "键:\r\n  lr: 1e-6\r\nb: 'x'\r\n"
    config = read(tmp_path, b"\xef\xbb\xbf" + text.encode())
    assert values_of(config) == {"键.lr": 1e-6, "b": "x"}
    assert config.values["b"].provenance.line == 3


def test_empty_containers_are_the_empty_leaf(tmp_path: Path) -> None:
    assert values_of(read(tmp_path, "a: {}\nb: []\nc:\nd: [[1, 2], [3]]\n")) == {
        "a": (),
        "b": (),
        "c": None,
        "d": ((1, 2), (3,)),
    }


def test_a_key_that_stands_twice_is_named(tmp_path: Path) -> None:
    config = read(tmp_path, "lr: 1\nx: 2\nlr: 3\n")
    assert config.values["lr"].value == 3
    (problem,) = config.problems
    assert problem.where.endswith("any name:3") and problem.key == "lr"
    assert "1 and 3" in problem.problem
    assert read(tmp_path, "lr: 1\nx: 2\n").problems == ()


def test_merge_keys_are_applied(tmp_path: Path) -> None:
    text = "base: &b {x: 1, y: 2}\nother: &o {y: 5}\nuse:\n  <<: [*b, *o]\n  x: 3\n"
    found = values_of(read(tmp_path, text))
    assert found == leaves_of(yaml.safe_load(text))


def test_a_text_that_breaks_off_counts_up_to_the_line_it_breaks_in(tmp_path: Path) -> None:
    config = read(tmp_path, "a: 1\nb:\n  c: 2\n  d: [1,\n\te: 4\n")
    assert values_of(config) == {"a": 1}  # what b.c goes on with is not known
    assert config.truncated_at == "a"
    assert config.num_unread_lines == 2
    assert [problem.where.rpartition(":")[2] for problem in config.problems] == ["4"]


def test_python_tags_are_not_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    config = read(
        tmp_path,
        f"a: !!python/object/apply:os.system ['touch {target}']\n"
        "b: !!python/name:os.system\nc: !Custom x\nd: 1\n",
    )
    assert not target.exists()
    assert config.values["d"].value == 1
    assert config.values["c"].value == "x"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n"
            for p, c in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "a: &a {k: 1}\n"
        + "".join(
            f"m{i}: &m{i}\n  <<: [*{p}, *{p}]\n  k{i}: *{p}\n"
            for i in range(60)
            for p in [f"m{i - 1}" if i else "a"]
        ),
        "a: &a [*a]\n",
        "[" * 100_000,
        "- " * 50_000,
        "\n".join(" " * i + "a:" for i in range(900)),
        "a: " + "[" * 500 + "]" * 500,
    ],
    ids=["laughs", "merges", "circle", "flow", "block", "steps", "brackets"],
)
def test_bombs_are_refused_at_once(tmp_path: Path, text: str) -> None:
    start = time.process_time()
    with pytest.raises(ConfigError):
        read(tmp_path, text)
    assert time.process_time() - start < 5


def test_interpolation_bombs_stay_text(tmp_path: Path) -> None:
    start = time.process_time()
    strings = "x0: '0123456789'\n" + "".join(
        f"x{i}: ${{x{i - 1}}}${{x{i - 1}}}\n" for i in range(1, 60)
    )
    config = read(tmp_path, strings)
    assert config.values["x3"].value == "0123456789" * 8
    assert "${" in str(config.values["x59"].value)
    trees = "y0: {p: 1, q: 2}\n" + "".join(
        f"y{i}: {{p: '${{y{i - 1}}}', q: '${{y{i - 1}}}'}}\n" for i in range(1, 60)
    )
    assert len(read(tmp_path, trees).values) < 200_000
    assert time.process_time() - start < 10


def test_interpolations_are_resolved_and_others_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME_OF_READER", "/secret")
    config = read(
        tmp_path,
        "a: {b: 3, c: '${.b}', list: [1, 2]}\nd: run-${a.b}-${a.c}\ne: ${oc.select:nothing,7}\n"
        "f: ${a}\ng: ${oc.env:HOME_OF_READER}\nh: x/${g}\ni: ${missing.key}\nj: ${k}\nk: ${j}\n"
        'l: ${now:%Y}\nm: ["${a.b}", x]\nn: ${DATA_PATH}/x\no: ${oc.select:a.list}\n',
    )
    found = values_of(config)
    assert found["a.c"] == 3 and found["d"] == "run-3-3" and found["e"] == 7
    assert found["f.b"] == 3 and found["f.list"] == (1, 2) and found["o"] == (1, 2)
    assert found["m"] == (3, "x")
    assert found["g"] == "${oc.env:HOME_OF_READER}"
    assert "/secret" not in str(found)
    for key in "ghijkln":
        assert "${" in str(found[key]), key
    (note,) = config.notes
    assert note.en.startswith("7 interpolations stay as text: g (line 5)")


def test_a_broken_interpolation_spoils_no_other_value(tmp_path: Path) -> None:
    config = read(tmp_path, "a: ${open\nb: 1\nc: ${b}\n")
    assert config.values["a"].value == "${open"
    assert config.values["b"].value == 1


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text", "", "\x00\x01" * 50, "3\n", "a: [1\n"])
def test_what_is_no_mapping_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="any name") as caught:
        read(tmp_path, text)
    assert caught.value.problem and caught.value.fix


@pytest.mark.parametrize(
    ("data", "name"),
    [(b"\x1f\x8b\x08\x00xx", "gzip"), ("a: 1".encode("utf-16"), "UTF-16"), (b"PAR1xx", "parquet")],
)
def test_binary_files_are_called_what_they_are(tmp_path: Path, data: bytes, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read(tmp_path, data)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_raise_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "x.yaml"
    path.write_bytes(b"a: 1\n" + data)
    for reader in (*READERS, BOOKKEEPING):
        reader.sniff(glimpse(path))
        try:
            reader.read(path, no_progress)
        except AlignError:
            continue


@given(st.data())
def test_a_cut_or_shuffled_real_file_raises_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, data: st.DataObject
) -> None:
    whole = (corpus / "verl_configs/grpo_v02/.hydra/config.yaml").read_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    lines = cut.splitlines(keepends=True)
    if data.draw(st.booleans()):
        lines = data.draw(st.permutations(lines))
    path = tmp_path_factory.mktemp("cut") / "x.yaml"
    path.write_bytes(b"".join(lines) + data.draw(st.sampled_from([b"", whole])))
    try:
        read_yaml_config(path, no_progress)
    except AlignError:
        return


def test_every_yaml_of_the_corpus_is_what_omegaconf_makes_of_it(
    corpus: Path, reference_runs: Path
) -> None:
    paths = [
        *corpus.glob("verl_configs/*/.hydra/config.yaml"),
        *corpus.glob("mindspeed_rl/**/*.yaml"),
        *reference_runs.glob("*/hydra/config.yaml"),
        *reference_runs.glob("*.resolved.yaml"),
    ]
    assert len(paths) == 22
    for path in paths:
        config = read_yaml_config(path, no_progress)
        assert values_of(config) == by_omegaconf(path), path
        lines = path.read_text().splitlines()
        for value in config.values.values():
            assert value.provenance.text == lines[(value.provenance.line or 0) - 1].strip()[:200]


def test_hydra_folders_are_recognised_by_content(corpus: Path, reference_runs: Path) -> None:
    folders = [*corpus.glob("verl_configs/*/.hydra"), *reference_runs.glob("*/hydra")]
    assert len(folders) == 8
    for folder in folders:
        assert CONFIG.sniff(glimpse(folder / "config.yaml"))
        assert OVERRIDES.sniff(glimpse(folder / "overrides.yaml"))
        assert not CONFIG.sniff(glimpse(folder / "overrides.yaml"))
        assert not OVERRIDES.sniff(glimpse(folder / "config.yaml"))
        assert read_yaml_config(folder / "config.yaml", no_progress).framework == "verl"


def test_overrides_have_the_value_that_hydra_composed(corpus: Path, reference_runs: Path) -> None:
    for path in [
        *corpus.glob("verl_configs/*/.hydra/overrides.yaml"),
        *reference_runs.glob("*/hydra/overrides.yaml"),
    ]:
        config = read_hydra_overrides(path, no_progress)
        composed = by_omegaconf(path.parent / "config.yaml")
        assert config.num_unread_lines == 0
        words = yaml.safe_load(path.read_text())
        assert config.values.keys() == {w.partition("=")[0].strip("+") for w in words}
        for key, value in config.values.items():
            assert value.value == composed[key], key
            assert value.provenance.kind is ProvenanceKind.OVERRIDE
            line = path.read_text().splitlines()[(value.provenance.line or 0) - 1]
            assert key in line


def test_hydras_own_file_is_no_configuration(reference_runs: Path) -> None:
    path = reference_runs / "v091_v1_fsdp2/hydra/hydra.yaml"
    assert not any(reader.sniff(glimpse(path)) for reader in READERS)
    assert BOOKKEEPING.sniff(glimpse(path))
    assert BOOKKEEPING.kind is ArtifactKind.ENVIRONMENT
    fact = BOOKKEEPING.read(path, no_progress).facts["hydra"]
    line = path.read_text().splitlines()[(fact.evidence.line or 0) - 1]
    assert line.strip() == f"version: {fact.value}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1e-6", {"a.b": 1e-6}),
        ("+a.b=True", {"a.b": True}),
        ("++a=null", {"a": None}),
        ("a=[console,wandb]", {"a": ("console", "wandb")}),
        ('a=["x/y.parquet"]', {"a": ("x/y.parquet",)}),
        ("a={lr:1e-3,name:x}", {"a.lr": 1e-3, "a.name": "x"}),
        ("a=yes", {"a": "yes"}),
        ("a=010", {"a": "010"}),
        ("a=1:30", {"a": "1:30"}),
        ("a=", {"a": ""}),
        ("a='1'", {"a": "1"}),
        ("a=${b.c}", {"a": "${b.c}"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=[1,", {"a": "[1,"}),
    ],
)
def test_override_values_are_hydras(text: str, expected: dict[str, Any]) -> None:
    override = parse_override(text)
    assert override is not None
    assert {".".join(map(str, path)): value for path, value in override.leaves} == expected


def test_deleted_keys_and_lines_that_are_no_override_are_told(tmp_path: Path) -> None:
    path = tmp_path / "overrides"
    path.write_text("- a.b=1\n- ~c.d\n- nonsense\n- e=${a.b}\n")
    config = read_hydra_overrides(path, no_progress)
    assert values_of(config) == {"a.b": 1}
    assert [note.en for note in config.notes] == [
        "line 2 deletes c.d",
        "line 4 sets e to what another key holds",
    ]
    assert config.num_unread_lines == 1


@pytest.mark.parametrize(
    "text",
    [
        "name: env\nchannels:\n- conda-forge\ndependencies:\n- python=3.10\n- numpy\n",
        "services:\n  web:\n    image: x\n    ports: ['80:80']\n",
        "# Results\n\nlr: we used 1e-6\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
        "step:1 - actor/lr:1e-06 - critic/score/mean:0.5\n",
        '{"step":1,"data":{"actor/lr":1e-06}}\n',
        "- a\n- b\n",
        "",
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, text: str) -> None:
    assert sniffs(tmp_path, text) == []


def test_a_training_yaml_of_an_unknown_framework_is_a_configuration(tmp_path: Path) -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nlearning_rate: 1.0e-06\nseq_length: 8\n"
    assert sniffs(tmp_path, text) == ["yaml_config"]
    assert read(tmp_path, text).framework is None


_TEXTS = st.sampled_from(
    [
        "t",
        "${a}",
        "${b.c}",
        "${.a}",
        "${..b}",
        "x${a}y",
        "${a[0]}",
        "${${a}}",
        "${c.a}-${c.b}",
        "\\${a}",
        "${oc.select:a.b,3}",
        "${oc.select:${c},1}",
        '${oc.decode:"[1,2]"}',
        "${",
        "${}",
        "${a.}",
    ]
)
_NESTED = st.recursive(
    st.integers() | st.none() | _TEXTS,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), children, max_size=3)
    ),
    max_leaves=12,
)


@given(st.fixed_dictionaries({"a": _NESTED, "b": _NESTED, "c": _NESTED}))
def test_interpolations_are_omegaconfs_or_stay_as_written(
    tmp_path_factory: pytest.TempPathFactory, nested: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("nested") / "x.yaml"
    path.write_text(yaml.safe_dump(nested))
    found = values_of(read_yaml_config(path, no_progress))
    try:
        expected = by_omegaconf(path)
    except (OmegaConfBaseException, ValueError):
        return
    unresolved = [key for key, value in found.items() if "${" in str(value)]
    for key, value in found.items():
        # Text made of a whole mapping is nobody's configuration; all else must be equal.
        if key not in unresolved and "{" not in str(value):
            assert expected[key] == value, key
