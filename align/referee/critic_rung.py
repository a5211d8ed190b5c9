"""Loss rung of PPO: where the critics of two runs part.

The critic is a training run of its own beside the policy's: values from its weights, a loss from
predictions and returns, a gradient from the loss, an update from the gradient. The walk along these
stops at the first that differs though everything before it agrees; a loss is also held against
what the run's own configuration gives. Nothing is judged where the two runs trained on other rows.
"""

from __future__ import annotations

from align.core.finding import Severity, Side
from align.core.rung import Rung, RungResult, RungStatus
from align.core.text import Text
from align.referee.critic import critic_of
from align.referee.critic_own import own_loss, own_pass
from align.referee.critic_walk import walk
from dumps.store.run_data import RunData


def compare_critics(reference: RunData, candidate: RunData) -> RungResult | None:
    """Walk along both critics; None where either is not recorded."""
    both = [
        critic_of(side, run)
        for side, run in ((Side.REFERENCE, reference), (Side.CANDIDATE, candidate))
    ]
    if not all(critic.updates for critic in both):
        return None
    finding = own_loss(both) or own_pass(*both) or walk(*both)
    if finding is None:
        return RungResult(Rung.LOSS, RungStatus.ALIGNED, _ALIGNED)
    summary = Text(
        f"{finding.title.en[:1].upper()}{finding.title.en[1:]}.", f"{finding.title.zh}。"
    )
    is_error = finding.severity is Severity.ERROR
    status = RungStatus.DIVERGED if is_error else RungStatus.UNDECIDED
    return RungResult(Rung.LOSS, status, summary, (finding,))


_ALIGNED = Text(
    "The critics' losses are as configured, and nothing of them differs where both runs trained on "
    "the same rows.",
    "两侧 critic 的损失与配置相符；在两侧训练相同数据行的范围内没有差异。",
)
