"""Set the ends of responses against each other: stop sets, padding, and what really ends a turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from align.core.figure import Cell, Column, Table
from align.core.finding import Finding, Side
from align.core.text import Text
from dumps.store.run_data import RunData
from tokenizer_check import end_findings
from tokenizer_check.chat_template import render
from tokenizer_check.content import Content, Found
from tokenizer_check.end_sets import (
    PREPARES,
    EndSet,
    Ids,
    Stated,
    end_sets,
    engine_stops,
    id_of,
    stated,
    stripped,
)
from tokenizer_check.recorded_responses import (
    RecordedResponses,
    TrainedEnds,
    recorded_responses,
    trained_ends,
)
from tokenizer_check.special_tokens import SpecialTokens
from tokenizer_check.template_comparison import PromptSource
from tokenizer_check.turn_end import CONVERSATION, turn_end

_FRAMEWORKS = {"verl": "verl", "mindspeed_rl": "MindSpeed-RL", "trl": "TRL"}
_KEEP_ALL = frozenset({"verl", "trl"})  # frameworks that cut nothing off by its id


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The token a template writes after an answer, and its id where the files have it."""

    text: str
    id: int | None
    template: Found[str]

    def shown(self) -> str:
        """Return ``<|im_end|> (151645)``."""
        return self.text if self.id is None else f"{self.text} ({self.id})"


@dataclass(frozen=True)
class Ending:
    """Everything about the ends of one run's responses.

    Args:
        prepared: the eos that MindSpeed-RL's data preparation uses; None without its template.
    """

    side: Side
    name: Text
    data: RunData
    stated: Stated
    turn_end: TurnEnd | None
    prepared: Ids | None

    @cached_property
    def recorded(self) -> RecordedResponses:
        """How its recorded responses end."""
        return recorded_responses(self.data)

    @cached_property
    def trained(self) -> TrainedEnds | None:
        """How many of its trainer's rows lose their end token."""
        ends = self.stops or self.stated.generation or frozenset[int]()
        if self.stated.eos is not None:
            ends |= {self.stated.eos}
        return trained_ends(self.data, ends) if ends else None

    @property
    def stops(self) -> Ids | None:
        """Ids at which its engine stops; None where not known."""
        return engine_stops(self.stated)

    @property
    def runs_on(self) -> bool | None:
        """Whether its engine does not stop where the template ends a turn; None if not known."""
        if self.stops is None or self.turn_end is None or self.turn_end.id is None:
            return None
        return self.turn_end.id not in self.stops

    @property
    def strips(self) -> Ids | None:
        """End tokens that its own framework cuts off as padding; None where not known."""
        if self.data.framework in _KEEP_ALL:
            return frozenset()
        return stripped(self.stated) if self.data.framework == "mindspeed_rl" else None


@dataclass(frozen=True, slots=True)
class EndComparison:
    """Both sides; ``consequences`` are said by the finding about eos or pad where there is one."""

    reference: Ending
    candidate: Ending

    @property
    def sides(self) -> tuple[Ending, Ending]:
        """Reference, candidate."""
        return self.reference, self.candidate

    @property
    def consequences(self) -> tuple[Text, ...]:
        """What the sets come to in either run."""
        return tuple(self._consequences())

    def _consequences(self) -> Iterator[Text]:
        for own, other in (self.sides, self.sides[::-1]):
            if own.runs_on and not other.runs_on:
                yield end_findings.runs_on(own)
        for own, other in (self.sides, self.sides[::-1]):
            cut, others = stripped(own.stated), stripped(other.stated)
            if cut and cut != others:
                yield end_findings.would_strip(own, cut, self.sides)
        for own in self.sides:
            if own.trained is not None and own.trained.num_lost:
                yield end_findings.lost_in_training(own, own.trained)

    def findings(self) -> Iterator[Finding]:
        """Yield what differs though eos and pad are stated alike."""
        ours, theirs = self.sides
        if None not in (ours.runs_on, theirs.runs_on) and ours.runs_on != theirs.runs_on:
            yield end_findings.turn_end(ours, theirs)
        elif ours.stops is not None and theirs.stops is not None and ours.stops != theirs.stops:
            yield end_findings.stop_set(ours, theirs)
        if None not in (ours.strips, theirs.strips) and ours.strips != theirs.strips:
            yield end_findings.stripped_eos(ours, theirs)

    def table(self) -> Table:
        """Return every framework's sets of both sides."""
        sets = [
            (*end_sets(side.stated), EndSet("MindSpeed-RL", PREPARES, side.prepared))
            for side in self.sides
        ]
        rows = [
            (a.framework, self._user(a.framework), a.use, *_compared(a.ids, b.ids))
            for a, b in zip(*sets, strict=True)
            if a.use is not PREPARES or (a.ids, b.ids) != (None, None)
        ]
        return Table(
            "tokenizer.end_sets",
            Text(
                "Where each framework would end a response, and what it would take for padding",
                "各框架认定的回复结尾与填充",
            ),
            (
                Column("framework", Text("framework", "框架")),
                Column("used_by", Text("used by", "使用方")),
                Column("use", Text("set", "集合")),
                Column("same", Text("same", "是否相同")),
                Column("reference", Text("reference", "参考")),
                Column("candidate", Text("candidate", "被测")),
            ),
            tuple(rows),
        )

    def _user(self, framework: str) -> Text | None:
        names = [
            side.name
            for side in self.sides
            if framework.startswith(_FRAMEWORKS.get(side.data.framework or "", "?"))
        ]
        if len(names) == 2:
            return Text("both", "两侧")
        return names[0] if names else None


def ending(
    side: Side,
    data: RunData,
    content: Content,
    tokens: SpecialTokens,
    source: PromptSource | None,
) -> Ending:
    """Collect what one run's files say about the ends of its responses."""
    name = Text("reference", "参考") if side is Side.REFERENCE else Text("candidate", "被测")
    own = stated(tokens, content)
    end = _turn_end(content, tokens, source)
    return Ending(side, name, data, own, end, _prepared(own, content, source))


def _prepared(own: Stated, content: Content, source: PromptSource | None) -> Ids | None:
    """Return the eos of data preparation: replace_eos takes the template's first stop word."""
    if source is None or source.slots is None:
        return None
    words = source.slots.stop_words if source.slots.replace_eos else ()
    number = id_of(words[0], content) if words else own.eos
    return None if number is None else frozenset({number})


def _turn_end(
    content: Content, tokens: SpecialTokens, source: PromptSource | None
) -> TurnEnd | None:
    """Render an answer with the run's own template and own tokens."""
    if source is None or source.slots is not None:
        return None
    texts = {f"{role}_token": t.text for (_, role), t in tokens.tokens.items() if t.text}
    (rendering,) = render(source.found.value, texts, (CONVERSATION,))
    known = {token for added in content.added.values() for token in added.value}
    text = turn_end(rendering, {*known, *texts.values()})
    return None if text is None else TurnEnd(text, id_of(text, content), source.found)


def _compared(ours: Ids | None, theirs: Ids | None) -> tuple[Cell, ...]:
    same = None if ours is None or theirs is None else "=" if ours == theirs else "≠"
    return (same, _shown(ours), _shown(theirs))


def _shown(ids: Ids | None) -> str | None:
    """Return the ids in order; "none" for an empty set, None where it is not known."""
    return None if ids is None else ", ".join(map(str, sorted(ids))) or "none"
