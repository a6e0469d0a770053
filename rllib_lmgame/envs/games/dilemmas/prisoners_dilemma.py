"""The iterated prisoner's dilemma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import TextParallelOptions, Variant
from rllib_lmgame.envs.games.dilemmas.matrix_game import Matrix, MatrixGame, StrategyOptions

COOPERATE, DEFECT = "cooperate", "defect"


class IteratedPrisonersDilemmaOptions(StrategyOptions):
    """``env_config`` of the iterated prisoner's dilemma."""

    temptation: float = option(5.0, "Pay-off of defecting while the other cooperates.", ge=0)
    reward: float = option(3.0, "Pay-off of each where both cooperate.", ge=0)
    punishment: float = option(1.0, "Pay-off of each where both defect.", ge=0)
    sucker: float = option(0.0, "Pay-off of cooperating while the other defects.", ge=0)


class IteratedPrisonersDilemma(MatrixGame):
    """Two players cooperate or defect, round after round.

    Observation: what both played in the last round and what it paid, the points so far; with ``chat_turns`` before each
        round what the other said.
    Action: ``cooperate`` or ``defect``, one word; a message, where all talk.
    Reward: the pay-off of each round: 5, 3, 1 or 0 (temptation, reward, punishment, sucker; R. Axelrod, The Evolution
        of Cooperation, 1984). -0.1 for an invalid reply, for which ``defect`` is played; three in a row forfeit: in
        every round left the offender gets the smallest pay-off, the other the largest.
    Horizon: one reply per round, 10 rounds, known to the players; and ``chat_turns`` messages before each.
    Success: at least the points that common cooperation pays, so that both may win, and an exploiter wins alone.
    Measures: ``cooperation_rate``; ``social_welfare``, the points of both relative to the most they can get together;
        ``best_response_gap``, what always playing the better action would have got more per round.
    Agents and roles: ``player_0`` is the ``row`` player, ``player_1`` the ``column`` player; the game is symmetric.
        Nothing is drawn, so there are no levels, and ``split`` changes nothing.
    Expert: ``tit_for_tat``, or another strategy by the option ``expert``. Where all talk it announces what it will do.
    """

    variants = (Variant("lmgame/IteratedPrisonersDilemma-v0", (0.0, 50.0)),)
    Options: ClassVar[type[TextParallelOptions]] = IteratedPrisonersDilemmaOptions
    options: IteratedPrisonersDilemmaOptions
    actions = (COOPERATE, DEFECT)
    cooperative_action = COOPERATE

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        if not chosen.temptation > chosen.reward > chosen.punishment > chosen.sucker:
            raise ConfigError("env_config", "a prisoner's dilemma has temptation > reward > punishment > sucker")
        if 2 * chosen.reward < chosen.temptation + chosen.sucker:
            raise ConfigError(
                "env_config", "twice `reward` must be at least `temptation` plus `sucker`, else taking turns pays more"
            )

    @property
    def matrix(self) -> Matrix:
        chosen = self.options
        return {
            (COOPERATE, COOPERATE): chosen.reward,
            (COOPERATE, DEFECT): chosen.sucker,
            (DEFECT, COOPERATE): chosen.temptation,
            (DEFECT, DEFECT): chosen.punishment,
        }

    def expert_choice(self, own: Sequence[str], other: Sequence[str]) -> str:
        return self.by_strategy(self.options.expert, own, other)
