"""What MindSpeed-RL's code does of itself: no key sets it.

Sources: the trainers, workers and losses of the eras in `mindspeed_rl_eras`. Group statistics:
rule_reward.py and compute_utils.py divide by the unbiased deviation plus 1e-6, and by 1e-8 before
2025-05-15. vllm_engine.py sends decoded text since cb82020 (2025-12-13), on master alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from align.core.config_value import ConfigLeaf
from align.frameworks.config_table import Fixed, Known, Values
from align.frameworks.megatron_formulas import EXEMPT
from align.frameworks.mindspeed_rl_eras import ASSUMED_VERSION, BEFORE, MASTER, era_of

# Templates of templates.json that set replace_eos.
_REPLACING = (
    "qwen",
    "qwen_retool",
    "qwen_search_tool",
    "qwen_r1",
    "qwen_math_r1",
    "qwen3",
    "llama3",
)

_Row = tuple[str, ConfigLeaf, str]


def config_fixed(values: Values, known: Known, version: str | None) -> Iterable[Fixed]:
    """Return what this version's code decides: without a rollout only what Megatron does."""
    era = era_of(version) or ASSUMED_VERSION
    source = f"code of MindSpeed-RL {era}"
    rows = [*_training(known)]
    if any(key.startswith("rl_config.") for key in values):
        rows += [*_data(known, era), *_rollout(known, era), *_loss(values, known, era)]
    return (Fixed(field, value, source, text) for field, value, text in rows)


def _training(known: Known) -> Iterator[_Row]:
    yield "actor.strategy", "megatron", "it trains with Megatron"
    yield "trainer.device", "npu", "it runs on NPUs"
    yield "actor.adam_eps", 1e-8, "Megatron's 1e-8; the configuration class has no such key"
    yield "actor.weight_decay_exempt", EXEMPT, f"Megatron spares {EXEMPT} weight decay"
    yield "actor.lr_advances", "per optimizer step", "the schedule advances by sequences"
    replaced = known.get("data.prompt_template") in _REPLACING
    text = "the template replaces eos" if replaced else "the template does not replace eos"
    yield "data.eos_source", "end of turn" if replaced else "tokenizer", text


def _data(known: Known, era: str) -> Iterator[_Row]:
    yield "data.train_max_samples", -1, "it takes all rows"
    yield "data.templating", "offline", "preprocess_data applies a template of templates.json"
    yield "data.pad_zero_is_unset", True, "`pad if pad else eod` takes pad id 0 for missing"
    if era == BEFORE:
        yield "data.length_filter", "no filter", "rows are not filtered by length"
        yield "data.guarantee_order", False, "the dock draws rows for each rank without a seed"
    else:
        yield "data.length_filter", "length < max_prompt_length", "rows of the limit are dropped"
    if known.get("data.shuffle") is True:
        by_numpy = "numpy", "numpy shuffles the index of each epoch"
        by_torch = "torch", "torch's RandomSampler over the index of all epochs"
        yield ("data.sampler", *(by_numpy if era == BEFORE else by_torch))


def _rollout(known: Known, era: str) -> Iterator[_Row]:
    yield "rollout.engine", "vllm", "it generates with vLLM"
    text = "responses are cut at the first pad; where pad is eos, one is kept and may be added"
    yield "rollout.response_end", "first pad", text
    decoded = era == MASTER and known.get("rollout.mode") != "async"
    text_only = "text without special tokens", "the sync engine gets the decoded prompt"
    ids = "token ids", "the engine gets token ids"
    yield ("rollout.prompt_form", *(text_only if decoded else ids))


def _loss(values: Values, known: Known, era: str) -> Iterator[_Row]:
    if known.get("advantage.estimator") == "grpo":
        yield "advantage.normalize_by_std", True, "group_norm divides by the group's deviation"
        epsilon = 1e-8 if era == BEFORE else 1e-6
        yield "advantage.std_eps", epsilon, f"added to the deviation: {epsilon:g}"
        yield "advantage.dtype", "float32" if era == BEFORE else "float64", "of group statistics"
    elif known.get("advantage.estimator") == "gae":
        yield "advantage.whiten", True, "gae whitens advantages; advantage_whiten is not read"
    if "actor.stage" not in values:
        return
    yield "loss.dual_clip", "none", "there is no dual clip"
    yield "loss.mode", "vanilla", "PPO's clipped loss"
    if known.get("loss.aggregation") == "token-mean":
        yield "loss.normalization", "micro-batch", "token losses are averaged per micro-batch"
    if era == BEFORE:
        yield "loss.entropy_coef", 0.0, "the loss has no entropy term"
        if known.get("loss.use_kl"):
            yield "loss.kl_type", "low_var_kl", "the loss knows one estimator"
