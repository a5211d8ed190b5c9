"""What the tokenizer rung says about chat templates, in words."""

from __future__ import annotations

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from tokenizer_check.chat_template import CONVERSATIONS, Rendering, TemplateDiff, parting
from tokenizer_check.content import Found

_SPAN = 80  # characters quoted in a title; evidence has up to 200
_WHY = Text(
    "The chat template is the text around every question. With another one the model is asked "
    "something else from step 1 on, and every prompt has other token ids.",
    "chat template 决定每个问题前后的文本。模板不同，模型从第 1 步起收到的输入就不同，"
    "每条 prompt 的 token id 也不同。",
)
_FIX = Text(
    "Use one chat template on both sides: the same chat_template.jinja (it replaces the one in "
    "tokenizer_config.json), or the same custom_chat_template.",
    "两侧使用同一个 chat template：相同的 chat_template.jinja（它优先于 tokenizer_config.json "
    "中的模板），或相同的 custom_chat_template。",
)
_MECHANISM = Mechanism(Rung.TOKENIZER, Strength.SEMANTIC)


def chat_template(diff: TemplateDiff, reference: Found[str], candidate: Found[str]) -> Finding:
    """Say how two templates with different text render."""
    if diff.differing:
        return _differing(diff, reference, candidate)
    return (
        _unknown(diff.failed, reference, candidate) if diff.failed else _same(reference, candidate)
    )


def _differing(diff: TemplateDiff, reference: Found[str], candidate: Found[str]) -> Finding:
    conversation, *renderings = diff.differing[0]
    texts = [_shown(rendering) for rendering in renderings]
    at = parting(*texts)
    ours, theirs = (text[at : at + _SPAN] for text in texts)
    count = f"{len(diff.differing)}/{len(CONVERSATIONS)}"
    return Finding(
        id="tokenizer.chat_template",
        rung=Rung.TOKENIZER,
        severity=Severity.ERROR,
        title=Text(
            f"the chat templates render {len(diff.differing)} of {len(CONVERSATIONS)} test "
            f"conversations differently; first ({conversation.name.en}): {ours!r} in the "
            f"reference, {theirs!r} in the candidate",
            f"两侧 chat template 对 {len(CONVERSATIONS)} 个测试对话中的 {len(diff.differing)} 个"
            f"渲染不同；首个（{conversation.name.zh}）：参考为 {ours!r}，被测为 {theirs!r}",
        ),
        reference=ours,
        candidate=theirs,
        evidence=(
            *_places(reference, candidate),
            *(
                Evidence(
                    source=f"rendered: {conversation.name.en}",
                    side=side,
                    text=_around(text, at),
                    values=(at, count),
                )
                for side, text in zip((Side.REFERENCE, Side.CANDIDATE), texts, strict=True)
            ),
        ),
        why=_WHY,
        fix=_FIX,
        mechanism=_MECHANISM,
    )


def _shown(rendering: Rendering) -> str:
    text = f"[refused: {rendering.refused}]" if rendering.text is None else rendering.text
    return _printable(text)


def _around(text: str, at: int) -> str:
    """Quote up to 200 characters in one line, some of them shared."""
    start = max(0, at - 40)
    return _printable(text[start : start + 200]).replace("\n", "\\n")[:200]


def _printable(text: str) -> str:
    """Replace halves of characters, which JSON may hold and UTF-8 may not."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _unknown(failed: str, reference: Found[str], candidate: Found[str]) -> Finding:
    return Finding(
        id="tokenizer.chat_template",
        rung=Rung.TOKENIZER,
        severity=Severity.WARNING,
        title=Text(
            f"the chat templates are not the same text, and could not be rendered: {failed[:120]}",
            f"两侧 chat template 文本不同，且无法渲染：{failed[:120]}",
        ),
        reference=len(reference.value),
        candidate=len(candidate.value),
        evidence=_places(reference, candidate),
        why=_WHY,
        fix=_FIX,
        mechanism=_MECHANISM,
    )


def _same(reference: Found[str], candidate: Found[str]) -> Finding:
    return Finding(
        id="tokenizer.chat_template",
        rung=Rung.TOKENIZER,
        severity=Severity.INFO,
        title=Text(
            f"the chat templates are not the same text, and render {len(CONVERSATIONS)} test "
            "conversations the same",
            f"两侧 chat template 文本不同，但 {len(CONVERSATIONS)} 个测试对话的渲染结果相同",
        ),
        reference=len(reference.value),
        candidate=len(candidate.value),
        evidence=_places(reference, candidate),
        why=Text(
            "Rendered were questions with and without a system prompt, of one and of three turns; "
            "not tools, images or reasoning.",
            "渲染了有无 system prompt 的单轮与三轮对话；未渲染工具、图像与推理内容。",
        ),
        fix=Text("Nothing to change without tools or images.", "不使用工具或图像时无需修改。"),
    )


def _places(reference: Found[str], candidate: Found[str]) -> tuple[Evidence, ...]:
    """Point to where the two template texts part."""
    at = parting(reference.value, candidate.value)
    return tuple(
        Evidence(
            source=str(found.path),
            side=side,
            line=found.line if found.key else found.value.count("\n", 0, at) + 1,
            key=found.key,
            text=_around(found.value, at),
        )
        for side, found in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    )
