"""Compare what the two runs put around a question: chat templates, or MindSpeed-RL's slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from align.core.config_value import RawConfig
from align.core.errors import AlignError
from align.core.figure import Cell, Column, Table
from align.core.finding import Finding
from align.core.run import ArtifactKind
from align.core.text import Text
from dumps.readers.reader import no_progress
from dumps.readers.registry import reader_named
from dumps.readers.slot_templates import SlotTemplate
from dumps.store.run_data import RunData
from tokenizer_check import template_findings
from tokenizer_check.chat_template import (
    CONVERSATIONS,
    SINGLE_TURNS,
    Conversation,
    Rendering,
    diff_renderings,
    render,
    spans,
)
from tokenizer_check.content import Content, Found

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tokenizers = tuple["Tokenizer | None", "Tokenizer | None"]
_MAX_SPAN = 60
_RECIPE = "mindspeed_rl_dataset_yaml"


@dataclass(frozen=True, slots=True)
class PromptSource:
    """What makes the prompts of one run: a chat template, or a named template of slots."""

    found: Found[str]
    slots: SlotTemplate | None = None

    def renderings(
        self, tokens: Mapping[str, str], conversations: Sequence[Conversation]
    ) -> Sequence[Rendering]:
        """Render the conversations, one `Rendering` each."""
        if self.slots is None:
            return render(self.found.value, tokens, conversations)
        return [Rendering(_prompt(self.slots, each, tokens)) for each in conversations]


@dataclass(frozen=True, slots=True)
class TemplateComparison:
    """Findings and tables; ``is_compared`` where both sides have a source of prompts."""

    is_compared: bool
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = field(default=())


def prompt_source(data: RunData, content: Content) -> PromptSource | None:
    """Return what makes a run's prompts.

    MindSpeed-RL's data preparation uses the template that ``prompt_type`` names, not the
    tokenizer's. Without that name a file of a single template is taken, of several none.
    """
    if content.slots is not None:
        known = content.slots.value
        name = _prompt_type(data) or (next(iter(known)) if len(known) == 1 else None)
        if name is not None and name in known:
            slots = known[name]
            found = Found(repr(slots), content.slots.path, name, None)
            return PromptSource(found, slots)
    return None if content.template is None else PromptSource(content.template)


def _prompt_type(data: RunData) -> str | None:
    """Return the template that the run's files name; None where they name none or several."""
    found = {
        value.value
        for config in (*data.configs, *_recipes(data))
        for key, value in config.values.items()
        if key.rpartition(".")[2] == "prompt_type" and isinstance(value.value, str)
    }
    return found.pop() if len(found) == 1 else None


def _recipes(data: RunData) -> Iterator[RawConfig]:
    """Yield the settings of data preparation."""
    for artifact in data.run.of_kind(ArtifactKind.DATA):
        if artifact.format == _RECIPE:
            try:
                yield reader_named(artifact.format, artifact.kind).read(artifact.path, no_progress)
            except AlignError as error:
                data.problems.append(error)


def compare_templates(
    sources: tuple[PromptSource | None, PromptSource | None],
    tokens: Mapping[str, str],
    load: Callable[[], Tokenizers],
) -> TemplateComparison:
    """Render the same conversations on both sides.

    Args:
        tokens: special tokens by name; the same for both sides, as they are compared on their own.
        load: returns the tokenizers that count tokens; called where a rendering differs.
    """
    ours, theirs = sources
    if ours is None or theirs is None:
        return TemplateComparison(is_compared=False)
    if ours.found.value == theirs.found.value:
        return TemplateComparison(is_compared=True)
    by_slots = ours.slots is not None or theirs.slots is not None
    conversations = SINGLE_TURNS if by_slots else CONVERSATIONS
    sides = [source.renderings(tokens, conversations) for source in (ours, theirs)]
    diff = diff_renderings(conversations, sides[0], sides[1])
    finding = template_findings.chat_template(diff, ours.found, theirs.found)
    tables = (_table(conversations, sides, load()),) if diff.differing else ()
    return TemplateComparison(True, (finding,), tables)


