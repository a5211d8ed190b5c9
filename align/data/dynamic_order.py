"""Settings under which the rows of a step depend on the run itself, not only on data and seed."""

from __future__ import annotations

from align.core.config_value import ConfigValue
from dumps.store.run_data import RunData

_FILTERS = ("filter_groups.enable", "filter_groups_enable")


def dynamic_sampling(data: RunData) -> ConfigValue | None:
    """Return the setting that makes a run drop prompts by their scores (DAPO), if it is on."""
    for config in data.configs:
        for key, value in config.values.items():
            if key.endswith(_FILTERS) and value.value is True:
                return value
    return None


def is_asynchronous(data: RunData) -> bool:
    """Tell whether the run hands prompts out while it trains, so that order depends on timing."""
    return any(series.spelling.startswith("fully_async/") for series in data.metrics.series)
