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


class ForgottenOptions(Group):
    """``league.forgotten``: members that were beaten once and no longer are."""

    share: float = option(
        0.15, "Share of the matches against them. Where there are none these go to `matchmaking`.", gt=0, le=1
    )
    below: float = option(0.7, "Win rate from which a member counts as beaten.", ge=0, le=1)


class LeagueOptions(Group):
    """The ``league`` section of ``LMGamePPO``: past versions of the learning policies as opponents.

    Snapshots of the policies that learn become *members*, which never change. Every episode is a match: of a policy
    against itself, which learns from every seat, or in one seat against a member in the others, which learn nothing.
    All policies have as many matches.
    """

    matchmaking: Annotated[Any, MATCHMAKERS] = option("pfsp_var", f"Matchmaker: {MATCHMAKERS.listed()}.")
    self_play_share: float = option(0.35, "Share of the matches of a policy against itself.", ge=0, le=1)
    forgotten: ForgottenOptions | None = option(
        ForgottenOptions(),
        "Matches against members that were beaten once and no longer are; null: none.",
    )
    snapshot_every: int = option(
        10,
        "PPO iterations from one snapshot of a policy to the next; the first is of the weights that PPO starts from.",
        ge=1,
    )
    averaged_snapshots: bool = option(
        False, "Members are the averaged weights (`token_ppo.ema_decay`) instead of those that are trained."
    )
    max_members: int = option(32, "Most members; the oldest one leaves for every further one.", ge=1, le=100_000)
    payoff_decay: float = option(
        0.9, "Factor on the results so far before those of an iteration are added.", ge=0, le=1
    )
    opponent_engines: int = option(
        1,
        "Engines that hold members, one each at a time: as many members at most are met in one iteration. They need "
        "resources as those of `inference` do. With `inference.adapters` they are adapters in these.",
        ge=1,
        le=10_000,
    )
