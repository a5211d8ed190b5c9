"""What the tokenizer rung says about chat templates, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from tokenizer_check.chat_template import (
    Conversation,
    Rendering,
    Scope,
    TemplateDiff,
    parting,
    spans,
)
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
_SYSTEM = Text(
    "Only conversations without a system prompt differ: one side puts in a default system prompt.",
    "仅不带 system prompt 的对话不同：其中一侧会加入默认的 system prompt。",
)
_GENERATION = Text(
    "Only what add_generation_prompt adds at the end differs, such as an open or an empty "
    "<think> block.",
    "仅 add_generation_prompt 在结尾加入的内容不同，例如打开的或空的 <think> 块。",
)
_THINKING_DEFAULT = Text(
    "With enable_thinking set, both render the same: its default differs. Set "
    "apply_chat_template_kwargs.enable_thinking on both sides.",
    "显式设置 enable_thinking 时两侧渲染相同：不同的是默认值。"
    "请在两侧都设置 apply_chat_template_kwargs.enable_thinking。",
)
_TOOLS = Text(
    "Only conversations with tools differ; runs without tools are not affected.",
    "仅带工具的对话不同；不使用工具的运行不受影响。",
)
_THINKING = Text(
    "Only conversations with reasoning or enable_thinking differ; runs without are not affected.",
    "仅含推理内容或设置 enable_thinking 的对话不同；不涉及的运行不受影响。",
)
_MECHANISM = Mechanism(Rung.TOKENIZER, Strength.SEMANTIC)


def chat_template(diff: TemplateDiff, reference: Found[str], candidate: Found[str]) -> Finding:
    """Say how two templates with different text render."""
    if diff.differing:
        return _differing(diff, reference, candidate)
    return (
        _unknown(diff.failed, reference, candidate)
        if diff.failed
        else _same(len(diff.rendered), reference, candidate)
    )


def _differing(diff: TemplateDiff, reference: Found[str], candidate: Found[str]) -> Finding:
    conversation, *renderings = diff.differing[0]
    texts = [_shown(rendering) for rendering in renderings]
    at = parting(*texts)
    ours, theirs = (text[at : at + _SPAN] for text in texts)
    count = f"{len(diff.differing)}/{len(diff.rendered)}"
    scopes = {each.scope for each, _, _ in diff.differing}
    notes = (_WHY, *_kinds(diff, scopes))
    return Finding(
        id="tokenizer.chat_template",
        rung=Rung.TOKENIZER,
        severity=Severity.ERROR if Scope.EVERY in scopes else Severity.WARNING,
        title=Text(
            f"the chat templates render {len(diff.differing)} of {len(diff.rendered)} test "
            f"conversations differently; first ({conversation.name.en}): {ours!r} in the "
            f"reference, {theirs!r} in the candidate",
            f"两侧 chat template 对 {len(diff.rendered)} 个测试对话中的 {len(diff.differing)} 个"
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
        why=Text(" ".join(note.en for note in notes), "".join(note.zh for note in notes)),
        fix=_FIX,
        mechanism=_MECHANISM,
    )


def _kinds(diff: TemplateDiff, scopes: set[Scope]) -> Iterator[Text]:
    """Say what the differing conversations have in common, and quote what one side adds."""
    if Scope.EVERY not in scopes:
        yield _TOOLS if scopes == {Scope.TOOLS} else _THINKING
        return
    every = [each for each, _, _ in diff.differing if each.scope is Scope.EVERY]
    if _sets_apart(diff, every, lambda each: not each.has_system):
        yield _SYSTEM
        yield from _added(diff)
    if _sets_apart(diff, every, lambda each: each.add_generation_prompt):
        explicit = any("enable_thinking" in each.values for each, _, _ in diff.differing)
        yield _GENERATION if explicit else _THINKING_DEFAULT


def _sets_apart(
    diff: TemplateDiff, differing: Sequence[Conversation], has: Callable[[Conversation], bool]
) -> bool:
    """Tell whether a property sets the differing conversations apart from equal ones."""
    return all(map(has, differing)) and not all(map(has, diff.rendered))


def _added(diff: TemplateDiff) -> Iterator[Text]:
    """Quote the span that stands on one side alone."""
    _, ours, theirs = diff.differing[0]
    if ours.text is None or theirs.text is None:
        return
    found = spans(ours.text, theirs.text)
    if len(found) == 1 and "" in found[0]:
        text = _printable("".join(found[0]))[:_SPAN]
        side = Text("candidate", "被测") if found[0][1] else Text("reference", "参考")
        yield Text(f"The {side.en} adds {text!r}.", f"{side.zh}多出 {text!r}。")


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


def _same(num_rendered: int, reference: Found[str], candidate: Found[str]) -> Finding:
    return Finding(
        id="tokenizer.chat_template",
        rung=Rung.TOKENIZER,
        severity=Severity.INFO,
        title=Text(
            f"the chat templates are not the same text, and render {num_rendered} test "
            "conversations the same",
            f"两侧 chat template 文本不同，但 {num_rendered} 个测试对话的渲染结果相同",
        ),
        reference=len(reference.value),
        candidate=len(candidate.value),
        evidence=_places(reference, candidate),
        why=Text(
            "Rendered were questions with and without a system prompt, of one and of three turns, "
            "with tools and with reasoning where the template takes them; not images.",
            "渲染了有无 system prompt 的单轮与三轮对话，以及模板支持的工具与推理内容；未渲染图像。",
        ),
        fix=Text("Nothing to change without images.", "不使用图像时无需修改。"),
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
