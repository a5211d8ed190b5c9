"""Rewards by rule: one file a rule, and each row judged by the rules that apply to it.

A rule that does not apply gives None, never 0: a 0 would be averaged into the rule's mean, which
then follows the mix of tasks in the batch instead of the answers.
"""

from align.stack.rewards.registry import rules as rules
from align.stack.rewards.rule import Rule as Rule
from align.stack.rewards.scores import RewardError as RewardError
from align.stack.rewards.scores import Scores as Scores
from align.stack.rewards.scores import mean_by_rule as mean_by_rule
from align.stack.rewards.scores import score as score
