"""What each token defect is called, does, and needs, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from align.core.text import Text
from align.rollout.token_defects import Defect


@dataclass(frozen=True, slots=True)
class Wording:
    """What a finding of one defect says; ``lengths`` if it changes what lengths are counted."""

    title: Text
    why: Text
    fix: Text
    lengths: bool = False


_COMPARE_IDS = Text(
    "Hand the engine's own response_ids to the trainer instead of text, and assert that both are "
    "equal after the batch is padded.",
    "请把推理引擎输出的 response_ids 直接交给训练侧，不要经过文本，并在补齐 batch 后断言两者相等。",
)

WORDING: Mapping[Defect, Wording] = {
    Defect.EOS_MISSING: Wording(
        Text(
            "the trainer lacks the eos with which the engine ended a response",
            "训练侧缺少推理引擎结束回复时的 eos",
        ),
        Text(
            "No gradient reaches the decision to stop, so responses grow until they are cut.",
            "“停止”这一决策得不到梯度，回复会越来越长，直到被截断。",
        ),
        Text(
            "Cut padding by the response's length, not by the pad id, and keep eos in "
            "response_mask; pad and eos must not share an id where a collator masks pad.",
            "请按回复长度而不是 pad id 去除补齐，并在 response_mask 中保留 eos；"
            "若 collator 会屏蔽 pad，则 pad 与 eos 不能共用同一个 id。",
        ),
        lengths=True,
    ),
    Defect.AFTER_EOS: Wording(
        Text(
            "responses go on with padding after their end",
            "回复在结束之后仍带有补齐 token",
        ),
        Text(
            "Padding is trained on as if the model had written it: lengths, log_probs and the "
            "loss count tokens that nobody sampled.",
            "补齐被当作模型生成的内容训练：长度、log_probs 与损失都计入了未曾采样的 token。",
        ),
        Text(
            "End response_mask and attention_mask at the first eos of a response, eos included.",
            "response_mask 与 attention_mask 应止于回复的第一个 eos（含 eos）。",
        ),
        lengths=True,
    ),
    Defect.EOS_FAKE: Wording(
        Text(
            "the trainer sees an eos on responses that were cut at the length limit",
            "被长度上限截断的回复在训练侧带有 eos",
        ),
        Text(
            "The model is trained on a stop it never chose, in the middle of an answer.",
            "模型被训练在回答中途停止，而它从未做出这个选择。",
        ),
        Text(
            "Append eos only where finish_reason is stop; leave cut responses as they are.",
            "仅在 finish_reason 为 stop 时保留 eos，被截断的回复保持原样。",
        ),
        lengths=True,
    ),
    Defect.RETOKENISED: Wording(
        Text(
            "the trainer has other ids for the same text as the engine",
            "同一段文本在训练侧与推理引擎的 token id 不同",
        ),
        Text(
            "The text was encoded again: log_probs are taken of a token sequence that the policy "
            "did not sample, and the ratio to the rollout's is wrong.",
            "文本被重新编码：log_probs 对应的 token 序列并非策略采样所得，"
            "与 rollout 之间的概率比也不正确。",
        ),
        _COMPARE_IDS,
        lengths=True,
    ),
    Defect.RESPONSE_DIFFERS: Wording(
        Text(
            "the trainer has other response tokens than the engine produced",
            "训练侧的回复 token 与推理引擎产生的不同",
        ),
        Text(
            "Rewards belong to one text and gradients to another.",
            "得分属于一段文本，梯度却作用在另一段文本上。",
        ),
        Text(
            "Look for a device-to-host copy read before it arrived (non_blocking without a "
            "synchronise), a buffer used again, or rows permuted between rollout and trainer. "
            f"{_COMPARE_IDS.en}",
            "请检查是否在拷贝完成前就读取了设备到主机的数据（non_blocking 而未同步）、"
            f"是否复用了缓冲区、rollout 与训练之间行顺序是否改变。{_COMPARE_IDS.zh}",
        ),
        lengths=True,
    ),
    Defect.POSITIONS_ROUNDED: Wording(
        Text(
            "position_ids are rounded: neighbouring tokens share a position",
            "position_ids 被舍入：相邻 token 位置相同",
        ),
        Text(
            "bfloat16 holds whole numbers up to 256 and float16 up to 2048; beyond that tokens "
            "get the wrong rotary angle, and the error grows with length.",
            "bfloat16 只能精确表示不超过 256 的整数，float16 为 2048；"
            "超出之后旋转角度错误，且误差随长度增大。",
        ),
        Text(
            "Keep position_ids in int64 and compute rotary angles in float32.",
            "position_ids 请保持 int64，旋转角度用 float32 计算。",
        ),
    ),
    Defect.POSITIONS_LEFT_PADDING: Wording(
        Text(
            "position_ids of the response count the padding before the prompt",
            "回复的 position_ids 把 prompt 之前的补齐也计算在内",
        ),
        Text(
            "The response stands further from its prompt than it did when it was sampled, and the "
            "more so the shorter the prompt.",
            "回复与 prompt 的距离大于采样时的距离，prompt 越短偏差越大。",
        ),
        Text(
            "Derive position_ids from attention_mask (cumsum - 1), not from the column number.",
            "请由 attention_mask 计算 position_ids（cumsum - 1），而不是使用列号。",
        ),
    ),
    Defect.PADDING_SIDE: Wording(
        Text(
            "padding stands between prompt and response: prompts are padded on the right",
            "prompt 与回复之间夹有补齐：prompt 被补齐在右侧",
        ),
        Text(
            "The first response token is predicted from a padding position.",
            "回复的第一个 token 是从补齐位置预测的。",
        ),
        Text(
            "Pad prompts on the left whatever tokenizer.padding_side says.",
            "无论 tokenizer.padding_side 如何设置，prompt 都应补齐在左侧。",
        ),
    ),
    Defect.MASK_SHIFTED: Wording(
        Text(
            "response_mask is off by one against the response's tokens",
            "response_mask 与回复 token 错开一位",
        ),
        Text(
            "One token at one end of each response gets no gradient, and a token that the model "
            "did not generate can get one.",
            "每条回复一端有一个 token 得不到梯度，而并非模型生成的 token 可能得到梯度。",
        ),
        Text(
            "Shift log_probs or labels by one, never both the mask and them: response_mask[i] "
            "belongs to responses[i].",
            "只对 log_probs 或 labels 移位一次，不要再移动 mask："
            "response_mask[i] 应与 responses[i] 对应。",
        ),
    ),
    Defect.IDS_BEYOND_VOCABULARY: Wording(
        Text(
            "token ids lie outside the tokenizer's vocabulary",
            "存在超出分词器词表的 token id",
        ),
        Text(
            "The embedding has no trained row for such an id, or none at all: it is a padded row "
            "that was sampled, the id of another tokenizer, or memory read too early.",
            "这样的 id 在 embedding 中没有训练过的行，甚至没有对应的行："
            "可能采样到了补齐的词表行、来自另一个分词器，或者数据在就绪之前就被读取。",
        ),
        Text(
            "Compare len(tokenizer) with vocab_size and the embedding's rows, and mask the padded "
            "rows of the logits before sampling.",
            "请对照 len(tokenizer)、vocab_size 与 embedding 的行数，"
            "并在采样前屏蔽 logits 中补齐的行。",
        ),
    ),
    Defect.POSITIONS_DUPLICATED: Wording(
        Text(
            "position_ids repeat: neighbouring tokens share a position",
            "position_ids 有重复：相邻 token 位置相同",
        ),
        Text(
            "Tokens with one position get one rotary angle; attention cannot tell their order.",
            "位置相同的 token 旋转角度也相同，注意力无法区分它们的先后。",
        ),
        Text(
            "Derive position_ids from attention_mask (cumsum - 1) over the whole row, after prompt "
            "and response are joined.",
            "请在拼接 prompt 与回复之后，由整行的 attention_mask 计算 position_ids（cumsum - 1）。",
        ),
    ),
    Defect.PADDING_INSIDE: Wording(
        Text(
            "tokens in the middle of a row are not attended",
            "一行中间的 token 未被注意（attention_mask 为 0）",
        ),
        Text(
            "What stands there is hidden from every later token: padding that was left between "
            "pieces, or a real token that has the id of padding.",
            "后面的 token 都看不到这些位置：要么是片段之间残留的补齐，"
            "要么是 id 与 pad 相同的真实 token。",
        ),
        Text(
            "Build attention_mask from lengths, not by comparing ids with the pad id, and pad once "
            "after joining all pieces.",
            "请按长度而不是按 pad id 构造 attention_mask，并在拼接完所有片段之后只补齐一次。",
        ),
    ),
    Defect.LABELS_DIFFER: Wording(
        Text(
            "labels name other tokens than the row has",
            "labels 与该行的 token 不一致",
        ),
        Text(
            "The loss pulls the model towards tokens that are not in the sequence.",
            "损失会把模型拉向序列中并不存在的 token。",
        ),
        Text(
            "Copy labels from input_ids after the last change to them, and set -100 where no loss "
            "is wanted.",
            "请在最后一次修改 input_ids 之后再复制出 labels，并在不计损失处设为 -100。",
        ),
    ),
    Defect.PACKED_BOUNDARIES: Wording(
        Text(
            "cu_seqlens do not match the packed sequences",
            "cu_seqlens 与打包的序列不一致",
        ),
        Text(
            "A token attends to another sequence, or loses the beginning of its own.",
            "token 会注意到别的序列，或者看不到自己序列的开头。",
        ),
        Text(
            "cu_seqlens is [0, cumsum of the lengths]; position_ids begin at 0 at each of them. "
            "Where sequences are padded to a multiple of TP and CP, use the padded lengths.",
            "cu_seqlens 应为 [0, 各长度的累加]，position_ids 在每个边界处从 0 开始。"
            "若按 TP、CP 的倍数补齐，则使用补齐后的长度。",
        ),
    ),
    Defect.PREFIX_BROKEN: Wording(
        Text(
            "a later turn does not begin with the tokens of the turn before",
            "后一轮的 token 不是以上一轮的 token 开头",
        ),
        Text(
            "The conversation was rendered or encoded again: tokens that were already sampled have "
            "other ids now, and their log_probs belong to other tokens.",
            "对话被重新渲染或重新编码：已采样的 token 变成了别的 id，其 log_probs 也就对应错了。",
        ),
        Text(
            "Append only the ids of the new turn to those sampled before; never decode and encode "
            "the whole conversation.",
            "请只把新一轮的 id 追加到之前采样的 id 之后，不要把整段对话解码后再编码。",
        ),
        lengths=True,
    ),
}
