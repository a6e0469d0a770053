"""Whether an exploiter that only its win rate ends can ever be done."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.league.payoffs import PRIOR_GAMES
from rllib_lmgame.settings.sections.exploiters import KEY, ExploiterOptions
from rllib_lmgame.settings.sections.league import LeagueOptions


@dataclass(frozen=True, slots=True)
class MostPlay:
    """The most that is played in an iteration: ``policies`` learn, each with as many matches.

    A round has ``groups`` of ``group_size`` episodes, dealt to ``games``; later rounds replace constant groups.
    """

    policies: int
    groups: int
    group_size: int = 1
    rounds: int = 1
    games: int = 1

    def against_present(self, options: ExploiterOptions) -> int:
        """Games of an exploiter against present weights; a share is met within one group per game."""
        share = self.groups * (1 - options.past_share) / self.policies
        groups = math.ceil(share) if self.games == 1 else math.floor(share) + self.games
        return min(groups, self.groups) * self.group_size * self.rounds


def check_reach(league: LeagueOptions, play: MostPlay) -> None:
    """Refuse an exploiter that only ``win_rate`` ends and that is never done. Raises: ConfigError: naming it."""
    for name, options in league.exploiter_options.items():
        if options.reset_every is not None or options.win_rate is None:
            continue
        games = _most_decayed(play.against_present(options), league.payoff_decay)
        if games < league.snapshot_min_games:
            raise ConfigError(
                f"{KEY}.{name}.reset_every",
                f"null leaves it to win_rate, which needs snapshot_min_games={league.snapshot_min_games} games against "
                f"{options.of}, but {games:.4g} count at most (decayed): it is never done",
            )
        highest = 1 - PRIOR_GAMES / 2 / (games + PRIOR_GAMES)  # all of them won
        if highest <= options.win_rate:
            raise ConfigError(
                f"{KEY}.{name}.win_rate",
                f"{options.win_rate:g} is never exceeded: the estimate from {games:.4g} games, the most that count "
                f"(decayed), is {highest:.4g} at best; with reset_every: null it is never done",
            )


def _most_decayed(games: int, decay: float) -> float:
    """What ``games`` each iteration come to with ``decay``: a limit that is not reached unless ``decay`` is 0."""
    if decay == 0:
        return float(games)
    return games / (1 - decay) * (1 - 1e-9) if decay < 1 else math.inf
