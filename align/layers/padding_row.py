"""The gradient of an embedding that leaves out one token: the one its model pads with.

transformers builds embeddings with ``padding_idx = config.pad_token_id``, and PyTorch gives that
row no gradient from look-ups. Megatron-core knows no such row. Where the token stands among those
that are attended to, as eos does that also pads, the two differ with equal gradients of the
embedding's output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from align.config.normalise import effective
from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text
from align.layers.walk import Compared
from align.rollout.trainer_pair import TrainerPair, trainer_pair
from dumps.store.run_data import RunData

_EMBEDDING = "embed_tokens.weight"


def padding_row_finding(
    departed: Sequence[Compared], reference: RunData, candidate: RunData, step: int
) -> Finding | None:
    """Explain an embedding whose gradient alone differs; None where padding does not.

    Args:
        departed: every parameter of a step whose gradient differs.
    """
    if len(departed) != 1 or not departed[0].reference.name.endswith(_EMBEDDING):
        return None
    pad, pair = _pad(reference), trainer_pair(reference, candidate, step)
    if pad is None or pair is None or pad != _pad(candidate):
        return None
    count = _attended(pair, pad)
    found = departed[0].difference
    return None if not count else _finding(departed[0].reference.name, found.relative, pad, count)


def _pad(run: RunData) -> int | None:
    value = effective(run.configs, run.run.manifest).values.get("model.pad_token_id")
    return value.value if value is not None and isinstance(value.value, int) else None


def _attended(pair: TrainerPair, token: int) -> int:
    """Return how often a token stands where it is attended to."""
    ids, attention = pair.reference["input_ids"], pair.reference.get("attention_mask")
    return 0 if attention is None else int(np.count_nonzero((ids == token) & (attention != 0)))


def _finding(name: str, relative: float, pad: int, count: int) -> Finding:
    return Finding(
        id="backward.padding_row",
        rung=Rung.BACKWARD,
        severity=Severity.WARNING,
        title=Text(
            f"the gradient of {name} alone differs, by {relative:.2g}: token {pad}, which the "
            f"model pads with, is attended to {count} times, and one side gives its row no "
            "gradient",
            f"仅 {name} 的梯度不同（{relative:.2g}）：模型用作补齐的 token {pad} 有 {count} 次"
            "被 attend，而一侧不计该行的梯度",
        ),
        reference=0.0,
        candidate=relative,
        evidence=(Evidence("config.json", Side.BOTH, key="pad_token_id", values=(float(pad),)),),
        why=Text(
            "transformers builds the embedding with padding_idx = pad_token_id, whose row PyTorch "
            "leaves out of the gradient of look-ups; Megatron-core does not. That token's "
            "embedding is learned on one side alone. Gradients of all outputs agree.",
            "transformers 以 padding_idx = pad_token_id 构建 embedding，"
            "PyTorch 不计该行查表的梯度；Megatron-core 则计入。"
            "因此该 token 的 embedding 只在一侧被学习。所有输出的梯度都一致。",
        ),
        fix=Text(
            "Give the model a pad_token_id that no sequence contains, or none; never eos.",
            "为模型设置任何序列中都不出现的 pad_token_id，或不设置；不要使用 eos。",
        ),
        mechanism=Mechanism(Rung.BACKWARD, Strength.SEMANTIC, ("actor/grad_norm",)),
    )
