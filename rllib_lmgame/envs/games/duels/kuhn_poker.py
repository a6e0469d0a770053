"""Kuhn poker for two or three."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import GameState, TextAECOptions, TextTreeGame, Variant

History = tuple[str, ...]
"""Actions since the deal, in order."""

ACTIONS = ("check", "bet", "call", "fold")
RANKS = "JQKA"
ALPHA = 1 / 3
"""Which of the equilibria of the game for two the expert plays: how often the first player bets with
the jack, 0 to 1/3.
"""

RULES = """You play Kuhn poker with {players} players and the cards {cards} ({order}).
Everybody pays 1 chip and gets one card. In turn, players check or bet 1 chip. \
After a bet each of the others in turn must call, for 1 chip, or fold.
The highest card among those who have not folded takes all chips.
Reply with one word: check, bet, call or fold."""


class KuhnPokerOptions(TextAECOptions):
    """``env_config`` of Kuhn poker."""

    players: int = option(2, "Players.", ge=2, le=3)


@dataclass(frozen=True)
class KuhnState(GameState):
    """A point of the game.

    Attributes:
        players: Two or three.
        deal: The card of every seat; empty before the deal.
        history: Actions since the deal.
    """

    players: int
    deal: tuple[str, ...] = ()
    history: History = ()

    @property
    def chance(self) -> Sequence[tuple[float, KuhnState]]:
        deals = [] if self.deal else list(itertools.permutations(RANKS[: self.players + 1], self.players))
        return [(1 / len(deals), KuhnState(self.players, deal)) for deal in deals]

    @property
    def finished(self) -> bool:
        return is_over(self.history, self.players)

    @property
    def seat(self) -> int:
        return to_move(self.history, self.players)

    @property
    def actions(self) -> tuple[str, ...]:
        return () if self.finished or not self.deal else choices(self.history)

    def after(self, action: str) -> KuhnState:
        return KuhnState(self.players, self.deal, (*self.history, action))

    @property
    def payoffs(self) -> tuple[float, ...]:
        return tuple(payoffs(self.deal, self.history))

    def view(self, seat: int) -> str:
        return information_text(self.deal[seat], self.history)


class KuhnPoker(TextTreeGame):
    """The smallest poker: one card each, one bet.

    Observation: one's own card and the actions so far, nothing else.
    Action: ``check``, ``bet``, ``call`` or ``fold``, one word.
    Reward: chips won or lost, at the end: -2 to +2 for two players, -2 to +4 for three; they sum to zero. -0.1 for an
        invalid reply, to the offender alone; three in a row forfeit: the chips paid so far go to the others in equal
        parts. A player who can write no more (context, tokens) checks and folds.
    Horizon: two replies per player. Cards J, Q, K (two players) or J, Q, K, A (three); an ante of 1, a bet of 1 (H. W.
        Kuhn 1950; the game for three as in OpenSpiel, whose figures the exact measure in ``measures`` reproduces).
    Agents and roles: ``player_0``, ``player_1`` (``player_2``), in the order they act. The seed decides the deal, one
        of 6 (24), so there are no levels to keep apart; ``split`` changes nothing.
    Expert (two players): the equilibrium with ``alpha = 1/3``; the value of the game for ``player_0`` is -1/18.
    """

    variants = (Variant("lmgame/KuhnPoker-v0", (-2.4, 2.0)),)
    Options: ClassVar[type[TextAECOptions]] = KuhnPokerOptions
    options: KuhnPokerOptions
    position: KuhnState

    def seat_roles(self) -> dict[str, str]:
        return {f"player_{i}": f"player_{i}" for i in range(self.options.players)}

    @property
    def rules(self) -> str:
        cards = RANKS[: self.options.players + 1]
        return RULES.format(players=self.options.players, cards=", ".join(cards), order=" < ".join(cards))

    def first_state(self) -> KuhnState:
        return KuhnState(self.options.players)

    def start(self) -> None:
        cards = RANKS[: self.options.players + 1]
        self.position = KuhnState(self.options.players, tuple(self.random.sample(cards, self.options.players)))

    @property
    def words(self) -> tuple[str, ...]:
        return ACTIONS

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return self.lost_by(agent, stakes(self.position.history, self.options.players)[self.seat_of(agent)])

    def pass_action(self, agent: str) -> str:
        """A player who can write no more checks and folds."""
        return "fold" if "bet" in self.position.history else "check"

    def expert_action(self, agent: str) -> str | None:
        if self.options.players != 2 or not self.legal_actions(agent):
            return None
        odds = equilibrium(self.position.deal[self.seat_of(agent)], self.position.history)
        return self.expert_random.choices(list(odds), list(odds.values()))[0]


def to_move(history: History, players: int) -> int:
    """Seat of the player to act."""
    return len(history) % players


def choices(history: History) -> tuple[str, str]:
    """What the player to act may do."""
    return ("call", "fold") if "bet" in history else ("check", "bet")


def is_over(history: History, players: int) -> bool:
    """Everybody has checked, or everybody has answered the bet."""
    return len(history) == (history.index("bet") + players if "bet" in history else players)


def stakes(history: History, players: int) -> list[int]:
    """Chips each player has paid."""
    paid = [1] * players
    for i, action in enumerate(history):
        paid[i % players] += action in ("bet", "call")
    return paid


def payoffs(deal: Sequence[str], history: History) -> list[float]:
    """Chips each player has won or lost at the end."""
    players = len(deal)
    paid = stakes(history, players)
    stays = [seat for seat in range(players) if paid[seat] == max(paid)]
    best = max(stays, key=lambda seat: RANKS.index(deal[seat]))
    return [float(sum(paid) - paid[seat] if seat == best else -paid[seat]) for seat in range(players)]


def information_text(card: str, history: History) -> str:
    """What a player with ``card`` sees."""
    return f"Your card: {card}. Actions so far: {', '.join(history) or 'none'}."


def equilibrium(card: str, history: History, alpha: float = ALPHA) -> dict[str, float]:
    """Probabilities of the actions in the equilibrium of the game for two with parameter ``alpha`` in
    [0, 1/3] (Kuhn 1950).
    """
    if "bet" not in history:
        first = {"J": alpha, "Q": 0.0, "K": 3 * alpha}
        second = {"J": 1 / 3, "Q": 0.0, "K": 1.0}
        bet = (second if history else first)[card]
        return {"check": 1 - bet, "bet": bet}
    after_check = {"J": 0.0, "Q": alpha + 1 / 3, "K": 1.0}
    after_bet = {"J": 0.0, "Q": 1 / 3, "K": 1.0}
    call = (after_check if len(history) == 2 else after_bet)[card]
    return {"call": call, "fold": 1 - call}
