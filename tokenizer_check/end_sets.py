"""Where each framework ends a response and what it takes for padding, given one run's files.

Sources: vLLM SamplingParams.update_from_generation_config (the tokenizer's eos and the eos list of
generation_config.json both stop); verl to 0.6 get_response_mask with the eos of
generation_config.json, verl 0.7 and later with recorded lengths, both with set_pad_token_id; TRL
1.x GRPOTrainer; MindSpeed-RL remove_padding_and_split_to_list, called with ``pad if pad else eod``.
"""

from __future__ import annotations

from dataclasses import dataclass

from align.core.text import Text
from tokenizer_check.content import Content
from tokenizer_check.special_tokens import OF_GENERATION, OF_TOKENIZER, File, SpecialTokens, Token

Ids = frozenset[int]


@dataclass(frozen=True, slots=True)
class Stated:
    """What one run's files say, as ids; None where no file does.

    Args:
        eos: of the tokenizer.
        generation: ids that end generation: generation_config.json, else config.json.
        pad: of the tokenizer; None also where its file says null.
        is_pad_known: whether a tokenizer file was read, so that None means null.
    """

    eos: int | None
    generation: Ids | None
    pad: int | None
    is_pad_known: bool


@dataclass(frozen=True, slots=True)
class EndSet:
    """One line of the table: a framework, what the set is for, the ids. None: not known."""

    framework: str
    use: Text
    ids: Ids | None


STOPS = Text("engine stops at", "推理引擎停止于")
ENDS = Text("trainer ends a response at", "训练侧认定的回复结尾")
PADS = Text("padding", "填充")
PREPARES = Text("eos when data is prepared", "数据预处理时的 eos")
STRIPS = Text("end tokens cut off as padding", "被当作填充截去的结束符")


def stated(tokens: SpecialTokens, content: Content) -> Stated:
    """Collect the ids of one run."""
    eos, pad = _of(tokens, "eos", OF_TOKENIZER), _of(tokens, "pad", OF_TOKENIZER)
    generation = _of(tokens, "eos", OF_GENERATION)
    pad_id = _id(pad, content)
    is_read = any(file is File.TOKENIZER_CONFIG for file, _ in tokens.tokens)
    return Stated(
        eos=_id(eos, content),
        generation=generation.ids if generation else None,
        pad=pad_id,
        is_pad_known=is_read and (pad is None or pad_id is not None),
    )


def _of(tokens: SpecialTokens, role: str, files: tuple[File, ...]) -> Token | None:
    return next((tokens.tokens[f, role] for f in files if (f, role) in tokens.tokens), None)


def _id(token: Token | None, content: Content) -> int | None:
    if token is None or token.text is None:
        return None
    return next(iter(token.ids), id_of(token.text, content))


def id_of(text: str, content: Content) -> int | None:
    """Return the id of a token's text; None where the files do not have it."""
    for added in content.added.values():
        if text in added.value:
            return added.value[text].id
    return None if content.vocabulary is None else content.vocabulary.value.get(text)


def engine_stops(side: Stated) -> Ids | None:
    """Return vLLM's union; None unless both of its parts are known."""
    if side.eos is None or side.generation is None:
        return None
    return side.generation | {side.eos}


def padding(side: Stated, framework: str) -> int | None:
    """Return the id a framework pads with: pad, or eos where there is none.

    MindSpeed-RL takes pad id 0 for none.
    """
    if not side.is_pad_known:
        return None
    if side.pad is None or (side.pad == 0 and framework == "mindspeed_rl"):
        return side.eos
    return side.pad


def stripped(side: Stated) -> Ids | None:
    """Return the end tokens that MindSpeed-RL cuts off; None where that is not known.

    It cuts a response at the first padding id, and keeps that one where it is the tokenizer's eos.
    """
    stops, pad = engine_stops(side), padding(side, "mindspeed_rl")
    if stops is None or pad is None:
        return None
    return frozenset({pad} & stops) - {side.eos}


def end_sets(side: Stated) -> tuple[EndSet, ...]:
    """Return every framework's sets, in one order."""
    stops = engine_stops(side)
    masked = side.generation if side.generation is not None else _set(side.eos)
    usual = _set(padding(side, "verl"))
    return (
        EndSet("vLLM", STOPS, stops),
        EndSet("verl <= 0.6", ENDS, masked),
        EndSet("verl", PADS, usual),
        EndSet("TRL", ENDS, stops),
        EndSet("TRL", PADS, usual),
        EndSet("MindSpeed-RL", ENDS, _set(side.eos)),
        EndSet("MindSpeed-RL", PADS, _set(padding(side, "mindspeed_rl"))),
        EndSet("MindSpeed-RL", STRIPS, stripped(side)),
    )


def _set(number: int | None) -> Ids | None:
    return None if number is None else frozenset({number})
