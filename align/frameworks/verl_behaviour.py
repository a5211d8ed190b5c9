"""What verl's code does of itself in every version, where MindSpeed-RL's does something else.

Sources: DataProto keeps the order of rows; the FSDP engine gives all parameters to torch's AdamW,
Megatron's optimizer spares one-dimensional ones; core_algos divides group scores by the unbiased
deviation plus 1e-6 in float32, and whitens the advantages of gae.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.core.config_value import ConfigLeaf
from align.frameworks.config_table import Fixed, Known
from align.frameworks.megatron_formulas import EXEMPT

_Row = tuple[str, ConfigLeaf, str]


def behaviour(known: Known, version: str | None) -> Iterator[Fixed]:
    """Yield what holds for a run with these fields."""
    source = f"code of verl {version}" if version else "code of verl"
    for field, value, text in (*_training(known), *_data(known), *_signals(known)):
        yield Fixed(field, value, source, text)


def _training(known: Known) -> Iterator[_Row]:
    if known.get("actor.strategy") == "megatron":
        yield "actor.weight_decay_exempt", EXEMPT, f"Megatron spares {EXEMPT} weight decay"
    elif "actor.strategy" in known:
        yield "actor.weight_decay_exempt", "nothing", "AdamW gets all parameters as one group"
        yield "model.moe_aux_loss_coef", 0.0, "the auxiliary loss of the router is not added"
        yield "model.softmax_in_fp32", True, "every attention of transformers has it"
    yield "actor.lr_advances", "per training step", "the scheduler steps once a training step"


def _data(known: Known) -> Iterator[_Row]:
    yield "data.guarantee_order", True, "DataProto keeps the order of rows"
    if known.get("trainer.implementation") is True:  # use_v1
        yield "trainer.balance_batch", True, "the V1 trainer always balances the ranks"
    yield "data.templating", "online", "the chat template of the tokenizer is applied"
    yield "data.eos_source", "tokenizer", "the tokenizer's own eos"
    yield "data.pad_zero_is_unset", False, "pad id 0 is a pad id"
    if "data.max_prompt_length" in known:
        text = "prompts are cut to max_prompt_length"
        yield "data.prompt_cut_length", known["data.max_prompt_length"], text
    yield "rollout.prompt_form", "token ids", "the engine gets token ids"
    yield "rollout.response_end", "as generated", "responses are taken as the engine ends them"


def _signals(known: Known) -> Iterator[_Row]:
    if known.get("advantage.estimator") == "grpo":
        if known.get("advantage.normalize_by_std") is not False:
            yield "advantage.std_eps", 1e-6, "added to the deviation"
        yield "advantage.dtype", "float32", "of group statistics"
    elif known.get("advantage.estimator") == "gae":
        yield "advantage.whiten", True, "gae whitens advantages"
    function = known.get("reward.function")
    name = known.get("reward.function_name")
    if function is None:
        yield "reward.rules", "chosen by data_source", "verl's own rule of each data_source"
    else:
        yield "reward.rules", f"{function}:{name or 'compute_score'}", "custom_reward_function"
