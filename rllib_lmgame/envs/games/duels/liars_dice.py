"""Liar's Dice for two."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import GameState, TextAECOptions, TextTreeGame, Variant
from rllib_lmgame.envs.support.equilibrium import Odds, equilibrium_odds

LIAR = "liar"
MOST_BIDS_OF_EXPERT = 12
"""Bids of the games that the expert plays: those of one die of 6 sides. The next larger ones, of 16 bids, have 3 and 13
million states.
"""

RULES = """You play Liar's Dice. Each of the two players has rolled {dice} with {sides} sides and sees only \
{own}. player_0 begins; in turn, players bid or say liar.
A bid is a quantity and a face: 2-3 says that of all {total} dice at least two show a 3. Dice that show a {sides} \
count as every face. A bid must name a higher quantity than the one before, or the same quantity of a higher face.
Who says liar ends the game, and wins if the last bid is false; else the bidder wins.
Reply with a bid such as 1-2, or with the word liar."""


class LiarsDiceOptions(TextAECOptions):
    """``env_config`` of Liar's Dice."""

    dice: int = option(1, "Dice of each player.", ge=1, le=5)
    sides: int = option(6, "Sides of a die; the highest counts as every face.", ge=2, le=6)


@dataclass(frozen=True)
class LiarsDiceState(GameState):
    """A point of the game.

    Attributes:
        dice: Of each player.
        sides: Of a die.
        rolls: Faces of each player's dice, in ascending order, of those who have rolled.
        history: Bids so far, and at the end :data:`LIAR`.
    """

    dice: int
    sides: int
    rolls: tuple[tuple[int, ...], ...] = ()
    history: tuple[str, ...] = ()

    @property
    def chance(self) -> Sequence[tuple[float, LiarsDiceState]]:
        if len(self.rolls) == 2:
            return ()
        return [(p, replace(self, rolls=(*self.rolls, roll))) for roll, p in rolls(self.dice, self.sides)]

    @property
    def finished(self) -> bool:
        return self.history[-1:] == (LIAR,)

    @property
    def seat(self) -> int:
        return len(self.history) % 2

    @property
    def actions(self) -> tuple[str, ...]:
        if self.finished or len(self.rolls) < 2:
            return ()
        every = bids(self.dice, self.sides)
        return (*every[every.index(self.history[-1]) + 1 :], LIAR) if self.history else every

    def after(self, action: str) -> LiarsDiceState:
        return LiarsDiceState(self.dice, self.sides, self.rolls, (*self.history, action))

    @property
    def payoffs(self) -> tuple[float, ...]:
        quantity, face = map(int, self.history[-2].split("-"))
        shown = sum(die in (face, self.sides) for roll in self.rolls for die in roll)
        bidder = len(self.history) % 2
        winner = bidder if shown >= quantity else 1 - bidder
        return tuple(1.0 if seat == winner else -1.0 for seat in (0, 1))

    def view(self, seat: int) -> str:
        own = " ".join(map(str, self.rolls[seat]))
        return f"Your {'die' if self.dice == 1 else 'dice'}: {own}. Bids so far: {', '.join(self.history) or 'none'}."


class LiarsDice(TextTreeGame):
    """Bids on all dice, of which each player sees its own.

    Who does not believe a bid says so.

    Observation: one's own dice, in ascending order, and all bids so far.
    Action: a bid, quantity and face (``2-3``), higher than the last one; or ``liar``, once there is a bid.
    Reward: +1 for a win, -1 for a loss, at the end. -0.1 for an invalid reply, to the offender alone; three in a row
        forfeit (-1, the other +1).
    Horizon: every bid once and ``liar``: with one die of 6 sides, 13 replies of both players together. Dice that show
        the highest face count as every face (rules, payments and information as in OpenSpiel).
    Agents and roles: ``player_0``, who begins, and ``player_1``. The seed decides the roll, so there are no levels to
        keep apart; ``split`` changes nothing.
    Expert: an equilibrium of exploitability below .001, where there are 12 bids or fewer: one die each, two of 3 sides,
        three of 2. It takes 350 iterations of CFR+ when it is first asked: six seconds of one core, one second at 4
        sides. Larger games have more states than are walked through, and no expert. With one die each there are 1,024
        information sets at 4 sides and 24,576 at 6; at 4 sides uniform play has exploitability .65506.
    """

    variants = (Variant("lmgame/LiarsDice-v0", (-2.5, 1.0)),)
    Options: ClassVar[type[TextAECOptions]] = LiarsDiceOptions
    options: LiarsDiceOptions
    position: LiarsDiceState

    @property
    def rules(self) -> str:
        dice, sides = self.options.dice, self.options.sides
        return RULES.format(
            dice="one die" if dice == 1 else f"{dice} dice",
            own="its own" if dice == 1 else "its own dice",
            sides=sides,
            total=2 * dice,
        )

    @property
    def words(self) -> tuple[str, ...]:
        return (*bids(self.options.dice, self.options.sides), LIAR)

    def first_state(self) -> LiarsDiceState:
        return LiarsDiceState(self.options.dice, self.options.sides)

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return self.lost_by(agent)

    def expert_action(self, agent: str) -> str | None:
        dice, sides = self.options.dice, self.options.sides
        if len(bids(dice, sides)) > MOST_BIDS_OF_EXPERT or not self.legal_actions(agent):
            return None
        odds = equilibrium(dice, sides)[self.seat_of(agent), self.view(agent)]
        return self.expert_random.choices(list(odds), list(odds.values()))[0]


@cache
def equilibrium(dice: int, sides: int) -> Odds:
    """What the expert plays."""
    return equilibrium_odds(LiarsDice(dice=dice, sides=sides, show_rules=False), iterations=350)


@cache
def bids(dice: int, sides: int) -> tuple[str, ...]:
    """All bids of two players with ``dice`` dice each, from the lowest to the highest."""
    return tuple(f"{quantity}-{face}" for quantity in range(1, 2 * dice + 1) for face in range(1, sides + 1))


@cache
def rolls(dice: int, sides: int) -> tuple[tuple[tuple[int, ...], float], ...]:
    """What a player may roll, in ascending order, and how probable it is."""
    counts = Counter(tuple(sorted(roll)) for roll in itertools.product(range(1, sides + 1), repeat=dice))
    return tuple((roll, count / sides**dice) for roll, count in sorted(counts.items()))
