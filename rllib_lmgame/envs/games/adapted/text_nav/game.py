"""TextNav: find one's way in a house and run an errand."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.contract.splits import split_few
from rllib_lmgame.envs.games.adapted.text_nav.house import House, HousePlan
from rllib_lmgame.envs.games.adapted.text_nav.story import HOUSE, Story, StoryFile, house_of, need_alfworld, story_files
from rllib_lmgame.envs.support.listed_levels import ListedLevels

GOAL_REWARD = 1.0

RULES = """You walk through a house and run an errand. Reply with one command. Commands are:
look, inventory, go north (or east, south, west), examine X, open X, close X, unlock X with Y, lock X with Y, take X, \
take X from Y, drop X,
put X on Y, insert X into Y, eat X. Doors and boxes that are locked need the key that fits.
The errand must be done within {turns} turns; doing it gives 1."""

STORY_RULES = """You are in a story and do what it asks for. Reply with one command in plain words, as: look, \
inventory, take X from Y, go to X, open X.
You have {turns} turns; reaching the goal gives 1."""

FEW = 100
"""Fewer files than that are split one by one."""


class TextNavOptions(TextGameOptions):
    """``env_config`` of TextNav."""

    max_turns: int = option(20, "Replies per episode.", ge=1)
    observation: str = option(
        "full",
        "The whole house and what one carries, or the room one is in and what came of the last command.",
        choices=("full", "partial"),
    )
    rooms: int = option(4, "Rooms of the house.", ge=2, le=12)
    objects: int = option(6, "Things in the house, furniture included.", ge=1, le=20)
    quest_length: int = option(4, "Commands the errand takes; a house may allow only a shorter one.", ge=1, le=8)
    houses: int = option(
        500, "Different houses; the seed chooses one. Each is generated once per process and kept.", ge=30, le=100_000
    )
    files: str | None = option(
        None,
        "Play games of TextWorld or ALFWorld from files in place of generated houses: a `.z8`, `.json` or `.tw-pddl` "
        "file, or a folder of these.",
        path=True,
    )


class TextNav(ListedLevels):
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
    Files: with ``files`` the levels are games in files. Those of ``tw-make`` are ``.z8`` with the ``.json`` beside it,
        told by TextWorld's interpreter, or ``.json`` alone, shown as houses are here. Other Z-machine stories are
        played where the interpreter knows their goal. ALFWorld's are ``.tw-pddl``, told by its text engine (extra
        ``alfworld``; after ``alfworld-download`` they lie in ``~/.cache/alfworld/json_2.1.1``). The options of houses
        say nothing then. Any command may be given to a story, and what it says is the observation. ALFWorld's folders
        ``train``, ``valid_seen`` and ``valid_unseen`` are the training, validation and test split; otherwise the name
        of the file decides. What ALFWorld leaves out (movable and sliced things, games without a solution) is left out.
    Speed: about 1,000 replies a second, nearly all of it TextWorld's inference.
    Solver: TextWorld's own commands to the goal from the current state; a planner's for ALFWorld's games.
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
    lists_levels = "files"
    Options: ClassVar[type[TextGameOptions]] = TextNavOptions
    options: TextNavOptions

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        self._files = story_files(self.options.files) if self.options.files is not None else []
        need_alfworld(self._files)
        self.slow_calls = bool(self._files)
        self._house: House | Story | None = None
        self._splits = split_few(file.name for file in self._files) if 3 <= len(self._files) < FEW else {}
        self.check_split()

    @property
    def rules(self) -> str:
        return (STORY_RULES if self._files else RULES).format(turns=self.options.max_turns)

    @property
    def listed(self) -> Sequence[StoryFile]:
        return self._files

    def made_up(self, rng: random.Random) -> Iterator[HousePlan]:
        chosen = self.options
        while True:
            yield HousePlan(rng.randrange(chosen.houses), chosen.rooms, chosen.objects, chosen.quest_length)

    def level_key(self, level: HousePlan | StoryFile) -> str:
        if isinstance(level, StoryFile):
            return f"text_nav {level.name}"
        return f"text_nav {level.seed} {level.rooms} {level.objects} {level.quest_length}"

    def split_of_level(self, digest: str, level: HousePlan | StoryFile) -> str:
        if isinstance(level, HousePlan):
            return super().split_of_level(digest, level)
        return level.split or self._splits.get(level.name) or super().split_of_level(digest, level)

    def category(self, level: HousePlan | StoryFile) -> str:
        return level.task if isinstance(level, StoryFile) else ""

    def start(self, level: HousePlan | StoryFile) -> None:
        self.close()
        if isinstance(level, HousePlan):
            self._house = House(level)
        else:
            self._house = house_of(level.path) if level.path.endswith(HOUSE) else Story(level.path)
        self._commands = self.house.commands()

    @property
    def house(self) -> House | Story:
        """What is in play."""
        assert self._house is not None
        return self._house

    def close(self) -> None:
        """Free the interpreter of a story."""
        if isinstance(self._house, Story):
            self._house.close()
        self._house = None

    def board(self) -> str:
        house = self.house
        errand = f"Errand: {house.errand}" if house.errand else ""
        if house.won:
            return f"{self._said}\nThe errand is done."
        if isinstance(house, Story):
            seen = "" if self._said else house.said
            errand = "" if seen else errand  # It begins with it.
        else:
            seen = f"{house.map()}\n{house.inventory()}" if self.options.observation == "full" else house.room()
        end = "\nThe errand cannot be done any more." if house.lost else ""
        return "\n".join(part for part in (self._said, errand, seen) if part) + end

    def legal_actions(self) -> tuple[str, ...]:
        return self._commands

    def read_move(self, text: str) -> str:
        command = " ".join(text[:200].strip().rstrip(".!").split())
        meant = {known.lower(): known for known in self._commands}.get(command.lower())
        if meant is None and isinstance(self.house, Story) and command and command.isprintable():
            return command
        if meant is None:
            shown = command[:60] or "an empty reply"
            raise InvalidAction(
                f"{shown!r} is not possible here; use a command of the rules with the names as they are shown."
            )
        return meant

    def play_move(self, move: str) -> float:
        self._said = self.house.do(move)
        self._commands = self.house.commands()
        return GOAL_REWARD if self.success else 0.0

    @property
    def success(self) -> bool:
        return self.house.won

    @property
    def finished(self) -> bool:
        return self.house.won or self.house.lost

    @property
    def solver_wins(self) -> bool:
        return not self._files and self.options.quest_length <= self.options.max_turns

    def solve(self) -> list[str] | None:
        return self.house.winning_commands()
