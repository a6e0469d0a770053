"""Rock, paper, scissors."""

from __future__ import annotations

from collections.abc import Sequence

from rllib_lmgame.envs.contract.base import Variant
from rllib_lmgame.envs.games.dilemmas.matrix_game import Matrix, MatrixGame

HANDS = ("rock", "paper", "scissors")
PAYOFFS: Matrix = {
    (own, other): (0.0, 1.0, -1.0)[(i - j) % 3] for i, own in enumerate(HANDS) for j, other in enumerate(HANDS)
}
"""Each hand beats the one before it, and rock beats scissors."""


class RockPaperScissors(MatrixGame):
    """Rock, paper or scissors, ten rounds.

    Observation: what both showed in the last round and what it paid, the points so far; with ``chat_turns`` before each
        round what the other said.
    Action: ``rock``, ``paper`` or ``scissors``, one word; a message, where all talk.
    Reward: +1 for a round won, -1 for one lost, 0 for a draw; they sum to zero. -0.1 for an invalid reply, to the
        offender alone, and ``scissors`` are shown; three in a row forfeit: all rounds left are lost (where both forfeit
        at once, drawn).
    Horizon: one reply per round, 10 rounds; and ``chat_turns`` messages before each.
    Success: more rounds won than lost.
    Measures: ``rock_rate``, ``paper_rate``, ``scissors_rate``; ``best_response_gap``, what the best hand throughout
        would have won more per round.
    Agents and roles: ``player_0`` is the ``row`` player, ``player_1`` the ``column`` player; the game is symmetric.
        Nothing is drawn, so there are no levels, and ``split`` changes nothing.
    Expert: the equilibrium, each hand with probability 1/3. Where all talk it announces a hand, which says nothing.
    """

    variants = (Variant("lmgame/RockPaperScissors-v0", (-10.7, 10.0)),)
    zero_sum = True
    forfeit_adds = False  # Who is left has won, whatever the score.
    actions = HANDS
    what = "hand"

    @property
    def stakes(self) -> str:
        return (
            "You play rock, paper, scissors against another player. Rock beats scissors, scissors beat paper, paper "
            "beats rock. A round won gives 1 point and one lost takes 1; the same hands draw.\n"
            "Reply with one word: rock, paper or scissors. For a reply that cannot be read scissors are played."
        )

    @property
    def matrix(self) -> Matrix:
        return PAYOFFS

    def expert_choice(self, own: Sequence[str], other: Sequence[str]) -> str:
        return self.expert_random.choice(HANDS)
