"""What each difference between two runs' rows is called, does, and needs, in words."""

from __future__ import annotations

from collections.abc import Mapping

from align.core.text import Text
from align.rollout.token_diff import Difference
from align.rollout.token_texts import Wording

WORDING: Mapping[Difference, Wording] = {
    Difference.PROMPT: Wording(
        Text("the same prompt has other token ids", "相同的 prompt 的 token id 不同"),
        Text(
            "The two models are asked in different tokens. One edit in every prompt is the chat "
            "template; other ids at equal text are the tokenizer.",
            "两侧模型看到的 token 不同。若每条 prompt 都有相同的改动，原因是 chat template；"
            "若文本相同而 id 不同，原因是分词器。",
        ),
        Text(
            "Run `align tokenizer diff`; compare chat template, default system prompt, "
            "add_generation_prompt and enable_thinking (MindSpeed-RL: prompt_type).",
            "请运行 `align tokenizer diff`，对照 chat template、默认 system prompt、"
            "add_generation_prompt 与 enable_thinking（MindSpeed-RL 为 prompt_type）。",
        ),
    ),
    Difference.NEARLY_IDENTICAL: Wording(
        Text(
            "responses are the same but for single tokens",
            "回复只有个别 token 不同",
        ),
        Text(
            "Two samples differ from some token on to the end; equal text around single other "
            "tokens comes from a template, a tokenizer setting or a changed buffer.",
            "两次采样一旦分岔，之后都会不同；前后相同而只有个别 token 不同，"
            "说明是模板、分词器设置，或缓冲区被改动。",
        ),
        Text(
            "Decode the quoted tokens with both tokenizers; compare what is stripped or added "
            "between rollout and trainer.",
            "请用两侧的分词器解码所引用的 token，对照从 rollout 到训练之间删去或添加了什么。",
        ),
    ),
    Difference.MASK: Wording(
        Text(
            "response_mask differs at the same tokens",
            "相同 token 的 response_mask 不同",
        ),
        Text(
            "The two losses are taken over different tokens: eos, tool output or one column more "
            "or less.",
            "两侧对不同的 token 计损失：eos、工具输出，或多一列、少一列。",
        ),
        Text(
            "See the quoted token: decide whether it belongs in the loss, and change the side that "
            "has it wrong.",
            "请看所引用的 token 是否应计入损失，并修改有误的一侧。",
        ),
    ),
    Difference.POSITIONS: Wording(
        Text(
            "position_ids differ at the same tokens",
            "相同 token 的 position_ids 不同",
        ),
        Text(
            "Distances between tokens differ, and with them every rotary angle.",
            "token 之间的距离不同，旋转角度也随之不同。",
        ),
        Text(
            "Derive position_ids from attention_mask (cumsum - 1) on both sides.",
            "两侧都由 attention_mask 计算 position_ids（cumsum - 1）。",
        ),
    ),
    Difference.POSITIONS_OFFSET: Wording(
        Text(
            "position_ids of the two sides differ by a constant",
            "两侧的 position_ids 相差一个常数",
        ),
        Text(
            "Rotary embeddings see distances alone, so this changes nothing but rounding; learned "
            "positions it would shift.",
            "旋转位置编码只取决于距离，因此除舍入外没有影响；可学习的位置编码则会整体错位。",
        ),
        Text(
            "Nothing to do with rotary embeddings.",
            "使用旋转位置编码时无需处理。",
        ),
    ),
    Difference.LABELS_SHIFTED: Wording(
        Text(
            "labels are shifted by one on one side and not on the other",
            "labels 一侧已错开一位，另一侧没有",
        ),
        Text(
            "A loss that shifts by itself must be given unshifted labels; shifted twice, every "
            "token is trained to predict the one after the next.",
            "若损失函数内部会移位，labels 就不应事先移位；移位两次时，"
            "每个 token 学习预测的是再下一个 token。",
        ),
        Text(
            "Check which loss each side calls: Hugging Face models shift inside, Megatron and verl "
            "expect shifted labels.",
            "请检查两侧调用的损失：Hugging Face 模型在内部移位，Megatron 与 verl 需要事先移位。",
        ),
    ),
}
