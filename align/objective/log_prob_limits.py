"""How far log_probs of the same tokens may be apart, mean absolute difference in nats."""

from __future__ import annotations

from align.core.threshold import Threshold

APART = Threshold(0.01, "verl's own limit of a mean difference that rounding explains, in nats")
EXACT = Threshold(1e-5, "float32 rounding of a log_prob of some nats, times ten")
TIMES = 10  # of another difference of the same runs, which is rounding
