"""Leduc poker for two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from rllib_lmgame.envs.contract import GameState, TextTreeGame, Variant
from rllib_lmgame.envs.support.equilibrium import Odds, equilibrium_odds

ACTIONS = ("check", "call", "raise", "fold")
RANKS = "JQK"
CARDS = tuple(f"{rank} of {suit}" for rank in RANKS for suit in ("spades", "hearts"))
"""In the order of OpenSpiel's numbers."""
RAISES = (2, 4)
"""Chips a raise adds, by round."""
MAX_RAISES = 2
"""Raises in a round, of both players together."""

Rounds = tuple[tuple[str, ...], tuple[str, ...]]
"""Actions of the first and of the second round, in order."""

RULES = """You play Leduc poker. There are six cards: J, Q and K (J < Q < K), each of spades and of hearts.
Both players pay 1 chip and get one card. Two rounds follow, player_0 first in each. In turn, players check, raise, \
call a raise or fold; a raise adds 2 chips to what the other has paid in the first round, 4 in the second, and there \
are at most two raises in a round. Between the rounds a card is laid open for both.
Who makes a pair with the open card wins, else the higher card; suits do not count, and equal cards share the chips.
Reply with one word: check, call, raise or fold."""


@dataclass(frozen=True)
class LeducState(GameState):
    """A point of the game.

    Attributes:
        cards: Those dealt so far: that of ``player_0``, that of ``player_1``, the open one.
        rounds: Actions so far.
    """

    cards: tuple[str, ...] = ()
    rounds: Rounds = ((), ())

    @property
    def chance(self) -> Sequence[tuple[float, LeducState]]:
        if len(self.cards) >= 2 and (len(self.cards) == 3 or self.folded or not round_over(self.rounds[0])):
            return ()
        left = [card for card in CARDS if card not in self.cards]
        return [(1 / len(left), replace(self, cards=(*self.cards, card))) for card in left]

    @property
    def folded(self) -> bool:
        """Somebody has given up."""
        return "fold" in self.rounds[0] + self.rounds[1]

    @property
    def finished(self) -> bool:
        return self.folded or round_over(self.rounds[1])

    @property
    def seat(self) -> int:
        return len(self._now) % 2

    @property
    def actions(self) -> tuple[str, ...]:
        if self.finished or len(self.cards) < 2:
            return ()
        can_raise = self._now.count("raise") < MAX_RAISES
        return (*(("call",) if "raise" in self._now else ("check",)), *("raise",) * can_raise, *self._can_fold)

    def after(self, action: str) -> LeducState:
        now = (*self._now, action)
        return replace(self, rounds=(self.rounds[0], now) if len(self.cards) == 3 else (now, ()))

    @property
    def payoffs(self) -> tuple[float, ...]:
        paid = stakes(self.rounds)
        if self.folded:
            loser = (len(self._now) - 1) % 2
        else:
            first, second, shown = (card[0] for card in self.cards)
            strengths = [(card == shown, RANKS.index(card)) for card in (first, second)]
            if strengths[0] == strengths[1]:
                return (0.0, 0.0)
            loser = strengths.index(min(strengths))
        return tuple(float(-paid[loser] if seat == loser else paid[loser]) for seat in (0, 1))

    def view(self, seat: int) -> str:
        shown = f" Open card: {self.cards[2]}." if len(self.cards) == 3 else ""
        rounds = self.rounds[: max(1, len(self.cards) - 1)]
        said = [f"Round {n}: {', '.join(actions) or 'none'}." for n, actions in enumerate(rounds, start=1)]
        return f"Your card: {self.cards[seat]}.{shown} {' '.join(said)}"

    @property
    def _now(self) -> tuple[str, ...]:
        """Actions of the present round."""
        return self.rounds[1] if len(self.cards) == 3 else self.rounds[0]

    @property
    def _can_fold(self) -> tuple[str, ...]:
        return ("fold",) if "raise" in self._now else ()


class LeducPoker(TextTreeGame):
    """A small poker: six cards, two rounds of betting, one open card.

    Observation: one's own card, the open card once it lies there, and the actions of each round.
    Action: ``check``, ``call``, ``raise`` or ``fold``, one word.
    Reward: chips won or lost, at the end: -13 to +13; they sum to zero. -0.1 for an invalid reply, to the offender
        alone; three in a row forfeit: the chips paid so far go to the other. A player who can write no more checks and
        folds.
    Horizon: four replies per player at most. An ante of 1, raises of 2 and 4, two raises per round (F. Southey et al.,
        Bayes' Bluff, UAI 2005; moves, payments and information as in OpenSpiel).
    Agents and roles: ``player_0``, ``player_1``, in the order they act in both rounds. The seed decides the cards, so
        there are no levels to keep apart; ``split`` changes nothing.
    Expert: an equilibrium of exploitability .0024 (300 iterations of CFR+, a second when it is first asked). The game
        has 936 information sets, whose suits do not count; uniform play has exploitability 2.373611.
    """

    variants = (Variant("lmgame/LeducPoker-v0", (-13.8, 13.0)),)
    position: LeducState

    @property
    def rules(self) -> str:
        return RULES

    def first_state(self) -> LeducState:
        return LeducState()

    @property
    def words(self) -> tuple[str, ...]:
        return ACTIONS

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return self.lost_by(agent, stakes(self.position.rounds)[self.seat_of(agent)])

    def pass_action(self, agent: str) -> str:
        """A player who can write no more checks and folds."""
        return "fold" if "fold" in self.position.actions else "check"

    def expert_action(self, agent: str) -> str | None:
        if not self.legal_actions(agent):
            return None
        odds = equilibrium()[self.seat_of(agent), self.view(agent)]
        return self.expert_random.choices(list(odds), list(odds.values()))[0]


@cache
def equilibrium() -> Odds:
    """What the expert plays."""
    return equilibrium_odds(LeducPoker(show_rules=False), iterations=300)


def round_over(actions: Sequence[str]) -> bool:
    """Both have spoken and nobody has to answer a raise."""
    return len(actions) >= 2 and actions[-1] in ("check", "call")


def stakes(rounds: Rounds) -> list[int]:
    """Chips each player has paid."""
    paid = [1, 1]
    for actions, size in zip(rounds, RAISES, strict=True):
        for n, action in enumerate(actions):
            if action in ("call", "raise"):
                paid[n % 2] = max(paid) + size * (action == "raise")
    return paid
