"""Defaults of MindSpeed-RL that nobody wants, and that act where a key is left out.

Source: MindSpeed-RL's configuration classes of 2.3.0; its sample files write every one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.config.case import Case, Example, Ruling
from align.core.config_value import EffectiveValue, ProvenanceKind
from align.core.text import Text

# Field: what its default does.
_CONSEQUENCES: Mapping[str, Text] = {
    "model.attention_dropout": Text("0.1 drops attention weights", "0.1 会随机丢弃注意力权重"),
    "model.hidden_dropout": Text("0.1 drops hidden states", "0.1 会随机丢弃隐藏状态"),
    "rollout.temperature": Text(
        "0.2 makes the responses of a group nearly equal, so advantages vanish",
        "0.2 使同组回复几乎相同，advantage 趋于消失",
    ),
    "rollout.top_k": Text(
        "50 cuts the distribution off, and training log_probs do not know of it",
        "50 会截断分布，而训练侧的 log_probs 并未考虑",
    ),
    "actor.lr_schedule": Text("linear lowers the learning rate to 0", "linear 会把学习率降到 0"),
    "data.guarantee_order": Text(
        "false hands rows to the ranks by an unseeded draw", "false 会以未设种子的随机抽取分发数据"
    ),
    "model.moe_aux_loss_coef": Text(
        "0.001 adds a load balancing term to the loss", "0.001 会在损失中加入负载均衡项"
    ),
    "actor.adam_beta2": Text(
        "0.999 averages squared gradients over 1,000 updates, the sample files' 0.95 over 20",
        "0.999 对约 1000 次更新的梯度平方取平均，示例文件的 0.95 约为 20 次",
    ),
    "model.rms_norm_eps": Text("1e-5 is not what most models have", "1e-5 与多数模型不符"),
    "loss.kl_coef": Text("0.01 is ten times verl's", "0.01 是 verl 的十倍"),
    "data.max_response_length": Text("128 cuts most responses", "128 会截断大多数回复"),
}
FIELDS = tuple(_CONSEQUENCES)
# Of a field that is made from several keys, the one whose default is meant.
_COMPUTED_FROM = {"model.moe_aux_loss_coef": "moe_aux_loss_coeff", "loss.kl_coef": "init_kl_coef"}


def rule(case: Case) -> Ruling | None:
    """Say that a value was never chosen: the framework's default stands where the key is absent."""
    for side, value, framework in zip(
        (Text("reference", "参考"), Text("candidate", "被测")),
        (case.reference, case.candidate),
        case.frameworks,
        strict=True,
    ):
        if framework == "mindspeed_rl" and _is_unset(case.name, value):
            does = _CONSEQUENCES[case.name]
            return Ruling(
                Text(
                    f"It is not set in the {side.en}; the framework's default stands: {does.en}.",
                    f"{side.zh}没有设置该项，采用框架的默认值：{does.zh}。",
                )
            )
    return None


def _is_unset(name: str, value: EffectiveValue) -> bool:
    key = _COMPUTED_FROM.get(name)
    by_itself = value.raw.provenance.kind is ProvenanceKind.DEFAULT
    return by_itself or any(unset.endswith(f".{key}") for unset in value.unset)


_CROSS = ("verl", "mindspeed_rl")
FIRES = (
    Example("rollout.temperature", (1.0, 0.2), frameworks=_CROSS, unset=(False, True)),
    Example("actor.adam_beta2", (0.95, 0.999), frameworks=_CROSS, unset=(False, True)),
)
SILENT = (
    Example("rollout.temperature", (1.0, 0.2), frameworks=_CROSS),
    Example("rollout.temperature", (1.0, 0.7), unset=(True, False)),
)
