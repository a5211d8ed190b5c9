"""What the curves rung says in Chinese: its words and its punctuation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import align.curves

_HAN = r"[\u4e00-\u9fff]"
_HALF_WIDTH = re.compile(rf"{_HAN}[,;:?!()]|[,;:?!()]{_HAN}|{_HAN}\.(?:$|\s)")
_OTHER_WORDS = re.compile(r"参考侧|被测侧|响应|。且|症状|回报")
MODULES = sorted(Path(align.curves.__path__[0]).glob("*.py"))


def chinese(module: Path) -> Iterator[str]:
    """Yield the string literals with a Chinese character; what is filled in is "0"."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        text = None
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "0" for p in node.values)
            text = "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if text and re.search(_HAN, text):
            yield text


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_chinese_has_full_width_punctuation_and_one_word_for_one_thing(module: Path) -> None:
    faults = [t for t in chinese(module) if _HALF_WIDTH.search(t) or _OTHER_WORDS.search(t)]
    assert faults == []


def test_a_fault_would_be_seen() -> None:
    assert _HALF_WIDTH.search("奖励曲线, 第 3 步")
    assert _OTHER_WORDS.search("被测侧从第 3 步起")
    assert sum(len(list(chinese(module))) for module in MODULES) > 100
