"""Rules by which verifiers find an answer in a response, to score dumped responses again.

Each is the extraction alone, of the last match; answers are compared as text without spaces,
commas, currency and a final full stop. Sources: verl `gsm8k` ("#### 5"), `math_reward` (\\boxed),
MindSpeed-RL `base_acc` (<answer>), and what remains where no format is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_HASHES = re.compile(r"####\s*([^\n]+)")
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_NOISE = str.maketrans("", "", " ,$￥\n\t")


def _last(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    def find(response: str) -> str | None:
        found = pattern.findall(response)
        return found[-1] if found else None

    return find


RULES: Mapping[str, Callable[[str], str | None]] = {
    "#### ANSWER": _last(_HASHES),
    "\\boxed{ANSWER}": _last(_BOXED),
    "<answer>ANSWER</answer>": _last(_TAG),
    "last number": _last(_NUMBER),
    "whole response": lambda response: response,
}


def is_right(rule: str, response: str, truth: str) -> bool:
    """Tell whether the answer that a rule finds is the ground truth."""
    answer = RULES[rule](response)
    return answer is not None and _plain(answer) == _plain(truth)


def _plain(text: str) -> str:
    return text.translate(_NOISE).removesuffix(".")
