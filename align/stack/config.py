"""Read and check the configuration of a run: a YAML file, then ``key=value`` overrides."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from align.core.errors import ConfigError
from align.stack.check_config import BUILT_IN_MODELS
from align.stack.check_config import check_config as check_config
from align.stack.config_sections import StackConfig as StackConfig
from align.stack.presets import DTYPES, PRESETS

_COMMAND_LINE = "command line"


def load_config(file: Path | None = None, overrides: Sequence[str] = ()) -> StackConfig:
    """Return defaults, the algorithm's preset, the file and the overrides, merged in this order.

    Args:
        file: YAML, nested as verl's; None for defaults alone.
        overrides: ``key.of.some.section=value``; a leading ``+`` or ``++`` is allowed, as in Hydra.

    Raises:
        ConfigError: A file that is no YAML, a key or value the stack does not know, or settings
            that do not fit together.
    """
    given = [(str(file), _read(file))] if file is not None else []
    given.append((_COMMAND_LINE, _parse(overrides)))
    values: dict[str, Any] = {}
    for where, tree in given:
        values.update(_flat(tree, where))
    algorithm = values.get("stack.algorithm", "grpo")
    preset = PRESETS.get(algorithm, {}) if isinstance(algorithm, str) else {}
    path = values.get("actor_rollout_ref.model.path", BUILT_IN_MODELS[0])
    if path not in BUILT_IN_MODELS:
        preset = {**preset, "stack.warmup.steps": 0}  # a model of the user's is trained already
    config = build(StackConfig, {**preset, **values}, where=given[-1][0])
    config = _filled_in(config)
    check_config(config)
    return config


def to_tree(config: Any) -> dict[str, Any]:
    """Return the configuration as nested dicts and lists, ready for YAML and for printing."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            return {field.name: plain(getattr(value, field.name)) for field in fields}
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    return dict(plain(config))


def known_keys(section: type = StackConfig, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of the configuration."""
    for name, kind in get_type_hints(section).items():
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield from known_keys(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def build(section: type, values: Mapping[str, Any], *, where: str, prefix: str = "") -> Any:
    """Make a section of dotted values, checking every key and type.

    Raises:
        ConfigError: A key of no field, or a value of another type than its field's.
    """
    kinds = get_type_hints(section)
    arguments: dict[str, Any] = {}
    for name, kind in kinds.items():
        key = prefix + name
        below = {k: v for k, v in values.items() if k.startswith(f"{key}.")}
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            arguments[name] = build(kind, below, where=where, prefix=f"{key}.")
        elif _is_mapping(kind):
            arguments[name] = {k[len(key) + 1 :]: v for k, v in below.items()}
        elif key in values:
            arguments[name] = _typed(values[key], kind, key, where)
    unknown = [k for k in values if k[len(prefix) :].split(".")[0] not in kinds]
    if unknown or prefix == "":
        _refuse_unknown(values, where)
    return section(**arguments)


def _read(file: Path) -> Any:
    try:
        return OmegaConf.load(file)
    except FileNotFoundError as error:
        raise ConfigError(
            where=str(file), problem="does not exist", fix="give a YAML file, or none for defaults"
        ) from error
    except (OSError, YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            where=str(file), problem=f"cannot be read as YAML ({first})", fix="correct the file"
        ) from error


def _parse(overrides: Sequence[str]) -> Any:
    for text in overrides:
        if "=" not in text:
            raise ConfigError(
                where=_COMMAND_LINE, problem=f"{text!r} is no key=value", fix="write key=value"
            )
    try:
        return OmegaConf.from_dotlist([text.lstrip("+") for text in overrides])
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(
            where=_COMMAND_LINE,
            problem=f"an override cannot be read ({str(error).splitlines()[0]})",
            fix="quote the value",
        ) from error


def _flat(tree: Any, where: str) -> dict[str, Any]:
    """Return dotted leaves; mappings of free-form options are flattened too."""
    try:
        nested = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        first = str(error).splitlines()[0]
        raise ConfigError(where=where, problem=first, fix="correct the interpolation") from error
    if not isinstance(nested, dict):
        raise ConfigError(where=where, problem="is no mapping", fix="nest keys as verl does")
    leaves: dict[str, Any] = {}

    def walk(node: Mapping[Any, Any], prefix: str) -> None:
        for name, value in node.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{name}.")
            else:
                leaves[f"{prefix}{name}"] = value

    walk(nested, "")
    return leaves


def _refuse_unknown(values: Mapping[str, Any], where: str) -> None:
    known = list(known_keys())
    options = [key for key in known if _is_option(key)]
    for key in values:
        if key in known or any(key.startswith(f"{option}.") for option in options):
            continue
        raise ConfigError(
            where=where,
            key=key,
            problem="is not a key of the stack",
            fix=f"did you mean {nearest(key, known)}?",
        )


def nearest(word: str, known: Sequence[str]) -> str:
    """Return the spelling closest to a word; for a dotted key the last part weighs most.

    Initials count as their words: lr for learning_rate.
    """
    name = word.split(".")[-1]
    initials = "".join(part[:1] for part in name.split("_"))

    def likeness(other: str) -> float:
        last = other.split(".")[-1]
        same = last == initials and len(initials) > 1
        alike = 1.0 if same else difflib.SequenceMatcher(None, name, last).ratio()
        return alike + 0.5 * difflib.SequenceMatcher(None, word, other).ratio()

    return max(known, key=likeness)


def _is_option(key: str) -> bool:
    kind: Any = StackConfig
    for name in key.split("."):
        kind = get_type_hints(kind)[name]
    return _is_mapping(kind)


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) is Mapping or kind is Mapping or get_origin(kind) is dict


def _typed(value: Any, kind: Any, key: str, where: str) -> Any:
    alternatives = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    for alternative in alternatives:
        if alternative is type(None) and value is None:
            return None
        if get_origin(alternative) is tuple and isinstance(value, list | tuple):
            return tuple(value)
        if alternative is float and type(value) in (int, float):
            return float(value)
        if alternative in (int, bool, str) and type(value) is alternative:
            return value
    names = " or ".join(getattr(a, "__name__", str(a)) for a in alternatives)
    raise ConfigError(
        where=where, key=key, problem=f"is {value!r}, no {names}", fix=f"give it as {names}"
    )


def _filled_in(config: StackConfig) -> StackConfig:
    """Return the configuration with the values that verl fills in at run time."""
    dtype = DTYPES.get(config.stack.numerics.profile)
    actor, critic, rollout = config.actor, config.critic, config.rollout
    steps = config.trainer.total_training_steps
    fill = dataclasses.replace
    if actor.optim.total_training_steps <= 0:
        actor = fill(actor, optim=fill(actor.optim, total_training_steps=steps))
    if critic.optim.total_training_steps <= 0:
        critic = fill(critic, optim=fill(critic.optim, total_training_steps=steps))
    if dtype is not None and actor.fsdp_config.dtype is None:
        actor = fill(actor, fsdp_config=fill(actor.fsdp_config, dtype=dtype))
    if dtype is not None and rollout.dtype is None:
        rollout = fill(rollout, dtype=dtype)
    group = fill(config.actor_rollout_ref, actor=actor, rollout=rollout)
    return fill(config, actor_rollout_ref=group, critic=critic)
