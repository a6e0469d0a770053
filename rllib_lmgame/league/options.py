"""Options of the league. Importing this loads neither Ray nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rllib_lmgame.base.group import Group, option
from rllib_lmgame.base.registry import MATCHMAKERS
from rllib_lmgame.policies.options import LEAGUE


def is_league(seats: Any) -> bool:
    """Whether ``policy_mapping_fn`` asks for a league."""
    return LEAGUE in (seats, seats.get("type") if isinstance(seats, Mapping) else None)


class LeagueOptions(Group):
    """The ``league`` section of ``LMGamePPO``: past versions of the learning policies as opponents.

    Snapshots of the policies that learn become *members*, which never change. Every episode is a match: of a policy
    against itself, which learns from every seat, or in one seat against a member in the others, which learn nothing.
    All policies have as many matches.
    """

    matchmaking: Annotated[Any, MATCHMAKERS] = option("pfsp_var", "How the members to meet are drawn.")
    self_play_share: float = option(0.35, "Share of the matches of a policy against itself.", ge=0, le=1)
    snapshot_every: int = option(10, "PPO iterations between snapshots; the first is of the initial weights.", ge=1)
    averaged_snapshots: bool = option(False, "Members have the averaged weights (`training.ema_decay`).")
    max_members: int = option(32, "Most members; the oldest one leaves for every further one.", ge=1, le=100_000)
    payoff_decay: float = option(0.9, "Factor on earlier results when those of an iteration are added.", ge=0, le=1)
    opponent_engines: int = option(
        1, "Engines for members met in one iteration, one each; adapters with `inference.adapters`.", ge=1, le=10_000
    )
