"""Which epsilon a model was trained with stands in its config.json.

Source: config.json of the published Qwen2.5 models on Hugging Face. The field report gives 1e-7 in
one table and 1e-6 in another; no published Qwen2.5 model has 1e-7. MindSpeed-RL's own default is
1e-5 (its configuration class and Megatron's ``--norm-epsilon``), not the 1e-6 of the report.
"""

from __future__ import annotations

import re

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf
from align.core.text import Text

FIELDS = ("model.rms_norm_eps",)

# Model, pretrained, instruct.
_PUBLISHED = {"7B": ("1e-6", "1e-6"), "32B": ("1e-5", "1e-6")}
_QWEN = re.compile(r"qwen[-_]?2[._]?5[-_](7|32)b([-_]instruct)?", re.IGNORECASE)
_FIX = Text(
    "Take the value of the checkpoint's config.json on both sides: in MindSpeed-RL it is "
    "norm_epsilon of the model file.",
    "两侧均采用权重目录 config.json 中的值：在 MindSpeed-RL 中为模型文件的 norm_epsilon。",
)


def rule(case: Case) -> Ruling | None:
    """Say what Hugging Face publishes for the model, or for the family where it is not named."""
    names = [_published(value) for value in case.values("model.name")]
    known = next((text for text in names if text is not None), None)
    table = "; ".join(
        f"{size} {base}, Instruct {chat}" for size, (base, chat) in _PUBLISHED.items()
    )
    said = known or Text(f"Qwen2.5 has {table}", f"Qwen2.5 为 {table}")
    two = Text(
        " MindSpeed-RL falls back to 1e-5 while the rollout engine reads config.json, so one run "
        "can use two values.",
        "MindSpeed-RL 未设置时取 1e-5，而推理引擎读取 config.json，"
        "因此同一次运行可能同时使用两个值。",
    )
    also = two if "mindspeed_rl" in case.frameworks else Text("", "")
    return Ruling(
        Text(
            f"Published on Hugging Face: {said.en}; none has 1e-7.{also.en}",
            f"Hugging Face 公布的值：{said.zh}；均不是 1e-7。{also.zh}",
        ),
        fix=_FIX,
    )


def _published(name: ConfigLeaf) -> Text | None:
    found = _QWEN.search(name) if isinstance(name, str) else None
    if found is None:
        return None
    model = f"{found[1]}B"
    value = _PUBLISHED[model][1 if found[2] else 0]
    kind = "-Instruct" if found[2] else ""
    return Text(f"Qwen2.5-{model}{kind} has {value}", f"Qwen2.5-{model}{kind} 为 {value}")


FIRES = (
    Example("model.rms_norm_eps", (1e-6, 1e-5), frameworks=("verl", "mindspeed_rl")),
    Example("model.rms_norm_eps", (1e-7, 1e-6), both={"model.name": "/data/Qwen2.5-7B"}),
)
SILENT: tuple[Example, ...] = ()  # it has something to say about every difference
