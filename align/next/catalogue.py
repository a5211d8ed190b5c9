"""The experiments practitioners do by hand, each with what its outcomes mean.

Source: the vendors' decision tree (response equal, reward other -> reward; inputs equal, loss or
gradient other -> training; log_prob difference above 0.01 -> lr = 0, then max_response_length = 1)
and repeats of the reference as the noise floor.
"""

from __future__ import annotations

from align.core.text import Text
from align.next.experiment import COMPARE, Plan, Reading, Settings

NUM_STEPS_AT_LR_ZERO = 5


def confirm_fix(last_step: int, fix: Text, raw: tuple[str, ...]) -> Plan:
    """Run the candidate again with the fix, to just past the earliest symptom."""
    return Plan(
        id="confirm_fix",
        title=Text(
            "Apply the fix and run the candidate past the symptom",
            "按修复方法修改后，把被测重新运行到现象出现之后",
        ),
        why=Text(
            f"The cause is known; only the proof is missing. {fix.en}",
            f"原因已知，只差验证。{fix.zh}",
        ),
        readings=(
            Reading(
                Text("the symptom is gone", "现象消失"), Text("the cause is confirmed", "原因得证")
            ),
            Reading(
                Text("it is still there", "现象仍在"),
                Text(
                    "a second cause: run `align next` again",
                    "还有第二个原因：再次运行 `align next`",
                ),
            ),
        ),
        reference=None,
        candidate={},
        num_steps=last_step,
        raw=raw,
    )


def lr_zero() -> Plan:
    """Freeze the weights: a log-prob gap that stays has nothing to do with learning."""
    return Plan(
        id="lr_zero",
        title=Text("A few candidate steps with lr = 0", "被测以 lr = 0 运行几个 step"),
        why=Text(
            "Trainer and rollout engine disagree about log_probs. With frozen weights both hold "
            "the same model for good, so what is left is one forward pass against the other.",
            "训练侧与推理引擎的 log_prob 不一致。冻结权重后两者始终是同一个模型，"
            "剩下的差异只来自两个前向实现。",
        ),
        readings=(
            Reading(
                Text(
                    "rollout_probs_diff as large from step 1 on",
                    "rollout_probs_diff 从第 1 步起同样大",
                ),
                Text(
                    "two forward passes, or weights that never arrived: next, "
                    "max_response_length = 1",
                    "两个前向实现不同，或权重从未同步：下一步做 max_response_length = 1",
                ),
            ),
            Reading(
                Text("small at first and never grows", "一开始就小且不增长"),
                Text("weight sync after an update", "更新之后的权重同步有问题"),
            ),
        ),
        reference=None,
        candidate={"actor.lr": 0},
        num_steps=NUM_STEPS_AT_LR_ZERO,
    )


def one_token() -> Plan:
    """Answer with one token: no decode step, no KV cache."""
    return Plan(
        id="max_response_length_1",
        title=Text(
            "One candidate step with max_response_length = 1",
            "被测以 max_response_length = 1 运行 1 个 step",
        ),
        why=Text(
            "The first response token comes from the prefill alone. It separates prefill from "
            "decoding with a KV cache.",
            "第一个回复 token 只来自 prefill，因此能把 prefill 与带 KV cache 的 decode 分开。",
        ),
        readings=(
            Reading(
                Text("rollout_probs_diff still large", "rollout_probs_diff 仍然大"),
                Text("prefill or weights: compare layers", "prefill 或权重：比较各层"),
            ),
            Reading(
                Text("small", "变小"),
                Text("decoding or the KV cache", "decode 或 KV cache"),
            ),
        ),
        reference=None,
        candidate={"actor.lr": 0, "data.max_response_length": 1},
        num_steps=1,
    )


