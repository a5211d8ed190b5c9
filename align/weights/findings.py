"""What two checkpoints differ in, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from align.core.finding import Evidence, Finding, Mechanism, Severity, Side, Strength
from align.core.rung import Rung
from align.core.text import Text, joined
from align.weights.checkpoint import Checkpoint
from align.weights.diff import WeightDiff, WeightsDiff
from align.weights.measure import Relation
from align.weights.texts import DIFFERENCES, Difference

_SHOWN = 5
_SIDES = (Side.REFERENCE, Side.CANDIDATE)
_SEMANTIC = Mechanism(Rung.ROLLOUT, Strength.SEMANTIC)
_NUMERIC = Mechanism(Rung.ROLLOUT, Strength.NUMERIC)


def findings_of(
    diff: WeightsDiff, reference: Checkpoint, candidate: Checkpoint
) -> tuple[Finding, ...]:
    """Return every finding, the ones that explain others first."""
    sides = (reference, candidate)
    found = list(coverage_findings(candidate, reference))
    found += _head(diff, sides)
    found += [f for kind in DIFFERENCES for f in _of_kind(kind, diff.differing, sides)]
    found += _vocabulary(diff, sides)
    found += _listed(diff.copies, "weights.copies_differ", Severity.ERROR, sides)
    found += _listed(diff.padding, "weights.padding_not_zero", Severity.INFO, sides)
    return tuple(sorted(found, key=lambda finding: finding.severity.rank))


def coverage_findings(candidate: Checkpoint, reference: Checkpoint | None) -> tuple[Finding, ...]:
    """Return what is missing of the files, of the names, and what no rule covers.

    A checkpoint taken alone, before a conversion, is the candidate.
    """
    sides = (reference, candidate)
    files = tuple(side.files.missing if side else () for side in sides)
    names = tuple(side.missing if side else () for side in sides)
    strange = tuple(
        tuple(f"{u.name} {list(u.shape)}: {u.reason.en}" for u in side.uncovered) if side else ()
        for side in sides
    )
    return (
        *_listed(files, "weights.missing_file", Severity.ERROR, sides),
        *_listed(strange, "weights.uncovered", Severity.ERROR, sides),
        *_listed(names, "weights.missing_tensor", Severity.ERROR, sides),
    )


def _listed(
    names: Sequence[Sequence[str]],
    id: str,
    severity: Severity,
    sides: Sequence[Checkpoint | None],
) -> Iterator[Finding]:
    """Yield a finding where either side has names to list."""
    if not any(names):
        return
    title, why, fix = _LISTS[id]
    evidence = tuple(
        Evidence(side.files.path, where, key=name)
        for side, where, own in zip(sides, _SIDES, names, strict=True)
        for name in own[:_SHOWN]
        if side is not None
    )
    counts = [_count(own) for own in names]
    mechanism = _SEMANTIC if severity is Severity.ERROR else None
    yield Finding(
        id, Rung.WEIGHT_SYNC, severity, title, counts[0], counts[1], evidence, why, fix, mechanism
    )


def _count(names: Sequence[str]) -> str:
    first = f" ({names[0]}, …)" if len(names) > 1 else f" ({names[0]})" if names else ""
    return f"{len(names)}{first}"


_LISTS = {
    "weights.missing_file": (
        Text("files of the checkpoint are missing", "检查点缺少文件"),
        Text(
            "An index, the numbering of ranks or the saved arguments call for these files; their "
            "tensors keep whatever the model was initialised with.",
            "索引、rank 编号或保存的参数表明应有这些文件；缺少它们时，对应张量保持初始化值。",
        ),
        Text("Copy the files, or save the checkpoint again.", "补齐文件，或重新保存检查点。"),
    ),
    "weights.uncovered": (
        Text("tensors that no layout rule covers", "有布局规则未覆盖的张量"),
        Text(
            "Their names or shapes are not those of this model's family, so they were neither "
            "compared nor converted: unknown is not equal.",
            "名称或形状不属于该模型系列，因此既未比较也未转换：未知不等于相同。",
        ),
        Text(
            "Check that config.json belongs to this checkpoint; leave out what is not needed with "
            "--drop, or add a rule to align/layout/families.",
            "确认 config.json 与该检查点匹配；不需要的张量用 --drop 排除，"
            "或在 align/layout/families 中添加规则。",
        ),
    ),
    "weights.missing_tensor": (
        Text("tensors of the model are missing", "缺少模型的张量"),
        Text(
            "The configuration calls for these tensors. A loader that is not strict leaves them at "
            "their random initial values.",
            "按配置应有这些张量。非严格的加载会让它们保持随机初始值。",
        ),
        Text(
            "Look for a shard that was not copied; check tie_word_embeddings if only lm_head is "
            "missing.",
            "检查是否有分片没有拷贝；若只缺 lm_head，请检查 tie_word_embeddings。",
        ),
    ),
    "weights.copies_differ": (
        Text(
            "ranks hold different copies of a tensor they should share",
            "各 rank 上应当相同的张量并不相同",
        ),
        Text(
            "Norms and routers are kept whole on every tensor-parallel rank. Copies that drift "
            "apart mean that their gradients were not reduced over the group (sequence parallelism "
            "needs that).",
            "norm 与 router 在每个张量并行 rank 上都保存完整副本。副本不一致说明其梯度没有在组内"
            "归约（序列并行需要归约）。",
        ),
        Text(
            "Compare gradients of these tensors over the ranks of one group.",
            "比较这些张量在同一组各 rank 上的梯度。",
        ),
    ),
    "weights.padding_not_zero": (
        Text("padded vocabulary rows are not zero", "词表填充行不为零"),
        Text(
            "Ids in the padding are never used as input, yet their logits take part in the softmax "
            "unless they are masked. The rows were left out of the comparison.",
            "填充部分的 id 不会作为输入，但若未屏蔽，其 logits 会参与 softmax。这些行未参与比较。",
        ),
        Text(
            "Nothing to do unless log_probs differ by a constant.",
            "除非 log_probs 相差一个常数，否则无需处理。",
        ),
    ),
}


def _of_kind(
    kind: Difference, differing: Sequence[WeightDiff], sides: Sequence[Checkpoint]
) -> Iterator[Finding]:
    """Yield one finding for all tensors of a relation and a detail."""
    groups: dict[str, list[WeightDiff]] = {}
    for diff in differing:
        if diff.relation is kind.relation:
            groups.setdefault(kind.group(diff), []).append(diff)
    for label, diffs in groups.items():
        details = [diff.detail for diff in diffs if diff.detail is not None]
        count = Text(f" ({len(diffs)} tensors)", f"（{len(diffs)} 个张量）")
        shared = details[0] if len(set(details)) == 1 else None
        title = joined([kind.title, shared]) if shared else kind.title
        is_rounding = kind.relation is Relation.ROUNDED
        yield Finding(
            id=kind.id if not label else f"{kind.id}.{label}",
            rung=Rung.WEIGHT_SYNC,
            severity=Severity.WARNING if is_rounding else Severity.ERROR,
            title=Text(title.en + count.en, title.zh + count.zh),
            reference=_state(diffs[0], 0),
            candidate=_state(diffs[0], 1),
            evidence=tuple(_evidence(diffs, sides)),
            why=kind.why,
            fix=kind.fix,
            mechanism=_NUMERIC if is_rounding else _SEMANTIC,
        )


def _state(diff: WeightDiff, side: int) -> str:
    return f"{diff.dtypes[side]} {list(diff.shapes[side])}"


def _evidence(diffs: Sequence[WeightDiff], sides: Sequence[Checkpoint]) -> Iterator[Evidence]:
    worst = sorted(diffs, key=lambda diff: -diff.rel_l2)
    for diff in worst[:_SHOWN]:
        text = f"{diff.name}: {_state(diff, 0)} against {_state(diff, 1)}"
        if diff.distance is not None:
            text += f", relative error {diff.rel_l2:.3g}, max abs {diff.distance.max_abs:.3g}"
        if diff.detail is not None:
            text += f", {diff.detail.en}"
        yield Evidence(sides[1].files.path, Side.CANDIDATE, key=diff.name, text=text[:200])


def _head(diff: WeightsDiff, sides: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Yield what is wrong between head and embedding."""
    first, second = diff.heads
    if first is None or second is None:
        return
    states = ["tied" if h.is_shared else "separate" for h in (first, second)]
    is_torn = any(h.is_declared and not h.is_shared for h in (first, second))
    if states[0] == states[1] and not is_torn:
        return
    yield Finding(
        id="weights.head_diverged",
        rung=Rung.WEIGHT_SYNC,
        severity=Severity.ERROR,
        title=Text(
            "lm_head and embedding are one tensor on one side only"
            if states[0] != states[1]
            else "lm_head differs from the embedding that config.json ties it to",
            "lm_head 与词嵌入仅在一侧共享"
            if states[0] != states[1]
            else "lm_head 与 config.json 声明共享的词嵌入不同",
        ),
        reference=states[0],
        candidate=states[1],
        evidence=tuple(
            Evidence(s.files.path, where, key="lm_head.weight", values=(state,))
            for s, where, state in zip(sides, _SIDES, states, strict=True)
        ),
        why=Text(
            "A loader that ties the two drops the separate head; one that does not trains them "
            "apart. Every logit depends on which it does.",
            "共享的加载方式会丢弃单独的 lm_head，不共享的则分别训练两者；所有 logits 都取决于此。",
        ),
        fix=Text(
            "Set tie_word_embeddings and untie_embeddings_and_output_weights alike on both sides "
            "and convert again.",
            "两侧统一设置 tie_word_embeddings 与 untie_embeddings_and_output_weights，"
            "然后重新转换。",
        ),
        mechanism=_SEMANTIC,
    )


def _vocabulary(diff: WeightsDiff, sides: Sequence[Checkpoint]) -> Iterator[Finding]:
    if diff.vocab[0] == diff.vocab[1]:
        return
    yield Finding(
        id="weights.vocabulary_rows",
        rung=Rung.WEIGHT_SYNC,
        severity=Severity.WARNING,
        title=Text(
            "the embeddings have different numbers of rows; the common ones were compared",
            "词嵌入行数不同；已比较共有的行",
        ),
        reference=diff.vocab[0],
        candidate=diff.vocab[1],
        evidence=tuple(
            Evidence(s.files.path, where, key="model.embed_tokens.weight", values=(rows,))
            for s, where, rows in zip(sides, _SIDES, diff.vocab, strict=True)
        ),
        why=Text(
            "Rows beyond the tokenizer's ids are padding, but each of them adds to the softmax's "
            "denominator, and a sampler can draw them.",
            "超出分词器 id 范围的行是填充，但每一行都会进入 softmax 分母，也可能被采样到。",
        ),
        fix=Text(
            "Give both sides the same padded vocabulary, or mask the padding's logits.",
            "让两侧的填充词表一致，或屏蔽填充部分的 logits。",
        ),
        mechanism=_NUMERIC,
    )
