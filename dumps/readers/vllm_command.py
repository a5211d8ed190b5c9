"""Commands that start a vLLM server: ``vllm serve MODEL``, its module, ``trl vllm-serve``."""

from __future__ import annotations

import re
from pathlib import Path

from align.core.config_value import ConfigLeaf, ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.leaf import Leaf, config_values
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.shell_flags import commands, read_flags
from dumps.readers.shell_lines import Word
from dumps.readers.text import identify, iter_lines

FORMAT = "vllm_command"

_PROGRAM = r"(?:vllm serve\b|trl vllm-serve\b|python3? -m vllm\.entrypoints\.\S+)"
_BEFORE = r"^\s*\+* ?(?:[A-Za-z_]\w*=\S* +)*(?:nohup +|exec +)?"
_START = re.compile(_BEFORE + _PROGRAM)
_START_BYTES = re.compile(b"(?m)" + _START.pattern.encode())
_SHORT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "dcp": "decode_context_parallel_size",
    "q": "quantization",
    "O": "compilation_config",
}
_SWITCHES = frozenset(
    {
        *("enforce-eager", "enable-prefix-caching", "enable-chunked-prefill", "trust-remote-code"),
        *("enable-expert-parallel", "enable-lora", "enable-sleep-mode", "disable-log-stats"),
        *("disable-log-requests", "disable-custom-all-reduce", "async-scheduling"),
        *("no-enable-prefix-caching", "no-enable-chunked-prefill", "no-enforce-eager"),
    }
)
_READABLE = ("max_model_len", "max_num_batched_tokens")
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")
_FACTORS = {
    **{letter: 1000**power for power, letter in enumerate("kmg", 1)},
    **{letter: 1024**power for power, letter in enumerate("KMG", 1)},
}
_MAX_LINES = 20_000


def _sniff(glimpse: Glimpse) -> bool:
    return identify(glimpse.head) is None and _START_BYTES.search(glimpse.head) is not None


def read_vllm_command(path: Path, progress: Progress) -> RawConfig:
    """Read the arguments of the last command that starts a server.

    Raises:
        ConfigError: No such command, or nothing in it can be read.
    """
    lines = [line for _, line in zip(range(_MAX_LINES), iter_lines(path, progress), strict=False)]
    found = list(commands(lines, _START))
    leaves: list[Leaf] = []
    notes: tuple[Text, ...] = ()
    unknown: tuple[str, ...] = ()
    if found:
        flags = read_flags(found[-1], _SHORT, _SWITCHES)
        leaves = [*_served_model(found[-1]), *map(_counted, flags.leaves)]
        notes, unknown = flags.notes, flags.unknown
    if not leaves:
        raise ConfigError(
            where=str(path),
            problem="holds no command that starts a vLLM server",
            fix="give the log of the server, or the script that starts it",
        )
    if len(found) > 1:
        notes += (
            Text(
                f"{len(found)} commands start a server; line {found[-1][0].line}'s is used",
                f"共有 {len(found)} 条启动服务的命令；采用第 {found[-1][0].line} 行的一条",
            ),
        )
    values = config_values(leaves, source=str(path), kind=ProvenanceKind.OVERRIDE)
    return RawConfig(str(path), FORMAT, "vllm", values, notes=notes, unknown=unknown)


def _served_model(words: list[Word]) -> list[Leaf]:
    """Return the model that stands after ``serve`` without a flag."""
    texts = [word.text for word in words]
    if "serve" not in texts:
        return []
    rest = words[texts.index("serve") + 1 :]
    if not rest or rest[0].text.startswith("-") or "$" in rest[0].text:
        return []
    return [Leaf(("model",), rest[0].text, rest[0].line, rest[0].shown)]


def _counted(leaf: Leaf) -> Leaf:
    """Read 32k as 32,000 and 32K as 32,768, as vLLM does."""
    value: ConfigLeaf = leaf.value
    match = _HUMAN.fullmatch(value) if isinstance(value, str) else None
    if match is None or leaf.path[0] not in _READABLE:
        return leaf
    return Leaf(leaf.path, int(float(match[1]) * _FACTORS[match[2]]), leaf.line, leaf.text)


READER = Reader(FORMAT, ArtifactKind.ENGINE, _sniff, read_vllm_command)
