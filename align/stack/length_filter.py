"""Which rows are kept, by the length of their prompts."""

from __future__ import annotations

from collections.abc import Sequence

from align.stack.config import StackConfig
from align.stack.prompts import RenderedPrompt


def keep_rows(prompts: Sequence[RenderedPrompt], config: StackConfig) -> list[int]:
    """Return the positions of the prompts that stay; the row order counts these.

    Source: verl `RLHFDataset.maybe_filter_out_long_prompts` keeps len <= max_prompt_length, and
    only with filter_overlong_prompts; MindSpeed-RL keeps len < max_prompt_length, always.
    """
    limit = config.data.max_prompt_length
    if config.stack.definitions == "mindspeed_rl":
        return [i for i, prompt in enumerate(prompts) if len(prompt.ids) < limit]
    if not config.data.filter_overlong_prompts:
        return list(range(len(prompts)))
    return [i for i, prompt in enumerate(prompts) if len(prompt.ids) <= limit]
