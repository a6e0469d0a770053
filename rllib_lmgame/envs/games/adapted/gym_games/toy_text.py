"""Taxi and Blackjack of Gymnasium's ``toy_text``, whose drawings say too little without colours or pictures."""

from __future__ import annotations

from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import TextGameOptions, Variant
from rllib_lmgame.envs.games.adapted.gym_games.game import GymTextGame, GymTextOptions

STANDS = ("R", "G", "Y", "B")
IN_TAXI = 4

TAXI_RULES = """You drive a taxi. Pick up the passenger and drop the passenger off at the destination; \
R, G, Y and B are the stands.
On the map T is the taxi, | is a wall, : can be passed. Rows and columns count from 0 at the top left.
Each action costs 1, dropping the passenger off at the destination gives 20, \
a Pickup or Dropoff where it is not possible costs 10."""
BLACKJACK_RULES = """You play Blackjack against the dealer. Get closer to 21 than the dealer without going over it.
Face cards count 10; an ace counts 1, or 11 where that does not go over 21 (then it is usable).
Hit gives you another card; Stick ends your turn, and the dealer draws to 17. A win gives 1, a loss costs 1, \
a draw gives 0."""
STICK, HIT = "Stick", "Hit"


class TaxiOptions(GymTextOptions):
    """``env_config`` of Taxi."""

    invalid_action_penalty: float = option(-10.0, "Reward of a reply that cannot be read.", le=0)
    max_invalid_actions: int | None = option(
        None,
        "Invalid actions in a row that end the episode as a forfeit; null never ends it (a forfeit would be "
        "cheaper than driving).",
        ge=1,
    )
    max_turns: int = option(12, "Replies per episode.", ge=1)
    max_actions_per_turn: int = option(5, "Moves per reply, joined by `||`; what goes beyond is not played.", ge=1)
    env_id: str = option("Taxi-v3", "Id of the Gymnasium environment.", stranger=is_name)
    action_names: tuple[str, ...] | None = option(
        ("South", "North", "East", "West", "Pickup", "Dropoff"), "Words for the actions.", stranger=True
    )
    rules: str = option(TAXI_RULES, "What a player is told about the game.", stranger=True)


class Taxi(GymTextGame):
    """Gymnasium's Taxi: fetch a passenger, bring the passenger to a stand.

    The task is Dietterich's.

    Observation: the map with the taxi, and where taxi, passenger and destination are.
    Action: ``South``, ``North``, ``East``, ``West``, ``Pickup``, ``Dropoff``, several joined by ``||``.
    Reward: Gymnasium's: -1 an action, +20 for the drop-off at the destination, -10 for a pick-up or drop-off that is
        not possible; -10 for a reply that cannot be read.
    Success: the passenger is at the destination.
    Horizon: 12 replies of up to 5 actions (Gymnasium allows 200 actions).
    Levels: 300 starts: the place of the taxi, of the passenger, and the destination.
    Solver: value iteration over the 500 states.
    """

    variants = (Variant("lmgame/Taxi-v0", (-600.0, 15.0)),)
    Options: ClassVar[type[TextGameOptions]] = TaxiOptions

    def view(self) -> str:
        env = self._env.unwrapped
        row, column, passenger, destination = (int(part) for part in env.decode(env.s))
        rows = [b"".join(line).decode() for line in env.desc]
        line = rows[row + 1]
        rows[row + 1] = line[: 2 * column + 1] + "T" + line[2 * column + 2 :]
        places = [f"{STANDS[i]} ({r}, {c})" for i, (r, c) in enumerate(env.locs)]
        where = "in the taxi" if passenger == IN_TAXI else f"at {places[passenger]}"
        said = f"The taxi is at ({row}, {column}). The passenger is {where}. The destination is {places[destination]}."
        return "\n".join((*rows, said))


class BlackjackOptions(GymTextOptions):
    """``env_config`` of Blackjack."""

    invalid_action_penalty: float = option(
        -1.0, "Reward of a reply that cannot be read (as much as a lost hand: bad ones are not thrown away).", le=0
    )
    max_turns: int = option(20, "Replies per episode.", ge=1)
    env_id: str = option("Blackjack-v1", "Id of the Gymnasium environment.", stranger=is_name)
    action_names: tuple[str, ...] | None = option((STICK, HIT), "Words for the actions.", stranger=True)
    rules: str = option(BLACKJACK_RULES, "What a player is told about the game.", stranger=True)


class Blackjack(GymTextGame):
    """Gymnasium's Blackjack: one hand against the dealer.

    The deck is infinite, and the dealer draws to 17.

    Observation: the sum of the hand, whether it has a usable ace, and the dealer's open card.
    Action: ``Hit`` or ``Stick``.
    Reward: 1 for a win, -1 for a loss, 0 for a draw; -1 for a reply that cannot be read.
    Success: a win.
    Horizon: the end of the hand (20 replies).
    Levels: first hands, split by what is seen of them.
    Solver: basic strategy without doubling and splitting, which is optimal here; it wins about 43 % of the hands and
        loses about 5 % of the stake.
    """

    variants = (Variant("lmgame/Blackjack-v0", (-14.0, 1.0)),)
    solver_wins = False
    Options: ClassVar[type[TextGameOptions]] = BlackjackOptions

    def view(self) -> str:
        total, dealer, usable = (int(part) for part in self._seen)
        ace = "with a usable ace" if usable else "no usable ace"
        ended = ""
        if self._ended:
            result = "You win." if self._last_reward > 0 else "You lose." if self._last_reward < 0 else "It is a draw."
            cards = ", ".join("ace" if card == 1 else str(card) for card in self._env.unwrapped.dealer)
            ended = f" The dealer's cards: {cards}. {result}"
        return f"Your hand: {total}, {ace}. The dealer shows {'an ace' if dealer == 1 else dealer}.{ended}"

    def expert_action(self) -> str:
        total, dealer, usable = (int(part) for part in self._seen)
        return self._names[1] if should_hit(total, dealer, bool(usable)) else self._names[0]


def should_hit(total: int, dealer: int, usable_ace: bool) -> bool:
    """Basic strategy where one can only hit or stick (Sutton and Barto, Reinforcement Learning, figure 5.2).

    Args:
        total: Sum of the hand, a usable ace counted as 11.
        dealer: The dealer's open card, 1 for an ace.
        usable_ace: Whether an ace counts as 11.
    """
    if usable_ace:
        return total <= 17 or (total == 18 and dealer in (1, 9, 10))
    if total == 12:
        return dealer not in (4, 5, 6)
    return total <= 11 or (total <= 16 and dealer not in (2, 3, 4, 5, 6))
