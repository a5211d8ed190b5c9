"""Another tokenizer than the reference's, in a folder whose name does not say so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tokenizers import Tokenizer as RustTokenizer

from align.core.rung import Rung
from align.stack.faults.assembled import with_batch
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from align.stack.batch import TrainBatch
    from align.stack.config import StackConfig
    from align.stack.dataset import Row
    from align.stack.pipeline import Pipeline, Tokenizer
    from align.stack.prompts import RenderedPrompt

SYSTEM_PROMPT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
CHANGED_MERGE = ("larg", "e")  # "large" falls into two tokens without it, and so does "larger"


def _edited(pipeline: Pipeline, edit: Callable[[Tokenizer], None]) -> Pipeline:
    """Let every tokenizer be edited after it is loaded."""

    def load_tokenizer(config: StackConfig) -> Tokenizer:
        tokenizer = pipeline.load_tokenizer(config)
        edit(tokenizer)
        return tokenizer

    return replace(pipeline, load_tokenizer=load_tokenizer)


def base_eos(pipeline: Pipeline) -> Pipeline:
    """Load the tokenizer of the base model, whose eos is the Instruct model's pad."""

    def edit(tokenizer: Tokenizer) -> None:
        tokenizer.eos_token = "<|endoftext|>"

    return _edited(pipeline, edit)


def pad_is_eos(pipeline: Pipeline) -> Pipeline:
    """Pad with eos, and mask every pad id out of the loss as a collator does."""

    def edit(tokenizer: Tokenizer) -> None:
        tokenizer.pad_token = tokenizer.eos_token

    def hide_padding(batch: TrainBatch, tokenizer: Tokenizer) -> TrainBatch:
        shown = batch.response_mask * (batch.responses != tokenizer.pad_token_id)
        return replace(batch, response_mask=shown)

    return with_batch(_edited(pipeline, edit), hide_padding)


def default_system_prompt(pipeline: Pipeline) -> Pipeline:
    """Use a chat template that puts a system prompt before the question, as Qwen2.5's does."""

    def edit(tokenizer: Tokenizer) -> None:
        tokenizer.chat_template = f"{SYSTEM_PROMPT}{tokenizer.chat_template}"

    return _edited(pipeline, edit)


def added_bos(pipeline: Pipeline) -> Pipeline:
    """Add a bos token when the rendered prompt is tokenised."""

    def edit(tokenizer: Tokenizer) -> None:
        tokenizer.bos_token = "<|endoftext|>"
        tokenizer.init_kwargs["add_bos_token"] = True

    edited = _edited(pipeline, edit)

    def render(row: Row, tokenizer: Tokenizer, config: StackConfig) -> RenderedPrompt:
        prompt = edited.render(row, tokenizer, config)
        return replace(prompt, ids=(tokenizer.bos_token_id, *prompt.ids))

    return replace(edited, render=render)


def changed_merge(pipeline: Pipeline) -> Pipeline:
    """Lose one merge of the vocabulary."""

    def load_tokenizer(config: StackConfig) -> Tokenizer:
        tokenizer: Any = pipeline.load_tokenizer(config)
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content["model"]["merges"].remove(list(CHANGED_MERGE))
        tokenizer._tokenizer = RustTokenizer.from_str(json.dumps(content))
        return cast("Tokenizer", tokenizer)

    return replace(pipeline, load_tokenizer=load_tokenizer)


def _tokenizer(
    name: str,
    what: str,
    field_report: str,
    finding_id: str,
    change: Callable[[Pipeline], Pipeline],
    setting: tuple[str, ...] = (),
) -> Fault:
    return Fault(
        name,
        Rung.TOKENIZER,
        what,
        field_report,
        f"tokenizer.{finding_id}",
        ("tokenizer",),
        change=change,
        setting=setting,
    )


FAULTS = (
    _tokenizer(
        "base_eos",
        "The tokenizer is the base model's: its eos is <|endoftext|>, not <|im_end|>.",
        "seed 000, report 18",
        "eos_token_id",
        base_eos,
    ),
    _tokenizer(
        "pad_is_eos",
        "pad is eos, and every pad id is masked out of the loss: the model never learns to stop.",
        "report 16, report 17",
        "pad_token_id",
        pad_is_eos,
    ),
    _tokenizer(
        "default_system_prompt",
        "The chat template adds a default system prompt.",
        "report 25",
        "chat_template",
        default_system_prompt,
        setting=("data.max_prompt_length=48",),
    ),
    _tokenizer(
        "added_bos",
        "A bos token is added before the template's own start.",
        "report 25, report 70",
        "add_bos_token",
        added_bos,
    ),
    _tokenizer(
        "changed_merge",
        "One merge of the vocabulary is missing, so a word has other ids.",
        "report 23, report 55",
        "merges",
        changed_merge,
    ),
)
