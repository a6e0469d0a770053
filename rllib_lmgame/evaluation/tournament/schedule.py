"""Who meets whom, in which seats, on which levels: decided before the first game.

1. Every set of players that fits a table meets equally often (a match-up); where there are fewer players than seats,
   all of them sit, some in several seats.
2. In every match-up each player takes each seat equally often.
3. The games of one round of seats are played on one level, and all match-ups on the same levels.
4. The schedule follows from the players, the seats, the number of games and the seed alone.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, stable_seed

PURPOSE = "tournament"


def match_ups(players: Sequence[str], seats: int) -> list[tuple[str, ...]]:
    """Who meets: every set of ``seats`` players; with fewer players, every way to fill the seats with all of them."""
    if len(players) >= seats:
        return list(itertools.combinations(players, seats))
    return [table for table in itertools.combinations_with_replacement(players, seats) if set(table) == set(players)]


def seatings(table: Sequence[str], rounds: int, seed: int) -> list[tuple[str, ...]]:
    """Orders in which the players of one match-up sit: each of the ``rounds`` is one order and all its rotations."""
    chance = random.Random(seed)
    orders = [(table[0], *chance.sample(table[1:], len(table) - 1)) for _ in range(rounds)]
    return [order[-turn:] + order[:-turn] if turn else order for order in orders for turn in range(len(order))]


def schedule(
    tables: Sequence[Sequence[str]], players: Mapping[str, AgentAssignment], games: int, seed: int
) -> list[EpisodePlan]:
    """The plans of a tournament, round by round, so that a part of it is a fair tournament too.

    ``tables`` are the seats of each game; ``games`` those of every match-up, whose last round is filled up.
    """
    plans: list[EpisodePlan] = []
    rounds = [math.ceil(games / len(seats)) for seats in tables]
    dealt = [
        [
            seatings(who, rounds[number], stable_seed(seed, PURPOSE, number, *who))
            for who in match_ups(list(players), len(seats))
        ]
        for number, seats in enumerate(tables)
    ]
    for round_number in range(max(rounds)):
        for number, seats in enumerate(tables):
            level = EpisodePlan(
                "", number, stable_seed(seed, PURPOSE, number, round_number), f"{number}-{round_number}", 0
            )
            for match_up, orders in enumerate(dealt[number]):
                for turn in range(round_number * len(seats), min((round_number + 1) * len(seats), len(orders))):
                    assignments = {agent: players[name] for agent, name in zip(seats, orders[turn], strict=True)}
                    episode_id = f"{PURPOSE}-{number}-{match_up}-{turn}"
                    plans.append(replace(level, episode_id=episode_id, index=len(plans), assignments=assignments))
    return plans
