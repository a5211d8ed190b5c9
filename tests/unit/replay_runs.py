"""Recorded rows, and what drives doubles of the frameworks with them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from align.core.rollout_record import RolloutRecord
from dumps.inject.install import hook_points, put_in
from dumps.inject.launch import prepare
from dumps.inject.plan import ReplayPlan
from dumps.inject.replay import Replay

EOS, PAD, N = 9, 8, 2


def rows(step: int = 1, asks: tuple[int, ...] = (1, 2)) -> list[RolloutRecord]:
    return [
        RolloutRecord(
            prompt=f"{ask} 7",
            prompt_ids=(ask, 7),
            response_ids=(ask, 3 + sample, EOS),
            log_probs=(-1.0, -2.0, -float(ask)),
            score=10.0 * ask + sample,
            step=step,
            dataset_index=ask,
            sample_index=sample,
            uid=f"r{step}-{ask}",
            extras={"reward/acc": 1.0},
        )
        for ask in asks
        for sample in range(N)
    ]


def replay(tmp_path: Path, recorded: list[RolloutRecord] | None = None, **plan: Any) -> Replay:
    made = ReplayPlan(tmp_path / "run", **plan)
    prepare(made, rows() if recorded is None else recorded, [], None)
    return Replay(made)


def drive(replay: Replay, package: str, version: tuple[int, int], *modules: ModuleType) -> None:
    by_name = {module.__name__: module for module in modules}
    for point in hook_points():
        if point.package == package and point.module in by_name and point.fits(version):
            put_in(replay, by_name[point.module], point)


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(content)
    return made


class Config(dict):
    """Stands for OmegaConf's: keys as attributes."""

    __getattr__ = dict.__getitem__


class Tokenizer:
    eos_token_id, pad_token_id = EOS, PAD

    def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
        return [int(messages[0]["content"]), 7]

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return " ".join(str(i) for i in ids if i != EOS)
