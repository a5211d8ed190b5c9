"""Versions, devices and environment variables that a console log states in passing.

Only statements count: "torch version: 2.7.1" does, "requires torch version 2.6" does not, and a
model's own config.json is no witness of the transformers that runs.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from align.core.environment import EnvironmentFact, EnvironmentFacts
from align.core.finding import Evidence, Side
from align.core.run import ArtifactKind
from dumps.readers.console import dialect_of
from dumps.readers.env_names import FAMILIES, NAMES, is_fact
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.text import iter_blocks, strip_ansi, strip_prefix

FORMAT = "log_environment"

_VERSION = r"v?(?P<value>\d+(?:\.\w+)+(?:[+-][\w.]+)?)"
_PACKAGES = (
    *("torch", "torch_npu", "torchvision", "torchdata", "transformers", "tokenizers", "ray"),
    *("vllm", "vllm_ascend", "sglang", "verl", "tensordict", "flash_attn", "triton"),
    *(
        "trl",
        "accelerate",
        "triton_ascend",
        "deepspeed",
        "megatron_core",
        "mindspeed",
        "mindspeed_rl",
        "numpy",
        "peft",
    ),
)
# Ordinary names in logs and what they are called here.
_OTHER_NAMES = {"pytorch": "torch", "tensorrt llm": "tensorrt_llm", "cann": "cann"}
_NAMES = sorted((*_PACKAGES, *_OTHER_NAMES), key=len, reverse=True)
_NAME = "|".join(re.escape(name).replace("_", "[-_]") for name in _NAMES)
_OFTEN_WRONG = re.compile(
    r"requir|install|incompatib|expect|\bneed|at least|deprecat|upgrad|mismatch|support|[<>!~]="
    r"|recommend|Error\b|\bpip\b|\bfuture\b|\bsince\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One way a log states a fact.

    Args:
        needle: bytes of every such line, searched first because that is fast.
        pattern: matched in the line without prefix; group ``name`` or ``fact`` gives the name,
            group ``value`` or ``constant`` the value.
        fact: name of the fact, where the line does not give it.
        constant: value of the fact, where the line does not give it.
        near: what must stand in the 20 KB before.
        cautious: a line that asks for something rather than states it does not count.
    """

    needle: bytes
    pattern: re.Pattern[str]
    fact: str | None = None
    constant: str | None = None
    near: bytes = b""
    cautious: bool = True


def _says(fact: str, constant: str, *needles: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(n.encode(), re.compile(re.escape(n)), fact, constant, cautious=False) for n in needles
    )


_RULES = (
    Rule(
        b"ersion",
        re.compile(rf"\b(?P<name>{_NAME})[ _]version(?:__)?(?: is|:|=)?\s+{_VERSION}", re.I),
    ),
    Rule(b"==", re.compile(rf"^(?P<name>{_NAME})=={_VERSION}\s*$", re.I)),
    Rule(b"    ", re.compile(rf"^(?P<name>{_NAME}) {{2,}}{_VERSION}(?:\s|$)", re.I)),
    # transformers writes its own version into a config that it prints.
    Rule(
        b'"transformers_version"',
        re.compile(r'^\s*"transformers_version": "(?P<value>[\w.+]+)"'),
        "transformers",
        near=b"Config {",
    ),
    Rule(
        b"is incompatible with nvidia-modelopt",
        re.compile(r"transformers version (?P<value>[\w.]+) is incompatible"),
        "transformers",
        cautious=False,
    ),
    Rule(b"LLM engine (v", re.compile(rf"LLM engine \({_VERSION}\)"), "vllm"),
    Rule(b"vLLM API server version", re.compile(rf"server version {_VERSION}"), "vllm"),
    Rule(
        b"-packages/",
        re.compile(r"/python(?P<value>3\.\d+)/(?:site|dist)-packages/"),
        "python",
        cautious=False,
    ),
    Rule(b"NCCL version", re.compile(r"NCCL version (?P<value>[\d.]+)"), "nccl"),
    Rule(b"NCCL version", re.compile(r"NCCL version [\d.]+\+cuda(?P<value>[\d.]+)"), "cuda"),
    Rule(b"CUDA Version:", re.compile(r"CUDA Version: (?P<value>\d+\.\d+)"), "cuda"),
    Rule(b"Driver Version:", re.compile(r"Driver Version: (?P<value>\d+\.[\d.]+)"), "driver"),
    Rule(b"npu-smi", re.compile(r"npu-smi \S+\s+Version: (?P<value>\d+\.\S+)"), "driver"),
    Rule(
        b"scend-toolkit/",
        re.compile(r"[Aa]scend-toolkit/(?P<value>\d+\.\d+[\w.]*)"),
        "cann",
        cautious=False,
    ),
    Rule(
        b"scend-toolkit/",
        re.compile(r"[Aa]scend-toolkit/[\w.]+/(?P<value>aarch64|x86_64)-linux/"),
        "machine",
        cautious=False,
    ),
    Rule(
        b"NVIDIA ",
        re.compile(
            r"\b(?P<value>NVIDIA (?:GeForce RTX|RTX|Tesla|Graphics)?\s?[A-Z]{0,2}\d{2,4}\w*"
            r"(?:[ -](?:\d+GB|SXM\d?|PCIe|HBM\d\w?|NVL|Ti))*)"
        ),
        "device_name",
    ),
    Rule(b"Ascend", re.compile(r"\b(?P<value>Ascend ?910\w*)"), "device_name", cautious=False),
    Rule(b" 910", re.compile(r"^\|\s*\d+\s+(?P<value>910\w+)\s*\|\s*OK\b"), "device_name"),
    *_says(
        "device",
        "npu",
        "-packages/torch_npu/",
        "Platform plugin ascend is activated",
        "detected platform npu",
        "detected platform ascend",
        "NPU out of memory",
        "init_process_group set to hccl",
    ),
    *_says("device", "cuda", "detected platform cuda", "CUDA out of memory", "NVIDIA-SMI"),
    Rule(b"NCCL version", re.compile(r"NCCL version [\d.]+\+cuda"), "device", "cuda"),
    *_says("device", "cpu", "detected platform cpu"),
)
_EXPORT = re.compile(r"^\+* ?export (?P<rest>[A-Z][A-Z0-9_]*=.*)$")
_ALONE = re.compile(r"^\+* ?([A-Z][A-Z0-9_]*)=('[^']*'|\"[^\"]*\"|\S*)\s*$")
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=('[^']*'|\"[^\"]*\"|\S*)")
_ENV_VARS = re.compile(r"""['"]env_vars['"]: \{(?P<rest>[^{}]*)\}""")
_DICT_ITEM = re.compile(r"""['"]([A-Z][A-Z0-9_]*)['"]: ('[^']*'|"[^"]*"|\d+)""")
_ALONE_NEEDLES = tuple(
    needle.encode() for needle in (*FAMILIES, *(f"{name}=" for name in sorted(NAMES)))
)
_MAX_TRIES = 100  # lines a rule looks at in one block: chatter must not make reading slow
_QUOTED_CHARS = 200


