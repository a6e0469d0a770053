"""One match of a TextArena environment, with its chance, its output and its mistakes kept inside."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import textarena
from textarena.core import GAME_ID, ObservationType

from rllib_lmgame.base.text import one_line
from rllib_lmgame.envs.contract.base import GameError, InvalidAction, quoted
from rllib_lmgame.envs.games.adapted.text_arena.families import family_of

NO_LIMIT = 10**9
REASON = re.compile(r"Reason: (.*?) ?Please resubmit", re.DOTALL)
MOVES_SHOWN = re.compile(r"(?:Available|Valid|Legal) [Mm]oves?:(.*)", re.DOTALL)
BRACKETED = re.compile(r"\[[^\[\]\n]{1,20}\]")
PRINTS = frozenset({"LogicPuzzle", "RushHour", "SettlersOfCatan"})
"""Families that print while they play."""

OPTIONS: dict[str, dict[str, Any]] = {"Santorini": {"show_valid": False}}
"""Arguments of families: Santorini lists the first player's moves, as its own, to every player, once."""

DIRECTION = re.compile(r"\[(up|down|left|right|[wasd])\]", re.IGNORECASE)
KILLS_UNREAD = frozenset({"Snake", "Surround"})
"""Families in which a reply without a direction kills."""

LISTS_MOVES = frozenset({"TicTacToe", "WildTicTacToe"})
"""Families whose boards list exactly the moves that are accepted."""


class Match:
    """A TextArena environment in play.

    TextArena draws from the global ``random`` and ``numpy.random``: each match has states of its own for both, which
    are in place only while it runs. What a player of TextArena would be told after an invalid reply becomes
    :class:`InvalidAction`, and so does an exception.

    Args:
        env_id: Id in TextArena.
        players: How many play.
        seed: Decides everything that is left to chance.
    """

    def __init__(self, env_id: str, players: int, seed: int) -> None:
        self._family = family_of(env_id)
        self._python_state: Any = random.Random(seed).getstate()
        self._numpy_state: Any = np.random.RandomState(seed % 2**32).get_state()
        with self._inside():
            self._env = textarena.make(f"{env_id}-raw", **OPTIONS.get(self._family, {}))
            self._env.reset(num_players=players, seed=seed)
        self._players = players
        self._state.error_allowance = NO_LIMIT  # How many invalid replies end a game is ours to say.
        self._answered = dict.fromkeys(range(players), 0)
        self.done = False

    @property
    def current(self) -> int:
        """Player to act."""
        return int(self._state.current_player_id)

    @property
    def rewards(self) -> dict[int, float]:
        """At the end: what TextArena gives every player; of Bandit, which pays the regret, 1 for the best button and
        minus the regret for another.

        Raises: GameError: if it gives something that is no number.
        """
        given = self._state.rewards or {}
        try:
            if self._family == "Bandit" and given:
                return {0: -float(given[0]) or 1.0}
            return {player: float(given.get(player, 0.0)) for player in range(self._players)}
        except (TypeError, ValueError) as error:
            raise GameError(f"TextArena's rewards are {given!r}; they must be numbers") from error

    def act(self, text: str) -> None:
        """The reply of the current player, with brackets around it if it has none.

        Where others hear it, it is made one line, since some environments repeat a player's words inside messages of
        their own.

        Raises: InvalidAction: if TextArena does not accept it.
        """
        if self._players > 1:
            text = one_line(text)
        if self._family in KILLS_UNREAD and not DIRECTION.search(text if "[" in text else f"[{text}]"):
            raise InvalidAction("use '[up]', '[down]', '[left]' or '[right]'.")
        actor, heard = self.current, {player: len(messages) for player, messages in self._state.observations.items()}
        try:
            with self._inside():
                done, _ = self._env.step(text if "[" in text or "]" in text else f"[{text}]")
        except Exception as error:  # The environments fail in many ways on texts their authors did not think of.
            self._forget(heard)
            raise InvalidAction("the game cannot read this.") from error
        if not done and self._state.error_count > 0:
            reason = self._reason(actor, heard[actor])
            self._forget(heard)
            raise InvalidAction(reason)
        self.done = bool(done)
        self._answered[actor] = heard[actor]

    def messages(self, player: int, everything: bool = False) -> str:
        """What the player was told: its rules at the start, then what came since its last reply, other players' words
        as quotations.
        """
        told = self._state.observations[player]
        fresh = told if everything else told[self._answered[player] :]
        lines = []
        for sender, message, kind in fresh:
            if kind == ObservationType.PLAYER_ACTION and sender == player and not everything:
                continue
            if not isinstance(message, str):  # Countdown notes a reply with its arguments in another order.
                continue
            name = self._state.role_mapping.get(sender, f"Player {sender}")
            lines.append(message.strip("\n") if sender == GAME_ID else quoted(name, message))
        return "\n".join(lines)

    def listed_moves(self) -> tuple[str, ...]:
        """Moves that will be accepted, where TextArena lists them; otherwise none."""
        if self._family == "LightsOut":
            size = len(self._state.game_state["grid"])
            return tuple(f"[{row} {column}]" for row in range(size) for column in range(size))
        if self._family not in LISTS_MOVES:
            return ()
        boards = [
            message for _, message, kind in self._state.observations[self.current] if kind == ObservationType.GAME_BOARD
        ]
        shown = MOVES_SHOWN.search(boards[-1]) if boards else None
        return tuple(dict.fromkeys(BRACKETED.findall(shown[1]))) if shown else ()

    def fingerprint(self) -> str:
        """Text that tells how this match begins from how another one does, hidden things included."""
        hidden = {key: value for key, value in vars(self._env).items() if key != "state"}
        return json.dumps(
            [self._state.game_state, hidden, self._messages_text()], default=_plain, sort_keys=True, skipkeys=True
        )

    @property
    def _state(self) -> Any:
        return self._env.state

    def _messages_text(self) -> str:
        return "\n".join(self.messages(player, everything=True) for player in range(self._players))

    def _reason(self, actor: int, heard: int) -> str:
        told = [
            message
            for _, message, kind in self._state.observations[actor][heard:]
            if kind == ObservationType.GAME_ADMIN
        ]
        found = REASON.search(told[-1]) if told else None
        return found[1] if found and found[1] else "this is not a valid move."

    def _forget(self, heard: dict[int, int]) -> None:
        for player, count in heard.items():
            del self._state.observations[player][count:]

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Put the match's own chance in the place of the process's, and keep what it prints."""
        outer = random.getstate(), np.random.get_state()
        random.setstate(self._python_state)
        np.random.set_state(self._numpy_state)
        quiet = contextlib.redirect_stdout(io.StringIO()) if self._family in PRINTS else contextlib.nullcontext()
        try:
            with quiet:
                yield
        finally:
            self._python_state, self._numpy_state = random.getstate(), np.random.get_state()
            random.setstate(outer[0])
            np.random.set_state(outer[1])


def _plain(value: Any) -> Any:
    """What JSON has no form for: sets in order, arrays as lists, other objects by their kind."""
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return type(value).__name__


def set_up(env_id: str, players: int, seed: int) -> Match | None:
    """The match of a seed; ``None`` for one TextArena itself fails on (LightsOut divides by zero where it draws a board
    that is solved).
    """
    try:
        return Match(env_id, players, seed)
    except GameError:
        raise
    except Exception:
        return None
