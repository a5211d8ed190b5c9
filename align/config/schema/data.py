"""Which rows a run sees, in which order, and how prompts are made of them."""

from __future__ import annotations

from align.config.schema.field import Field, ValueKind
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_PROMPT = Text(
    "The same row becomes another prompt. Templates differ most often in the default system "
    "prompt: in one report a prompt without it had 26 tokens, not 47, and 1 of 18 problems was "
    "solved, not 10.",
    "同一行数据变成了不同的 prompt。最常见的差异是默认 system prompt："
    "有案例去掉它后 prompt 由 47 个 token 变为 26 个，18 题中只答对 1 题，原为 10 题。",
)
_ROWS = Text(
    "From the first step on the two runs see other rows.",
    "从第一步开始两次运行看到的数据行就不同。",
)

FIELDS: tuple[Field, ...] = (
    Field(
        "data.train_batch_size",
        Rung.DATA,
        Text("prompts per training step", "每个训练步的 prompt 数"),
        unit="prompts",
        why=Text(
            "A step holds another number of prompts, so steps cannot be compared one by one.",
            "每一步包含的 prompt 数不同，因此无法逐步对比。",
        ),
    ),
    Field(
        "data.gen_batch_size",
        Rung.DATA,
        Text("prompts drawn from the loader at a time", "每次从加载器取出的 prompt 数"),
        unit="prompts",
        follows=("data.train_batch_size",),
        why=_ROWS,
    ),
    Field(
        "data.max_prompt_length",
        Rung.DATA,
        Text("longest prompt", "prompt 最大长度"),
        unit="tokens",
        why=Text(
            "Longer rows are filtered or cut elsewhere, which also re-indexes the shuffle.",
            "过长的行在不同位置被过滤或截断，这还会改变 shuffle 的索引。",
        ),
    ),
    Field(
        "data.max_response_length",
        Rung.ROLLOUT,
        Text("longest response", "回复最大长度"),
        unit="tokens",
        why=Text(
            "Responses are cut at another length, which changes their reward and the loss.",
            "回复在不同长度处被截断，会改变奖励与损失。",
        ),
    ),
    Field(
        "data.sequence_length",
        Rung.DATA,
        Text("length prompts are cut to", "prompt 被截断到的长度"),
        unit="tokens",
        severity=Severity.WARNING,
        between_frameworks=False,
        why=Text(
            "MindSpeed-RL cuts prompts to seq_length; the longest sequence of verl, "
            "max_prompt_length + max_response_length, is its max_model_len.",
            "MindSpeed-RL 按 seq_length 截断 prompt；与 verl 的 max_prompt_length + "
            "max_response_length 对应的是 max_model_len。",
        ),
    ),
    Field(
        "data.length_filter",
        Rung.DATA,
        Text("rows kept by prompt length", "按 prompt 长度保留的行"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        why=Text(
            "If the data set holds prompts of that length, other rows are kept and every later "
            "index of the shuffle moves.",
            "若数据集中存在该长度的 prompt，保留的行就不同，shuffle 之后的索引都会移动。",
        ),
    ),
    Field(
        "data.truncation",
        Rung.DATA,
        Text("what happens to longer prompts", "过长 prompt 的处理方式"),
        ValueKind.NAME,
        severity=Severity.WARNING,
        why=Text(
            "It matters only for prompts longer than the limit.",
            "仅对超过长度限制的 prompt 有影响。",
        ),
    ),
    Field(
        "data.train_max_samples",
        Rung.DATA,
        Text("rows used of the data set, -1 for all", "使用的数据行数，-1 表示全部"),
        why=_ROWS,
    ),
    Field(
        "data.split",
        Rung.DATA,
        Text("shares of training, validation and test data", "训练、验证与测试数据的比例"),
        ValueKind.NAME,
        between_frameworks=False,
        why=_ROWS,
    ),
    Field(
        "data.shuffle", Rung.DATA, Text("shuffling of rows", "数据打乱"), ValueKind.FLAG, why=_ROWS
    ),
    Field(
        "data.seed",
        Rung.DATA,
        Text("seed of the row order", "数据顺序的随机种子"),
        why=_ROWS,
        only_if="data.shuffle",
    ),
    Field(
        "data.dataloader_num_workers",
        Rung.DATA,
        Text("processes that load rows", "加载数据的进程数"),
        why=_ROWS,
    ),
    Field(
        "data.sampler",
        Rung.DATA,
        Text("own sampler class", "自定义采样器"),
        ValueKind.PATH,
        why=_ROWS,
    ),
    Field(
        "data.prompt_cut_length",
        Rung.DATA,
        Text("length at which prompts that are kept are cut", "保留的 prompt 被截断的长度"),
        unit="tokens",
        follows=("data.max_prompt_length", "data.sequence_length"),
        why=Text(
            "Longer prompts lose a part on one side, so the two runs answer other questions. "
            "MindSpeed-RL's seq_length cuts prompts; verl's max_prompt_length + "
            "max_response_length is its max_model_len.",
            "更长的 prompt 在一侧会被截去一部分，两次运行回答的问题就不同。MindSpeed-RL 的 "
            "seq_length 用于截断 prompt；与 verl 的 max_prompt_length + max_response_length "
            "对应的是 max_model_len。",
        ),
    ),
    Field(
        "data.templating",
        Rung.TOKENS,
        Text("when prompts are rendered", "prompt 的渲染时机"),
        ValueKind.NAME,
        severity=Severity.INFO,
        why=Text(
            "One side renders prompts before training with a template of its own, the other during "
            "it with the tokenizer's: the tokens rung compares what comes out.",
            "一侧在训练前用自己的模板渲染 prompt，另一侧在训练时用分词器的模板："
            "由 tokens 环节对比渲染结果。",
        ),
    ),
    Field(
        "data.eos_source",
        Rung.TOKENS,
        Text("token that training takes for the end", "训练所用的结束符"),
        ValueKind.NAME,
        why=Text(
            "A template with replace_eos makes <|im_end|> the end token: on that side another "
            "token closes responses and another one is padding.",
            "带 replace_eos 的模板会把结束符改为 <|im_end|>：该侧以另一个 token 结束回复，"
            "填充也随之不同。",
        ),
    ),
    Field(
        "data.pad_zero_is_unset",
        Rung.TOKENS,
        Text("pad id 0 counts as missing", "pad id 为 0 时视为未设置"),
        ValueKind.FLAG,
        severity=Severity.INFO,
        why=Text(
            "It matters for tokenizers whose pad id is 0: there the end token becomes padding.",
            "仅影响 pad id 为 0 的分词器：此时结束符会被当作填充。",
        ),
    ),
    Field(
        "data.train_files",
        Rung.DATA,
        Text("training files", "训练数据文件"),
        ValueKind.PATH,
        severity=Severity.INFO,
        between_frameworks=False,
        why=Text(
            "A path says nothing about the rows behind it: the data rung compares the rows.",
            "路径不能说明其中的数据：由 data 环节对比实际的数据行。",
        ),
    ),
    Field(
        "data.dataset.*",
        Rung.DATA,
        Text("how rows are read", "数据读取方式"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        between_frameworks=False,
    ),
    Field(
        "data.chat_template.*",
        Rung.TOKENS,
        Text("how prompts are rendered", "prompt 的渲染方式"),
        ValueKind.ANY,
        between_frameworks=False,
        why=_PROMPT,
    ),
    Field(
        "data.prompt_template",
        Rung.TOKENS,
        Text("named prompt template", "prompt 模板名"),
        ValueKind.NAME,
        between_frameworks=False,
        why=_PROMPT,
    ),
    Field(
        "data.guarantee_order",
        Rung.LOSS,
        Text("rows keep their order on the way to the ranks", "数据分发到各卡时保持顺序"),
        ValueKind.FLAG,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=Text(
            "Without it rows are handed to the ranks by an unseeded draw: no two runs agree.",
            "关闭时数据由未设种子的随机抽取分发到各卡：任何两次运行都不会一致。",
        ),
    ),
)
