"""Symmetric games for two that are given by a matrix: the pay-off of each pair of actions, round after round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import read_word
from rllib_lmgame.envs.games.dilemmas.repeated import RepeatedGame, RepeatedOptions
from rllib_lmgame.envs.games.dilemmas.strategies import STRATEGIES
from rllib_lmgame.envs.support.payoffs import cooperation_rate, social_welfare

Matrix = Mapping[tuple[str, str], float]
"""(own action, the other's) -> own pay-off; both players have the same."""


class StrategyOptions(RepeatedOptions):
    """``env_config`` of a game whose expert plays one of the known strategies."""

    expert: str = option(
        "tit_for_tat", "Strategy of the game's expert, the player `solver`.", choices=tuple(STRATEGIES)
    )


class MatrixGame(RepeatedGame):
    """A matrix game, played ``rounds`` times by the same two.

    A game derives from it, sets ``metadata`` and :attr:`actions` and writes :attr:`matrix` and :meth:`expert_choice`.
    """

    actions: ClassVar[tuple[str, ...]]
    """What may be played; the last one is played for an invalid reply."""
    cooperative_action: ClassVar[str | None] = None
    """The action whose share is the cooperation rate."""
    what: ClassVar[str] = "action"
    """What an action is called."""
    seats: ClassVar[Mapping[str, str]] = {"player_0": "row", "player_1": "column"}
    forfeit_adds = True

    @property
    @abstractmethod
    def matrix(self) -> Matrix:
        """Pay-offs at the present options."""

    @abstractmethod
    def expert_choice(self, own: Sequence[str], other: Sequence[str]) -> str:
        """What the game's expert plays next.

        Args:
            own: What it has played.
            other: What the other has played.
        """

    @property
    def stakes(self) -> str:
        lines = [
            f"You play {own}, the other plays {other}: you get {pay:g}, the other {self.matrix[other, own]:g}."
            for (own, other), pay in self.matrix.items()
        ]
        choice = f"{', '.join(self.actions[:-1])} or {self.actions[-1]}"
        return "\n".join(
            [
                f"Two players choose {choice}.",
                *lines,
                f"Reply with one word: {choice}. For a reply that cannot be read {self.actions[-1]} is played.",
            ]
        )

    def question(self, agent: str) -> str:
        return f"{', '.join(self.actions[:-1])} or {self.actions[-1]}?".capitalize()

    def choices(self, agent: str) -> tuple[str, ...]:
        return self.actions

    def read_choice(self, agent: str, text: str) -> str:
        return read_word(text, self.actions, self.what)

    def default_choice(self, agent: str) -> str:
        return self.actions[-1]

    def pay(self, choices: Mapping[str, str]) -> dict[str, float]:
        return {agent: self.matrix[own, choices[self.other(agent)]] for agent, own in choices.items()}

    def told(self, agent: str, choices: Mapping[str, str], paid: Mapping[str, float]) -> str:
        other = self.other(agent)
        return (
            f"you played {choices[agent]} and got {paid[agent]:g}, {other} played {choices[other]} and got "
            f"{paid[other]:g}."
        )

    def won(self, agent: str) -> bool:
        """At least what common cooperation would have paid in the rounds played; without such an action,
        more than the other.
        """
        if self.cooperative_action is None:
            return self.points[agent] > self.points[self.other(agent)]
        return self.reached(agent, self.matrix[self.cooperative_action, self.cooperative_action])

    def forfeit_results(self, agent: str) -> dict[str, float]:
        """In every round left who forfeits gets the smallest pay-off of the matrix, and the other the largest."""
        low, high = min(self.matrix.values()), max(self.matrix.values())
        return {player: float(self.rounds_left * (low if player == agent else high)) for player in self.possible_agents}

    def expert_action(self, agent: str) -> str | None:
        """The expert's action; where all talk it announces it."""
        if self.finished or agent not in self.agents:
            return None
        choice = self.expert_choice(self.played_by(agent), self.played_by(self.other(agent)))
        return f"I will play {choice}." if self.talking else choice

    def measures(self, agent: str) -> dict[str, float]:
        """Cooperation rate, or the rate of each action; and what the two got of the most they can get together. Also
        how much better per round the best single action would have done against what the other played.
        """
        own, other = self.played_by(agent), self.played_by(self.other(agent))
        if not own:
            return {}
        if self.cooperative_action is None:
            rates = {f"{action}_rate": own.count(action) / len(own) for action in self.actions}
        else:
            rates = {"cooperation_rate": cooperation_rate(own, self.cooperative_action)}
        return {**rates, **self._welfare(), "best_response_gap": best_response_gap(self.matrix, own, other)}

    def by_strategy(self, name: str, own: Sequence[str], other: Sequence[str]) -> str:
        """What a strategy plays next, in a game of the :attr:`cooperative_action` and one other."""
        cooperative = self.cooperative_action
        assert cooperative is not None, f"{type(self).__name__} names no cooperative action"
        cooperates = STRATEGIES[name](
            [action == cooperative for action in own], [action == cooperative for action in other]
        )
        return cooperative if cooperates else next(action for action in self.actions if action != cooperative)

    def _welfare(self) -> dict[str, float]:
        best = max(self.matrix[one, two] + self.matrix[two, one] for one, two in self.matrix)
        most = best * len(self.played)
        return {"social_welfare": social_welfare(list(self.points.values()), most)} if best > 0 else {}

    def played_by(self, agent: str) -> list[str]:
        """What ``agent`` has played, round by round."""
        return [choices[agent] for choices in self.played]

    def other(self, agent: str) -> str:
        """The one of the two who is not ``agent``."""
        (other,) = (player for player in self.possible_agents if player != agent)
        return other


def best_response_gap(matrix: Matrix, own: Sequence[str], other: Sequence[str]) -> float:
    """What the best single action would have got more per round than ``own``, at least one, against ``other``."""
    got = sum(matrix[pair] for pair in zip(own, other, strict=True))
    best = max(sum(matrix[action, reply] for reply in other) for action in dict.fromkeys(one for one, _ in matrix))
    return (best - got) / len(own)
