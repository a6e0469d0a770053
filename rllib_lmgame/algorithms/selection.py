"""Between play and update: which of the episodes are trained on, and with what rewards.

The decisions are functions of numbers. What they are made for stays as it was played in metrics and logs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.learners.data.rows import group_of, played_parts
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, RESPONSE_IDS, PlayResult
from rllib_lmgame.settings.sections.supervised import DataSelectionOptions, share_of_groups

EQUAL = 1e-6
"""Returns whose deviation is no larger than this are equal."""

SELECTION = "data_selection"
COUNTS = (
    "groups",
    "constant_groups",
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
    """What is trained on.

    Attributes:
        result: Everything that was played.
        episodes: Those of it that are trained on.
        counts: See :data:`COUNTS`.
    """

    result: PlayResult
    episodes: list[MultiAgentEpisode]
    counts: dict[str, float]


def play_and_select(
    plans: Sequence[EpisodePlan],
    play: Play,
    plan_more: PlanMore,
    options: DataSelectionOptions,
    *,
    group_size: int,
    least: int = 1,
) -> Selected:
    """Play, play more for the groups that are dropped, and choose.

    Args:
        plans: Of the iteration.
        play: Plays plans.
        plan_more: Makes more plans.
        options: What to do.
        group_size: Episodes of a group.
        least: Groups that are trained on in any case, be they constant: what the learners need.
    """
    result, rounds, planned = play(plans), 0, len(plans)
    wanted = sum(not plan.spare for plan in plans) // group_size
    while options.drop_constant_groups and rounds < options.max_refill:
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
    kept = kept_groups(spreads, options.keep_groups, options.drop_constant_groups, least)
    episodes = [episode for episode in result.episodes if (group := group_of(episode)) in kept or not group]
    counts = {
        "groups": float(len(spreads)),
        "constant_groups": float(sum(spread <= EQUAL for spread in spreads.values())),
        "kept_groups": float(len(kept)),
        "kept_episodes": float(len(episodes)),
        "refill_rounds": float(rounds),
        "aborted_episodes": float(len(result.aborted)),
        "overlong_rate": punish_overlong(episodes, options),
    }
    normalize_rewards(episodes, options.normalize_rewards, options.normalize_deviation)
    return Selected(result, episodes, counts)


def group_spreads(episodes: Iterable[MultiAgentEpisode]) -> dict[str, float]:
    """Per group, in the order they were played: how much the returns of its trained seats differ.

    That is the population deviation over the episodes, of the seat where it is largest: what one player wins another
    may lose, so that sums over seats say nothing.
    """
    returns: dict[str, dict[str, list[float]]] = {}
    for episode in episodes:
        group = group_of(episode)
        for part in played_parts(episode) if group else ():
            returns.setdefault(group, {}).setdefault(str(part.agent_id), []).append(part.get_return())
    return {group: max(float(np.std(found)) for found in seats.values()) for group, seats in returns.items()}


def kept_groups(spreads: Mapping[str, float], share: float, drop_constant: bool, least: int = 1) -> set[str]:
    """Groups that are trained on: the share with the largest spreads (StarPO-S, arXiv 2504.20073, section 3.3), of
    equal ones those played first. If constant groups are dropped, those whose returns differ at all (dynamic sampling
    of DAPO, arXiv 2503.14476, section 3.2).

    Args:
        spreads: Group -> deviation of its returns.
        share: Of the groups that may stay, rounded down.
        drop_constant: Groups of equal returns may not.
        least: As many stay in any case.
    """
    order = sorted(spreads, key=lambda group: -spreads[group])
    varied = [group for group in order if spreads[group] > EQUAL] if drop_constant else order
    return set(order[: max(share_of_groups(share, len(varied)), least)])


def overlong_punishment(tokens: int, limit: int, buffer: int) -> float:
    """From 0 down to -1 while a reply of ``tokens`` goes through the last ``buffer`` tokens before ``limit``, and -1
    beyond: the soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).
    """
    if tokens <= limit - buffer:
        return 0.0
    return -1.0 if tokens > limit else (limit - buffer - tokens) / buffer


def overlong_loss(tokens: int, options: DataSelectionOptions) -> float:
    """What a reply of ``tokens`` loses of its reward: a negative number, or 0."""
    if options.overlong_tokens is None:
        return 0.0
    return options.overlong_penalty * overlong_punishment(tokens, options.overlong_tokens, options.overlong_buffer)


def punish_overlong(episodes: Iterable[MultiAgentEpisode], options: DataSelectionOptions) -> float:
    """Take the punishment of every overlong reply off its reward; returns the share of such replies."""
    if options.overlong_tokens is None:
        return 0.0
    replies = long = 0
    for part in (part for episode in episodes for part in played_parts(episode)):
        outputs = part.extra_model_outputs[RESPONSE_IDS]
        for turn, reply in enumerate(outputs.data[outputs.lookback :]):
            less = overlong_loss(len(reply), options)
            part.rewards.data[part.rewards.lookback + turn] += less
            replies, long = replies + 1, long + (less < 0)
    return long / max(replies, 1)


def normalize_rewards(episodes: Iterable[MultiAgentEpisode], over: str, deviation: bool) -> None:
    """Change the rewards so that returns of what is compared have mean 0, and deviation 1.

    Every reward is divided by the population deviation of the returns, where they differ; their mean comes off the
    last turn of each player.

    Args:
        episodes: Episodes; their rewards are changed.
        over: What is compared, of one policy: ``group`` (and role), ``batch``, ``game``, ``role`` (and game); or
            ``none``.
        deviation: Whether to divide.
    """
    if over == "none":
        return
    compared: dict[tuple[str, ...], list[SingleAgentEpisode]] = {}
    for part in (part for episode in episodes for part in played_parts(episode)):
        data = part.custom_data[CUSTOM_DATA_KEY]
        module, game, role = str(part.module_id), str(data["game"]), str(data["role"])
        key = {"group": (data["group"], role), "batch": (), "game": (game,), "role": (game, role)}[over]
        compared.setdefault((module, *key), []).append(part)
    for parts in compared.values():
        returns = np.array([part.get_return() for part in parts])
        spread = float(returns.std())
        scale = spread if deviation and spread > EQUAL else 1.0
        for part in parts:
            rewards, first = part.rewards.data, part.rewards.lookback
            rewards[first:] = [float(reward) / scale for reward in rewards[first:]]
            rewards[-1] -= float(returns.mean()) / scale
