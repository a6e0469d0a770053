"""TextNav: find one's way in a house and run an errand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.games.adapted.text_nav.house import House, HousePlan
from rllib_lmgame.settings.schema import option

GOAL_REWARD = 1.0

RULES = """You walk through a house and run an errand. Reply with one command. Commands are:
look, inventory, go north (or east, south, west), examine X, open X, close X, unlock X with Y, lock X with Y, take X, \
take X from Y, drop X,
put X on Y, insert X into Y, eat X. Doors and boxes that are locked need the key that fits.
The errand must be done within {turns} turns; doing it gives 1."""


@dataclass(frozen=True)
class TextNavOptions(TextGameOptions):
    """``env_config`` of TextNav."""

    max_turns: int = option(20, "Replies per episode.", low=1)
    observation: str = option(
        "full",
        "The whole house and what one carries, or the room one is in and what came of the last command.",
        choices=("full", "partial"),
    )
    rooms: int = option(4, "Rooms of the house.", low=2, high=12)
    objects: int = option(6, "Things in the house, furniture included.", low=1, high=20)
    quest_length: int = option(4, "Commands the errand takes; a house may allow only a shorter one.", low=1, high=8)
    brief_errand: bool = option(False, "Name the end of the errand alone, not every step.")
    houses: int = option(
        500,
        "Different houses; the seed chooses one. Each is generated once per process and kept.",
        low=30,
        high=100_000,
    )


class TextNav(TextGame):
    """An errand in a house made by TextWorld.

    Observation: ``full``, every room with what is in it (also in closed things) and where its ways lead; ``partial``,
        the room one is in (closed things keep their secret). Both begin with what came of the last command and the
        errand.
    Action: a TextWorld command, as ``go east`` or ``unlock chest with brass key``.
    Reward: 1 when the errand is done, 0 otherwise; -0.1 for what is no possible command.
    Horizon: 20 replies (LMRL-Gym's text-nav game, of which this is the larger relative: houses are not one but many).
        An errand that cannot be done any more, because what it needs was eaten, ends the game.
    Levels: house number 0 to ``houses`` - 1 with the given numbers of rooms and things; the number decides the split.
        Generating one takes some 0.06 s of processor time, the first one in a process 2 s more.
    Speed: about 1,000 replies a second, nearly all of it TextWorld's inference.
    Solver: TextWorld's own commands to the goal from the current state.
    """

    variants = (
        Variant("lmgame/TextNav-v0", (-1.4, 1.0), "An errand in a house made by TextWorld, all of it in view."),
        Variant(
            "lmgame/TextNavPartial-v0",
            (-1.4, 1.0),
            "An errand in a house made by TextWorld, one room in view.",
            {"observation": "partial"},
        ),
    )
    extra = "textworld"
    Options: ClassVar[type[TextGameOptions]] = TextNavOptions
    options: TextNavOptions

    @property
    def rules(self) -> str:
        return RULES.format(turns=self.options.max_turns)

    def levels(self, rng: random.Random) -> Iterator[HousePlan]:
        chosen = self.options
        while True:
            yield HousePlan(
                rng.randrange(chosen.houses), chosen.rooms, chosen.objects, chosen.quest_length, chosen.brief_errand
            )

    def level_key(self, level: HousePlan) -> str:
        return f"text_nav {level.seed} {level.rooms} {level.objects} {level.quest_length}"

    def start(self, level: HousePlan) -> None:
        self._house = House(level)
        self._commands = self._house.commands()

    def board(self) -> str:
        house = self._house
        errand = f"Errand: {house.errand}"
        if house.won:
            return f"{self._said}\nThe errand is done."
        seen = f"{house.map()}\n{house.inventory()}" if self.options.observation == "full" else house.room()
        end = "\nThe errand cannot be done any more." if house.lost else ""
        return "\n".join(part for part in (self._said, errand, seen) if part) + end

    def legal_actions(self) -> tuple[str, ...]:
        return self._commands

    def read_move(self, text: str) -> str:
        command = " ".join(text[:200].strip().rstrip(".!").split())
        meant = {known.lower(): known for known in self._commands}.get(command.lower())
        if meant is None:
            shown = command[:60] or "an empty reply"
            raise InvalidAction(
                f"{shown!r} is not possible here; use a command of the rules with the names as they are shown."
            )
        return meant

    def play_move(self, move: str) -> float:
        self._said = self._house.do(move)
        self._commands = self._house.commands()
        return GOAL_REWARD if self.success else 0.0

    @property
    def success(self) -> bool:
        return self._house.won

    @property
    def finished(self) -> bool:
        return self._house.won or self._house.lost

    @property
    def solver_wins(self) -> bool:
        return self.options.quest_length <= self.options.max_turns

    def solve(self) -> list[str] | None:
        return self._house.winning_commands()