def slot_table(
    contents: tuple[Content, Content], tokens: Mapping[str, str], chosen: bool
) -> Iterator[Table]:
    """Set every template of a templates.json against the other side's chat template.

    Args:
        chosen: the template in use is known on both sides, so that the others do not matter.
    """
    for own, other in (contents, contents[::-1]):
        if own.slots is None or other.template is None or chosen:
            continue
        expected = render(other.template.value, tokens, SINGLE_TURNS)
        rows = [_slot_row(template, tokens, expected) for template in own.slots.value.values()]
        yield Table(
            "tokenizer.slot_templates",
            Text(
                "Templates of templates.json against the other side's chat template",
                "templates.json 各模板与另一侧 chat template 的对比",
            ),
            (
                Column("prompt_type", Text("prompt_type", "prompt_type")),
                Column("same", Text("same", "是否相同")),
                Column("spans", Text("differs at", "差异片段")),
            ),
            tuple(rows),
        )


def _slot_row(
    template: SlotTemplate, tokens: Mapping[str, str], expected: Sequence[Rendering]
) -> tuple[Cell, ...]:
    made = [_prompt(template, each, tokens) for each in SINGLE_TURNS]
    differing = [
        (text, wanted.text)
        for text, wanted in zip(made, expected, strict=True)
        if wanted.text is not None and text != wanted.text
    ]
    return (template.name, "≠" if differing else "=", _shown(differing[0]) if differing else None)


def _prompt(slots: SlotTemplate, conversation: Conversation, tokens: Mapping[str, str]) -> str:
    said = {str(m["role"]): str(m["content"]) for m in conversation.messages}
    return slots.prompt(said["user"], said.get("system"), tokens)


def _table(
    conversations: Sequence[Conversation],
    sides: Sequence[Sequence[Rendering]],
    tokenizers: Tokenizers,
) -> Table:
    return Table(
        "tokenizer.rendered",
        Text("Conversations, as each side renders them", "各测试对话的渲染结果"),
        (
            Column("conversation", Text("conversation", "对话")),
            Column("same", Text("same", "是否相同")),
            Column("reference", Text("tokens, reference", "token 数（参考）"), numeric=True),
            Column("candidate", Text("tokens, candidate", "token 数（被测）"), numeric=True),
            Column("spans", Text("reference → candidate", "参考 → 被测")),
        ),
        tuple(
            (each.name, *_row((a, b), tokenizers))
            for each, a, b in zip(conversations, *sides, strict=True)
        ),
    )


def _row(pair: tuple[Rendering, Rendering], tokenizers: Tokenizers) -> tuple[Cell, ...]:
    counts = [
        None
        if rendering.text is None or tokenizer is None
        else len(tokenizer.encode(_encodable(rendering.text), add_special_tokens=False).ids)
        for rendering, tokenizer in zip(pair, tokenizers, strict=True)
    ]
    ours, theirs = pair
    if ours.failed is not None or theirs.failed is not None:
        return (None, *counts, ours.failed or theirs.failed)
    if ours.text is None or theirs.text is None:
        refused = " → ".join("refused" if each.text is None else "rendered" for each in pair)
        return ("=" if ours.text == theirs.text else "≠", *counts, refused)
    if ours.text == theirs.text:
        return ("=", *counts, None)
    return ("≠", *counts, _shown((ours.text, theirs.text)))


def _shown(pair: tuple[str, str]) -> str:
    """Quote the differing spans of two renderings, the first three of them."""
    found = spans(*pair)
    shown = [f"{_cut(a)!r} → {_cut(b)!r}" for a, b in found[:3]]
    return "; ".join(shown) + (f"; … {len(found)} in all" if len(found) > 3 else "")


def _cut(text: str) -> str:
    text = _encodable(text)
    return text if len(text) <= _MAX_SPAN else f"{text[: _MAX_SPAN - 1]}…"


def _encodable(text: str) -> str:
    """Replace halves of characters, which JSON may hold and UTF-8 may not."""
    return text.encode("utf-8", "replace").decode("utf-8")
