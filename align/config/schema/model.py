"""Architecture of the trained model."""

from __future__ import annotations

from align.config.schema.field import Field, ValueKind
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_ARCHITECTURE = Text(
    "Another architecture is computed: the checkpoint is not the model it was trained as.",
    "计算的是另一种网络结构：权重不再对应它训练时的模型。",
)
_KERNEL = Text(
    "Another kernel computes the same formula with other rounding; log_probs shift by noise.",
    "由另一种算子实现同一公式，舍入不同；log_probs 只会有噪声量级的偏移。",
)


def _part(name: str, en: str, zh: str, kind: ValueKind = ValueKind.NUMBER, unit: str = "") -> Field:
    return Field(f"model.{name}", Rung.FORWARD, Text(en, zh), kind, unit, why=_ARCHITECTURE)


def _kernel(name: str, en: str, zh: str, kind: ValueKind = ValueKind.FLAG) -> Field:
    return Field(
        f"model.{name}",
        Rung.FORWARD,
        Text(en, zh),
        kind,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=_KERNEL,
    )


FIELDS: tuple[Field, ...] = (
    Field(
        "model.name",
        Rung.FORWARD,
        Text("model that is loaded", "加载的模型"),
        ValueKind.MODEL_NAME,
        severity=Severity.WARNING,
        why=Text(
            "The two names stand for different published models. A name proves nothing about the "
            "weights behind it: compare the weights and config.json of both folders.",
            "两个名称对应不同的公开模型。名称不能说明目录里实际的权重："
            "请对比两个目录的权重与 config.json。",
        ),
    ),
    Field(
        "model.tokenizer",
        Rung.TOKENS,
        Text("tokenizer that is loaded", "加载的分词器"),
        ValueKind.MODEL_NAME,
        severity=Severity.WARNING,
        why=Text(
            "Tokenizers of different models can differ in eos, pad and chat template; the names "
            "alone prove nothing: compare the tokenizer folders.",
            "不同模型的分词器可能在 eos、pad 与对话模板上不同；名称本身不能说明问题："
            "请对比两个分词器目录。",
        ),
    ),
    Field(
        "model.eos_token_id",
        Rung.ROLLOUT,
        Text("tokens that end a response", "结束回复的 token"),
        ValueKind.SET,
        severity=Severity.WARNING,
        why=Text(
            "Responses end at another token, or run on to the length limit; tokenizer and "
            "generation_config.json have a say too, which the tokenizer rung compares.",
            "回复在不同的 token 处结束，或一直生成到长度上限；分词器与 generation_config.json "
            "也会影响，由 tokenizer 环节对比。",
        ),
    ),
    Field(
        "model.pad_token_id",
        Rung.TOKENS,
        Text("token that fills up short rows", "填充短序列的 token"),
        ValueKind.ANY,
        severity=Severity.INFO,
        why=Text(
            "Trainers take padding from the tokenizer, which the tokenizer rung compares; a model "
            "folder with another pad hints at another tokenizer.",
            "训练侧的填充取自分词器，由 tokenizer 环节对比；模型目录的 pad 不同，"
            "说明分词器可能也不同。",
        ),
    ),
    _part("num_layers", "number of transformer layers", "Transformer 层数"),
    _part("hidden_size", "width of the hidden states", "隐藏状态宽度"),
    _part("intermediate_size", "width of the MLP", "MLP 宽度"),
    _part("num_attention_heads", "number of query heads", "查询头数"),
    _part("num_key_value_heads", "number of key and value heads", "键值头数"),
    _part("head_dim", "width of one attention head", "每个注意力头的宽度"),
    Field(
        "model.rms_norm_eps",
        Rung.FORWARD,
        Text("epsilon inside every RMSNorm", "每个 RMSNorm 中的 epsilon"),
        why=Text(
            "Every layer's normalisation differs slightly, and training amplifies it: in the field "
            "this turned the reward downwards after 1,500 steps.",
            "每一层的归一化都略有不同，并在训练中被放大：实践中曾导致 1500 步之后 reward 下降。",
        ),
    ),
    _part("rope_theta", "base of the rotary position embedding", "旋转位置编码的基数"),
    _part(
        "rope_scaling_type",
        "scaling of the rotary embedding",
        "旋转位置编码的缩放方式",
        ValueKind.NAME,
    ),
    _part("rope_scaling_factor", "factor of that scaling", "旋转位置编码的缩放倍数"),
    Field(
        "model.max_position_embeddings",
        Rung.FORWARD,
        Text("longest position the model declares", "模型声明的最大位置"),
        unit="tokens",
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=Text(
            "It limits lengths, and scaled rotary embeddings use it; plain rotary ones do not.",
            "它限制长度，带缩放的旋转位置编码会用到它；普通旋转位置编码不受影响。",
        ),
    ),
    Field(
        "model.vocab_size",
        Rung.FORWARD,
        Text("rows of the output layer", "输出层的行数"),
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=Text(
            "Rows that are only padding add to the softmax denominator unless they are masked.",
            "仅用于补齐的行若未被屏蔽，会进入 softmax 的分母。",
        ),
    ),
    Field(
        "model.tie_word_embeddings",
        Rung.FORWARD,
        Text("output layer shares the embedding", "输出层与词嵌入共享"),
        ValueKind.FLAG,
        why=Text(
            "One side computes logits with the embedding, the other with lm_head of the "
            "checkpoint. Check whether the checkpoint holds lm_head, whether it equals the "
            "embedding, and whether a nested text_config says otherwise.",
            "一侧用词嵌入计算 logits，另一侧用权重中的 lm_head。请检查权重中是否有 lm_head、"
            "它与词嵌入是否相等，以及嵌套的 text_config 是否另有设置。",
        ),
    ),
    _part("qkv_bias", "bias of the q, k and v projections", "q、k、v 投影的偏置", ValueKind.FLAG),
    _part("linear_bias", "bias of the other linear layers", "其他线性层的偏置", ValueKind.FLAG),
    _part("qk_norm", "norm of q and k before attention", "注意力前 q、k 的归一化", ValueKind.FLAG),
    _part("normalization", "kind of normalisation", "归一化类型", ValueKind.NAME),
    _part("activation", "activation of the MLP", "MLP 的激活函数", ValueKind.NAME),
    _part("position_embedding", "kind of position embedding", "位置编码类型", ValueKind.NAME),
    _part("num_experts", "number of experts", "专家数"),
    _part("num_experts_per_token", "experts a token is routed to", "每个 token 路由到的专家数"),
    _part("moe_intermediate_size", "width of one expert", "单个专家的宽度"),
    _part(
        "norm_topk_prob",
        "router weights normalised over the chosen experts",
        "路由权重在所选专家上归一化",
        ValueKind.FLAG,
    ),
    _part("router_score", "function of the router", "路由打分函数", ValueKind.NAME),
    Field(
        "model.moe_aux_loss_coef",
        Rung.LOSS,
        Text("coefficient of the load balancing loss", "负载均衡辅助损失的系数"),
        why=Text(
            "A load balancing term is added to the loss on one side; verl adds none of itself.",
            "一侧的损失中多了负载均衡项；verl 默认不加该项。",
        ),
    ),
    Field(
        "model.attention_dropout",
        Rung.FORWARD,
        Text("dropout on attention weights", "注意力权重的 dropout"),
        why=Text(
            "Dropout makes the training forward pass random while the rollout has none, so "
            "log_probs of the same tokens never agree.",
            "dropout 使训练前向带有随机性，而 rollout 没有，"
            "因此同一批 token 的 log_probs 无法一致。",
        ),
    ),
    Field(
        "model.hidden_dropout",
        Rung.FORWARD,
        Text("dropout on hidden states", "隐藏状态的 dropout"),
        why=Text(
            "Dropout makes the training forward pass random while the rollout has none, so "
            "log_probs of the same tokens never agree.",
            "dropout 使训练前向带有随机性，而 rollout 没有，"
            "因此同一批 token 的 log_probs 无法一致。",
        ),
    ),
    _kernel("softmax_in_fp32", "attention softmax in float32", "注意力 softmax 使用 float32"),
    _kernel(
        "attention_implementation", "implementation of attention", "注意力的实现", ValueKind.NAME
    ),
    _kernel("flash_attention", "fused attention kernel", "融合注意力算子"),
    _kernel("fused_rms_norm", "fused RMSNorm kernel", "融合 RMSNorm 算子"),
    _kernel("fused_swiglu", "fused SwiGLU kernel", "融合 SwiGLU 算子"),
    _kernel("fused_rope", "fused rotary embedding kernel", "融合旋转位置编码算子"),
    _kernel("grouped_gemm", "grouped matrix products for experts", "专家的分组矩阵乘"),
    _kernel("fused_kernels", "fused output layer and loss", "融合输出层与损失"),
    _kernel("liger", "Liger kernels", "Liger 算子"),
    Field(
        "model.remove_padding",
        Rung.FORWARD,
        Text("packed sequences without padding", "去除 padding 的打包计算"),
        ValueKind.FLAG,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=Text(
            "Packed and padded attention are different kernels: log_probs of the same tokens "
            "differ by rounding (verl#1381). A larger gap means that padding is attended to.",
            "打包与带填充的注意力使用不同算子：同一批 token 的 log_probs 只有舍入差异"
            "（verl#1381）；差距更大则说明填充参与了注意力。",
        ),
    ),
    Field(
        "model.checkpoint_dtype",
        Rung.FORWARD,
        Text("precision the checkpoint is stored in", "检查点的存储精度"),
        ValueKind.DTYPE,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=Text(
            "An engine whose dtype is auto computes in it; trainers set their own.",
            "dtype 为 auto 的推理引擎按此精度计算；训练侧自行设置。",
        ),
    ),
    Field(
        "model.override.*",
        Rung.FORWARD,
        Text("override of the model's config.json", "对模型 config.json 的覆盖"),
        ValueKind.ANY,
        why=_ARCHITECTURE,
        between_frameworks=False,
    ),
    Field(
        "model.lora_rank",
        Rung.FORWARD,
        Text("rank of LoRA, 0 where it is off", "LoRA 的秩，0 表示关闭"),
        why=Text("Other parameters are trained.", "训练的参数不同。"),
    ),
    Field(
        "model.lora.*",
        Rung.FORWARD,
        Text("setting of LoRA", "LoRA 设置"),
        ValueKind.ANY,
        only_if="model.lora_rank",
        between_frameworks=False,
        why=Text("Other parameters are trained.", "训练的参数不同。"),
    ),
    Field(
        "model.mtp.*",
        Rung.LOSS,
        Text("setting of multi-token prediction", "多 token 预测设置"),
        ValueKind.ANY,
        only_if="model.mtp.enable",
        between_frameworks=False,
    ),
)
