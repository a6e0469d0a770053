"""Take stones: an example of a game for two players."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import InvalidAction, TextAECGame, TextAECOptions


class TakeStonesOptions(TextAECOptions):
    """``env_config`` of TakeStones."""

    stones: int = option(12, "Stones on the heap at first.", ge=2, le=50)


class TakeStones(TextAECGame):
    """Take one, two or three stones; who takes the last one wins.

    Observation: the stones that are left. Action: a number from 1 to 3.
    Reward: 1 for a win, -1 for a loss, at the end; -0.1 for a reply that is no move.
    """

    metadata: ClassVar[dict] = {"name": "take_stones_v0", "is_parallelizable": False, "render_modes": ["ansi"]}
    Options: ClassVar[type[TextAECOptions]] = TakeStonesOptions
    options: TakeStonesOptions
    seats: ClassVar[Mapping[str, str]] = {"player_0": "first", "player_1": "second"}

    @property
    def rules(self) -> str:
        return (
            "Two players take stones from a heap in turn: 1, 2 or 3. Who takes the last stone wins. "
            "Reply with one number."
        )

    def start(self) -> None:
        self._left = self.options.stones
        self._moves = 0

    def player_to_move(self) -> str:
        return f"player_{self._moves % 2}"

    def view(self, agent: str) -> str:
        return f"Stones left: {self._left}."

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        if self.finished or agent != self.player_to_move():
            return ()
        return tuple(str(n) for n in range(1, min(3, self._left) + 1))

    def read_move(self, text: str) -> int:
        if text not in ("1", "2", "3") or int(text) > self._left:
            raise InvalidAction(f"reply with a number from 1 to {min(3, self._left)}.")
        return int(text)

    def play_move(self, agent: str, move: int) -> None:
        self._left -= move
        self._moves += 1

    @property
    def finished(self) -> bool:
        return self._left == 0

    def results(self) -> Mapping[str, float]:
        last = f"player_{(self._moves - 1) % 2}"
        return {agent: 1.0 if agent == last else -1.0 for agent in self.seats}

    def forfeit_results(self, agent: str) -> Mapping[str, float]:
        return {each: -1.0 if each == agent else 1.0 for each in self.seats}

    def expert_action(self, agent: str) -> str | None:
        """Leave a multiple of four, where that can be done."""
        return str(self._left % 4 or 1)
