"""Where padding and end of response are one token, masking the padding masks the end.

Source: trl#1623, trl#3091: the collator masks every pad id, the true eos with them. MindSpeed-RL
cuts a response at its first pad and keeps one where pad is eos, so a response that was cut off at
the length limit gains an eos it never had.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf
from align.core.text import Text

FIELDS = ("model.pad_token_id",)


def rule(case: Case) -> Ruling | None:
    """Say what is lost where padding is the end token on one side only."""
    ends = case.values("model.eos_token_id")
    pads = (case.reference.value, case.candidate.value)
    same = [_is_end(pad, end) for pad, end in zip(pads, ends, strict=True)]
    if same[0] == same[1]:
        return None
    side = Text("reference", "参考") if same[0] else Text("candidate", "被测")
    return Ruling(
        Text(
            f"In the {side.en} padding is the end token: masked as padding, the true end is lost "
            "from the loss and the model does not learn to stop.",
            f"{side.zh}的填充与结束符是同一个 token：若按填充屏蔽，真正的结束符会从损失中丢失，"
            "模型学不到何时结束。",
        ),
        fix=Text(
            "Use another token for padding, or mask by length and not by id.",
            "使用另一个 token 作填充，或按长度而不是按 id 屏蔽。",
        ),
    )


def _is_end(pad: ConfigLeaf, end: ConfigLeaf) -> bool:
    return pad is not None and pad in (end if isinstance(end, tuple) else (end,))


FIRES = (Example("model.pad_token_id", (151643, 151645), both={"model.eos_token_id": (151645,)}),)
SILENT = (
    Example("model.pad_token_id", (0, 1), both={"model.eos_token_id": (2,)}),
    Example("model.pad_token_id", (0, 1)),
)
