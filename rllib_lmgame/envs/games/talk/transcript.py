"""What was said in a game, and what of it a player is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rllib_lmgame.envs.contract.base import quoted

MAX_SHOWN = 10_000
"""Characters of talk in one observation; the newest words are kept."""

CUT = "(What was said before is left out.)"
OWN_NAME = "You"


class Event(NamedTuple):
    """Words of a player, or a line of the game (``speaker`` is empty) that says what everybody may know."""

    speaker: str
    text: str


class Transcript:
    """Words and public events in order.

    Guarantees: a player is shown everything that came since its last move (:meth:`moved`), also after an invalid reply;
    words of players stand in quotation (:func:`~rllib_lmgame.envs.contract.base.quoted`); what is shown is bounded,
    whatever is said.

    Args:
        names: What each player is called by the others, by agent id.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)
        self.events: list[Event] = []
        self._heard = dict.fromkeys(names, 0)

    def say(self, agent: str, text: str) -> None:
        """``agent`` says ``text`` to everybody, as its move."""
        self.events.append(Event(agent, text))
        self.moved(agent)

    def announce(self, line: str) -> None:
        """The game says a line of its own."""
        self.events.append(Event("", line))

    def moved(self, agent: str) -> None:
        """``agent`` has made a move, knowing all that there is by now."""
        self._heard[agent] = len(self.events)

    def said_by(self, agent: str) -> list[str]:
        """Words of one player, in order."""
        return [event.text for event in self.events if event.speaker == agent]

    def shown_to(self, agent: str, everything: bool = False) -> str:
        """What ``agent`` is shown: what came since its last move, or everything, its own words included."""
        events = self.events if everything else self.events[self._heard[agent] :]
        kept: list[str] = []
        length = 0
        for event in reversed(events):
            if event.speaker == agent and not everything:
                continue
            text = self._line(event, agent)
            length += len(text) + 1
            if length > MAX_SHOWN:
                kept.append(CUT)
                break
            kept.append(text)
        return "\n".join(reversed(kept))

    def _line(self, event: Event, listener: str) -> str:
        if not event.speaker:
            return event.text
        return quoted(OWN_NAME if event.speaker == listener else self.names[event.speaker], event.text)
