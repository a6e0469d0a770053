"""Data selection: what becomes of episodes between play and update. Importing this loads neither Ray nor torch."""

from __future__ import annotations

import math
from typing import Annotated, Any

from rllib_lmgame.base.group import REQUIRED, Group, Scheduled, option, tag
from rllib_lmgame.base.registry import Registry


def share_of_groups(share: float, groups: int) -> int:
    """``share * groups``, rounded down; a whole number stays one whose share is a decimal: ``0.7 * 90`` is 63."""
    return math.floor(share * groups + 1e-9)


def groups_needed(num_learners: int, group_size: int, compares: bool) -> int:
    """Groups an update needs: one per learner if groups are compared (they stay together), else an episode each."""
    return max(1, num_learners if compares else math.ceil(num_learners / group_size))


def spare_groups(groups: int, oversample: float) -> int:
    """Groups started beyond ``groups``, rounded up without float error: ``1.1 * 30`` is 33."""
    return max(0, math.ceil(oversample * groups - 1e-9) - groups)


class KeptGroups(Group):
    """They are trained on as others."""

    type: str = tag("keep", "Its name.")


class DroppedGroups(KeptGroups):
    """They are left out."""

    type: str = tag("drop", "Its name.")
    max_refill: Scheduled[int] = option(
        0,
        "Rounds, at most, in which further levels are played in their place, until there are as many others as an "
        "iteration has groups.",
        ge=0,
        le=1_000,
    )


ZERO_VARIANCE_GROUPS = Registry.of("data_selection.zero_variance_groups", "choice", KeptGroups, DroppedGroups)


class OverlongOptions(Group):
    """``data_selection.overlong``: what long replies lose (DAPO's soft punishment)."""

    tokens: Scheduled[int] = option(REQUIRED, "A reply of more tokens than this loses `penalty` of its reward.", ge=1)
    buffer: Scheduled[int] = option(0, "The penalty grows from 0 over as many tokens before that.", ge=0)
    penalty: Scheduled[float] = option(1.0, "The penalty, in points of the game before `reward_scale`.", gt=0)


class NormalizeRewardsOptions(Group):
    """``data_selection.normalize_rewards``."""

    type: str = tag(
        REQUIRED,
        "What is compared: the returns of a `group` (one level and role), of the `batch`, a `game`, or a `role` of a "
        "game.",
        choices=("group", "batch", "game", "role"),
    )
    deviation: bool = option(True, "Divide by the deviation; else only centre.")


class DataSelectionOptions(Group):
    """The ``data_selection`` section: what becomes of the episodes between play and update."""

    reward_variance_filter: Scheduled[float] = option(
        1.0,
        "Share of the groups that is trained on: those whose returns differ most among the episodes of the group.",
        gt=0,
        le=1,
    )
    zero_variance_groups: Annotated[Any, ZERO_VARIANCE_GROUPS] = option(
        "keep",
        "What becomes of groups whose episodes all have the same return: `keep`, or `drop`: they are left out, as "
        "there is nothing to compare in them. As many as the learners need stay in any case.",
    )
    overlong: OverlongOptions | None = option(None, "Long replies lose some of their reward; null: none does.")
    normalize_rewards: NormalizeRewardsOptions | None = option(
        None,
        "Give returns mean 0 and deviation 1 before advantages are estimated, of each policy for itself; null: do not.",
    )
    oversample: Scheduled[float] = option(
        1.0,
        "Start so many times the groups (episodes, where `group_size` is 1) that an iteration needs, of every game. "
        "The rollout ends when enough have finished; what is in play is left behind.",
        ge=1,
        le=10,
    )

    @property
    def active(self) -> bool:
        """Whether anything is chosen or changed."""
        return self != DataSelectionOptions()
