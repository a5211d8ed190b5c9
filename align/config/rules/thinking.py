"""Chat templates differ in what enable_thinking is where nobody sets it.

Source: trl#5405: Qwen3.5's small and large models ship templates that differ only in that default:
the prompt ends with an empty ``<think>\\n\\n</think>`` or with an open ``<think>\\n``.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.text import Text

FIELDS = ("data.chat_template.enable_thinking",)


def rule(case: Case) -> Ruling | None:
    """Say what the switch adds to the prompt."""
    return Ruling(
        Text(
            "The prompt ends with an empty <think></think> on one side: the model answers at once "
            "there and reasons first on the other, so response lengths differ from step 1 on.",
            "一侧的 prompt 以空的 <think></think> 结尾：该侧模型直接作答，另一侧先思考，"
            "因此从第 1 步起回复长度就不同。",
        ),
        instead=True,
        fix=Text(
            "Set enable_thinking on both sides; templates differ in its default.",
            "两侧都显式设置 enable_thinking；不同模板的默认值不同。",
        ),
    )


FIRES = (Example("data.chat_template.enable_thinking", (True, False)),)
SILENT: tuple[Example, ...] = ()  # it has something to say about every difference
