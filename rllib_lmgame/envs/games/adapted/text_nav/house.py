"""Houses made by TextWorld's generator, played by its logic.

Only TextWorld's generator and its inference engine are used, not the Inform 7 compiler and interpreter behind its
``.z8`` files. Compiling a house takes seconds, generating one less than a tenth of a second, and the texts here say the
same in every process. Commands, what they do, quests and the way to win are TextWorld's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from textworld import GameOptions as TextWorldOptions
from textworld.generator import make_game
from textworld.generator.data import KnowledgeBase
from textworld.generator.game import Game, GameProgression
from textworld.generator.inform7 import Inform7Game
from textworld.logic import Proposition

HOUSES_KEPT = 512
"""Generated houses a process remembers."""

DIRECTIONS = ("north", "east", "south", "west")
STATES = ("open", "closed", "locked")


@dataclass(frozen=True)
class HousePlan:
    """What a house is generated from; the same plan gives the same house in every process.

    Attributes:
        seed: Which of the houses.
        rooms: Rooms.
        objects: Things, furniture included.
        quest_length: Commands the errand takes.
    """

    seed: int
    rooms: int
    objects: int
    quest_length: int


@lru_cache(HOUSES_KEPT)
def loaded(path: str) -> tuple[Game, Inform7Game]:
    """The house of a ``.json`` file of TextWorld's, as :func:`generated` gives it."""
    game = Game.load(path)
    return game, Inform7Game(game)


@lru_cache(HOUSES_KEPT)
def generated(plan: HousePlan) -> tuple[Game, Inform7Game]:
    """The house of a plan, and what puts its actions into words."""
    options = TextWorldOptions()
    options.kb = KnowledgeBase.default()  # Parsing a fresh one takes two seconds.
    options.nb_rooms, options.nb_objects, options.quest_length = plan.rooms, plan.objects, plan.quest_length
    options.seeds = plan.seed
    game = make_game(options)
    return game, Inform7Game(game)


class House:
    """A house in play.

    Args:
        plan: What to generate it from, or the ``.json`` file that holds it.
    """

    def __init__(self, plan: HousePlan | str) -> None:
        self._game, self._words = loaded(plan) if isinstance(plan, str) else generated(plan)
        self._progress = GameProgression(self._game, track_quests=True)
        self._rooms = sorted(info.id for info in self._game.infos.values() if info.type == "r")
        self._read()

    @property
    def errand(self) -> str:
        """What to do, in TextWorld's words."""
        return re.sub(r"\s+", " ", self._game.objective).strip()

    @property
    def won(self) -> bool:
        """The errand is done."""
        return bool(self._progress.completed)

    @property
    def lost(self) -> bool:
        """The errand cannot be done any more."""
        return bool(self._progress.failed)

    def commands(self) -> tuple[str, ...]:
        """Commands that can be given now, sorted."""
        return tuple(sorted(self._actions))

    def winning_commands(self) -> list[str] | None:
        """Commands that finish the errand from here, or ``None`` if nothing does."""
        policy = self._progress.winning_policy
        return None if policy is None else [str(command) for command in self._words.gen_commands_from_actions(policy)]

    def do(self, command: str) -> str:
        """Carry out one of :meth:`commands`; returns what a player is told."""
        action = self._actions[command]
        self._progress.update(action)
        self._read()
        verb, _, thing = command.partition(" ")
        if verb == "inventory":
            return self.inventory()
        if verb == "look":
            return "You look around."
        if verb == "examine":
            return self._examined(thing)
        return f"You {command}."

    def inventory(self) -> str:
        """What the player carries."""
        return f"You carry {_listed(self._with_article(thing) for thing in self._inside.get('I', ()))}."

    def room(self) -> str:
        """The room the player is in: things, doors and ways out."""
        things, ways = self._things(self._here, hidden=False), self._exits(self._here, named=False)
        return f"You are in the {self._name(self._here)}.\nThere is {things} here.\n{ways}"

    def map(self) -> str:
        """All rooms, with everything in them, and where the ways lead."""
        lines = []
        for room in self._rooms:
            here = " (you are here)" if room == self._here else ""
            lines.append(
                f"The {self._name(room)}{here}: {self._things(room, hidden=True)}. {self._exits(room, named=True)}"
            )
        return "\n".join(lines)

    def _read(self) -> None:
        """Sort the facts: where everything is, how it is, where the ways lead."""
        actions = self._progress.valid_actions
        self._actions = dict(zip(self._words.gen_commands_from_actions(actions), actions, strict=True))
        self._inside: dict[str, list[str]] = {}
        self._state: dict[str, str] = {}
        self._ways: dict[str, dict[str, str]] = {}
        self._doors: dict[tuple[str, str], str] = {}
        for fact in sorted(self._progress.state.facts, key=str):
            self._read_fact(fact)

    def _read_fact(self, fact: Proposition) -> None:
        names = [variable.name for variable in fact.arguments]
        if fact.name in ("at", "in", "on"):
            if names[0] == "P":
                self._here = names[1]
            else:
                self._inside.setdefault(names[1], []).append(names[0])
        elif fact.name in STATES:
            self._state[names[0]] = fact.name
        elif fact.name.removesuffix("_of") in DIRECTIONS:
            self._ways.setdefault(names[1], {})[fact.name.removesuffix("_of")] = names[0]
        elif fact.name == "link":
            self._doors[names[0], names[2]] = names[1]

    def _name(self, entity: str) -> str:
        return str(self._game.infos[entity].name)

    def _with_article(self, entity: str) -> str:
        name = self._name(entity)
        return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"

    def _described(self, entity: str, hidden: bool) -> str:
        """A thing with its state and what is in or on it; ``hidden`` tells what closed things hold, too."""
        kind, state = str(self._game.infos[entity].type), self._state.get(entity)
        contents = _listed(self._with_article(thing) for thing in self._inside.get(entity, ()))
        if kind == "s":
            return f"{self._with_article(entity)} ({contents} on it)"
        if state is None:
            return self._with_article(entity)
        inside = f", {contents} in it" if state == "open" or hidden else ""
        return f"{self._with_article(entity)} ({state}{inside})"

    def _things(self, room: str, hidden: bool) -> str:
        return _listed((self._described(thing, hidden) for thing in self._inside.get(room, ())), between="; ")

    def _exits(self, room: str, named: bool) -> str:
        ways = []
        for direction in DIRECTIONS:
            target = self._ways.get(room, {}).get(direction)
            if target is not None:
                door = self._doors.get((room, target))
                through = f" through {self._with_article(door)} ({self._state[door]})" if door else ""
                ways.append(f"{direction}{f' to the {self._name(target)}' if named else ''}{through}")
        return f"Ways out: {_listed(ways, between='; ')}."

    def _examined(self, name: str) -> str:
        entity = next((key for key, info in self._game.infos.items() if info.name == name), None)
        return f"You see {self._described(entity, hidden=False)}." if entity else f"You examine {name}."


def _listed(parts: Iterable[str], between: str = ", ") -> str:
    return between.join(parts) or "nothing"
