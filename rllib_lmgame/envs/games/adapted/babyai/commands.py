"""Commands of BabyAI in text: each is a series of the engine's actions, as far as the agent sees its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.adapted.babyai.sight import (
    DONE,
    DROP,
    FORWARD,
    HEADINGS,
    HERE,
    LEFT,
    PICKUP,
    RIGHT,
    TOGGLE,
    Pose,
    Seen,
    Sight,
)

PRIMITIVES = {"turn left": LEFT, "turn right": RIGHT, "move forward": FORWARD, "toggle": TOGGLE, "drop": DROP}
GO_TO, PICK_UP, GO_THROUGH = "go to", "pick up", "go through"
VERBS = (GO_TO, PICK_UP, GO_THROUGH)


@dataclass(frozen=True)
class Plan:
    """What a command does.

    Attributes:
        walk: Actions that only turn and walk.
        pose: Where they lead.
        then: Actions after them.
    """

    walk: list[int] = field(default_factory=list)
    pose: Pose = HERE
    then: tuple[int, ...] = ()

    @property
    def actions(self) -> list[int]:
        """All actions."""
        return [*self.walk, *self.then]


def plan_of(command: str, sight: Sight, carrying: Any) -> Plan:
    """The engine's actions for a command.

    Raises: InvalidAction: if it is no command, or cannot be done here and now.
    """
    if command in PRIMITIVES:
        return _primitive(command, sight, carrying)
    verb = next((verb for verb in VERBS if command.startswith(verb + " ")), None)
    if verb is None:
        raise InvalidAction(
            f"the actions are {', '.join(PRIMITIVES)}, go to X, pick up X, go through X, where X is what you see, as "
            "red ball 1."
        )
    name = command[len(verb) + 1 :]
    seen = next((seen for seen in sight.objects if seen.name == name), None)
    if seen is None:
        raise InvalidAction(f"you see no {name[:40]!r}; name an object as it is described, with its number.")
    return object_plan(verb, seen, sight, carrying)


def _primitive(command: str, sight: Sight, carrying: Any) -> Plan:
    front = sight.at(1, 0)
    if command == "move forward" and not sight.can_enter(1, 0):
        raise InvalidAction("something is in the way.")
    if command == "toggle" and (front is None or front.type not in ("door", "box")):
        raise InvalidAction("there is no door or box right in front of you.")
    if command == "toggle" and front.type == "door" and front.is_locked and not _has_key(front, carrying):
        raise InvalidAction(f"the door is locked; you need the {front.color} key.")
    if command == "drop" and carrying is None:
        raise InvalidAction("you are not carrying anything.")
    if command == "drop" and front is not None:
        raise InvalidAction("there is no free place right in front of you.")
    action = PRIMITIVES[command]
    poses = {LEFT: Pose(0, 0, 3), RIGHT: Pose(0, 0, 1), FORWARD: Pose(1, 0, 0)}
    return Plan([action], poses[action]) if action in poses else Plan(then=(action,))


def object_plan(verb: str, seen: Seen, sight: Sight, carrying: Any) -> Plan:
    """The plan of a command that names an object. Raises: InvalidAction: if it cannot be done here and now."""
    way = sight.way_to_face(seen.ahead, seen.right)
    if way is None:
        raise InvalidAction(f"you see no free way to the {seen.name}.")
    if verb == PICK_UP:
        if seen.thing.type == "door":
            raise InvalidAction("a door cannot be picked up.")
        if carrying is not None:
            raise InvalidAction(f"you are carrying a {carrying.color} {carrying.type}; drop it first.")
        return Plan(*way, (PICKUP,))
    if verb == GO_THROUGH:
        return Plan(*way, _through(seen, way[1], sight, carrying))
    # Who faces the object already still takes a step, for the engine to see whether that is the goal.
    return Plan(*way, () if way[0] else (DONE,))


def _through(seen: Seen, pose: Pose, sight: Sight, carrying: Any) -> tuple[int, ...]:
    """Actions from before a door to the cell behind it (or into the door, if what is behind cannot be entered)."""
    door = seen.thing
    if door.type != "door":
        raise InvalidAction(f"the {seen.name} is no door.")
    if door.is_locked and not _has_key(door, carrying):
        raise InvalidAction(f"the {seen.name} is locked; you need the {door.color} key.")
    dx, dy = HEADINGS[pose.heading]
    behind = (seen.ahead + dx, seen.right + dy)
    blocked = sight.at(*behind) is not None and not sight.can_enter(*behind)
    opened = () if door.is_open else (TOGGLE,)
    return (*opened, FORWARD) if blocked else (*opened, FORWARD, FORWARD)


def _has_key(door: Any, carrying: Any) -> bool:
    return carrying is not None and carrying.type == "key" and carrying.color == door.color


def all_commands(sight: Sight, carrying: Any) -> list[tuple[str, Plan]]:
    """All commands that can be done here and now, with their plans."""
    found = []
    names = [*PRIMITIVES, *(f"{verb} {seen.name}" for seen in sight.objects for verb in VERBS)]
    for command in names:
        try:
            found.append((command, plan_of(command, sight, carrying)))
        except InvalidAction:
            continue
    return found