def greedy() -> Plan:
    """Take chance out of sampling."""
    only_best: Settings = {"rollout.top_k": 1}
    return Plan(
        id="greedy",
        title=Text("One greedy step on both sides", "两侧各以贪心采样运行 1 个 step"),
        why=Text(
            "Two runs never sample alike. With top_k = 1 the same weights and prompts must give "
            "the same first tokens, whatever the seed; temperature stays as it is, since trainers "
            "divide by it.",
            "两次运行的采样不会相同。取 top_k = 1 后，同样的权重与 prompt 无论种子如何，"
            "都应给出相同的前若干个 token；temperature 不变，因为训练侧会除以它。",
        ),
        readings=(
            Reading(
                Text("other from the first 20 tokens on", "前 20 个 token 就不同"),
                Text("inference: weights, template or forward pass", "推理：权重、模板或前向计算"),
            ),
            Reading(
                Text("equal at first, other later", "开头相同、后面不同"),
                Text("rounding only: look at training", "只是舍入：应排查训练"),
            ),
            Reading(
                Text("equal responses, other scores", "回复相同、得分不同"),
                Text("reward", "奖励函数"),
            ),
        ),
        reference=only_best,
        candidate=only_best,
        num_steps=1,
        records=True,
    )


def replay_step(records: bool) -> Plan:
    """Train one step of the candidate on the reference's own responses."""
    return Plan(
        id="replay_step_1",
        title=Text(
            "One step on the reference's own rollouts", "用参考自己的 rollout 训练 1 个 step"
        ),
        why=Text(
            "With the same tokens on both sides sampling cannot be the reason. Losses, gradients "
            "and updates of this one step then show the first link that differs.",
            "两侧 token 相同时，采样不可能是原因；该 step 的损失、梯度与更新会显示最先不同的环节。",
        ),
        readings=(
            Reading(
                Text("log_probs, loss or gradient differ", "log_prob、损失或梯度不同"),
                Text(
                    "training: the first differing rung names the link",
                    "训练：最先不同的环节即所在",
                ),
            ),
            Reading(Text("scores differ", "得分不同"), Text("reward", "奖励函数")),
            Reading(
                Text("everything equal", "全部相同"),
                Text("rollout, or what comes after step 1", "rollout，或第 1 步之后的环节"),
            ),
        ),
        reference={} if records else None,
        candidate={},
        num_steps=1,
        records=records,
        replays=True,
    )


def capture_step(*, alone: bool) -> Plan:
    """Record step 1 in full, of both sides where there are two."""
    return Plan(
        id="capture_step_1",
        title=Text("Capture step 1 in full", "完整记录第 1 个 step"),
        why=Text(
            "Nothing of this run's tokens, losses and gradients is recorded; one step of them "
            "covers nine rungs.",
            "该运行没有记录 token、损失与梯度；只需一个 step 就能覆盖九个环节。",
        ),
        readings=(
            Reading(
                Text("a rung differs", "某一环节不同"),
                Text(
                    "that link, or one before it that is not recorded",
                    "即该环节，或其之前未记录的环节",
                ),
            ),
            Reading(
                Text("all equal", "全部相同"),
                Text(
                    "what comes after step 1: repeat the reference",
                    "第 1 步之后的环节：重复参考运行",
                ),
            ),
        ),
        reference=None if alone else {},
        candidate={},
        num_steps=1,
        records=not alone,
        compare="align run show {candidate}" if alone else COMPARE,
    )


def repeat_reference() -> Plan:
    """Run the reference again with another sampling seed."""
    return Plan(
        id="repeat_reference",
        title=Text("Repeat the reference with another sampling seed", "换一个采样种子重复参考运行"),
        why=Text(
            "What is seen may be chance: what two runs of the reference differ by is not known.",
            "所见现象可能只是随机波动：目前还不知道参考的两次运行之间相差多少。",
        ),
        readings=(
            Reading(
                Text("the repeat differs as much", "重复运行也相差这么多"),
                Text("chance: the candidate is no worse", "随机波动：被测并不更差"),
            ),
            Reading(
                Text("the repeat agrees with the reference", "重复运行与参考一致"),
                Text("the difference is real", "差异真实存在"),
            ),
        ),
        reference={"rollout.seed": 1},
        candidate=None,
        num_steps=None,
        compare="align accept REFERENCE CANDIDATE --repeat {reference}",
    )
