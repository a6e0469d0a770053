"""Between play and update: which episodes are trained on, and with what rewards.

Metrics and logs keep what was played, unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.learners.data.sharding import group_of
from rllib_lmgame.rollouts.options import DataSelectionOptions, DroppedGroups, OverlongOptions, share_of_groups
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, PlayResult, played_parts, turns_of

EQUAL = 1e-6
"""Returns whose deviation is no larger than this are equal."""

SELECTION = "data_selection"
COUNTS = (
    "groups",
    "zero_variance_groups",
    "kept_groups",
    "kept_episodes",
    "aborted_episodes",
    "refill_rounds",
    "overlong_rate",
)
"""``data_selection/<name>`` in a result."""

Play = Callable[[Sequence[EpisodePlan]], PlayResult]
PlanMore = Callable[[int, int], list[EpisodePlan]]
"""Plans of a refill: number of the round, counted from 1, and groups wanted."""


@dataclass(frozen=True)
class Selected:
    """What was played (``result``), the episodes that are trained on, and :data:`COUNTS`."""

    result: PlayResult
    episodes: list[MultiAgentEpisode]
    counts: dict[str, float]


def play_and_select(
    plans: Sequence[EpisodePlan],
    play: Play,
    plan_more: PlanMore,
    options: DataSelectionOptions,
    *,
    least: int = 1,
    all_teach: bool = False,
) -> Selected:
    """Play, play more to replace dropped groups, and choose.

    Args:
        plan_more: Makes more plans.
        least: Groups that are kept even if constant: what the learners need.
        all_teach: Constant groups are kept, since there is more to learn than what they compare.
    """
    result, rounds, planned = play(plans), 0, len(plans)
    wanted = len({plan.group for plan in plans if not plan.spare})
    constant = options.zero_variance_groups
    while isinstance(constant, DroppedGroups) and rounds < constant.max_refill:
        missing = wanted - sum(spread > EQUAL for spread in group_spreads(result.episodes).values())
        if missing <= 0:
            break
        rounds += 1
        more = [dataclasses.replace(plan, index=planned + plan.index) for plan in plan_more(rounds, missing)]
        planned += len(more)
        played = play(more)
        wall_s = result.wall_s + played.wall_s
        result.extend(played)
        result.wall_s = wall_s
    spreads = group_spreads(result.episodes)
    drop = isinstance(constant, DroppedGroups) and not all_teach
    kept = kept_groups(spreads, options.reward_variance_filter, drop, least)
    episodes = [episode for episode in result.episodes if (group := group_of(episode)) in kept or not group]
    counts = {
        "groups": float(len(spreads)),
        "zero_variance_groups": float(sum(spread <= EQUAL for spread in spreads.values())),
        "kept_groups": float(len(kept)),
        "kept_episodes": float(len(episodes)),
        "refill_rounds": float(rounds),
        "aborted_episodes": float(len(result.aborted)),
        "overlong_rate": punish_overlong(episodes, options.overlong),
    }
    if options.normalize_rewards is not None:
        normalize_rewards(episodes, options.normalize_rewards.type, options.normalize_rewards.deviation)
    return Selected(result, episodes, counts)


def group_spreads(episodes: Iterable[MultiAgentEpisode]) -> dict[str, float]:
    """Group -> population deviation of its returns, of the trained seat where it is largest; in play order.

    Seats are not added up: what one player wins another may lose.
    """
    returns: dict[str, dict[str, list[float]]] = {}
    for episode in episodes:
        group = group_of(episode)
        for part in played_parts(episode) if group else ():
            returns.setdefault(group, {}).setdefault(str(part.agent_id), []).append(part.get_return())
    return {group: max(float(np.std(found)) for found in seats.values()) for group, seats in returns.items()}


def kept_groups(spreads: Mapping[str, float], share: float, drop_constant: bool, least: int = 1) -> set[str]:
    """The share of groups with the largest spreads (StarPO-S, arXiv 2504.20073, section 3.3); ties in play order.

    Args:
        share: Of the groups that may stay, rounded down.
        drop_constant: Drop groups of equal returns (DAPO's dynamic sampling, arXiv 2503.14476, section 3.2).
        least: At least so many stay.
    """
    order = sorted(spreads, key=lambda group: -spreads[group])
    varied = [group for group in order if spreads[group] > EQUAL] if drop_constant else order
    return set(order[: max(share_of_groups(share, len(varied)), least)])


def overlong_punishment(tokens: int, limit: int, buffer: int) -> float:
    """From 0 to -1 over the last ``buffer`` tokens before ``limit``, then -1 (DAPO, arXiv 2503.14476, equation 13)."""
    if tokens <= limit - buffer:
        return 0.0
    return -1.0 if tokens > limit else (limit - buffer - tokens) / buffer


def overlong_loss(tokens: int, options: OverlongOptions | None) -> float:
    """What a reply of ``tokens`` loses of its reward: a negative number, or 0."""
    return options.penalty * overlong_punishment(tokens, options.tokens, options.buffer) if options else 0.0


def punish_overlong(episodes: Iterable[MultiAgentEpisode], options: OverlongOptions | None) -> float:
    """Take the punishment of every overlong reply off its reward; returns the share of such replies."""
    if options is None:
        return 0.0
    replies = long = 0
    for part in (part for episode in episodes for part in played_parts(episode)):
        for number, turn in enumerate(turns_of(part)):
            less = overlong_loss(len(turn.response_ids), options)
            part.rewards.data[part.rewards.lookback + number] += less
            replies, long = replies + 1, long + (less < 0)
    return long / max(replies, 1)


def normalize_rewards(episodes: Iterable[MultiAgentEpisode], over: str, deviation: bool) -> None:
    """Change rewards in place so that compared returns have mean 0 and, with ``deviation``, deviation 1.

    Rewards are divided by the population deviation of returns; the mean comes off each player's last turn.

    Args:
        over: What is compared, per policy: ``group`` (and role), ``batch``, ``game``, ``role`` (and game).
    """
    compared: dict[tuple[str, ...], list[SingleAgentEpisode]] = {}
    for part in (part for episode in episodes for part in played_parts(episode)):
        data = part.custom_data[CUSTOM_DATA_KEY]
        module, game, role = str(part.module_id), data.game, data.role
        key = {"group": (data.group, role), "batch": (), "game": (game,), "role": (game, role)}[over]
        compared.setdefault((module, *key), []).append(part)
    for parts in compared.values():
        returns = np.array([part.get_return() for part in parts])
        spread = float(returns.std())
        scale = spread if deviation and spread > EQUAL else 1.0
        for part in parts:
            rewards, first = part.rewards.data, part.rewards.lookback
            rewards[first:] = [float(reward) / scale for reward in rewards[first:]]
            rewards[-1] -= float(returns.mean()) / scale
