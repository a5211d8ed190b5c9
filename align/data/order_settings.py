"""The effective values a row order follows from, of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from align.core.config_value import ConfigLeaf, EffectiveConfig, EffectiveValue, ProvenanceKind
from align.core.text import Text
from align.frameworks.config_table import version_tuple
from align.frameworks.mindspeed_rl_eras import BEFORE, era_of

TORCHDATA, TORCH = "torchdata", "torch"
MINDSPEED_RL, MINDSPEED_RL_OLD = "mindspeed_rl", "mindspeed_rl_old"
TRL, ACCELERATE, MEGATRON, SEQUENTIAL = "trl", "accelerate", "megatron", "sequential"
STACK = "stack"
NO_FILTER = "no filter"
SAMPLERS = (
    *(TORCHDATA, TORCH, MINDSPEED_RL, MINDSPEED_RL_OLD),
    *(TRL, ACCELERATE, MEGATRON, SEQUENTIAL),
)

# Fields of the common schema, by the name they have here.
FIELDS = {
    "batch_size": "data.train_batch_size",
    "gen_batch_size": "data.gen_batch_size",
    "seed": "data.seed",
    "shuffle": "data.shuffle",
    "num_workers": "data.dataloader_num_workers",
    "total_steps": "trainer.total_steps",
    "total_epochs": "trainer.total_epochs",
    "max_samples": "data.train_max_samples",
    "length_filter": "data.length_filter",
    "max_prompt_length": "data.max_prompt_length",
    "own_sampler": "data.sampler",
    "train_files": "data.train_files",
    "num_rows": "data.dataset.num_rows",
    "sequence_length": "data.sequence_length",
    "split": "data.split",
}
_SAMPLER_OF = {"trl": TRL, "huggingface": ACCELERATE, "megatron": MEGATRON}
_VERL_TORCHDATA = (0, 7)
_MINDSPEED_RL_NEW = (2, 0)


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """Everything but the rows themselves; None is not known, never a default.

    Args:
        sampler: one of `SAMPLERS`.
        seed: as the sampler's generator gets it: a seed of null is torch's constant.
        seed_is_null: the configuration sets no seed, which a selection of rows draws at random.
        sequence_length: tokens of one sample of Megatron's.
        split: shares of training, validation and test data, as "99,1,0".
        num_rows: of a data set that the configuration itself makes.
        sources: the effective values the fields come from, by field name here.
    """

    sampler: str | None = None
    batch_size: int | None = None
    seed: int | None = None
    seed_is_null: bool = False
    shuffle: bool | None = None
    num_workers: int | None = None
    total_steps: int | None = None
    total_epochs: int | None = None
    max_samples: int | None = None
    length_filter: str | None = None
    max_prompt_length: int | None = None
    own_sampler: str | None = None
    train_files: tuple[str, ...] = ()
    num_rows: int | None = None
    sequence_length: int | None = None
    split: str | None = None
    sources: Mapping[str, EffectiveValue] = field(default_factory=dict, compare=False, hash=False)
    assumptions: tuple[Text, ...] = field(default=(), compare=False)

    @property
    def filters_length(self) -> bool:
        """Whether rows with long prompts are left out before the sampler."""
        return self.length_filter not in (None, NO_FILTER)

    @property
    def needs_lengths(self) -> bool:
        """Whether the order depends on how long prompts are."""
        return self.filters_length or self.sampler == MEGATRON

    @property
    def chooses_rows(self) -> bool:
        """Whether rows of the data set are left out before, or by, the sampler on purpose."""
        return self.own_sampler is not None or (self.max_samples or 0) > 0


def order_settings(config: EffectiveConfig) -> OrderSettings:
    """Take from an effective configuration what the row order depends on."""
    found = {name: config.values[key] for name, key in FIELDS.items() if key in config.values}
    if config.framework == STACK or _is_the_versions_own(found.get("own_sampler")):
        found.pop("own_sampler", None)
    values = {name: value.value for name, value in found.items()}
    sampler, assumption = _sampler(config)
    batch_size = _whole(values.get("gen_batch_size")) or _whole(values.get("batch_size"))
    return OrderSettings(
        sampler=sampler,
        batch_size=batch_size,
        seed=_whole(values.get("seed")),
        seed_is_null="seed" in found and found["seed"].raw.value is None,
        shuffle=_flag(values.get("shuffle")),
        num_workers=_whole(values.get("num_workers")),
        total_steps=_whole(values.get("total_steps")),
        total_epochs=_whole(values.get("total_epochs")),
        max_samples=_whole(values.get("max_samples")),
        length_filter=_text(values.get("length_filter")),
        max_prompt_length=_whole(values.get("max_prompt_length")),
        own_sampler=_text(values.get("own_sampler")),
        train_files=_files(values.get("train_files")),
        num_rows=_whole(values.get("num_rows")),
        sequence_length=_whole(values.get("sequence_length")),
        split=_split(values.get("split")),
        sources=found,
        assumptions=tuple(filter(None, [assumption])),
    )


def _is_the_versions_own(sampler: EffectiveValue | None) -> bool:
    return sampler is not None and sampler.raw.provenance.kind is ProvenanceKind.FIXED


def _sampler(config: EffectiveConfig) -> tuple[str | None, Text | None]:
    version = version_tuple(config.framework_version)
    if config.framework == "verl":
        old = version is not None and version < _VERL_TORCHDATA
        unknown = Text(
            "verl's version is not known: 0.7 or later is assumed",
            "verl 版本未知：假定为 0.7 或更新版本",
        )
        return TORCH if old else TORCHDATA, _guessed(config) if version else unknown
    if config.framework == "mindspeed_rl":
        era = era_of(config.framework_version)
        old = era == BEFORE or (version is not None and version < _MINDSPEED_RL_NEW)
        unknown = Text(
            "MindSpeed-RL's version is not known: one of after 2025-05-16 is assumed",
            "MindSpeed-RL 版本未知：假定为 2025-05-16 之后的版本",
        )
        note = _guessed(config) if era or version else unknown
        return MINDSPEED_RL_OLD if old else MINDSPEED_RL, note
    if config.framework == STACK:  # whose key names the framework whose order it takes
        named = config.values.get(FIELDS["own_sampler"])
        return (_text(named.value) if named else None), None
    return _SAMPLER_OF.get(config.framework or ""), None


def _guessed(config: EffectiveConfig) -> Text | None:
    """Return the note that says that the version is none the run states."""
    return next((note for note in config.notes if note.en.startswith("version ")), None)


def _whole(value: ConfigLeaf) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value == int(value) else None


def _flag(value: ConfigLeaf) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: ConfigLeaf) -> str | None:
    return value if isinstance(value, str) and value else None


def _split(value: ConfigLeaf) -> str | None:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return None if value is None else str(value)


def _files(value: ConfigLeaf) -> tuple[str, ...]:
    names = value if isinstance(value, tuple) else (value,)
    return tuple(name for name in names if isinstance(name, str) and name)
