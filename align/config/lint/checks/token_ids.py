"""The ids that end and pad a response must agree in all files.

Source: the eos story of Ascend's GRPO practice report (config.json 151645, generation_config
[151645, 151643], pad 151643: every 151643 was stripped as padding and the run collapsed at step
500); trl issues 1623 and 3091 (pad equal to eos masks the real eos); MindSpeed-RL's
`pad if pad else eod`.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example, Settings
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.config_value import ConfigLeaf, ConfigValue
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text


def check(run: OneRun) -> Iterator[Finding]:
    """Compare eos and pad ids of config.json, generation_config.json and the run's own keys."""
    eos = _sources(run, "eos_token_id")
    pads = _sources(run, "pad_token_id")
    stops = frozenset().union(*(_ids(v.value) for v in eos))
    trained = [v for v in eos if v is not run.generation.get("eos_token_id")]
    engine = run.generation.get("eos_token_id")
    if engine is not None:
        for value in trained:
            if not _ids(value.value) <= _ids(engine.value):
                yield _disagree(run, value, engine)
    for pad in pads[:1]:
        ids = _ids(pad.value)
        ends = [v for v in trained[:1] if not ids & _ids(v.value)]
        if ids & stops and ends:
            yield _pad_ends(run, pad, ends[0])
        if run.framework == "mindspeed_rl" and ids == {0}:
            yield _pad_zero(run, pad)


def _disagree(run: OneRun, value: ConfigValue, engine: ConfigValue) -> Finding:
    return problem(
        run,
        "token_ids.eos",
        Severity.WARNING,
        Effect(Rung.TOKENIZER),
        (value, engine),
        Text(
            f"eos is {shown(value.value)} in {_file(value)}, {shown(engine.value)} in "
            f"{_file(engine)}",
            f"eos 在 {_file(value)} 中为 {shown(value.value)}，在 {_file(engine)} 中为 "
            f"{shown(engine.value)}",
        ),
        Text(
            "The rollout stops at other ids than the trainer takes for the end: responses run to "
            "the length limit, or lose their end token in the loss.",
            "rollout 停止的 id 与训练认定的结束符不同：回复会一直生成到长度上限，"
            "或在损失中丢失结束符。",
        ),
        Text(
            "Take both files from one model folder, and see which token really ends a turn of the "
            "chat template.",
            "两个文件应来自同一模型目录，并确认对话模板真正的结束 token。",
        ),
    )


def _pad_ends(run: OneRun, pad: ConfigValue, eos: ConfigValue) -> Finding:
    strips = run.framework == "mindspeed_rl"
    return problem(
        run,
        "token_ids.pad",
        Severity.WARNING if strips else Severity.INFO,
        Effect(Rung.TOKENS),
        (pad, eos, *([run.generation["eos_token_id"]] if "eos_token_id" in run.generation else [])),
        Text(
            f"the pad id {shown(pad.value)} also ends responses, and eos is {shown(eos.value)}",
            f"pad id {shown(pad.value)} 同时会结束回复，而 eos 为 {shown(eos.value)}",
        ),
        Text(
            "MindSpeed-RL cuts a response at the first pad id: a response that ends with it loses "
            "its end. In the field the run collapsed after 500 steps."
            if strips
            else "Code that finds the end of a response by its pad id takes the end token for "
            "padding; verl uses the mask instead.",
            "MindSpeed-RL 在第一个 pad id 处截断：以它结束的回复会丢失结束符。"
            "实践中曾在 500 步后训崩。"
            if strips
            else "按 pad id 判断回复结尾的代码会把结束符当作填充；verl 使用 mask，不受影响。",
        ),
        Text(
            "Use the tokenizer of the model that is trained, or a pad id that ends nothing.",
            "使用被训练模型自己的分词器，或换用不表示结束的 pad id。",
        ),
    )


def _pad_zero(run: OneRun, pad: ConfigValue) -> Finding:
    return problem(
        run,
        "token_ids.pad_zero",
        Severity.WARNING,
        Effect(Rung.TOKENS),
        (pad,),
        Text("the pad id is 0", "pad id 为 0"),
        Text(
            "MindSpeed-RL takes a pad id of 0 for none and pads with eos instead.",
            "MindSpeed-RL 把 pad id 0 当作未设置，改用 eos 填充。",
        ),
        Text("Set another pad token in the tokenizer.", "在分词器中设置其他 pad token。"),
    )


def _sources(run: OneRun, name: str) -> list[ConfigValue]:
    """Return every place that states the id, the run's own keys first."""
    own = [v for k, v in sorted(run.stated.items()) if k.rpartition(".")[2] == name]
    files = [f[name] for f in (run.model_file, run.generation) if name in f]
    return [v for v in (*own, *files) if _ids(v.value)]


def _ids(value: ConfigLeaf) -> frozenset[int]:
    items = value if isinstance(value, tuple) else (value,)
    return frozenset(i for i in items if isinstance(i, int) and not isinstance(i, bool))


def _file(value: ConfigValue) -> str:
    return value.provenance.source.replace("\\", "/").rpartition("/")[2]


_INSTRUCT: Settings = {"eos_token_id": (151645, 151643), "pad_token_id": 151643}
FIRES = (
    Example(model_file={"eos_token_id": 151645}, generation={"eos_token_id": (151643,)}),
    Example(framework="mindspeed_rl", model_file={"eos_token_id": 151645}, generation=_INSTRUCT),
    Example(severity=Severity.INFO, model_file={"eos_token_id": 151645}, generation=_INSTRUCT),
    Example(framework="mindspeed_rl", generation={"pad_token_id": 0, "eos_token_id": 1}),
)
SILENT = (
    Example(
        framework="mindspeed_rl",
        model_file={"eos_token_id": 151643},
        generation={"eos_token_id": 151643, "pad_token_id": 151643},
    ),
    Example(model_file={"eos_token_id": 2}, generation={"eos_token_id": (2, 3)}),
    Example(generation=_INSTRUCT),
)
