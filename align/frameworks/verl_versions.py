"""verl's releases, and which one a composed configuration comes from.

Sources: the composed configurations of the tags v0.3.0.post1 to v0.9.0 and of the package 0.9.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from align.core.config_value import ConfigValue

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"

RELEASES = (
    *("0.3.0", "0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.6.1"),
    *("0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"),
)
NEWEST = RELEASES[-1]

# A configuration with these keys is a composed one: a key it lacks does not exist in its version.
_WHOLE = (
    "data.train_batch_size",
    f"{_ACTOR}.optim.lr",
    f"{_ROLLOUT}.temperature",
    "algorithm.adv_estimator",
)

# A key that both trainers have from this version on, newest first.
FIRST_SEEN: tuple[tuple[str, str], ...] = (
    ("trainer.use_v1", "0.9.0"),
    ("distillation.enabled", "0.8.0"),
    ("reward.reward_manager.name", "0.7.1"),
    (f"{_ROLLOUT}.logprobs_mode", "0.7.0"),
    ("algorithm.rollout_correction.rollout_is", "0.6.1"),
    (f"{_ROLLOUT}.over_sample_rate", "0.6.0"),
    (f"{_ROLLOUT}.agent.num_workers", "0.5.0"),
    (f"{_ACTOR}.policy_loss.loss_mode", "0.4.1"),
    ("algorithm.use_kl_in_reward", "0.4.0"),
    ("trainer.balance_batch", "0.3.0"),
    (f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "0.2.0"),
    ("data.train_batch_size", "0.1.0"),
)


def numbers(version: str) -> tuple[int, int, int] | None:
    """Return ``0.6.1`` as numbers, None where it has none; without a patch it is the last one."""
    parts = version.lstrip("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    patch = int(parts[2]) if len(parts) > 2 and parts[2].isdigit() else 99
    return int(parts[0]), int(parts[1]), patch


def release_of(version: str | None) -> str:
    """Return the known release nearest to a version: the last one that is not newer.

    The newest stands for a version that is not known, the oldest for those before it.
    """
    wanted = numbers(version or "")
    if wanted is None:
        return NEWEST
    older = [release for release in RELEASES if _exact(release) <= wanted]
    return older[-1] if older else RELEASES[0]


def is_covered(version: str | None) -> bool:
    """Tell whether the tables are of this version's series."""
    known = numbers(version or "")
    return known is not None and any(known[:2] == _exact(release)[:2] for release in RELEASES)


def before(version: str | None, release: str) -> bool:
    """Tell whether a version is older than a release; one that is not known is the newest."""
    return (numbers(version or "") or _exact(NEWEST)) < _exact(release)


def is_whole(values: Mapping[str, ConfigValue]) -> bool:
    """Tell whether a configuration is a composed one, with every key of its version."""
    return all(key in values for key in _WHOLE)


def config_version(values: Mapping[str, ConfigValue]) -> str | None:
    """Guess the version of a composed configuration; a caller must state it as an assumption.

    Overrides alone tell the oldest version that takes them and not which it was, unless that is
    the newest.
    """
    seen = (version for key, version in FIRST_SEEN if key in values)
    guess = next(seen, None)
    return guess if is_whole(values) or guess == FIRST_SEEN[0][1] else None


def _exact(release: str) -> tuple[int, int, int]:
    major, minor, patch = release.split(".")
    return int(major), int(minor), int(patch)
