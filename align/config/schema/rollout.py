"""How responses are generated."""

from __future__ import annotations

from align.config.schema.field import Field, ValueKind
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

MISMATCH_METRICS = (
    "training/rollout_probs_diff*",
    "training/rollout_actor_probs_pearson_corr",
    "rollout_corr/*",
)
_SAMPLING = Text(
    "Responses are drawn from another distribution, from the first step on.",
    "从第一步起，回复就采样自不同的分布。",
)
_ENGINE = Text(
    "The engine schedules the same work otherwise: rounding and the sample differ, no more.",
    "引擎以不同方式调度同样的计算：只影响舍入与采样结果。",
)


def _sampling(name: str, en: str, zh: str, kind: ValueKind = ValueKind.NUMBER) -> Field:
    return Field(f"rollout.{name}", Rung.ROLLOUT, Text(en, zh), kind, why=_SAMPLING)


def _engine(name: str, en: str, zh: str, kind: ValueKind = ValueKind.NUMBER) -> Field:
    return Field(
        f"rollout.{name}",
        Rung.ROLLOUT,
        Text(en, zh),
        kind,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_ENGINE,
    )


FIELDS: tuple[Field, ...] = (
    Field(
        "rollout.engine",
        Rung.ROLLOUT,
        Text("inference engine", "推理引擎"),
        ValueKind.NAME,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        signature=MISMATCH_METRICS,
        why=Text(
            "Another engine computes the log_probs with other kernels.",
            "由另一种引擎以不同算子计算 log_probs。",
        ),
    ),
    Field(
        "rollout.dtype",
        Rung.ROLLOUT,
        Text("precision of the rollout engine", "推理引擎的精度"),
        ValueKind.DTYPE,
        strength=Strength.NUMERIC,
        signature=MISMATCH_METRICS,
        why=Text(
            "The engine samples with weights of another precision than the other run: the gap "
            "between rollout and training probabilities changes by orders of magnitude.",
            "两次运行的推理引擎使用不同精度的权重采样："
            "rollout 与训练概率之间的差距会相差数个量级。",
        ),
    ),
    Field(
        "rollout.quantization",
        Rung.ROLLOUT,
        Text("quantisation of the rollout engine", "推理引擎的量化方式"),
        ValueKind.ANY,
        signature=MISMATCH_METRICS,
        why=Text("The engine samples from a quantised model.", "推理引擎从量化后的模型采样。"),
    ),
    Field(
        "rollout.n",
        Rung.ROLLOUT,
        Text("responses per prompt", "每个 prompt 的回复数"),
        unit="responses",
        why=Text(
            "Groups have another size: group statistics, advantages and batch sizes all change.",
            "分组大小不同：组内统计、advantage 与 batch 大小都会改变。",
        ),
    ),
    Field(
        "rollout.temperature",
        Rung.ROLLOUT,
        Text("sampling temperature", "采样温度"),
        why=Text(
            "Responses are drawn from another distribution, and both frameworks also divide the "
            "training logits by it. Where one path forgets that, log_probs of the two sides have "
            "slope 1/T (trl#4159: a ratio of 2.0 at the first token with T = 0.6).",
            "回复采样自不同的分布，并且两种框架在训练时也会用它去除 logits。若某一路径遗漏，"
            "两侧 log_probs 之间的斜率为 1/T（trl#4159：T = 0.6 时首个 token 的 ratio 为 2.0）。",
        ),
    ),
    _sampling("top_p", "nucleus sampling", "核采样 top-p"),
    _sampling("top_k", "top-k sampling, -1 for off", "top-k 采样，-1 表示关闭"),
    _sampling("min_p", "min-p sampling", "min-p 采样"),
    _sampling("repetition_penalty", "repetition penalty", "重复惩罚"),
    _sampling(
        "do_sample", "sampling instead of greedy decoding", "采样而非贪心解码", ValueKind.FLAG
    ),
    _sampling("ignore_eos", "generation past the end token", "忽略结束符继续生成", ValueKind.FLAG),
    _engine("seed", "seed of the engine", "推理引擎的随机种子"),
    _engine("mode", "synchronous or asynchronous engine", "同步或异步引擎", ValueKind.NAME),
    _engine("enforce_eager", "no captured graphs", "不使用图模式", ValueKind.FLAG),
    _engine("prefix_caching", "prefix caching", "前缀缓存", ValueKind.FLAG),
    _engine("chunked_prefill", "chunked prefill", "分块预填充", ValueKind.FLAG),
    _engine("max_num_seqs", "sequences in flight", "并发序列数"),
    _engine("max_num_batched_tokens", "tokens in one engine step", "引擎单步的 token 数"),
    _engine("tensor_parallel_size", "tensor parallel size of the engine", "推理张量并行度"),
    _engine("pipeline_parallel_size", "pipeline parallel size of the engine", "推理流水并行度"),
    _engine("data_parallel_size", "data parallel size of the engine", "推理数据并行度"),
    _engine("expert_parallel_size", "expert parallel size of the engine", "推理专家并行度"),
    _engine("full_determinism", "batch-invariant kernels", "批不变算子", ValueKind.FLAG),
    Field(
        "rollout.prompt_form",
        Rung.ROLLOUT,
        Text("what the engine is given", "提供给推理引擎的内容"),
        ValueKind.NAME,
        why=Text(
            "Text decoded without special tokens has lost <|im_start|> and <|im_end|>: the engine "
            "answers another prompt than the one training scores.",
            "去掉特殊 token 的文本丢失了 <|im_start|> 与 <|im_end|>："
            "引擎回答的 prompt 与训练侧计算的 prompt 不同。",
        ),
    ),
    Field(
        "rollout.response_end",
        Rung.ROLLOUT,
        Text("where a response ends", "回复的结束位置"),
        ValueKind.NAME,
        severity=Severity.INFO,
        why=Text(
            "Cut at the first pad, a response that holds the pad token loses its rest; where pad "
            "is eos, one that was cut at the length limit gains an eos it never had.",
            "在首个 pad 处截断时，含有 pad 的回复会丢失后半部分；若 pad 即 eos，"
            "因长度上限被截断的回复会多出一个并不存在的 eos。",
        ),
    ),
    Field(
        "rollout.max_model_len",
        Rung.ROLLOUT,
        Text("longest sequence of the engine", "引擎的最大序列长度"),
        unit="tokens",
        why=Text(
            "It ends responses before their own limit where it is smaller than "
            "max_prompt_length + max_response_length.",
            "当它小于 max_prompt_length + max_response_length 时，会提前截断回复。",
        ),
    ),
    Field(
        "rollout.logprobs_mode",
        Rung.ROLLOUT,
        Text("which log_probs the engine returns", "引擎返回的 log_probs 类型"),
        ValueKind.NAME,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        signature=MISMATCH_METRICS,
        why=Text(
            "Log_probs before and after temperature, top-p and top-k are different numbers; only "
            "what is computed from rollout log_probs changes.",
            "温度、top-p、top-k 处理前后的 log_probs 是不同的数；"
            "只影响由 rollout log_probs 计算的量。",
        ),
    ),
    Field(
        "rollout.calculate_log_probs",
        Rung.ROLLOUT,
        Text("rollout log_probs are kept", "保留 rollout 的 log_probs"),
        ValueKind.FLAG,
        severity=Severity.INFO,
        strength=Strength.NONE,
        why=Text(
            "Only the metrics computed from them appear or disappear.",
            "仅影响由其计算的指标是否出现。",
        ),
    ),
    Field(
        "rollout.val.*",
        Rung.EVALS,
        Text("generation setting of validation", "验证时的生成设置"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        strength=Strength.NONE,
        signature=("val-core/*", "val-aux/*", "val/*"),
        between_frameworks=False,
        why=Text(
            "Validation scores are not comparable; training is not touched.",
            "验证得分不可比；训练不受影响。",
        ),
    ),
    Field(
        "rollout.multi_turn.enable",
        Rung.ROLLOUT,
        Text("several turns per response", "多轮交互"),
        ValueKind.FLAG,
    ),
    Field(
        "rollout.multi_turn.*",
        Rung.ROLLOUT,
        Text("setting of multi-turn rollout", "多轮 rollout 设置"),
        ValueKind.ANY,
        only_if="rollout.multi_turn.enable",
        between_frameworks=False,
    ),
    Field(
        "rollout.agent_loop.*",
        Rung.ROLLOUT,
        Text("agent loop that drives generation", "驱动生成的 agent loop"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        between_frameworks=False,
    ),
    Field(
        "rollout.router_replay",
        Rung.FORWARD,
        Text("experts chosen in rollout are replayed in training", "训练时复用 rollout 的专家选择"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        signature=MISMATCH_METRICS,
    ),
    Field(
        "rollout.replay.*",
        Rung.ROLLOUT,
        Text("replay of recorded rollouts", "复用已记录的 rollout"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        between_frameworks=False,
        why=Text(
            "One run generates responses where the other may read recorded ones.",
            "一侧生成回复，另一侧可能读取已记录的结果。",
        ),
    ),
    Field(
        "rollout.interleave.*",
        Rung.ROLLOUT,
        Text("responses of one prompt stand side by side", "同一 prompt 的回复相邻排列"),
        ValueKind.FLAG,
        between_frameworks=False,
        why=Text(
            "Rows stand in another order. Input and output batch must agree, or every response "
            "is scored against another prompt.",
            "数据行的排列不同。输入与输出 batch 必须一致，否则每条回复都会按另一个 prompt 打分。",
        ),
    ),
    Field(
        "rollout.engine_options.*",
        Rung.ROLLOUT,
        Text("option of the inference engine", "推理引擎选项"),
        ValueKind.ANY,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        between_frameworks=False,
        why=_ENGINE,
    ),
)
