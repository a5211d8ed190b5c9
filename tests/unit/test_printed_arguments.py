"""Megatron's printed block of arguments is read behind prefixes, and in part where it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from align.core.errors import AlignError, ConfigError
from dumps.readers.printed_arguments import READER, read_printed_arguments
from dumps.readers.reader import Glimpse, no_progress

ARGUMENTS = {
    "adam_beta2": (0.95, "0.95"),
    "data_path": (("a", "b"), "['a', 'b']"),
    "lr": (1e-6, "1e-06"),
    "norm_epsilon": (1e-5, "1e-05"),
    "num_layers": (28, "28"),
    "seq_length": (None, "None"),
    "split": ("100,0,0", "100,0,0"),
    "stage": ("ray_grpo", "ray_grpo"),
    "swiglu": (True, "True"),
    "dtype": ("torch.bfloat16", "torch.bfloat16"),
    "empty": ("", ""),
}


def block(prefix: str, title: str = "arguments") -> list[str]:
    """Print arguments in Megatron's layout: dots fill each name up to 48 characters."""
    lines = [f"------------------------ {title} ------------------------"]
    lines += [f"  {k} {'.' * (48 - len(k))} {text}" for k, (_, text) in ARGUMENTS.items()]
    lines += [f"-------------------- end of {title} ---------------------"]
    return [prefix + line for line in lines]


@pytest.mark.parametrize("prefix", ["", "\x1b[36m(IntegratedWorker pid=7)\x1b[0m "])
@pytest.mark.parametrize("title", ["arguments", "MindSpeed-LLM Arguments"])
def test_every_argument_is_read_with_its_line(tmp_path: Path, prefix: str, title: str) -> None:
    foreign = "\x1b[36m(Other pid=8)\x1b[0m   lr ........ 3"
    lines = ["start", *[part for line in block(prefix, title) for part in (line, foreign)]]
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines))
    assert READER.sniff(Glimpse(path, path.stat().st_size))
    config = read_printed_arguments(path, no_progress)
    assert {k: v.value for k, v in config.values.items()} == {
        k: value for k, (value, _) in ARGUMENTS.items()
    }
    assert (config.framework, config.truncated_at) == ("mindspeed_rl", None)
    for key, value in config.values.items():
        assert f"  {key} ." in lines[(value.provenance.line or 0) - 1]


def test_a_cut_block_gives_a_part_of_the_truth(tmp_path: Path) -> None:
    text = "\n".join(block(""))
    path = tmp_path / "x.log"
    for end in range(len(text)):
        path.write_text(text[:end])
        try:
            config = read_printed_arguments(path, no_progress)
        except AlignError:
            continue
        assert all(ARGUMENTS[k][0] == v.value for k, v in config.values.items())
        is_cut = "end of" not in path.read_text()
        assert (config.truncated_at == list(config.values)[-1]) or not is_cut


def test_a_log_without_the_block_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    for path in [*(corpus / "verl_logs").iterdir(), *(corpus / "mindspeed_rl").glob("log_*")]:
        assert not READER.sniff(Glimpse(path, path.stat().st_size)), path.name
    path = tmp_path / "x.log"
    path.write_text("-------- arguments --------\nnothing\n")
    with pytest.raises(ConfigError, match="prints no block"):
        read_printed_arguments(path, no_progress)
