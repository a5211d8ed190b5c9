"""The bundled stack: the pipeline's rollout stage gives recorded responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dumps.inject.plan import Source
from dumps.inject.preflight import Candidate
from dumps.inject.problem import Problem
from dumps.inject.recorded import Prompt, prompt_of, read_step, recorded_steps
from dumps.inject.replay import Replay

NAME = "stack-0"
_STOPPED, _CUT = "stop", "length"
_rows: list[tuple[int, int]] = []  # (group, sample) of this step's responses, as generated


def train(replay: Replay, original: Any, config: Any, out: Any, pipeline: Any = None, **kwargs: Any) -> Any:
    """Drive a run: its order where that is asked for, and its end."""
    if pipeline is None:
        from importlib import import_module

        pipeline = import_module("align" + ".stack.pipeline").Pipeline()
    checked: list[bool] = []

    def set_order(own: Any) -> Any:
        return own

    return original(config, out, pipeline, **kwargs)
