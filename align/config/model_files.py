"""What a model's own files say: config.json, and generation_config.json beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from align.config.comparable import canonical
from align.config.resolve import Resolution
from align.config.schema import ValueKind
from align.core.config_value import ConfigLeaf, ConfigValue, EffectiveValue, RawConfig
from align.core.text import Text
from align.frameworks.config_table import config_tables

MODEL_FORMATS = ("hf_config",)
GENERATION_FORMATS = ("hf_generation_config",)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Fields of the common schema that a model's files determine, and keys in no table."""

    values: Mapping[str, EffectiveValue] = field(default_factory=dict)
    unmatched: tuple[ConfigValue, ...] = ()
    notes: tuple[Text, ...] = ()


def model_files(configs: Sequence[RawConfig]) -> ModelFiles:
    """Take the architecture from config.json and the end tokens from both files.

    Two different files of one kind are not told apart: none of them is used.
    """
    model, model_notes = _only_one(configs, MODEL_FORMATS, "config.json")
    generation, generation_notes = _only_one(configs, GENERATION_FORMATS, "generation_config.json")
    notes = (*model_notes, *generation_notes)
    tables = config_tables("huggingface")
    if tables is None or (model is None and generation is None):
        return ModelFiles(notes=notes)
    work = Resolution(tables, tables.view(model.values, None).values if model else {}, {})
    work.resolve()
    values = work.values | _end_tokens(generation, work.values)
    strange = [v for v in generation.values.values() if _is_strange(v.key)] if generation else []
    return ModelFiles(values, (*work.unmatched, *strange), (*notes, *work.notes))


def _only_one(
    configs: Sequence[RawConfig], formats: tuple[str, ...], name: str
) -> tuple[RawConfig | None, tuple[Text, ...]]:
    found = [c for c in configs if c.format in formats]
    leaves = {tuple(sorted((k, repr(v.value)) for k, v in c.values.items())) for c in found}
    if len(leaves) < 2:
        return next(iter(found), None), ()
    sources = ", ".join(c.source for c in found)
    return None, (
        Text(
            f"several different {name} files, none is used: {sources}",
            f"有多个不同的 {name}，均未采用：{sources}",
        ),
    )


def _end_tokens(
    generation: RawConfig | None, known: Mapping[str, EffectiveValue]
) -> dict[str, EffectiveValue]:
    """Return the tokens either file ends a response at: vLLM stops at all of them.

    The pad token is generation_config.json's where that file has one.
    """
    found: dict[str, EffectiveValue] = {}
    for key, kind in (("eos_token_id", ValueKind.SET), ("pad_token_id", ValueKind.ANY)):
        stated = generation.values.get(key) if generation else None
        name = f"model.{key}"
        if stated is None or stated.value is None:
            continue
        both: ConfigLeaf = stated.value
        if kind is ValueKind.SET and name in known:
            both = (*_members(known[name].value), *_members(both))
        found[name] = EffectiveValue(name, canonical(both, kind), stated)
    return found


def _members(value: ConfigLeaf) -> tuple[ConfigLeaf, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


# Sampling settings and book-keeping of generation_config.json. A trainer sends its own sampling
# settings with every request; `align.config.engine` takes these where nothing sends any.
_GENERATION_KEYS = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
        *("do_sample", "temperature", "top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff"),
        *("eta_cutoff", "repetition_penalty", "encoder_repetition_penalty", "length_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"),
        *("max_new_tokens", "max_length", "min_length", "min_new_tokens", "max_time"),
        *("num_beams", "num_beam_groups", "penalty_alpha", "diversity_penalty", "early_stopping"),
        *("num_return_sequences", "use_cache", "cache_implementation", "cache_config"),
        *("return_dict_in_generate", "output_scores", "output_attentions", "output_logits"),
        *("output_hidden_states", "forced_bos_token_id", "forced_eos_token_id", "guidance_scale"),
        *(
            "suppress_tokens",
            "begin_suppress_tokens",
            "renormalize_logits",
            "remove_invalid_values",
        ),
        *("stop_strings", "transformers_version", "_from_model_config", "chat_format"),
        *("max_window_size", "trust_remote_code", "is_assistant", "num_assistant_tokens"),
        *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "target_lookbehind"),
        *("assistant_lookbehind", "assistant_early_exit", "prompt_lookup_num_tokens"),
        *("max_matching_ngram_size", "token_healing", "sequence_bias", "constraints"),
        *("force_words_ids", "exponential_decay_length_penalty", "dola_layers", "low_memory"),
        *("watermarking_config", "prefill_chunk_size", "disable_compile", "compile_config"),
        *("top_h", "pad_token", "eos_token", "unsloth_fixed"),
    }
)


def _is_strange(key: str) -> bool:
    return key.partition(".")[0] not in _GENERATION_KEYS
