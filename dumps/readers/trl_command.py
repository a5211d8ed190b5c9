"""Command lines that start TRL: ``trl grpo --flag value``, ``accelerate launch grpo.py …``.

Flags of the launcher count as well: they tell the number of processes.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from align.core.config_value import ProvenanceKind, RawConfig
from align.core.errors import ConfigError
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.leaf import Leaf, config_values
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.shell_flags import commands, read_flags
from dumps.readers.shell_lines import Word
from dumps.readers.text import identify, iter_lines

FORMAT = "trl_command"

_PROGRAM = (
    r"(?:accelerate launch\b|torchrun\b|trl (?:grpo|dpo|ppo)\b"
    r"|python3?(?:\.\d+)? (?:-m (?:accelerate|torch)\S* )?\S*\.py\b)"
)
_START = re.compile(r"^\+* ?(?!echo|#)(?:[A-Z_]\w*=\S* +)*(?:nohup +)?" + _PROGRAM)
_START_BYTES = re.compile(rb"(?m)^\+* ?(?:[A-Z_]\w*=\S* +)*(?:nohup +)?" + _PROGRAM.encode())
_SIGN = re.compile(
    rb"--(?:num_generations|max_completion_length|per_device_train_batch_size|num_ppo_epochs"
    rb"|precompute_ref_log_probs)\b|\btrl (?:grpo|dpo|ppo)\b"
)
_TRAINERS = {"grpo": "GRPOConfig", "dpo": "DPOConfig", "ppo": "PPOConfig"}
_MAX_LINES = 5_000
_SWITCHES = frozenset({"multi_gpu", "use_deepspeed", "standalone", "cpu", "m", "module"})


def _sniff(glimpse: Glimpse) -> bool:
    if identify(glimpse.head) is not None:
        return False
    return bool(_START_BYTES.search(glimpse.head) and _SIGN.search(glimpse.head))


def read_trl_command(path: Path, progress: Progress) -> RawConfig:
    """Read the flags of the last command that starts TRL.

    Raises:
        ConfigError: No such command, or none of its flags has a value that can be read.
    """
    lines = [line for _, line in zip(range(_MAX_LINES), iter_lines(path, progress), strict=False)]
    found = [c for c in commands(lines, _START) if _SIGN.search(_text(c).encode())]
    flags = read_flags(found[-1], {}, _SWITCHES) if found else None
    if flags is None or not flags.leaves:
        raise ConfigError(
            where=str(path),
            problem="holds no command that starts TRL with flags",
            fix="give the YAML file the run was started with",
        )
    named = _named_trainer(found[-1])
    values = config_values((*named, *flags.leaves), source=str(path), kind=ProvenanceKind.OVERRIDE)
    notes = flags.notes
    if "config" in values:
        notes += (_reads_file(str(values["config"].value)),)
    return RawConfig(str(path), FORMAT, "trl", values, notes=notes, unknown=flags.unknown)


def _text(words: list[Word]) -> str:
    return " ".join(word.text for word in words)


def _named_trainer(words: list[Word]) -> list[Leaf]:
    """Return the trainer that ``trl grpo`` names."""
    for before, word in pairwise(words):
        if before.text == "trl" and word.text in _TRAINERS:
            return [Leaf(("config_class",), _TRAINERS[word.text], word.line, word.shown)]
    return []


def _reads_file(name: str) -> Text:
    return Text(
        f"the command reads {name}: what that file sets counts unless it is given too",
        f"该命令读取 {name}：若未一并给出该文件，其中的设置未知",
    )


READER = Reader(FORMAT, ArtifactKind.CONFIG, _sniff, read_trl_command, priority=-5)
