"""Plans of the episodes of an iteration, and the race of spare plans.

The driver makes them, so they do not depend on the number of env runners.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from rllib_lmgame.policies.options import LANGUAGE_MODEL
from rllib_lmgame.rollouts.options import spare_groups


@dataclass(frozen=True, slots=True)
class AgentAssignment:
    """The policy and player of one agent in an episode.

    Attributes:
        module_id: The policy that gives options, chat format and name in metrics.
        player: ``language_model``, or a scripted player.
        member: League member whose weights reply in place of the policy's current ones.
        trained: The policy learns from this agent's turns; the episode's success is that of such agents.
    """

    module_id: str
    player: str = LANGUAGE_MODEL
    member: str | None = None
    trained: bool = False

    @property
    def weights(self) -> str:
        """The weights that reply: the policy's or the member's."""
        return self.module_id if self.member is None else self.member


_STARTS = 2**16
"""The first number of an iteration is drawn below this."""

AgentAssignments = Mapping[str, AgentAssignment]
"""Agent id -> assignment in one episode."""


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """One episode to be played.

    Attributes:
        game: Index into the list of games.
        seed: Seed of the level.
        group: Episodes of the same group share their seed.
        index: Position in the iteration's list of plans, and of the result.
        attempt: Number of replacements of the episode.
        assignments: Empty until :class:`~rllib_lmgame.rollouts.sources.AgentMapper` sets them.
        number: Number of the group within its game, by which seats and opponents are dealt evenly, if it is counted.
        spare: Planned beyond what is needed (see :class:`Race`).
    """

    episode_id: str
    game: int
    seed: int
    group: str
    index: int
    attempt: int = 0
    assignments: AgentAssignments = field(default_factory=dict)
    number: int | None = None
    spare: bool = False

    def replacement(self, new_level: bool) -> EpisodePlan:
        """The plan that replaces a failed one: the same players, on another level if ``new_level``."""
        attempt = self.attempt + 1
        again = replace(self, attempt=attempt, episode_id=f"{first_id(self.episode_id)}+{attempt}")
        if not new_level:
            return again
        return replace(again, seed=stable_seed(self.seed, attempt), group=f"{self.group}+{attempt}")


def first_id(name: str) -> str:
    """The id of an episode or group before it was replaced."""
    return name.split("+")[0]


def stable_seed(*parts: object) -> int:
    """A 31-bit seed that depends on ``parts`` only: the same in every process and on every machine."""
    # Names in a log may hold lone surrogates.
    text = "/".join(str(part) for part in parts).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") & 0x7FFFFFFF


def plan_episodes(
    num_episodes: int,
    *,
    run_seed: int,
    purpose: str,
    iteration: int,
    group_size: int = 1,
    game_weights: Sequence[float] = (1.0,),
    oversample: float = 1.0,
    sizes: Sequence[int] = (),
    exact: Sequence[int | None] = (),
) -> list[EpisodePlan]:
    """Plan one iteration, in order of ``index``; each game's number of groups differs from its share by less than one.

    Args:
        purpose: ``train``, ``sft``, ``evaluation``; each draws its own seeds.
        group_size: Episodes per level.
        game_weights: Share of each game.
        oversample: Planned groups of each game / needed groups. The rest is spare and comes last.
        sizes: Episodes per level of each game, in place of ``group_size``.
        exact: Number of episodes of each game (whole groups), or ``None``: these games share the rest by weight, and
            have one group size.
    """
    sizes = sizes or [group_size] * len(game_weights)
    exact = exact or [None] * len(game_weights)
    fixed = [None if count is None else count // size for count, size in zip(exact, sizes, strict=True)]
    shared = next((size for size, count in zip(sizes, exact, strict=True) if count is None), 1)
    groups = -(-(num_episodes - sum(count or 0 for count in exact)) // shared) + sum(count or 0 for count in fixed)
    dealt = deal_games(groups, game_weights, stable_seed(run_seed, purpose, iteration, "games"), fixed)
    needed = Counter(dealt)
    dealt += [game for game in sorted(needed) for _ in range(spare_groups(needed[game], oversample))]
    placed = [group for group, game in enumerate(dealt) for _ in range(sizes[game])]
    placed = [*placed[:num_episodes], *(group for group in placed[num_episodes:] if group >= groups)]
    starts = [stable_seed(run_seed, purpose, iteration, game, "start") % _STARTS for game in range(len(game_weights))]
    counters = list(map(itertools.count, starts))
    numbers = [next(counters[game]) for game in dealt]
    return [
        EpisodePlan(
            episode_id=f"{purpose}-{iteration}-{index}",
            game=dealt[group],
            seed=stable_seed(run_seed, purpose, iteration, group),
            group=f"{purpose}-{iteration}-{group}",
            index=index,
            number=numbers[group],
            spare=index >= num_episodes,
        )
        for index, group in enumerate(placed)
    ]


def plan_evaluation(
    num_games: int, episodes_per_game: int, purpose: str = "evaluation", exact: Sequence[int | None] = ()
) -> list[EpisodePlan]:
    """Plans of an evaluation: the same levels at every call, in every run, during training and after it.

    A game's levels do not depend on the other games, but on ``purpose``. ``exact`` overrides ``episodes_per_game``.
    """
    episodes = [count or episodes_per_game for count in exact or [None] * num_games]
    drawn = partial(plan_episodes, run_seed=0, purpose=purpose, iteration=0)
    alone = [iter(drawn(count)) for count in episodes]
    plans = drawn(sum(episodes), game_weights=[1.0] * num_games, exact=episodes)
    own = (next(alone[plan.game]) for plan in plans)
    return [replace(plan, seed=same.seed, number=same.number) for plan, same in zip(plans, own, strict=True)]


def with_samples(plans: Sequence[EpisodePlan], samples: int) -> list[EpisodePlan]:
    """Each plan ``samples`` times; the replies are drawn independently."""
    return [
        replace(plan, episode_id=f"{plan.episode_id}-{sample}" if sample else plan.episode_id, index=number)
        for number, (sample, plan) in enumerate(itertools.product(range(samples), plans))
    ]


def deal_games(groups: int, weights: Sequence[float], seed: int, fixed: Sequence[int | None] = ()) -> list[int]:
    """The game of each group, by systematic sampling: shares are met within one group, and exactly in the long run.

    Games with a ``fixed`` number of groups get it; the others share the rest.
    """
    if len(weights) == 1:
        return [0] * groups
    rng = random.Random(seed)
    start = Fraction(rng.getrandbits(30), 2**30)
    fixed = fixed or [None] * len(weights)
    groups -= sum(count or 0 for count in fixed)
    total = sum(Fraction(weight) for weight, count in zip(weights, fixed, strict=True) if count is None)
    dealt: list[int] = []
    reached = Fraction(0)
    for game, weight in enumerate(weights):
        if (count := fixed[game]) is not None:
            dealt += [game] * count
            continue
        begin, reached = reached, reached + Fraction(weight)
        first, last = (math.ceil(bound / total * groups - start) for bound in (begin, reached))
        dealt += [game] * (last - first)
    rng.shuffle(dealt)
    return dealt


def split_plans(plans: Sequence[EpisodePlan], parts: int) -> list[list[EpisodePlan]]:
    """Deal plans to runners; groups stay together if they are no larger than a runner's share."""
    share = max(1, -(-len(plans) // parts))
    groups: dict[str, list[EpisodePlan]] = {}
    for plan in plans:
        groups.setdefault(plan.group, []).append(plan)
    dealt: list[list[EpisodePlan]] = [[] for _ in range(parts)]
    for group in groups.values():
        for start in range(0, len(group), share):
            min(dealt, key=len).extend(group[start : start + share])
    return dealt


def with_spares(plans: Sequence[EpisodePlan]) -> bool:
    return any(plan.spare for plan in plans)


class Race:
    """Oversampling with early stop: more groups are started than needed, and the first to finish are kept.

    Without spare plans all are kept, else as many groups of each game as are not spare. Guarantees (each has a test):

    1. Groups are kept whole.
    2. Each game has its number of groups: a short game does not take the place of a long one.
    3. Episodes that are not kept stop at once, are named, and are not played again.
    4. Planned episodes and later seeds do not depend on which episodes finish first.
    5. Each env runner has a spare group of each of its games.
    """

    def __init__(self, plans: Iterable[EpisodePlan] = ()) -> None:
        self._group: dict[str, str] = {}
        self._game: dict[str, int] = {}
        self._in_play: dict[str, set[str]] = {}
        self._missing: Counter[int] = Counter()
        self._kept: set[str] = set()
        self._left: set[str] = set()
        self._keeps_all = True
        for plan in plans:
            group, episode = first_id(plan.group), first_id(plan.episode_id)
            if group not in self._in_play:
                self._in_play[group] = set()
                self._game[group] = plan.game
                self._missing[plan.game] += not plan.spare
            self._in_play[group].add(episode)
            self._group[episode] = group
            self._keeps_all = self._keeps_all and not plan.spare

    def finish(self, episode_id: str) -> bool:
        """Record that an episode, or its replacement, has finished. Returns whether others are superfluous now."""
        group = self._group[first_id(episode_id)]
        in_play, game = self._in_play[group], self._game[group]
        in_play.discard(first_id(episode_id))
        if in_play or group in self._kept or group in self._left or not self._missing[game]:
            return False
        self._kept.add(group)
        self._missing[game] -= 1
        return not self._keeps_all and not self._missing[game]

    def leave(self, episode_id: str) -> None:
        """Record that an episode was stopped: its group cannot become whole."""
        self._left.add(self._group[first_id(episode_id)])

    def wants(self, episode_id: str) -> bool:
        """Whether the episode's group is kept, or may still be kept."""
        group = self._group[first_id(episode_id)]
        may_be_kept = group not in self._left and self._missing[self._game[group]] > 0
        return self._keeps_all or group in self._kept or may_be_kept

    def marked(self, plans: Sequence[EpisodePlan]) -> list[EpisodePlan]:
        """``plans``, to be played now, with as many groups not spare as are still missing."""
        if self._keeps_all:
            return list(plans)
        missing = Counter(self._missing)
        spare: dict[str, bool] = {}
        for plan in plans:
            group = first_id(plan.group)
            if group not in spare:
                spare[group] = missing[plan.game] <= 0
                missing[plan.game] -= 1
        return [replace(plan, spare=spare[first_id(plan.group)]) for plan in plans]


def deal_with_spares(plans: Sequence[EpisodePlan], parts: int) -> list[list[EpisodePlan]]:
    """Deal plans to runners in whole groups; there may be fewer shares than runners.

    A runner with groups of a game gets a spare one too, if there is one, so that it can stop by itself and never waits
    for an episode that does not end.
    """
    games: dict[int, tuple[dict[str, list[EpisodePlan]], dict[str, list[EpisodePlan]]]] = {}
    for plan in plans:
        games.setdefault(plan.game, ({}, {}))[plan.spare].setdefault(first_id(plan.group), []).append(plan)
    dealt: list[list[EpisodePlan]] = [[] for _ in range(parts)]
    for needed, spare in games.values():
        places = sorted(dealt, key=len)[: min(len(needed) or 1, len(spare) or parts)]
        for number, group in enumerate((*needed.values(), *spare.values())):
            places[number % len(places)].extend(group)
    return [share for share in dealt if share]
