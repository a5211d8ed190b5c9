"""What one run holds, and which rungs it can be compared on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from align.core.errors import AlignError
from align.core.recording import missing_artifact
from align.core.report import RunSummary
from align.core.run import ArtifactKind, Run
from align.core.rung import RUNGS, Missing, Rung
from align.core.text import Text
from align.ladder import summarise
from dumps.store.run_data import RunData
from dumps.store.tensor_records import FORMAT as SKETCHES


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a run holds what one rung needs; ``missing`` says what to record where not."""

    rung: Rung
    what: Text | None
    missing: Missing | None


@dataclass(frozen=True, slots=True)
class Inventory:
    """One run: who it is, its files, and what each rung finds in it."""

    run: Run
    summary: RunSummary
    readiness: tuple[Readiness, ...]
    last_errors: tuple[str, ...]
    problems: tuple[AlignError, ...]


def take_inventory(data: RunData) -> Inventory:
    """Read a run's metrics, configurations and stack facts, and say what can be compared."""
    return Inventory(
        run=data.run,
        summary=summarise(data),
        readiness=tuple(_readiness(rung, data) for rung in RUNGS),
        last_errors=tuple(
            f"{log.last_error.source}:{log.last_error.line}: {log.last_error.text}"
            for log in data.metric_logs
            if log.last_error is not None
        ),
        problems=tuple(data.problems),
    )


def _readiness(rung: Rung, data: RunData) -> Readiness:
    what = _HELD[rung](data) if rung in _HELD else None
    return Readiness(rung, what, missing_artifact(rung) if what is None else None)


def _environment(data: RunData) -> Text | None:
    names = {name for facts in data.environments for name in facts.facts}
    names |= set(data.run.manifest.versions)
    return Text(f"{len(names)} stack facts", f"{len(names)} 条环境信息") if names else None


def _config(data: RunData) -> Text | None:
    sources = [config for config in data.configs if config.values]
    count = len({key for config in sources for key in config.values})
    return (
        Text(f"{count} keys in {len(sources)} files", f"{len(sources)} 个文件中共 {count} 个配置项")
        if count
        else None
    )


def _tokenizer(data: RunData) -> Text | None:
    from tokenizer_check.special_tokens import special_tokens

    places = special_tokens(data).tokens.values()
    files = {token.stated.provenance.source for token in places}
    return (
        Text(f"special tokens stated in {len(files)} files", f"{len(files)} 个文件声明了特殊 token")
        if files
        else None
    )


def _rollout(data: RunData) -> Text | None:
    dumps = data.run.of_kind(ArtifactKind.ROLLOUT)
    return Text(f"{len(dumps)} rollout dumps", f"{len(dumps)} 个 rollout 文件") if dumps else None


def _tokens(data: RunData) -> Text | None:
    inputs = data.run.of_kind(ArtifactKind.TOKENS)
    return (
        Text(f"trainer inputs of {len(inputs)} steps", f"{len(inputs)} 个 step 的训练输入")
        if inputs
        else None
    )


def _data(data: RunData) -> Text | None:
    if data.metrics.get("prompt_length/mean") is not None:
        return Text("prompt_length per step", "每步的 prompt_length 统计")
    return _rollout(data)


def _optimizer(data: RunData) -> Text | None:
    rates = data.metrics.get("actor/lr")
    if rates is None:
        return None
    return Text(f"learning rate of {len(rates)} steps", f"{len(rates)} 步的学习率")


def _updates(data: RunData) -> Text | None:
    captured = [a for a in data.run.of_kind(ArtifactKind.CAPTURE) if a.format == "captured_step"]
    files = [*data.run.of_kind(ArtifactKind.UPDATES), *captured]
    return Text(f"updates in {len(files)} files", f"{len(files)} 个更新文件") if files else None


def _sketches(data: RunData) -> Text | None:
    layers = [a for a in data.run.of_kind(ArtifactKind.LAYERS) if a.format == SKETCHES]
    return (
        Text(f"tensor sketches in {len(layers)} files", f"{len(layers)} 个张量摘要文件")
        if layers
        else None
    )


def _curves(data: RunData) -> Text | None:
    steps = data.metrics.step_range
    count = len(data.metrics.series)
    return steps and Text(
        f"{count} metrics, steps {steps[0]} to {steps[1]}",
        f"{count} 个指标，第 {steps[0]} 至 {steps[1]} 步",
    )


_HELD: Mapping[Rung, Callable[[RunData], Text | None]] = {
    Rung.ENVIRONMENT: _environment,
    Rung.CONFIG: _config,
    Rung.TOKENIZER: _tokenizer,
    Rung.DATA: _data,
    Rung.ROLLOUT: _rollout,
    Rung.TOKENS: _tokens,
    Rung.FORWARD: _sketches,
    Rung.REWARD: _rollout,
    Rung.ADVANTAGE: _tokens,
    Rung.LOSS: _updates,
    Rung.BACKWARD: lambda data: _sketches(data) or _updates(data),
    Rung.OPTIMIZER: _optimizer,
    Rung.WEIGHT_SYNC: _sketches,
    Rung.CURVES: _curves,
}
