"""Carry out a conversion: the planned files, in a new folder, all or none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from align.cli.weights_sides import Side
from align.core.errors import ConfigError
from align.core.text import Text
from align.layout.dialect import (
    MEGATRON_LOCAL,
    MEGATRON_LOCAL_GROUPED,
    MEGATRON_TE,
    MEGATRON_TE_GROUPED,
    TORCH_DIST,
    TORCH_DIST_LOCAL,
)
from align.weights.convert import Parallel, RankPlan, padded_vocab, to_huggingface, to_megatron
from align.weights.stacked_layers import stack_layers
from dumps.store.weights_megatron_writer import rank_folder, write_rank, write_torch_dist
from dumps.store.weights_writer import NewTensor, new_folder, write_shards

_SPECS = {
    "te": MEGATRON_TE,
    "local": MEGATRON_LOCAL,
    "te-grouped": MEGATRON_TE_GROUPED,
    "local-grouped": MEGATRON_LOCAL_GROUPED,
}
_BESIDE = (
    *("config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer*", "vocab.json", "merges.txt", "chat_template*"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a conversion writes.

    Args:
        form: "hf", "legacy" or "torch_dist".
        ranks: one a rank and virtual chunk; the formats that are not by rank have one.
    """

    form: str
    parallel: Parallel
    ranks: tuple[RankPlan, ...]

    @classmethod
    def of(cls, side: Side, layout: str, form: str, spec: str, parallel: Parallel) -> Plan:
        """Plan it.

        Raises:
            ConfigError: The model cannot be cut into these ranks, or the format has no ranks.
        """
        source, family = side.checkpoint, side.family
        if layout == "megatron" and form == "legacy":
            ranks = tuple(to_megatron(source, family, _SPECS[spec], parallel))
            return cls(form, parallel, ranks)
        if (parallel.tensor, parallel.pipeline, parallel.expert, parallel.chunks) != (1, 1, 1, 1):
            raise ConfigError(
                where="--tp, --pp, --ep, --vpp",
                problem="are given, and this format holds whole tensors",
                fix="leave them out; any number of ranks can load it",
            )
        if layout == "hf":
            tensors = to_huggingface(source, family)
            return cls("hf", parallel, (RankPlan(0, 0, 0, 0, tuple(tensors)),))
        dialect = TORCH_DIST_LOCAL if spec.startswith("local") else TORCH_DIST
        (plan,) = to_megatron(source, family, dialect, parallel)
        stacked = tuple(stack_layers(plan.tensors))
        return cls(form, parallel, (RankPlan(0, 0, 0, 0, stacked),))

    @property
    def num_tensors(self) -> int:
        """Tensors of all files."""
        return sum(len(rank.tensors) for rank in self.ranks)

    def summary(self, target: str, is_dry: bool) -> Text:
        """Say what was or would be written."""
        size = sum(tensor.size_bytes for rank in self.ranks for tensor in rank.tensors)
        did, done = ("would write", "将写入") if is_dry else ("wrote", "已写入")
        num_files = len({_coordinates(rank) for rank in self.ranks})
        count = f"{self.num_tensors} tensors, {size / 1e9:.3g} GB, {num_files} ranks"
        return Text(
            f"{did} {target}: {count} ({self.form})",
            f"{done} {target}：{self.num_tensors} 个张量，{size / 1e9:.3g} GB，"
            f"{num_files} 个 rank（{self.form}）",
        )


def write_plan(
    plan: Plan, side: Side, target: Path, shard_bytes: int, done: Callable[[str], None]
) -> None:
    """Write every file of a plan; on an error nothing is left behind."""
    with new_folder(target) as folder:
        if plan.form == "hf":
            write_shards(folder, plan.ranks[0].tensors, shard_bytes, done)
            _copy_beside(side, folder)
            return
        arguments = _arguments(plan, side)
        if plan.form == "torch_dist":
            write_torch_dist(folder, plan.ranks[0].tensors, arguments, done)
        for name, chunks in _by_rank(plan) if plan.form == "legacy" else ():
            write_rank(folder, name, chunks, arguments, done)
        shutil.copyfile(side.config_file, folder / "config.json")


def _by_rank(plan: Plan) -> Iterator[tuple[str, list[tuple[NewTensor, ...]]]]:
    """Yield each rank's folder with its virtual chunks."""
    has_stages, has_experts = plan.parallel.pipeline > 1, plan.parallel.expert > 1
    for (tensor, stage, expert), ranks in groupby(plan.ranks, key=_coordinates):
        name = rank_folder(tensor, stage if has_stages else None, expert if has_experts else None)
        yield name, [rank.tensors for rank in ranks]


def _coordinates(rank: RankPlan) -> tuple[int, int, int]:
    return rank.tensor_rank, rank.pipeline_rank, rank.expert_rank


def _copy_beside(side: Side, folder: Path) -> None:
    """Copy configuration and tokenizer, which every loader wants beside the weights."""
    for pattern in _BESIDE:
        for file in side.config_file.parent.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def _arguments(plan: Plan, side: Side) -> dict[str, object]:
    """Return what Megatron checks of a checkpoint's command line."""
    sizes, parallel = side.checkpoint.sizes, plan.parallel
    return {
        "num_layers": sizes.layers,
        "hidden_size": sizes.hidden,
        "ffn_hidden_size": sizes.ffn,
        "num_attention_heads": sizes.heads,
        "num_query_groups": sizes.groups,
        "group_query_attention": sizes.groups != sizes.heads,
        "kv_channels": sizes.head_dim,
        "num_experts": sizes.experts or None,
        "padded_vocab_size": padded_vocab(sizes, parallel),
        "untie_embeddings_and_output_weights": not sizes.tied,
        "add_position_embedding": False,
        "position_embedding_type": "rope",
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "expert_model_parallel_size": parallel.expert,
        "virtual_pipeline_model_parallel_size": parallel.chunks if parallel.chunks > 1 else None,
        "use_dist_ckpt": plan.form == "torch_dist",
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
        "iteration": 0,
    }
