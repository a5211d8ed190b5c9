"""Keys of a model's config.json that do not touch training, with the reason."""

from __future__ import annotations

_CLASS = "which class loads the model · 由哪个类加载模型"
_WEIGHTS = "how new weights are drawn; a checkpoint is loaded · 新权重的初始化，此处加载的是检查点"
_STAMP = "who wrote the file · 文件由谁写出"
_OUTPUTS = "what a forward pass returns beside logits · 前向除 logits 外的返回内容"
_TOKENIZER = "the tokenizer's own files count · 以分词器文件为准"
_GENERATION = "generation_config.json and the engine decide · 由 generation_config.json 与引擎决定"
_COMPUTED = "follows from other keys · 由其他键决定"
_HEAD = "classification only · 仅用于分类"
_PARALLEL = "splits a product over devices in pretraining · 预训练时的切分方式"

CONFIG_IGNORED: dict[str, str] = {
    **dict.fromkeys(("architectures", "auto_map*", "is_encoder_decoder", "is_decoder"), _CLASS),
    **dict.fromkeys(("initializer_range", "init_std", "initializer_factor"), _WEIGHTS),
    **dict.fromkeys(
        (
            *("transformers_version", "_name_or_path", "name_or_path", "unsloth_*", "_commit_hash"),
            *("model_name", "peft_type", "_attn_implementation_autoset", "transformers.js_config*"),
        ),
        _STAMP,
    ),
    **dict.fromkeys(
        (
            *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
            *("use_return_dict", "torchscript", "use_cache", "chunk_size_feed_forward"),
        ),
        _OUTPUTS,
    ),
    **dict.fromkeys(
        (
            *("bos_token_id", "sep_token_id", "cls_token_id", "tokenizer_class", "prefix"),
            *("model_max_length", "extra_special_tokens*", "decoder_start_token_id"),
            *("bos_token", "eos_token", "pad_token", "unk_token", "backend"),
        ),
        _TOKENIZER,
    ),
    **dict.fromkeys(
        (
            *("do_sample", "temperature", "top_p", "top_k", "min_p", "typical_p", "max_length"),
            *("max_new_tokens", "min_length", "repetition_penalty", "length_penalty", "num_beams"),
            *("num_beam_groups", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
            *("early_stopping", "diversity_penalty", "bad_words_ids", "num_return_sequences"),
            *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
            *("suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty"),
            *("output_scores", "return_dict_in_generate", "task_specific_params*"),
        ),
        _GENERATION,
    ),
    **dict.fromkeys(("qk_head_dim", "kv_heads", "num_attention_groups"), _COMPUTED),
    **dict.fromkeys(
        (
            *("id2label*", "label2id*", "problem_type", "finetuning_task", "num_labels"),
            *("classifier_dropout", "pruned_heads*", "tf_legacy_loss", "use_bfloat16"),
            *("cross_attention_hidden_size", "add_cross_attention"),
        ),
        _HEAD,
    ),
    **dict.fromkeys(("pretraining_tp", "ep_size"), _PARALLEL),
}
