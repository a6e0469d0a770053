"""A point of one of OpenSpiel's games, as the exact measures walk through it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from rllib_lmgame.base.text import one_line
from rllib_lmgame.envs.contract import GameState

COLOUR = re.compile("\x1b\\[[0-9;]*m")


class SpielState(GameState):
    """One of OpenSpiel's states, which is never changed.

    Args:
        spiel: The state.
        texts: What of it the players are shown: ``observation_string``, ``information_state_string``, or both.
    """

    def __init__(self, spiel: Any, texts: tuple[str, ...]) -> None:
        self.spiel = spiel
        self.texts = texts

    @property
    def chance(self) -> Sequence[tuple[float, SpielState]]:
        return [(p, self.child(outcome)) for outcome, p in self.outcomes]

    @property
    def outcomes(self) -> Sequence[tuple[int, float]]:
        """OpenSpiel's numbers of what chance may do now, and how probable each is; nothing where a player is to
        move.
        """
        return self.spiel.chance_outcomes() if self.spiel.is_chance_node() else ()

    @property
    def finished(self) -> bool:
        return bool(self.spiel.is_terminal())

    @property
    def seat(self) -> int:
        return max(0, self.spiel.current_player())

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(self.numbers)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Legal actions as OpenSpiel words them (where it words two alike, with its numbers), and its numbers."""
        if self.finished or self.spiel.is_chance_node():
            return {}
        seat = self.spiel.current_player()
        named = [(" ".join(self.spiel.action_to_string(seat, n).split()), n) for n in self.spiel.legal_actions()]
        count = Counter(text for text, _ in named)
        return {text if count[text] == 1 and text else f"{text} ({n})".strip(): n for text, n in named}

    def after(self, action: str) -> SpielState:
        return self.child(self.numbers[action])

    def child(self, number: int) -> SpielState:
        """The state after an action or an outcome of chance, by OpenSpiel's number."""
        return SpielState(self.spiel.child(number), self.texts)

    @property
    def payoffs(self) -> tuple[float, ...]:
        return tuple(map(float, self.spiel.returns()))

    def view(self, seat: int) -> str:
        lines = [f"You are player {seat}."]
        if self.finished:
            return f"{lines[0]} The game is over: you got {self.payoffs[seat]:g}."
        return "\n".join([*lines, *(COLOUR.sub("", getattr(self.spiel, text)(seat)).rstrip() for text in self.texts)])


def read_action(text: str, actions: Sequence[str]) -> str | None:
    """The action that a reply says, whatever its spaces and, where that is clear, its case; ``None`` if
    it is none of them.
    """
    said = one_line(" ".join(text.split()))
    if said in actions:
        return said
    alike = [action for action in actions if action.casefold() == said.casefold().rstrip(".")]
    return alike[0] if len(alike) == 1 else None
