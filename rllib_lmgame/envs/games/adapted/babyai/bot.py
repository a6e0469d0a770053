"""The planning bot of ``minigrid`` as an expert that speaks in commands."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from minigrid.envs.babyai.core.verifier import ObjDesc
from minigrid.utils.baby_ai_bot import BabyAIBot, GoNextToSubgoal, Subgoal

from rllib_lmgame.envs.games.adapted.babyai.commands import Plan, all_commands
from rllib_lmgame.envs.games.adapted.babyai.sight import FORWARD, LEFT, RIGHT, TOGGLE, Pose, Sight

MAX_ACTIONS = 3_000
MAX_SEARCHES = 200
"""Searches of the bot for one action: where it has boxed itself in it would plan and drop the same plan for ever."""

WALKING = (LEFT, RIGHT, FORWARD)
END = -1
"""Action of the step after the last one."""

VECTORS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""Steps (column, row) of the engine's directions."""

Place = tuple[int, int, int]
"""Column, row and direction."""


class Step(NamedTuple):
    """A step of the bot: where it is before it, whether it carries something then, and the engine's action."""

    before: Place
    carrying: bool
    action: int


class BotLost(Exception):
    """The bot finds no plan."""


class BoxOpened(Exception):
    """A bot that was sent to open a box has done so."""


class OpenBox(Subgoal):
    """Open the box that is faced."""

    def replan_before_action(self) -> int:
        """The action."""
        return TOGGLE

    def replan_after_action(self, action_taken: int | None) -> None:
        """Called when the action has been done."""
        raise BoxOpened


class BoundedBot(BabyAIBot):
    """The bot, which raises :class:`BotLost` instead of planning for ever and does not look for a key behind the door
    that needs it.
    """

    def replan(self, action_taken: int | None = None) -> int:
        """The next action."""
        self._searches = 0
        return int(super().replan(action_taken))

    def look_for_box(self) -> None:
        """Go and open the nearest box instead of doing what the goal says."""
        boxes = ObjDesc("box")
        boxes.find_matching_objs(self.mission)
        self.stack = [OpenBox(self), GoNextToSubgoal(self, boxes)]

    def _breadth_first_search(self, *args: Any, **kwargs: Any) -> Any:
        self._searches += 1
        if self._searches > MAX_SEARCHES:
            raise BotLost
        return super()._breadth_first_search(*args, **kwargs)

    def _shortest_path(self, accept_fn: Any, try_with_blockers: bool = False) -> Any:
        if accept_fn.__name__ == "unopened_door":  # The bot explores: doors whose key it explores for do not help.
            awaited = [subgoal.datum for subgoal in self.stack if getattr(subgoal, "reason", None) == "Open"]
            return super()._shortest_path(
                lambda pos, cell: accept_fn(pos, cell) and all(cell is not door for door in awaited), try_with_blockers
            )
        return super()._shortest_path(accept_fn, try_with_blockers)


def pose_of(env: Any) -> Place:
    """Where the agent is."""
    return int(env.agent_pos[0]), int(env.agent_pos[1]), int(env.agent_dir)


def bot_walk(env: Any) -> list[Step] | None:
    """Steps of the bot from here to the goal, walked in a copy of the world, and a last one with action ``END``;
    ``None`` if it fails.

    Where the bot finds no way it tries again behind the opening of the nearest box, which it never does of itself.
    """
    now, before = env, list[Step]()
    while True:
        world = copy.deepcopy(now)
        steps, reached = walked(world, BoundedBot(world))
        if reached:
            return [*before, *steps, step_of(world, END)]
        now = copy.deepcopy(now)
        seeker = BoundedBot(now)
        seeker.look_for_box()
        steps, opened = walked(now, seeker)
        if not opened:
            return None
        before += steps


def walked(world: Any, bot: BoundedBot) -> tuple[list[Step], bool]:
    """What a bot does in its world, and whether it does what it wants to: reach the goal, or open a box."""
    steps: list[Step] = []
    try:
        for _ in range(MAX_ACTIONS):
            action = bot.replan()
            steps.append(step_of(world, action))
            _, reward, ended, cut, _ = world.step(action)
            if ended or cut:
                return steps, reward > 0
    except BoxOpened:
        return steps, True
    except Exception:  # Where the bot does not know what to do, an assertion or a look-up of its own fails.
        pass
    return steps, False


def step_of(world: Any, action: int) -> Step:
    """A step of the bot that is about to be done."""
    return Step(pose_of(world), world.carrying is not None, action)


def longest_command(walk: list[Step], sight: Sight, carrying: Any) -> tuple[str, int]:
    """The command that says most of a walk's next steps, and how many it says."""
    said = [(steps_of(plan, walk), command) for command, plan in all_commands(sight, carrying)]
    used, command = max(said, key=lambda entry: entry[0], default=(0, ""))
    assert used, f"no command says the bot's action {walk[0].action}"
    return command, used


def steps_of(plan: Plan, walk: list[Step]) -> int:
    """How many of the next steps of a walk a plan stands for: it walks where they walk, and then does the same; 0 if it
    does not.
    """
    goal = absolute(walk[0].before, plan.pose)
    for index, step in enumerate(walk):
        then = tuple(later.action for later in walk[index : index + len(plan.then)])
        if step.before == goal and then == plan.then:
            return index + len(then)
        if step.action not in WALKING:
            break
    return 0


def absolute(before: Place, pose: Pose) -> Place:
    """The place of a pose that is relative to ``before``."""
    column, row, heading = before
    (ahead_x, ahead_y), (right_x, right_y) = VECTORS[heading], VECTORS[(heading + 1) % 4]
    return (
        column + pose.ahead * ahead_x + pose.right * right_x,
        row + pose.ahead * ahead_y + pose.right * right_y,
        (heading + pose.heading) % 4,
    )
