"""Other rows, or the same rows in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from align.core.rung import Rung
from align.stack.faults.fault import Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from align.stack.config import StackConfig
    from align.stack.dataset import Row
    from align.stack.pipeline import Pipeline, Tokenizer
    from align.stack.prompts import RenderedPrompt

ORDER = "data.order.first_divergent_step"
STALE_SEED = 1234
TEMPLATE = "Human: {question}\nAssistant: "  # MindSpeed-RL's "default"


def numpy_shuffle(pipeline: Pipeline) -> Pipeline:
    """Shuffle with numpy every epoch, as MindSpeed-RL did before 2025-05-16."""

    def row_order(config: StackConfig, num_rows: int) -> Iterator[list[int]]:
        size = config.data.train_batch_size
        shuffler = np.random.RandomState(config.data.seed)
        while True:
            rows = np.arange(num_rows)
            shuffler.shuffle(rows)
            for start in range(0, num_rows - size + 1, size):
                yield rows[start : start + size].tolist()

    return replace(pipeline, row_order=row_order)


def stale_order_cache(pipeline: Pipeline) -> Pipeline:
    """Replay the order that an earlier run with another seed left in a cache file."""

    def row_order(config: StackConfig, num_rows: int) -> Iterator[list[int]]:
        earlier = replace(config, data=replace(config.data, seed=STALE_SEED))
        return pipeline.row_order(earlier, num_rows)

    return replace(pipeline, row_order=row_order)


def replayed_epoch(pipeline: Pipeline) -> Pipeline:
    """Go on with the first epoch's order after it: the position is restored, the order is not."""

    def row_order(config: StackConfig, num_rows: int) -> Iterator[list[int]]:
        steps = num_rows // config.data.train_batch_size
        order = pipeline.row_order(config, num_rows)
        first = [next(order) for _ in range(steps)]
        while True:
            yield from first

    return replace(pipeline, row_order=row_order)


def strict_length_filter(pipeline: Pipeline) -> Pipeline:
    """Keep prompts below the limit where the reference keeps those up to it."""

    def keep_rows(prompts: Sequence[RenderedPrompt], config: StackConfig) -> list[int]:
        limit = config.data.max_prompt_length
        return [i for i in pipeline.keep_rows(prompts, config) if len(prompts[i].ids) < limit]

    return replace(pipeline, keep_rows=keep_rows)


def lost_rows(pipeline: Pipeline) -> Pipeline:
    """Lose every tenth row while the data set is converted."""

    def load_rows(config: StackConfig) -> list[Row]:
        return [row for i, row in enumerate(pipeline.load_rows(config)) if i % 10 != 9]

    return replace(pipeline, load_rows=load_rows)


def lost_labels(pipeline: Pipeline) -> Pipeline:
    """Lose the label column: ``labels`` is not among the columns to keep."""

    def load_rows(config: StackConfig) -> list[Row]:
        return [replace(row, ground_truth="") for row in pipeline.load_rows(config)]

    return replace(pipeline, load_rows=load_rows)


def other_template(pipeline: Pipeline) -> Pipeline:
    """Render prompts with a named template instead of the tokenizer's chat template."""

    def render(row: Row, tokenizer: Tokenizer, config: StackConfig) -> RenderedPrompt:
        text = TEMPLATE.format(question=row.messages[-1]["content"])
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return replace(pipeline.render(row, tokenizer, config), text=text, ids=tuple(ids))

    return replace(pipeline, render=render)


def _data(
    name: str,
    what: str,
    field_report: str,
    change: Callable[[Pipeline], Pipeline],
    finding_id: str = ORDER,
    needs: tuple[str, ...] = ("rollouts",),
    setting: tuple[str, ...] = (),
) -> Fault:
    return Fault(
        name, Rung.DATA, what, field_report, finding_id, needs, change=change, setting=setting
    )


FAULTS = (
    _data(
        "numpy_shuffle",
        "Rows are shuffled with numpy's generator, not with torch's RandomSampler.",
        "seed 000",
        numpy_shuffle,
    ),
    _data(
        "stale_order_cache",
        "A cached index file replays the order of an earlier run.",
        "report 70",
        stale_order_cache,
    ),
    _data(
        "resume_replays_epoch_0",
        "After a resume the first epoch's order comes again.",
        "report 49",
        replayed_epoch,
    ),
    _data(
        "strict_length_filter",
        "Prompts of exactly the length limit are dropped, so the shuffle counts other rows.",
        "MindSpeed-RL source, length filter",
        strict_length_filter,
        setting=("data.filter_overlong_prompts=true", "data.max_prompt_length=18"),
    ),
    _data(
        "lost_rows",
        "Every tenth row is lost when the data set is converted.",
        "MindSpeed-RL source, preprocessing",
        lost_rows,
        "data.rows_lost",
        ("rollouts", "order"),
    ),
    _data(
        "lost_labels",
        "The label column is not kept, so every answer is scored against nothing.",
        "seed 000, report 68",
        lost_labels,
        "data.ground_truth",
    ),
    _data(
        "other_template",
        "Prompts are rendered with a template of templates.json, not with the chat template.",
        "seed 000, report 70",
        other_template,
        "data.prompt_template",
    ),
)
