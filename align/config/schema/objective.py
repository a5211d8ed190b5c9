"""Rewards, advantages and the loss."""

from __future__ import annotations

from align.config.schema.field import Field, ValueKind
from align.core.finding import Severity, Strength
from align.core.rung import Rung
from align.core.text import Text

_REWARD = Text("The same response gets another score.", "同一条回复得到不同的分数。")
_ADVANTAGE = Text("The same scores become other advantages.", "相同的分数得到不同的 advantage。")
_LOSS = Text(
    "Another objective is optimised from the same data.", "在相同数据上优化的是不同的目标函数。"
)
_PENALTY = "reward.overlong_penalty"
_KL_REWARD = "reward.use_kl_in_reward"
_CRITIC = "critic.used"


def _reward(name: str, en: str, zh: str, kind: ValueKind, **more: object) -> Field:
    return Field(f"reward.{name}", Rung.REWARD, Text(en, zh), kind, why=_REWARD, **more)  # type: ignore[arg-type]


def _loss(
    name: str, en: str, zh: str, kind: ValueKind = ValueKind.NUMBER, only_if: str | None = None
) -> Field:
    return Field(f"loss.{name}", Rung.LOSS, Text(en, zh), kind, why=_LOSS, only_if=only_if)


FIELDS: tuple[Field, ...] = (
    _reward("function", "reward function", "奖励函数", ValueKind.PATH, between_frameworks=False),
    Field(
        "reward.rules",
        Rung.REWARD,
        Text("rules that score a response", "为回复打分的规则"),
        ValueKind.ANY,
        severity=Severity.INFO,
        why=Text(
            "Names of rules prove nothing: the reward rung compares the scores of the same "
            "responses.",
            "规则名称不能说明问题：由 reward 环节对比相同回复的得分。",
        ),
    ),
    _reward(
        "function_name",
        "name of the reward function",
        "奖励函数名",
        ValueKind.NAME,
        between_frameworks=False,
        only_if="reward.function",
    ),
    _reward(
        "function_weights",
        "weights of the reward functions",
        "奖励函数的权重",
        ValueKind.ANY,
        between_frameworks=False,
    ),
    _reward("manager", "reward manager", "奖励管理器", ValueKind.NAME, between_frameworks=False),
    _reward("model.enable", "reward model", "奖励模型", ValueKind.FLAG, between_frameworks=False),
    _reward(
        "model.*",
        "setting of the reward model",
        "奖励模型设置",
        ValueKind.ANY,
        between_frameworks=False,
        only_if="reward.model.enable",
    ),
    _reward(
        "options.*",
        "option of the reward manager",
        "奖励管理器选项",
        ValueKind.ANY,
        between_frameworks=False,
    ),
    _reward("overlong_penalty", "penalty for overlong responses", "过长回复惩罚", ValueKind.FLAG),
    _reward(
        "overlong_buffer",
        "length over which that penalty grows",
        "过长惩罚的缓冲长度",
        ValueKind.NUMBER,
        unit="tokens",
        only_if=_PENALTY,
    ),
    _reward(
        "overlong_penalty_factor",
        "factor of that penalty",
        "过长惩罚系数",
        ValueKind.NUMBER,
        only_if=_PENALTY,
    ),
    _reward(
        "overlong_max_length",
        "length from which that penalty counts",
        "过长惩罚的长度上限",
        ValueKind.NUMBER,
        unit="tokens",
        only_if=_PENALTY,
    ),
    _reward(
        "use_kl_in_reward", "KL penalty inside the reward", "在奖励中加入 KL 惩罚", ValueKind.FLAG
    ),
    _reward(
        "kl_penalty", "estimator of that KL", "奖励 KL 的估计式", ValueKind.NAME, only_if=_KL_REWARD
    ),
    _reward(
        "kl_coef", "coefficient of that KL", "奖励 KL 的系数", ValueKind.NUMBER, only_if=_KL_REWARD
    ),
    _reward(
        "kl_control",
        "how that coefficient moves",
        "奖励 KL 系数的变化方式",
        ValueKind.NAME,
        only_if=_KL_REWARD,
    ),
    _reward(
        "kl_horizon",
        "horizon of the moving coefficient",
        "自适应 KL 的时间尺度",
        ValueKind.NUMBER,
        only_if=_KL_REWARD,
    ),
    _reward(
        "kl_target",
        "target of the moving coefficient",
        "自适应 KL 的目标",
        ValueKind.NUMBER,
        only_if=_KL_REWARD,
    ),
    _reward(
        "filter_groups", "groups without signal are dropped", "丢弃无信号的分组", ValueKind.FLAG
    ),
    _reward(
        "filter_groups_metric",
        "metric groups are dropped by",
        "分组过滤指标",
        ValueKind.NAME,
        only_if="reward.filter_groups",
        between_frameworks=False,
    ),
    _reward(
        "filter_groups_max_batches",
        "further batches drawn for them",
        "分组过滤的最大补充批数",
        ValueKind.NUMBER,
        only_if="reward.filter_groups",
        between_frameworks=False,
    ),
    _reward(
        "filter_groups_options.*",
        "setting of group filtering",
        "分组过滤设置",
        ValueKind.ANY,
        only_if="reward.filter_groups",
        between_frameworks=False,
    ),
    Field(
        "advantage.estimator",
        Rung.ADVANTAGE,
        Text("advantage estimator", "advantage 估计方法"),
        ValueKind.NAME,
        why=_ADVANTAGE,
    ),
    Field(
        "advantage.normalize_by_std",
        Rung.ADVANTAGE,
        Text("division by the group's standard deviation", "除以组内标准差"),
        ValueKind.FLAG,
        why=_ADVANTAGE,
    ),
    Field(
        "advantage.std_eps",
        Rung.ADVANTAGE,
        Text("number added to the group's standard deviation", "组内标准差的附加项"),
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        why=Text("It matters for groups whose scores hardly differ.", "仅影响得分几乎相同的分组。"),
    ),
    Field(
        "advantage.dtype",
        Rung.ADVANTAGE,
        Text("precision of group statistics", "组内统计的精度"),
        ValueKind.DTYPE,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
    ),
    Field(
        "advantage.whiten",
        Rung.ADVANTAGE,
        Text("advantages are whitened", "对 advantage 做白化"),
        ValueKind.FLAG,
        why=_ADVANTAGE,
        only_if=_CRITIC,
    ),
    Field(
        "advantage.gamma",
        Rung.ADVANTAGE,
        Text("discount", "折扣因子 gamma"),
        why=_ADVANTAGE,
        only_if=_CRITIC,
    ),
    Field(
        "advantage.lam",
        Rung.ADVANTAGE,
        Text("lambda of GAE", "GAE 的 lambda"),
        why=_ADVANTAGE,
        only_if=_CRITIC,
    ),
    Field(
        "advantage.options.*",
        Rung.ADVANTAGE,
        Text("setting of the estimator", "估计方法设置"),
        ValueKind.ANY,
        why=_ADVANTAGE,
        between_frameworks=False,
    ),
    _loss("mode", "policy loss", "策略损失类型", ValueKind.NAME),
    _loss(
        "mode_options.*",
        "option of a non-standard policy loss",
        "非标准策略损失的选项",
        ValueKind.ANY,
        only_if="derived.nonstandard_loss",
    ),
    Field(
        "loss.aggregation",
        Rung.LOSS,
        Text("how token losses are averaged", "token 损失的平均方式"),
        ValueKind.NAME,
        why=Text(
            "Tokens are weighted otherwise: of two responses of 10 and 1,000 tokens the short one "
            "has 1 % of the weight with token-mean, half with seq-mean-token-mean.",
            "token 的权重不同：两条回复分别为 10 与 1000 个 token 时，短回复的权重在 token-mean "
            "下为 1%，在 seq-mean-token-mean 下为一半。",
        ),
    ),
    Field(
        "loss.normalization",
        Rung.LOSS,
        Text("batch within which token losses are averaged", "token 损失求平均的批次范围"),
        ValueKind.NAME,
        severity=Severity.WARNING,
        why=Text(
            "Where an update has several micro-batches, averaging within each gives tokens of "
            "short micro-batches more weight; with one per update and rank both are the same.",
            "一次更新含多个 micro-batch 时，在每个 micro-batch 内求平均会使短 micro-batch 的 token "
            "权重更大；每次更新每个 rank 只有一个时两者相同。",
        ),
    ),
    _loss("scale_factor", "divisor of the normalised sum", "归一化求和的除数"),
    _loss("clip_ratio", "clip range of the ratio", "ratio 的裁剪范围"),
    _loss("clip_ratio_low", "lower clip range", "ratio 的下侧裁剪范围"),
    _loss("clip_ratio_high", "upper clip range", "ratio 的上侧裁剪范围"),
    _loss(
        "dual_clip", "bound of the dual clip, none where it is off", "dual clip 的上界，关闭为 none"
    ),
    _loss("entropy_coef", "coefficient of the entropy bonus", "熵奖励系数"),
    _loss("use_kl", "KL term in the loss", "损失中的 KL 项", ValueKind.FLAG),
    _loss("kl_coef", "coefficient of that KL term", "损失 KL 项的系数", only_if="loss.use_kl"),
    _loss(
        "kl_type", "estimator of that KL", "损失 KL 的估计式", ValueKind.NAME, only_if="loss.use_kl"
    ),
    Field(
        "loss.rollout_correction.*",
        Rung.LOSS,
        Text("importance correction for the rollout policy", "对 rollout 策略的重要性修正"),
        ValueKind.ANY,
        why=_LOSS,
        between_frameworks=False,
    ),
    Field(
        "loss.options.*",
        Rung.LOSS,
        Text("option of the loss", "损失选项"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        why=_LOSS,
        between_frameworks=False,
    ),
    Field(
        "distillation.enable",
        Rung.LOSS,
        Text("distillation from a teacher", "教师蒸馏"),
        ValueKind.FLAG,
        why=_LOSS,
    ),
    Field(
        "distillation.*",
        Rung.LOSS,
        Text("setting of distillation", "蒸馏设置"),
        ValueKind.ANY,
        why=_LOSS,
        only_if="distillation.enable",
        between_frameworks=False,
    ),
    Field(
        "critic.used",
        Rung.ADVANTAGE,
        Text("a critic is trained", "训练价值网络"),
        ValueKind.FLAG,
        why=_ADVANTAGE,
        follows=("advantage.estimator",),
    ),
    Field(
        "critic.lr",
        Rung.OPTIMIZER,
        Text("learning rate of the critic", "价值网络学习率"),
        only_if=_CRITIC,
    ),
    Field(
        "critic.clip_range",
        Rung.LOSS,
        Text("clip range of the value loss", "价值损失裁剪范围"),
        only_if=_CRITIC,
    ),
    Field(
        "critic.warmup_steps",
        Rung.OPTIMIZER,
        Text("steps in which only the critic is trained", "仅训练价值网络的步数"),
        only_if=_CRITIC,
    ),
    Field(
        "critic.strategy",
        Rung.ADVANTAGE,
        Text("training engine of the critic", "价值网络的训练引擎"),
        ValueKind.NAME,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        only_if=_CRITIC,
    ),
    Field(
        "critic.optimizer",
        Rung.OPTIMIZER,
        Text("optimizer of the critic", "价值网络的优化器"),
        ValueKind.NAME,
        only_if=_CRITIC,
    ),
    Field(
        "critic.*",
        Rung.OPTIMIZER,
        Text("setting of the critic", "价值网络设置"),
        ValueKind.ANY,
        severity=Severity.WARNING,
        only_if=_CRITIC,
        between_frameworks=False,
    ),
    Field(
        "ref.*",
        Rung.LOSS,
        Text("setting of the reference model", "参考模型设置"),
        ValueKind.ANY,
        severity=Severity.INFO,
        strength=Strength.NUMERIC,
        only_if="ref.used",
        between_frameworks=False,
    ),
    Field(
        "ref.used",
        Rung.LOSS,
        Text("a reference model is evaluated", "使用参考模型"),
        ValueKind.FLAG,
        severity=Severity.INFO,
        strength=Strength.NONE,
    ),
    Field(
        "ref.dtype",
        Rung.LOSS,
        Text("precision of the reference model", "参考模型的精度"),
        ValueKind.DTYPE,
        severity=Severity.WARNING,
        strength=Strength.NUMERIC,
        signature=("actor/kl_loss",),
        only_if="ref.used",
        between_frameworks=False,
        why=Text(
            "The KL to the reference model is computed with other rounding.",
            "与参考模型的 KL 以不同的舍入计算。",
        ),
    ),
)
