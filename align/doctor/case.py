"""Everything about one run that advice on speed depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from align.config.derive.memory import MemoryItem, memory_estimate
from align.config.lint import OneRun
from align.core.config_value import ConfigLeaf
from align.core.metric import MetricLog
from align.doctor.capacity import Capacity, capacity
from align.doctor.throughput import BatchShape, Throughput, logged_shape, throughput
from align.doctor.timing import StepTime, step_time

_OVERRIDE = "actor_rollout_ref.actor.megatron.override_transformer_config"


class NotStated:
    """Type of `NOT_STATED`."""


NOT_STATED = NotStated()
"""A setting that the run's files leave open."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One switch, under every name it has.

    Args:
        fields: in the common schema; the first that is known counts.
        keys: framework -> key, as a configuration writes it.
    """

    fields: tuple[str, ...] = ()
    keys: Mapping[str, str] | None = None


def megatron_override(name: str, *fields: str, mindspeed_rl: str | None = None) -> Setting:
    """Return a switch that verl passes to Megatron through override_transformer_config."""
    keys = {"verl": f"{_OVERRIDE}.{name}"}
    if mindspeed_rl is not None:
        keys["mindspeed_rl"] = mindspeed_rl
    return Setting((*fields, f"model.override.{name}"), keys)


@dataclass(frozen=True, slots=True)
class Case:
    """One run, its times and its sizes.

    Args:
        on_npu: None where the device is not known.
        machine: "a2" or "a3", None where no file names the chip.
        memory: bytes of one step's tensors on one device, as far as sizes are known.
        complete: a configuration was read to its end, so what it leaves out is not set.
    """

    run: OneRun
    metrics: MetricLog
    time: StepTime | None
    shape: BatchShape
    rate: Throughput | None
    capacity: Capacity | None
    memory: tuple[MemoryItem, ...]
    on_npu: bool | None
    machine: str | None
    complete: bool

    @property
    def framework(self) -> str | None:
        """The training framework."""
        return self.run.framework

    @property
    def generates(self) -> bool | None:
        """Whether the run has a rollout engine; None where that is not known."""
        if "rollout.tensor_parallel_size" in self.run.config.values:
            return True
        return False if self.complete else None

    @property
    def is_moe(self) -> bool | None:
        """Whether the model has experts; None where that is not known."""
        for name in ("model.num_experts", "actor.expert_parallel_size"):
            size = self.run.number(name) or _number_of(self.run, name)
            if size is not None and size > 1:
                return True
        fields = (self.run.config.values, self.run.model)
        known = any("model.hidden_size" in each or "model.num_layers" in each for each in fields)
        return False if known else None

    @property
    def on_megatron(self) -> bool | None:
        """Whether Megatron or MindSpeed trains; None where that is not known."""
        if self.framework == "mindspeed_rl":
            return True
        strategy = self.run.value("actor.strategy")
        return None if strategy is None else str(strategy) in ("megatron", "mindspeed")

    def value(self, setting: Setting) -> ConfigLeaf | NotStated:
        """Return a setting's value; None where a complete configuration does not set it."""
        for name in setting.fields:
            if name in self.run.config.values:
                return self.run.config.values[name].value
        key = (setting.keys or {}).get(self.framework or "")
        if key is None:
            return NOT_STATED
        for stated, value in self.run.stated.items():
            if stated.lstrip("+") == key or stated.endswith(f".{key}"):
                return value.value
        return None if self.complete else NOT_STATED


def case_of(run: OneRun, metrics: MetricLog) -> Case:
    """Measure one run."""
    logged = logged_shape(metrics)
    shape = BatchShape(
        logged.prompts or run.number("data.train_batch_size"),
        logged.responses or run.number("rollout.n"),
        logged.devices or run.number("trainer.world_size"),
    )
    return Case(
        run=run,
        metrics=metrics,
        time=step_time(metrics),
        shape=shape,
        rate=throughput(metrics, shape),
        capacity=_capacity(run, shape),
        memory=tuple(memory_estimate(run.config.values)),
        on_npu=_on_npu(run),
        machine=machine_of(run.fact("device_name")),
        complete=bool(run.stated) and not any("ends at" in n.en for n in run.config.notes),
    )


def machine_of(device_name: str | None) -> str | None:
    """Tell an Atlas A2 (910B) from an A3 (910_93) by the name of its chip."""
    if device_name is None:
        return None
    plain = device_name.lower().replace(" ", "")
    if "910_93" in plain or "910c" in plain:
        return "a3"
    return "a2" if "910b" in plain else None


def host_of(run: OneRun) -> str | None:
    """Return the architecture of the host, "aarch64" or "x86_64", as its readers spell it."""
    names = ("machine", "arch", "architecture")
    stated = next((value for name in names if (value := run.fact(name)) is not None), None)
    return None if stated is None else _HOSTS.get(stated.lower(), stated.lower())


_HOSTS = {"amd64": "x86_64", "x86": "x86_64", "x64": "x86_64", "arm64": "aarch64", "arm": "aarch64"}


def _on_npu(run: OneRun) -> bool | None:
    if run.on_npu:
        return True
    return None if run.fact("device") is None else False


def _capacity(run: OneRun, shape: BatchShape) -> Capacity | None:
    tensor = run.number("rollout.tensor_parallel_size")
    pipeline = run.number("rollout.pipeline_parallel_size") or 1
    if tensor is None or not (shape.prompts and shape.responses and shape.devices):
        return None
    return capacity(shape.prompts, shape.responses, shape.devices, tensor, pipeline)


def _number_of(run: OneRun, name: str) -> float | None:
    value = run.model[name].value if name in run.model else None
    return float(value) if isinstance(value, int | float) else None
