"""The stag hunt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import TextParallelOptions, Variant
from rllib_lmgame.envs.games.dilemmas.matrix_game import Matrix, MatrixGame, StrategyOptions

STAG, HARE = "stag", "hare"


class StagHuntOptions(StrategyOptions):
    """``env_config`` of the stag hunt."""

    stag: float = option(4.0, "Pay-off of each where both hunt the stag.", ge=0)
    hare: float = option(3.0, "Pay-off of hunting the hare, whatever the other does.", ge=0)
    alone: float = option(0.0, "Pay-off of hunting the stag alone.", ge=0)


class StagHunt(MatrixGame):
    """Hunt a stag, which takes both, or a hare, which is certain.

    Observation: what both hunted in the last round and what it paid, the points so far; with ``chat_turns`` before each
        round what the other said.
    Action: ``stag`` or ``hare``, one word; a message, where all talk.
    Reward: the pay-off of each round: 4 for a stag hunted by both, 3 for a hare, 0 for a stag hunted alone (B. Skyrms,
        The Stag Hunt and the Evolution of Social Structure, 2004). -0.1 for an invalid reply, for which ``hare`` is
        played; three in a row forfeit: in every round left the offender gets the smallest pay-off, the other the
        largest.
    Horizon: one reply per round, 10 rounds, known to the players; and ``chat_turns`` messages before each.
    Success: at least the points of a stag in every round: both win or none.
    Measures: ``cooperation_rate``, the share of rounds in which a player hunts the stag. ``social_welfare``, the points
        of both relative to the most they can get together. ``best_response_gap``, what the better of the two actions
        throughout would have got more per round.
    Agents and roles: ``player_0`` is the ``row`` player, ``player_1`` the ``column`` player; the game is symmetric.
        Nothing is drawn, so there are no levels, and ``split`` changes nothing.
    Expert: the stag, then what the other did (``tit_for_tat``), or another strategy by the option ``expert``. Where all
        talk it announces what it will do.
    """

    variants = (Variant("lmgame/StagHunt-v0", (0.0, 40.0)),)
    Options: ClassVar[type[TextParallelOptions]] = StagHuntOptions
    options: StagHuntOptions
    actions = (STAG, HARE)
    cooperative_action = STAG

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        if not self.options.stag > self.options.hare > self.options.alone:
            raise ConfigError("env_config", "a stag hunt has stag > hare > alone")

    @property
    def matrix(self) -> Matrix:
        chosen = self.options
        return {
            (STAG, STAG): chosen.stag,
            (STAG, HARE): chosen.alone,
            (HARE, STAG): chosen.hare,
            (HARE, HARE): chosen.hare,
        }

    def expert_choice(self, own: Sequence[str], other: Sequence[str]) -> str:
        return self.by_strategy(self.options.expert, own, other)
