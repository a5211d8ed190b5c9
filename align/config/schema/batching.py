"""Mini-batches and micro-batches: how one batch becomes updates."""

from __future__ import annotations

from align.config.schema.field import Field, ValueKind
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_BATCHING = Text(
    "The same sequences are grouped otherwise for computation.",
    "相同的序列在计算时以不同方式分组。",
)

_TOKEN_BUDGET = Text(
    "It decides memory and speed: with 30k-token responses this pass ran out of memory until the "
    "budget was lowered to 16k; far below, the shapes become too small to be fast. Only rounding "
    "differs.",
    "它决定显存与速度：30k 回复时该阶段曾发生 OOM，降到 16k 后解决；过小则输入 shape 过细，"
    "计算效率下降。数值上只有舍入不同。",
)


FIELDS: tuple[Field, ...] = (
    Field(
        "actor.mini_batch_size",
        Rung.LOSS,
        Text("prompts per optimizer step", "每次优化器更新的 prompt 数"),
        unit="prompts",
        why=Text(
            "Another number of updates is made from one batch of responses, so the policy "
            "moves otherwise away from the one that generated them.",
            "同一批回复上的更新次数不同，策略相对采样策略的偏离也就不同。",
        ),
    ),
    Field(
        "actor.ppo_epochs",
        Rung.LOSS,
        Text("passes over one batch", "同一批数据的训练轮数"),
        why=Text(
            "Another number of updates is made from one batch of responses.",
            "同一批回复上的更新次数不同。",
        ),
    ),
    Field(
        "actor.shuffle_mini_batches",
        Rung.LOSS,
        Text("mini-batches are shuffled", "mini-batch 内打乱"),
        ValueKind.FLAG,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=_BATCHING,
    ),
    Field(
        "actor.shuffle_seed",
        Rung.LOSS,
        Text("seed of that shuffle", "mini-batch 打乱的种子"),
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=_BATCHING,
        only_if="actor.shuffle_mini_batches",
    ),
    Field(
        "actor.micro_batch_size",
        Rung.LOSS,
        Text("sequences per forward and backward pass", "每次前反向的序列数"),
        unit="sequences",
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_BATCHING,
        follows=("actor.dynamic_batch",),
    ),
    Field(
        "actor.dynamic_batch",
        Rung.LOSS,
        Text("micro-batches by number of tokens", "按 token 数划分 micro-batch"),
        ValueKind.FLAG,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_BATCHING,
    ),
    Field(
        "actor.max_tokens_per_micro_batch",
        Rung.LOSS,
        Text("tokens per micro-batch", "每个 micro-batch 的 token 数"),
        unit="tokens",
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_BATCHING,
        only_if="actor.dynamic_batch",
    ),
    Field(
        "trainer.balance_batch",
        Rung.LOSS,
        Text("rows are reordered to balance the ranks", "为均衡各卡负载而重排数据"),
        ValueKind.FLAG,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=Text(
            "Rows are regrouped, so mini-batches hold other rows.",
            "数据被重新分组，mini-batch 中的行不同。",
        ),
    ),
    *(
        Field(
            f"old_log_prob.{name}",
            Rung.FORWARD,
            Text(en, zh),
            kind,
            severity=Severity.INFO,
            strength=Strength.NUMERIC,
            why=_TOKEN_BUDGET if name == "max_tokens" else _BATCHING,
        )
        for name, en, zh, kind in (
            (
                "micro_batch_size",
                "sequences per old_log_prob pass",
                "计算 old_log_prob 的序列数",
                ValueKind.NUMBER,
            ),
            (
                "dynamic_batch",
                "old_log_prob batches by tokens",
                "old_log_prob 按 token 数分批",
                ValueKind.FLAG,
            ),
            (
                "max_tokens",
                "tokens per old_log_prob pass",
                "计算 old_log_prob 的 token 数",
                ValueKind.NUMBER,
            ),
        )
    ),
    Field(
        "ref.micro_batch_size",
        Rung.FORWARD,
        Text("sequences per ref_log_prob pass", "计算 ref_log_prob 的序列数"),
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_BATCHING,
        only_if="ref.used",
    ),
    Field(
        "ref.max_tokens",
        Rung.FORWARD,
        Text("tokens per ref_log_prob pass", "计算 ref_log_prob 的 token 数"),
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        why=_TOKEN_BUDGET,
        only_if="ref.used",
    ),
)
