"""How well players bargain over many games: how often they agree, and what they make of what there was.

:mod:`rllib_lmgame.envs.support.bargaining` rates one outcome. At an episode's end (``info["measures"]``) Negotiation
reports all of it, CarDealerDuet the joint share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rllib_lmgame.envs.support.bargaining import (
    dominates,
    frontier,
    is_pareto_efficient,
    joint_share,
    nash_product,
    nash_share,
    outcome_measures,
)
from rllib_lmgame.measures.statistics import wilson_interval

__all__ = [
    "Bargains",
    "bargains",
    "dominates",
    "frontier",
    "is_pareto_efficient",
    "joint_share",
    "nash_product",
    "nash_share",
    "outcome_measures",
]


@dataclass(frozen=True)
class Bargains:
    """Bargains of many games.

    Attributes:
        deal_rate: Share of the games that ended with a deal; ``deal_interval`` is Wilson's 95 %.
        pareto_rate: Share of the *deals* that are Pareto efficient; 0 without any.
        joint_share: Mean joint value relative to the best one; no deal counts with its own value.
        nash_share: Mean Nash product relative to the best one.
    """

    games: int
    deal_rate: float
    deal_interval: tuple[float, float]
    pareto_rate: float
    joint_share: float
    nash_share: float


def bargains(games: Sequence[Mapping[str, float]]) -> Bargains:
    """Many games' :func:`outcome_measures` as one. Raises: ValueError: for no games."""
    if not games:
        raise ValueError("no games")
    deals = [game for game in games if game["deal"]]
    return Bargains(
        games=len(games),
        deal_rate=len(deals) / len(games),
        deal_interval=wilson_interval(len(deals), len(games)),
        pareto_rate=fmean(game["pareto_efficient"] for game in deals) if deals else 0.0,
        joint_share=fmean(game["joint_share"] for game in games),
        nash_share=fmean(game["nash_share"] for game in games),
    )
