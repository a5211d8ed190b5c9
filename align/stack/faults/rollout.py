"""Generation from other prompts than the trainer believes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from align.core.rung import Rung
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from align.stack.config import StackConfig
    from align.stack.pipeline import Model, Pipeline, Tokenizer
    from align.stack.prompts import RenderedPrompt
    from align.stack.rollout import Response


def _asked_otherwise(
    pipeline: Pipeline,
    ask: Callable[[Sequence[RenderedPrompt], Tokenizer, StackConfig], Sequence[RenderedPrompt]],
) -> Pipeline:
    """Generate from other prompts, and file the responses under those that were meant."""

    def generate(
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[RenderedPrompt],
        config: StackConfig,
        step: int,
    ) -> list[Response]:
        asked = ask(prompts, tokenizer, config)
        responses = pipeline.generate(model, tokenizer, asked, config, step)
        return [
            replace(response, row_index=prompt.row_index, prompt_ids=prompt.ids)
            for response, prompt in zip(responses, prompts, strict=True)
        ]

    return replace(pipeline, generate=generate)


def input_not_interleaved(pipeline: Pipeline) -> Pipeline:
    """Repeat the prompts as a b a b for generation, and take the responses as a a b b."""

    def ask(
        prompts: Sequence[RenderedPrompt], tokenizer: Tokenizer, config: StackConfig
    ) -> Sequence[RenderedPrompt]:
        return list(prompts[:: config.rollout.n]) * config.rollout.n

    return _asked_otherwise(pipeline, ask)


def special_tokens_lost(pipeline: Pipeline) -> Pipeline:
    """Generate from the prompt decoded without its special tokens."""

    def ask(
        prompts: Sequence[RenderedPrompt], tokenizer: Tokenizer, config: StackConfig
    ) -> Sequence[RenderedPrompt]:
        texts = [str(tokenizer.decode(list(p.ids), skip_special_tokens=True)) for p in prompts]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        return [
            replace(prompt, text=text, ids=tuple(bare))
            for prompt, text, bare in zip(prompts, texts, ids, strict=True)
        ]

    return _asked_otherwise(pipeline, ask)


def _rollout(
    name: str,
    what: str,
    field_report: str,
    finding_id: str,
    change: Callable[[Pipeline], Pipeline],
) -> Fault:
    needs = ("rollouts", "trainer_inputs")
    return Fault(
        name, Rung.ROLLOUT, what, field_report, f"rollout.{finding_id}", needs, change=change
    )


FAULTS = (
    _rollout(
        "input_not_interleaved",
        "Prompts are repeated batch by batch for generation and response by response afterwards, "
        "so responses sit under other questions and the reward falls to 0.",
        "seed 001",
        "responses_permuted",
        input_not_interleaved,
    ),
    _rollout(
        "prompt_special_tokens_lost",
        "The engine is asked with text that lost its <|im_start|>, the trainer has the full ids.",
        "MindSpeed-RL source since 2025-12-13, report 69",
        "prompt_special_tokens",
        special_tokens_lost,
    ),
)
