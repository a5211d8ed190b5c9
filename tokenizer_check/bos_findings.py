"""What the tokenizer rung says about a begin token before every prompt, in words."""

from __future__ import annotations

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from tokenizer_check.content import Found
from tokenizer_check.recorded_prompts import Beginning

_ID = "tokenizer.add_bos_token"
_WHY = Text(
    "A tokenizer with add_bos_token, or with a begin token in its post-processor, puts it before "
    "a prompt that a chat template has already begun: every prompt is longer and begins otherwise "
    "than the model was trained on.",
    "若 tokenizer 设置了 add_bos_token，或其 post-processor 含起始符，"
    "就会在 chat template 已写好开头的 prompt 前再加一个起始符：每条 prompt 变长，"
    "且开头与模型训练时不同。",
)
_FIX = Text(
    "Encode the rendered prompt with add_special_tokens=False on both sides, and set "
    "add_bos_token alike.",
    "两侧都用 add_special_tokens=False 编码渲染后的 prompt，并统一 add_bos_token。",
)
_MECHANISM = Mechanism(Rung.TOKENIZER, Strength.SEMANTIC)


def by_prompts(token: str, reference: Beginning, candidate: Beginning) -> Finding:
    """Say how many begin tokens stand before every recorded prompt."""
    return Finding(
        id=_ID,
        rung=Rung.TOKENIZER,
        severity=Severity.ERROR,
        title=Text(
            f"every recorded prompt begins with {reference.num_bos} begin tokens {token} in the "
            f"reference, {candidate.num_bos} in the candidate",
            f"每条记录的 prompt 开头的起始符 {token} 数量：参考为 {reference.num_bos}，"
            f"被测为 {candidate.num_bos}",
        ),
        reference=reference.num_bos,
        candidate=candidate.num_bos,
        evidence=tuple(
            Evidence(
                source=found.source,
                side=side,
                line=found.line,
                key="prompt_ids",
                text=f"{', '.join(map(str, found.ids))}, … ({found.num_prompts} prompts begin so)",
                values=found.ids,
            )
            for side, found in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
        ),
        why=_WHY,
        fix=_FIX,
        mechanism=_MECHANISM,
    )


def by_files(reference: Found[tuple[str, ...]], candidate: Found[tuple[str, ...]]) -> Finding:
    """Say what the tokenizer puts before a text, where no prompt was recorded as ids."""
    ours, theirs = (" ".join(found.value) or None for found in (reference, candidate))
    return Finding(
        id=_ID,
        rung=Rung.TOKENIZER,
        severity=Severity.WARNING,
        title=Text(
            f"the tokenizer puts {ours or 'nothing'} before a text in the reference, "
            f"{theirs or 'nothing'} in the candidate",
            f"tokenizer 在文本前加入的 token：参考为 {ours or '无'}，被测为 {theirs or '无'}",
        ),
        reference=ours,
        candidate=theirs,
        evidence=tuple(
            Evidence(
                source=str(found.path),
                side=side,
                line=found.line,
                key=found.key,
                values=found.value,
            )
            for side, found in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
        ),
        why=Text(
            f"{_WHY.en} A trainer that encodes prompts with add_special_tokens=False is not "
            "affected, and prompts were not recorded as ids.",
            f"{_WHY.zh}以 add_special_tokens=False 编码 prompt 的训练器不受影响，"
            "而这里没有记录 prompt 的 id。",
        ),
        fix=_FIX,
        mechanism=_MECHANISM,
    )
