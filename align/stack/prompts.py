"""From a row to the text and token ids the model is asked with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from align.core.errors import RunError
from align.stack.mindspeed_rl_template import encode, read_template
from align.stack.row import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from align.stack.config import StackConfig


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as it goes into the model.

    Args:
        row_index: `Row.index` of the row it was made from.
        text: with special tokens.
        ids: no padding.
    """

    row_index: int
    text: str
    ids: tuple[int, ...]


def render(row: Row, tokenizer: PreTrainedTokenizerFast, config: StackConfig) -> RenderedPrompt:
    """Apply the chat template, or the MindSpeed-RL template that ``stack.data.prompt_type`` names.

    A prompt that the data set brings tokenised is taken as it is.

    Raises:
        RunError: The tokenizer has no chat template, or the template cannot render the messages.
    """
    if row.prompt_ids is not None:
        ids = list(row.prompt_ids)
    elif config.stack.data.prompt_type is not None:
        template = read_template(config.stack.data.prompt_type, config.stack.data.prompt_type_path)
        ids = encode(template, tokenizer, row.messages, row.system)
    else:
        ids = _chat_template(row, tokenizer, config)
    return RenderedPrompt(row.index, str(tokenizer.decode(ids)), tuple(ids))


def fit(ids: tuple[int, ...], config: StackConfig, where: str) -> tuple[int, ...]:
    """Shorten a prompt to ``data.max_prompt_length`` as ``data.truncation`` says.

    Raises:
        RunError: It is too long and truncation is "error".

    Source: verl `postprocess_data`; its agent loop since 0.9 always truncates left.
    """
    limit, how = config.data.max_prompt_length, config.data.truncation
    if len(ids) <= limit:
        return ids
    if how == "left":
        return ids[-limit:]
    if how == "right":
        return ids[:limit]
    if how == "middle":
        return ids[: limit // 2] + ids[len(ids) - (limit - limit // 2) :]
    raise RunError(
        where=where,
        problem=f"has a prompt of {len(ids)} tokens, above data.max_prompt_length {limit}",
        fix="set data.filter_overlong_prompts=true, a larger limit, or data.truncation=left",
    )


def _chat_template(row: Row, tokenizer: PreTrainedTokenizerFast, config: StackConfig) -> list[int]:
    system = [{"role": "system", "content": row.system}] if row.system else []
    options = dict(config.data.apply_chat_template_kwargs)
    try:
        text = tokenizer.apply_chat_template(
            [*system, *map(dict, row.messages)],
            add_generation_prompt=True,
            tokenize=False,
            **options,
        )
    except (ValueError, TypeError, TemplateError) as error:
        raise RunError(
            where=f"row {row.index}",
            problem=f"cannot be rendered by the chat template ({error})",
            fix="give a tokenizer with a fitting chat template, or set stack.data.prompt_type",
        ) from error
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
