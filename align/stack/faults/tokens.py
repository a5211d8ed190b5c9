"""The trainer is given other tokens, masks or positions than the rollout produced."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from align.core.rung import Rung
from align.stack.batch import position_ids_of
from align.stack.faults.assembled import with_batch, with_responses
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from align.stack.batch import TrainBatch
    from align.stack.config import StackConfig
    from align.stack.pipeline import Pipeline, Tokenizer
    from align.stack.rollout import Response

# bfloat16 holds every whole number up to 256; the system prompt takes positions beyond that.
_LONG_TEMPLATE = (
    f"<|im_start|>system\n{'The answer is one of many. ' * 38}<|im_end|>\n"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LONG_PROMPTS = (
    f"actor_rollout_ref.model.custom_chat_template={json.dumps(_LONG_TEMPLATE)}",
    "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "data.train_batch_size=4",
    "data.max_prompt_length=320",
)


def eos_stripped(pipeline: Pipeline) -> Pipeline:
    """Cut the eos off every response, as padding is cut off."""

    def edit(response: Response, tokenizer: Tokenizer, config: StackConfig) -> Response:
        if response.response_ids[-1] != tokenizer.eos_token_id:
            return response
        return replace(
            response, response_ids=response.response_ids[:-1], log_probs=response.log_probs[:-1]
        )

    return with_responses(pipeline, edit)


def eos_invented(pipeline: Pipeline) -> Pipeline:
    """End responses with eos that were cut at the length limit and never had one."""

    def edit(response: Response, tokenizer: Tokenizer, config: StackConfig) -> Response:
        if response.finish_reason != "length":
            return response
        return replace(response, response_ids=(*response.response_ids[:-1], tokenizer.eos_token_id))

    return with_responses(pipeline, edit)


def retokenised(pipeline: Pipeline) -> Pipeline:
    """Encode the response's text again, word by word, as a multi-turn loop joins pieces."""

    def edit(response: Response, tokenizer: Tokenizer, config: StackConfig) -> Response:
        words = response.text.replace(" ", " \0").split("\0")
        ids = [i for w in words for i in tokenizer(w, add_special_tokens=False)["input_ids"]]
        if response.finish_reason == "stop":
            ids.append(response.response_ids[-1])
        ids = ids[: config.data.max_response_length]
        log_probs = (*response.log_probs, *[0.0] * len(ids))[: len(ids)]
        return replace(response, response_ids=tuple(ids), log_probs=log_probs)

    return with_responses(pipeline, edit)


def bfloat16_positions(pipeline: Pipeline) -> Pipeline:
    """Let position_ids pass through bfloat16, which has no odd numbers above 256."""

    def edit(batch: TrainBatch, tokenizer: Tokenizer) -> TrainBatch:
        return replace(batch, position_ids=batch.position_ids.bfloat16().long())

    return with_batch(pipeline, edit)


def padding_counted(pipeline: Pipeline) -> Pipeline:
    """Number response tokens by their column, so that left padding counts as distance."""

    def edit(batch: TrainBatch, tokenizer: Tokenizer) -> TrainBatch:
        columns = torch.arange(batch.input_ids.shape[1]).expand_as(batch.position_ids)
        prompt_width = batch.input_ids.shape[1] - batch.responses.shape[1]
        positions = [batch.position_ids[:, :prompt_width], columns[:, prompt_width:]]
        return replace(batch, position_ids=torch.cat(positions, dim=1))

    return with_batch(pipeline, edit)


def prompts_padded_right(pipeline: Pipeline) -> Pipeline:
    """Obey the tokenizer's padding_side, which is right, so that responses follow padding."""

    def edit(batch: TrainBatch, tokenizer: Tokenizer) -> TrainBatch:
        width = batch.input_ids.shape[1] - batch.responses.shape[1]
        ids, mask = batch.input_ids.clone(), batch.attention_mask.clone()
        for row, num_pads in enumerate((mask[:, :width] == 0).sum(-1).tolist()):
            ids[row, :width] = torch.roll(ids[row, :width], -num_pads)
            mask[row, :width] = torch.roll(mask[row, :width], -num_pads)
        positions = position_ids_of(mask)
        return replace(batch, input_ids=ids, attention_mask=mask, position_ids=positions)

    return with_batch(pipeline, edit)


def shifted_mask(pipeline: Pipeline) -> Pipeline:
    """Start and end the loss one token late."""

    def edit(batch: TrainBatch, tokenizer: Tokenizer) -> TrainBatch:
        mask = batch.response_mask
        shifted = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], dim=1)
        return replace(batch, response_mask=shifted)

    return with_batch(pipeline, edit)


def read_too_early(pipeline: Pipeline) -> Pipeline:
    """Read the last quarter of the responses before their copy to the host has arrived."""

    def edit(batch: TrainBatch, tokenizer: Tokenizer) -> TrainBatch:
        late = len(batch.responses) * 3 // 4
        responses, input_ids = batch.responses.clone(), batch.input_ids.clone()
        responses[late:] = 0
        input_ids[late:, -responses.shape[1] :] = 0
        return replace(batch, responses=responses, input_ids=input_ids)

    return with_batch(pipeline, edit)


def _tokens(
    name: str,
    what: str,
    field_report: str,
    finding_id: str,
    change: Callable[[Pipeline], Pipeline],
    setting: tuple[str, ...] = (),
) -> Fault:
    return Fault(
        name,
        Rung.TOKENS,
        what,
        field_report,
        f"tokens.{finding_id}",
        ("rollouts", "trainer_inputs"),
        change=change,
        setting=setting,
    )


FAULTS = (
    _tokens(
        "eos_stripped",
        "eos is taken for padding and cut off: the model never learns where to stop.",
        "seed 000",
        "eos_missing",
        eos_stripped,
    ),
    _tokens(
        "eos_invented",
        "Responses cut at the length limit get an eos they never had.",
        "seed 000, MindSpeed-RL source",
        "eos_fake",
        eos_invented,
        setting=("data.max_response_length=6",),
    ),
    _tokens(
        "retokenised",
        "The trainer encodes the response's text again and gets other ids.",
        "report 23, report 69",
        "retokenised",
        retokenised,
    ),
    _tokens(
        "position_ids_bfloat16",
        "position_ids are rounded to bfloat16: above 256 neighbours share a position.",
        "report 3",
        "position_ids_rounded",
        bfloat16_positions,
        setting=_LONG_PROMPTS,
    ),
    _tokens(
        "left_pad_positions",
        "Positions of the response count the padding before the prompt.",
        "report 38",
        "position_ids_left_padding",
        padding_counted,
    ),
    _tokens(
        "padding_side",
        "Prompts are padded on the right, as the tokenizer says: the first response token is "
        "predicted from padding.",
        "report 38",
        "padding_side",
        prompts_padded_right,
        setting=("actor_rollout_ref.model.use_remove_padding=false",),
    ),
    _tokens(
        "mask_off_by_one",
        "The loss starts and ends one token late.",
        "report 19",
        "mask_shifted",
        shifted_mask,
    ),
    _tokens(
        "copy_read_too_early",
        "A non-blocking copy to the host is read before it has arrived.",
        "seed 001",
        "response_differs",
        read_too_early,
    ),
)
