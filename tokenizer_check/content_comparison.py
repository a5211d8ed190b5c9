"""Set the content of two runs' tokenizers against each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from align.core.figure import Table
from align.core.finding import Finding, Severity
from align.core.text import Text
from dumps.store.run_data import RunData
from tokenizer_check import bos_findings, content_findings
from tokenizer_check.content import Content
from tokenizer_check.content_diff import diff_added, diff_merges, diff_vocabularies
from tokenizer_check.encoding_comparison import compare_texts
from tokenizer_check.loaded import LoadedPair
from tokenizer_check.recorded_prompts import beginning
from tokenizer_check.special_tokens import ROLES, SpecialTokens
from tokenizer_check.template_comparison import PromptSource, compare_templates, slot_table


@dataclass(frozen=True, slots=True)
class ContentComparison:
    """Findings and tables about content, and the kinds of content that both sides have."""

    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]
    compared: tuple[Text, ...]
    not_compared: tuple[Text, ...]


def compare_content(
    reference: RunData,
    candidate: RunData,
    contents: tuple[Content, Content],
    tokens: tuple[SpecialTokens, SpecialTokens],
    sources: tuple[PromptSource | None, PromptSource | None],
) -> ContentComparison:
    """Compare what both sides have; what one side lacks is not compared."""
    ours, theirs = contents
    loaded = LoadedPair(contents)
    texts = _token_texts(tokens)
    templates = compare_templates(sources, texts, loaded.each)
    found = (
        *templates.findings,
        *_begin_token(reference, candidate, ours, theirs, tokens),
        *_vocabulary(ours, theirs),
        *_merges(ours, theirs),
        *_added(ours, theirs),
        *_padding_side(ours, theirs),
        *_ends_with(ours, theirs),
    )
    is_explained = any(
        finding.severity is Severity.ERROR and finding.id in _DECIDE_IDS for finding in found
    )
    encoded = compare_texts((reference, candidate), contents, loaded, is_explained=is_explained)
    has = {
        Text("chat template", "chat template"): templates.is_compared,
        Text("merges", "merges"): ours.merges and theirs.merges,
        Text("vocabulary", "词表"): ours.vocabulary and theirs.vocabulary,
        Text("added tokens", "附加 token"): ours.added and theirs.added,
        **encoded.compared,
    }
    chosen = all(source is not None and source.slots is not None for source in sources)
    return ContentComparison(
        (
            *found,
            *encoded.findings,
            *content_findings.contradictions(ours.contradicting, theirs.contradicting),
        ),
        (*templates.tables, *slot_table(contents, texts, chosen), *encoded.tables),
        tuple(name for name, both in has.items() if both),
        tuple(name for name, both in has.items() if not both),
    )


_DECIDE_IDS = frozenset({"tokenizer.vocabulary", "tokenizer.merges", "tokenizer.added_tokens"})


def _token_texts(tokens: tuple[SpecialTokens, SpecialTokens]) -> dict[str, str]:
    """Return one text per role for both sides: where they differ is another finding."""
    stated = {
        role: token.text
        for side in tokens[::-1]
        for (_, role), token in side.tokens.items()
        if token.text is not None
    }
    return {f"{role}_token": stated.get(role, f"<{role}>") for role in ROLES if role != "unk"}


def _begin_token(
    reference: RunData,
    candidate: RunData,
    ours: Content,
    theirs: Content,
    tokens: tuple[SpecialTokens, SpecialTokens],
) -> Iterator[Finding]:
    """Believe the prompts that were recorded; without them, what the files ask for."""
    is_recorded = False
    for bos, text in _begin_tokens((ours, theirs), tokens).items():
        x, y = beginning(reference, bos), beginning(candidate, bos)
        is_recorded |= x is not None and y is not None
        if x is not None and y is not None and x.num_bos != y.num_bos:
            yield bos_findings.by_prompts(f"{text} ({bos})", x, y)
            return
    a, b = ours.begins_with, theirs.begins_with
    if not is_recorded and a is not None and b is not None and a.value != b.value:
        yield bos_findings.by_files(a, b)


def _begin_tokens(
    contents: tuple[Content, Content], tokens: tuple[SpecialTokens, SpecialTokens]
) -> dict[int, str]:
    """Return the begin tokens that the tokenizers state, by id."""
    found = {}
    for content, side in zip(contents, tokens, strict=True):
        texts = {t.text for (_, role), t in side.tokens.items() if role == "bos" and t.text}
        for listed in content.added.values():
            found.update({a.id: t for t, a in listed.value.items() if t in texts})
        if content.vocabulary is not None:
            known = content.vocabulary.value
            found.update({known[text]: text for text in texts if text in known})
    return found


def _merges(ours: Content, theirs: Content) -> Iterator[Finding]:
    if ours.merges is None or theirs.merges is None:
        return
    diff = diff_merges(ours.merges.value, theirs.merges.value)
    if diff is not None:
        yield content_findings.merges(diff, ours.merges, theirs.merges)


def _vocabulary(ours: Content, theirs: Content) -> Iterator[Finding]:
    if ours.vocabulary is None or theirs.vocabulary is None:
        return
    listed = [found.value for side in (ours, theirs) for found in side.added.values()]
    besides = frozenset(token for tokens in listed for token in tokens)
    diff = diff_vocabularies(ours.vocabulary.value, theirs.vocabulary.value, besides)
    if diff is not None:
        yield content_findings.vocabulary(diff, ours.vocabulary, theirs.vocabulary)


def _added(ours: Content, theirs: Content) -> Iterator[Finding]:
    """Compare the strongest kind of file that both sides have, else what both list."""
    if not ours.added or not theirs.added:
        return
    kind = next((kind for kind in ours.added if kind in theirs.added), None)
    a = ours.added[kind] if kind else next(iter(ours.added.values()))
    b = theirs.added[kind] if kind else next(iter(theirs.added.values()))
    diff = diff_added(a.value, b.value, is_whole=kind is not None)
    if diff:
        yield content_findings.added_tokens(diff, a, b)


def _padding_side(ours: Content, theirs: Content) -> Iterator[Finding]:
    a, b = ours.padding_side, theirs.padding_side
    if a is not None and b is not None and a.value != b.value:
        yield content_findings.padding_side(a, b)


def _ends_with(ours: Content, theirs: Content) -> Iterator[Finding]:
    a, b = ours.ends_with, theirs.ends_with
    if a is not None and b is not None and a.value != b.value:
        yield content_findings.ends_with(a, b)
