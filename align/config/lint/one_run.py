"""One run as the checks see it: what it sets, what its model says, what it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from align.config.merge import strongest
from align.config.normalise import effective, is_training_config, model_values
from align.core.config_value import (
    ConfigLeaf,
    ConfigValue,
    EffectiveConfig,
    EffectiveValue,
    ProvenanceKind,
    RawConfig,
)
from align.core.environment import EnvironmentFact
from align.core.finding import Side
from align.core.run import RunManifest
from align.frameworks.config_table import number, version_tuple

_NPU_ALONE = ("torch_npu", "vllm_ascend", "cann", "mindspeed")


@dataclass(frozen=True, slots=True)
class OneRun:
    """Everything the configuration of one run says.

    Args:
        config: effective values of the trainer.
        stated: the framework's own keys as the run states them, also those without effect.
        model: fields of the model's config.json, which the rollout engine reads even where the
            trainer does not.
        model_file: config.json as it stands.
        generation: generation_config.json as it stands.
        facts: versions and environment variables by name ("torch", "env.LD_PRELOAD"); a missing
            one is unknown, not unset.
        side: which run it is, where it is one of two.
        states_version: whether the run states the framework's version; it is assumed otherwise.
    """

    config: EffectiveConfig
    stated: Mapping[str, ConfigValue] = field(default_factory=dict)
    model: Mapping[str, EffectiveValue] = field(default_factory=dict)
    model_file: Mapping[str, ConfigValue] = field(default_factory=dict)
    generation: Mapping[str, ConfigValue] = field(default_factory=dict)
    facts: Mapping[str, EnvironmentFact] = field(default_factory=dict)
    side: Side = Side.BOTH
    states_version: bool = False

    @property
    def framework(self) -> str | None:
        """Name of the training framework."""
        return self.config.framework

    @property
    def version(self) -> tuple[int, int] | None:
        """Major and minor version of the framework, as stated or assumed."""
        return version_tuple(self.config.framework_version)

    def older_than(self, framework: str, major: int, minor: int) -> bool | None:
        """Tell whether it is that framework before that version, None where that is not known."""
        if self.framework != framework:
            return False
        return None if self.version is None else self.version < (major, minor)

    def known(self, *names: str) -> tuple[EffectiveValue, ...]:
        """Return the effective values of those fields that are known."""
        return tuple(self.config.values[name] for name in names if name in self.config.values)

    def value(self, name: str) -> ConfigLeaf:
        """Return a field's effective value, None where it is not known."""
        found = self.config.values.get(name)
        return None if found is None else found.value

    def number(self, name: str) -> float | None:
        """Return a field's value as a number, None where it is none."""
        return number(self.value(name))

    def numbers(self, *names: str) -> tuple[float, ...] | None:
        """Return several fields as numbers, None where one of them is none."""
        found = tuple(n for n in map(self.number, names) if n is not None)
        return found if len(found) == len(names) else None

    def is_on(self, name: str) -> bool:
        """Tell whether a flag is known to be set."""
        return self.value(name) is True

    def is_off(self, name: str) -> bool:
        """Tell whether a flag is known and not set."""
        return name in self.config.values and not self.value(name)

    def by_default(self, name: str) -> bool:
        """Tell whether a field has its value because nothing sets it."""
        found = self.config.values.get(name)
        return found is not None and found.raw.provenance.kind is ProvenanceKind.DEFAULT

    def fact(self, name: str) -> str | None:
        """Return a version or, under ``env.NAME``, an environment variable."""
        found = self.facts.get(name)
        return None if found is None else found.value

    def seen_facts(self, *names: str) -> tuple[EnvironmentFact, ...]:
        """Return those facts that are known."""
        return tuple(self.facts[name] for name in names if name in self.facts)

    @property
    def on_npu(self) -> bool:
        """Tell whether it is known to run on an Ascend NPU."""
        device = self.fact("device")
        if device is not None:
            return device == "npu"
        return self.value("trainer.device") == "npu" or any(n in self.facts for n in _NPU_ALONE)

    @property
    def separate_rollout(self) -> bool:
        """Tell whether the rollout engine has cards of its own, which the world size leaves out."""
        fully_async = ("trainer.mode.async.", "trainer.mode.rollout.")
        return self.value("trainer.mode.trainer_mode") == "separate_async" or any(
            name.startswith(fully_async) for name in self.config.values
        )

    @property
    def longest_sequence(self) -> float | None:
        """Longest prompt and response together, in tokens."""
        lengths = self.numbers("data.max_prompt_length", "data.max_response_length")
        return None if lengths is None else sum(lengths)


def one_run(
    raw_configs: Sequence[RawConfig],
    manifest: RunManifest,
    facts: Mapping[str, EnvironmentFact] | None = None,
    side: Side = Side.BOTH,
) -> OneRun:
    """Collect what the files of one run state.

    Args:
        raw_configs: every configuration file of the run, in path order.
        manifest: states framework and version where it knows them.
        facts: versions and environment variables by name.
        side: which run it is, where it is one of two.
    """
    config = effective(raw_configs, manifest)
    own = (c for c in raw_configs if is_training_config(c))
    stated, _ = strongest(c for c in own if c.framework in (config.framework, None))
    model = model_values(raw_configs)
    return OneRun(
        config,
        stated,
        model,
        _only(raw_configs, "hf_config") if model else {},
        _only(raw_configs, "hf_generation_config"),
        facts or {},
        side,
        manifest.framework_version is not None,
    )


def _only(configs: Sequence[RawConfig], file_format: str) -> Mapping[str, ConfigValue]:
    """Return the values of a model file; of several different ones none can be told apart."""
    files = [c.values for c in configs if c.format == file_format]
    leaves = {tuple(sorted((k, repr(v.value)) for k, v in values.items())) for values in files}
    return files[0] if len(leaves) == 1 else {}