def _sniff(glimpse: Glimpse) -> bool:
    return dialect_of(glimpse) is not None


def _read(path: Path, progress: Progress) -> EnvironmentFacts:
    """Collect what a log states about its stack; of two statements the first counts.

    Raises:
        DumpError: The file is not text, or is empty.
    """
    facts: dict[str, EnvironmentFact] = {}
    for index, block in enumerate(iter_blocks(path, progress)):
        text = block.data.replace(b"\r", b"\n")
        found = sorted(
            _statements(text, facts.keys(), is_start=index < 2),
            key=lambda statement: statement.position,
        )
        numbers = block.numbers_at([statement.position for statement in found])
        for statement, number in zip(found, numbers, strict=True):
            evidence = Evidence(
                str(path), Side.BOTH, number, statement.name, statement.line[:_QUOTED_CHARS]
            )
            fact = EnvironmentFact(statement.name, statement.value, evidence)
            facts.setdefault(statement.name, fact)
    return EnvironmentFacts(str(path), facts)


@dataclass(frozen=True, slots=True)
class _Statement:
    position: int  # byte offset of its line in the block
    name: str
    value: str
    line: str


def _statements(text: bytes, known: Container[str], *, is_start: bool) -> Iterator[_Statement]:
    for rule in _RULES:
        if rule.fact is None or rule.fact not in known:
            yield from _by_rule(text, rule)
    for position, line in _lines_with(text, b"export "):
        exported = _EXPORT.match(line)
        if exported is not None:
            yield from _variables(position, _ASSIGNMENT.findall(exported["rest"]))
    for needle in _ALONE_NEEDLES if is_start else ():  # where a run prints its environment
        for position, line in _lines_with(text, needle):
            alone = _ALONE.match(line)
            if alone is not None:
                yield from _variables(position, [(alone[1], alone[2])])
    for position, line in _lines_with(text, b"env_vars"):
        dictionary = _ENV_VARS.search(line)
        if dictionary is not None:
            yield from _variables(position, _DICT_ITEM.findall(dictionary["rest"]))


def _by_rule(text: bytes, rule: Rule) -> Iterator[_Statement]:
    for position, line in _lines_with(text, rule.needle):
        match = rule.pattern.search(line)
        if match is None or (rule.cautious and _OFTEN_WRONG.search(line)):
            continue
        if rule.near and text.rfind(rule.near, max(0, position - 20_000), position) < 0:
            continue
        name = rule.fact or _canonical(match["name"])
        yield _Statement(position, name, rule.constant or match["value"], line)
        if rule.fact is not None:
            return


def _lines_with(text: bytes, needle: bytes) -> Iterator[tuple[int, str]]:
    """Yield start and text, without colour and prefix, of the first lines that hold ``needle``."""
    position = 0
    for _ in range(_MAX_TRIES):
        position = text.find(needle, position)
        if position < 0:
            return
        start = max(text.rfind(b"\n", 0, position) + 1, position - 2000)
        end = text.find(b"\n", position, position + 4000)
        row = text[start : end if end >= 0 else position + 4000]
        yield start, strip_prefix(strip_ansi(row.decode("utf-8", "replace")))[1]
        position = end if end >= 0 else position + 4000


def _variables(position: int, assignments: list[tuple[str, str]]) -> Iterator[_Statement]:
    for name, quoted in assignments:
        value = quoted.strip("'\"")
        if is_fact(name, value):
            # The line may hold other variables too, and secrets among them.
            yield _Statement(position, f"env.{name}", value, f"{name}={quoted}")


def _canonical(name: str) -> str:
    name = name.lower().replace("-", "_")
    return _OTHER_NAMES.get(name, name)


READER = Reader(FORMAT, ArtifactKind.ENVIRONMENT, _sniff, _read)
