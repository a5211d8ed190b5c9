"""Qwen2.5's base and chat models end a response with different tokens.

Source: config.json of Qwen2.5-7B has eos_token_id 151643, that of Qwen2.5-7B-Instruct 151645, its
generation_config.json both, with 151643 as padding. Field report: the engine ended responses with
151643, MindSpeed-RL took that for padding, and the run collapsed at step 500.
"""

from __future__ import annotations

from align.config.case import Case, Example, Ruling
from align.core.config_value import ConfigLeaf
from align.core.text import Text

FIELDS = ("model.eos_token_id",)

_END_OF_TEXT, _IM_END = 151643, 151645


def rule(case: Case) -> Ruling | None:
    """Tell the story where one side is a base model and the other a chat model."""
    sides = [_tokens(value.value) for value in (case.reference, case.candidate)]
    if not all(side & {_END_OF_TEXT, _IM_END} for side in sides):
        return None
    return Ruling(
        Text(
            "151643 (<|endoftext|>) ends responses of Qwen2.5's base models and is padding for its "
            "Instruct models, which end with 151645 (<|im_end|>). With the wrong folder the eos is "
            "cut off as padding, the model never learns to stop, and in the field the run "
            "collapsed after 500 steps: response length fell to 0 and the reward with it.",
            "151643（<|endoftext|>）是 Qwen2.5 base 模型的结束符，对 Instruct 模型则是填充，"
            "后者以 151645（<|im_end|>）结束。用错目录时 eos 会被当作填充去掉，模型学不到何时结束；"
            "实践中训练 500 步后崩溃：回复长度降至 0 附近，reward 随之下降。",
        ),
        fix=Text(
            "Use the same tokenizer folder, config.json and generation_config.json on both sides: "
            "a folder named after an experiment does not say which model it holds.",
            "两侧使用相同的分词器目录、config.json 与 generation_config.json："
            "以实验命名的目录不能说明其中是哪个模型。",
        ),
    )


def _tokens(value: ConfigLeaf) -> set[ConfigLeaf]:
    return set(value) if isinstance(value, tuple) else {value}


FIRES = (
    Example("model.eos_token_id", ((151643,), (151645,)), frameworks=("verl", "mindspeed_rl")),
    Example("model.eos_token_id", ((151643, 151645), (151645,))),
)
SILENT = (Example("model.eos_token_id", ((1,), (1, 106))),)
