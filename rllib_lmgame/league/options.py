"""Options of the league. Importing this loads neither Ray nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import NAMED, REQUIRED, Group, Holds, build, describe, option
from rllib_lmgame.base.registry import MATCHMAKERS
from rllib_lmgame.base.trust import is_name
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


class ExploiterOptions(Group):
    """An entry of ``league.exploiters``: a policy that learns to beat another one, becomes a member, and begins again.

    It is the main exploiter of Vinyals et al., Nature 575, 2019.
    """

    of: str = option(
        REQUIRED,
        "The learning policy that it is to beat: it plays against the weights that policy has at the time, and only "
        "its own seats are trained in these matches.",
        stranger=is_name,
    )
    win_rate: float | None = option(
        0.7,
        "It is done when it wins more than this of its games against the present weights (draws counting half, "
        "`snapshot_min_games` games at least); null: never for that reason.",
        ge=0,
        le=1,
    )
    reset_every: int | None = option(
        50,
        "It is done after so many PPO iterations in any case; null: `win_rate` alone decides, which must be within "
        "reach of the games that are played.",
        ge=1,
    )
    past_share: float = option(
        0.0,
        "Share of its matches against past versions of the policy, those that are as strong as it; these need an "
        "opponent engine.",
        ge=0,
        le=1,
    )


class LeagueOptions(Group):
    """The ``league`` section of ``LMGamePPO``: past versions of the learning policies as opponents.

    Snapshots of the policies that learn become *members*, which never change. Every episode is a match: of a policy
    against itself, which learns from every seat, or in one seat against a member in the others, which learn nothing.
    All policies have as many matches.
    """

    matchmaking: Annotated[Any, MATCHMAKERS] = option(
        "pfsp_var", f"[Matchmaker](parts.md#matchmakers-of-a-league): {MATCHMAKERS.listed()}."
    )
    self_play_share: float = option(0.35, "Share of the matches of a policy against itself.", ge=0, le=1)
    forgotten: ForgottenOptions | None = option(
        ForgottenOptions(),
        "Matches against [members that were beaten once and no longer are](leagues.md#forgotten-members); null: none.",
    )
    snapshot_every: int | None = option(
        10,
        "PPO iterations from one snapshot of a policy to the next. The weights that PPO starts from are one in any "
        "case. null: `snapshot_win_rate` alone decides.",
        ge=1,
    )
    snapshot_win_rate: float | None = option(
        None,
        "Take a snapshot when the policy's mean win rate against all members is higher than this; null: never for "
        "that reason.",
        ge=0,
        le=1,
    )
    snapshot_min_games: int = option(
        64,
        "Games against its latest snapshot (decayed) before `snapshot_win_rate` is looked at; of an exploiter, against "
        "its policy.",
        ge=1,
    )
    averaged_snapshots: bool = option(
        False, "Members are the averaged weights (`token_ppo.ema_decay`) instead of those that are trained."
    )
    max_members: int = option(
        32, "Most members; one leaves for every further one. The latest never leaves.", ge=1, le=100_000
    )
    leaves: str = option(
        "oldest", "Who leaves: the `oldest` member, or the `most_beaten` one.", choices=("oldest", "most_beaten")
    )
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
    exploiters: dict[str, Any] = option(
        {},
        "Learning policies that are there to beat another one ([exploiters](leagues.md#exploiters)): name -> mapping "
        "with the keys below.",
        holds=Holds(ExploiterOptions, NAMED),
    )

    @property
    def exploiter_options(self) -> dict[str, ExploiterOptions]:
        """The options of each exploiter. Raises: ConfigError: for a wrong name or value, no target, or no end."""
        path = "config.league.exploiters"
        for name in self.exploiters:
            if not isinstance(name, str):
                raise ConfigError(f"{path}.{name}", f"the name of a policy is a text, got {describe(name)}")
        found = {name: build(ExploiterOptions, values, f"{path}.{name}") for name, values in self.exploiters.items()}
        for name, options in found.items():
            if options.reset_every is None and options.win_rate is None:
                raise ConfigError(f"{path}.{name}.reset_every", "null needs a win_rate: it is never done")
            if options.reset_every is None and options.past_share == 1:
                raise ConfigError(f"{path}.{name}.past_share", "1 leaves no games for win_rate: it is never done")
        return found

    def share_without_members(self, policy: str) -> float:
        """Share of a policy's matches against present weights: an exploiter's against its policy, or in self-play."""
        exploiter = self.exploiter_options.get(policy)
        return self.self_play_share if exploiter is None else 1 - exploiter.past_share
