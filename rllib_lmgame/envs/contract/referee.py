"""What holds in every game of this package, whatever is played: which replies are read, what an invalid one costs, when
it is a forfeit, how many replies there are. Plain decisions, seat by seat; the base classes of games ask for them and
turn the answers into rewards and ends.

Guarantees, each tested:

1. A reply that is no text or too long is invalid before any game reads it.
2. An invalid reply costs its own penalty where it names one, else the game's; a valid one costs nothing and ends the
   run of invalid ones.
3. A forfeit is ``max_invalid_actions`` invalid replies of one seat in a row, whatever the other seats reply in between.
4. Every reply is a turn, also an invalid one; what one seat does changes nothing for another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_TEXT = 16_384
"""Longest observation, and longest action that is read at all, in characters."""


class InvalidAction(Exception):
    """An action that is illegal or cannot be read.

    Args:
        message: What was wrong, as the player will read it.
        penalty: Reward instead of ``invalid_action_penalty``.
    """

    def __init__(self, message: str, penalty: float | None = None) -> None:
        super().__init__(message)
        self.penalty = penalty


def reply_text(action: Any) -> str:
    """The action, if it is one that is read at all. Raises: InvalidAction: if it is no text, or too long."""
    if not isinstance(action, str):
        raise InvalidAction("the reply must be text.")
    if len(action) > MAX_TEXT:
        raise InvalidAction("the reply is too long.")
    return action


@dataclass(frozen=True)
class Ruling:
    """What one reply means for its player.

    Attributes:
        invalid: It could not be read, or was not allowed.
        penalty: What that costs, 0 or less.
        note: What the player is told of it in the next observation; empty if nothing was wrong.
        forfeit: It was one invalid reply too many.
    """

    invalid: bool
    penalty: float
    note: str
    forfeit: bool


VALID = Ruling(invalid=False, penalty=0.0, note="", forfeit=False)


class Referee:
    """Rules on the replies of an episode.

    Args:
        seats: Agent ids.
        penalty: Cost of an invalid reply that names none itself, 0 or less.
        max_invalid: Invalid replies in a row that are a forfeit; ``None``: never.
        max_turns: Replies of a seat; ``None``: any number.
    """

    def __init__(self, seats: Iterable[str], penalty: float, max_invalid: int | None, max_turns: int | None) -> None:
        self.seats = tuple(seats)
        self.penalty = penalty
        self.max_invalid = max_invalid
        self.max_turns = max_turns
        self.begin()

    def begin(self) -> None:
        """A new episode: nothing has been said."""
        self._turns = dict.fromkeys(self.seats, 0)
        self._invalid_run = dict.fromkeys(self.seats, 0)
        self._notes = dict.fromkeys(self.seats, "")

    def count(self, seat: str) -> None:
        """A reply of ``seat`` has come: a turn, whatever it says."""
        self._turns[seat] += 1

    def rule(self, seat: str, problem: InvalidAction | None) -> Ruling:
        """What the reply that was counted last means.

        Args:
            seat: Who gave it.
            problem: What was wrong with it.
        """
        ruling = VALID
        self._invalid_run[seat] = self._invalid_run[seat] + 1 if problem else 0
        if problem:
            cost = float(self.penalty if problem.penalty is None else problem.penalty)
            forfeit = self.max_invalid is not None and self._invalid_run[seat] >= self.max_invalid
            ruling = Ruling(True, cost, f"Invalid action: {problem}", forfeit)
        self._notes[seat] = ruling.note
        return ruling

    def note(self, seat: str) -> str:
        """What was wrong with the seat's last reply; empty if nothing was."""
        return self._notes[seat]

    def has_replied(self, seat: str) -> bool:
        """Whether the seat has given a reply in this episode."""
        return self._turns[seat] > 0

    def turns_left(self, seat: str) -> int | None:
        """Replies the seat may still give; ``None`` without a limit."""
        return None if self.max_turns is None else self.max_turns - self._turns[seat]
