"""The row order of one run, from its configuration, its data set and its log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from align.core.config_value import EffectiveConfig
from align.core.data_set import DataSet
from align.core.errors import ConfigError, DumpError
from align.core.run import ArtifactKind
from align.core.text import Text
from align.data.index_cache import find_index, is_stale, read_index
from align.data.order_settings import SEQUENTIAL, OrderSettings, order_settings
from align.data.prompt_text import Prompts, PromptText
from align.data.replay import Prediction, Rows, predict
from align.data.samplers.mindspeed_rl import MindSpeedRL
from align.data.training_set import joined, training_set
from dumps.readers.data_fields import FieldMap
from dumps.readers.data_set import read_data_set
from dumps.readers.data_set_size import DataSetSize, first_data_set_size
from dumps.store.run_data import RunData


@dataclass(frozen=True, slots=True)
class Given:
    """What a user states on the command line instead of leaving it to the run's files."""

    data_set: DataSet | None = None
    num_rows: int | None = None
    sampler: str | None = None
    index: tuple[int, ...] | None = None
    resumed_at: int | None = None


class RunOrder:
    """Settings, rows and prediction of one run; each is worked out when it is asked for."""

    def __init__(
        self,
        data: RunData,
        config: EffectiveConfig,
        given: Given | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        self._data, self._config = data, config
        self._given = given or Given()
        self._prompts = prompts
        self.settings = _settings(config, self._given)

    def borrow(self, other: RunOrder) -> None:
        """Take the other run's data set, before anything is worked out."""
        self._given = replace(self._given, data_set=other.data_set)
        for name in ("data_set", "rows", "prediction", "lengths", "stale_index"):
            self.__dict__.pop(name, None)

    @cached_property
    def prompts(self) -> PromptText | None:
        """The run's tokenizer, None where it is not at hand."""
        return None if self._prompts is None else self._prompts(self._data, self._config)

    @cached_property
    def lengths(self) -> tuple[int, ...] | None:
        """Prompt lengths in tokens [num_rows]: of the ids, else as the run's tokenizer counts."""
        if self.data_set is None:
            return None
        if self.data_set.token_ids is not None:
            return _lengths(self.data_set)
        return None if self.prompts is None else self.prompts.lengths(self.data_set)

    @property
    def vocabulary_size(self) -> int | None:
        """Rows of the model's embedding, None where the configuration does not state them."""
        size = self._config.values.get("model.vocab_size")
        return size.value if size is not None and isinstance(size.value, int) else None

    @cached_property
    def data_set(self) -> DataSet | None:
        """The data set the run trains on, None where it is not at hand."""
        if self._given.data_set is not None:
            return self._given.data_set
        return training_set(self._data.data_sets, self.settings.train_files)

    @cached_property
    def counted(self) -> DataSetSize | None:
        """The rows the run itself counted, in its log."""
        logs = [a.path for a in self._data.run.of_kind(ArtifactKind.ENVIRONMENT)]
        return first_data_set_size(list(dict.fromkeys(logs)))

    @cached_property
    def rows(self) -> Rows | None:
        """How many rows there are, None where nothing tells."""
        counted, data_set = self.counted, self.data_set
        kept = counted.num_kept if counted else None
        if data_set is not None:
            if counted and counted.num_rows not in (None, len(data_set)):
                kept = None  # the log counts other data
            return Rows(len(data_set), kept, self.lengths if self.settings.needs_lengths else None)
        stated = self._given.num_rows or self.settings.num_rows
        if stated is not None:
            return Rows(stated, kept)
        return Rows(counted.num_rows, kept) if counted and counted.num_rows else None

    @cached_property
    def prediction(self) -> Prediction:
        """The order of rows.

        Raises:
            ConfigError, DumpError: What is lacking for it.
        """
        if self.rows is None:
            raise DumpError(
                where=self._data.run.label,
                problem="neither holds its data set nor a log that counts its rows",
                fix="pass --data FILE, or --num-rows N",
            )
        found = predict(self.settings, self.rows, self._given.index)
        if self.stale_index is not None:
            found = predict(self.settings, self.rows, read_index(self.stale_index))
            found = replace(found, assumptions=(*found.assumptions, _replayed(self.stale_index)))
        order = replace(found.order, resumed_at=self._given.resumed_at)
        return replace(found, order=order)

    @cached_property
    def stale_index(self) -> Path | None:
        """The index file beside the data that a run reads though its release makes another one."""
        if self.rows is None or self.data_set is None or self._given.index is not None:
            return None
        sampler = predict(self.settings, self.rows).order.sampler
        if not isinstance(sampler, MindSpeedRL):
            return None
        path = find_index(self.data_set.source, sampler)
        return path if path is not None and is_stale(read_index(path), sampler) else None

    @property
    def prediction_or_none(self) -> Prediction | None:
        """The order of rows, None where something is lacking for it."""
        try:
            return self.prediction
        except (ConfigError, DumpError):
            return None


def _replayed(path: Path) -> Text:
    return Text(
        f"{path} is replayed, as MindSpeed-RL does: a stale index, which its loader shuffles once "
        "more; delete it to get the order of the configuration",
        f"按 MindSpeed-RL 的做法重放了 {path}：这是遗留的索引文件，加载器会对它再打乱一次；"
        "删除后才会得到配置所定的顺序",
    )


def read_data_sets(paths: tuple[Path, ...], map_keys: tuple[str, ...] = ()) -> DataSet | None:
    """Read the files as one data set, None for no file.

    Args:
        map_keys: ``KEY=NAME`` each, as MindSpeed-RL's map_keys; the fields are guessed without.

    Raises:
        DumpError: One cannot be read.
    """
    named = dict(key.partition("=")[::2] for key in map_keys)
    fields = FieldMap.of_map_keys(named) if named else None
    return joined([read_data_set(path, fields=fields) for path in paths]) if paths else None


def _settings(config: EffectiveConfig, given: Given) -> OrderSettings:
    settings = order_settings(config)
    if given.sampler is None:
        return settings
    shuffle = False if given.sampler == SEQUENTIAL else settings.shuffle
    return replace(settings, sampler=given.sampler, shuffle=shuffle, assumptions=())


def _lengths(data_set: DataSet) -> tuple[int, ...] | None:
    if data_set.token_ids is None:
        return None
    lengths = getattr(data_set.token_ids, "lengths", None)
    if lengths is None:
        lengths = [len(ids) for ids in data_set.token_ids]
    return tuple(int(length) for length in lengths)
