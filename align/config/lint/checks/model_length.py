"""The engine's length limit must hold prompt and response, and the model must know the positions.

Source: MindSpeed-RL stops where seq_length exceeds max_model_len; vLLM stops where its limit
exceeds the model's positions; verl's max_model_len defaults to prompt plus response.
"""

from __future__ import annotations

from collections.abc import Iterator

from align.config.lint.example import Example
from align.config.lint.one_run import OneRun
from align.config.lint.problem import Effect, problem, shown
from align.core.finding import Finding, Severity
from align.core.rung import Rung
from align.core.text import Text
from align.frameworks.config_table import number

_ALLOWS = "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def check(run: OneRun) -> Iterator[Finding]:
    """Compare the limit with what can be generated, what is trained and what the model knows."""
    limit, longest = run.number("rollout.max_model_len"), run.longest_sequence
    if limit is not None and longest is not None and limit < longest:
        yield _too_short(run, limit, longest)
    cut = run.number("data.sequence_length")
    if run.framework == "mindspeed_rl" and cut is not None:
        yield from _prompt_cut(run, cut, limit)
    positions = run.model.get("model.max_position_embeddings")
    known = None if positions is None else number(positions.value)
    needed = limit if limit is not None else longest
    scaled = run.model.get("model.rope_scaling_type")
    if positions and known and needed and needed > known and not (scaled and scaled.value):
        yield problem(
            run,
            "model_length.positions",
            Severity.WARNING if run.fact(_ALLOWS) == "1" else Severity.ERROR,
            Effect(Rung.ROLLOUT),
            (*run.known("rollout.max_model_len", "data.max_response_length"), positions),
            Text(
                f"sequences of {shown(needed)} tokens, but the model has {shown(known)} positions",
                f"序列最长 {shown(needed)} 个 token，而模型只有 {shown(known)} 个位置",
            ),
            Text(
                "vLLM stops at the start, or generates past what the model was trained for.",
                "vLLM 会在启动时报错，或生成超出模型训练范围的内容。",
            ),
            Text(
                "Shorten prompt or response, or set a rotary scaling that the model was made for.",
                "缩短 prompt 或回复，或设置模型支持的 RoPE 缩放。",
            ),
        )


def _too_short(run: OneRun, limit: float, longest: float) -> Finding:
    return problem(
        run,
        "model_length",
        Severity.WARNING,
        Effect(Rung.ROLLOUT),
        run.known("rollout.max_model_len", "data.max_prompt_length", "data.max_response_length"),
        Text(
            f"max_model_len is {shown(limit)}, prompt and response can have {shown(longest)}",
            f"max_model_len 为 {shown(limit)}，而 prompt 与回复最长可达 {shown(longest)}",
        ),
        Text(
            "The engine ends responses to long prompts before their own limit: they look truncated "
            "and lose their eos and their reward.",
            "对较长的 prompt，引擎会在回复达到自身上限前将其截断：回复缺少 eos，也得不到奖励。",
        ),
        Text(
            f"Raise max_model_len to {shown(longest)}.",
            f"将 max_model_len 提高到 {shown(longest)}。",
        ),
    )


def _prompt_cut(run: OneRun, cut: float, limit: float | None) -> Iterator[Finding]:
    prompt = run.number("data.max_prompt_length")
    refused = limit is not None and limit < cut
    if not refused and (prompt is None or cut >= prompt):
        return
    other = limit if refused else prompt
    yield problem(
        run,
        "model_length.seq_length",
        Severity.ERROR if refused else Severity.WARNING,
        Effect(Rung.ROLLOUT if refused else Rung.DATA),
        run.known("data.sequence_length", "rollout.max_model_len", "data.max_prompt_length"),
        Text(
            f"seq_length is {shown(cut)}, max_model_len only {shown(other)}",
            f"seq_length 为 {shown(cut)}，而 max_model_len 仅为 {shown(other)}",
        )
        if refused
        else Text(
            f"seq_length is {shown(cut)}, below max_prompt_length {shown(other)}",
            f"seq_length 为 {shown(cut)}，小于 max_prompt_length {shown(other)}",
        ),
        Text("MindSpeed-RL stops at the start.", "MindSpeed-RL 会在启动时报错。")
        if refused
        else Text(
            "Longer prompts pass the filter and are then cut.", "较长的 prompt 通过过滤后会被截断。"
        ),
        Text(
            "Raise max_model_len to seq_length or more.",
            "将 max_model_len 提高到不小于 seq_length。",
        )
        if refused
        else Text(
            "Raise seq_length to max_prompt_length or more.",
            "将 seq_length 提高到不小于 max_prompt_length。",
        ),
    )


_LENGTHS = {"data.max_prompt_length": 2048, "data.max_response_length": 2048}
FIRES = (
    Example(_LENGTHS | {"rollout.max_model_len": 3072}),
    Example(
        _LENGTHS | {"rollout.max_model_len": 4096, "data.sequence_length": 8192},
        Severity.ERROR,
        "mindspeed_rl",
    ),
    Example(_LENGTHS | {"data.sequence_length": 1024}, framework="mindspeed_rl"),
    Example(_LENGTHS, Severity.ERROR, model={"model.max_position_embeddings": 2048}),
    Example(_LENGTHS, model={"model.max_position_embeddings": 2048}, facts={_ALLOWS: "1"}),
)
SILENT = (
    Example(_LENGTHS | {"rollout.max_model_len": 4096}),
    Example(_LENGTHS | {"rollout.max_model_len": None}),
    Example(
        _LENGTHS | {"rollout.max_model_len": 4096, "data.sequence_length": 2048},
        framework="mindspeed_rl",
    ),
    Example(
        _LENGTHS,
        model={"model.max_position_embeddings": 2048, "model.rope_scaling_type": "yarn"},
    ),
)
