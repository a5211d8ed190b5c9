"""Generate responses with vLLM, where it is installed. Imported by `rollout.generate` alone.

vLLM draws its own noise, so responses depend on its version and on the batch; everything after
the rollout is the same as with the stack's own loop.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from align.core.optional import require
from align.stack.prompts import RenderedPrompt, fit
from align.stack.rollout import LENGTH, STOP, Response, sample_places, stop_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from align.stack.config import StackConfig

_ENGINES: dict[int, Any] = {}  # id of the rollout model -> its engine; starting one takes minutes


def generate_with_vllm(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[RenderedPrompt],
    config: StackConfig,
    step: int,
) -> list[Response]:
    """Load the rollout model's weights into a vLLM engine and sample one response a prompt.

    Raises:
        MissingPackageError: vLLM is not installed.
        RunError: A prompt is too long and ``data.truncation`` is "error".
    """
    vllm = require("vllm", extra="vllm")
    engine = _engine(vllm, model, tokenizer, config)
    asked = [fit(prompt.ids, config, f"row {prompt.row_index}") for prompt in prompts]
    stops = [] if config.rollout.ignore_eos else sorted(stop_ids(model, tokenizer))
    settings = [
        _sampling(vllm, config, stops, seed=hash((config.rollout.seed, step, *place)) & 0x7FFFFFFF)
        for place in sample_places(prompts)
    ]
    outputs = engine.generate(
        [{"prompt_token_ids": list(ids)} for ids in asked], settings, use_tqdm=False
    )
    return [
        _response(prompt, ids, output, tokenizer)
        for prompt, ids, output in zip(prompts, asked, outputs, strict=True)
    ]


def _engine(
    vllm: Any, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, config: StackConfig
) -> Any:
    if id(model) not in _ENGINES:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            _ENGINES[id(model)] = vllm.LLM(
                model=folder,
                dtype=config.rollout.dtype or "float32",
                max_model_len=config.data.max_prompt_length + config.data.max_response_length,
                logprobs_mode=config.rollout.logprobs_mode,
                enforce_eager=True,
            )
        return _ENGINES[id(model)]
    engine = _ENGINES[id(model)]
    weights = [(name, tensor.detach().cpu()) for name, tensor in model.state_dict().items()]
    engine.apply_model(lambda inside: inside.load_weights(weights) and None)
    engine.reset_prefix_cache()
    return engine


def _sampling(vllm: Any, config: StackConfig, stops: list[int], seed: int) -> Any:
    rollout = config.rollout
    return vllm.SamplingParams(
        temperature=rollout.temperature if rollout.do_sample else 0.0,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_tokens=config.data.max_response_length,
        stop_token_ids=stops,
        ignore_eos=rollout.ignore_eos,
        logprobs=0,  # the sampled token's alone
        seed=seed,
        detokenize=False,
    )


def _response(
    prompt: RenderedPrompt,
    prompt_ids: tuple[int, ...],
    output: Any,
    tokenizer: PreTrainedTokenizerFast,
) -> Response:
    completion = output.outputs[0]
    ids = tuple(completion.token_ids)
    picked = zip(ids, completion.logprobs, strict=True)
    return Response(
        row_index=prompt.row_index,
        prompt_ids=prompt_ids,
        response_ids=ids,
        text=str(tokenizer.decode(list(ids), skip_special_tokens=True)),
        log_probs=tuple(candidates[token].logprob for token, candidates in picked),
        finish_reason=STOP if completion.finish_reason == "stop" else LENGTH,
        prompt_token_ids=tuple(output.prompt_token_ids),
    )
