"""BabyAI: texts, commands, levels, expert."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("minigrid")

from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Box, Door, Key
from minigrid.envs.babyai.core.verifier import GoToInstr, ObjDesc, OpenInstr, PickupInstr, PutNextInstr

from rllib_lmgame.envs.games.adapted.babyai import bot
from rllib_lmgame.envs.games.adapted.babyai.game import BabyAI
from tests.envs.begun import begun


def world(things, agent: tuple[int, int, int], carrying=None, level: str = "GoToLocal") -> BabyAI:
    """A room of 8x8 with these things in it (by column and row), and the agent at column, row and direction (0 is to
    the east).
    """
    game = begun(BabyAI(level=level, show_rules=False, split="all"))
    env = game._env
    env.grid = Grid(8, 8)
    env.grid.wall_rect(0, 0, 8, 8)
    for place, thing in things.items():
        env.grid.set(*place, thing)
    env.agent_pos, env.agent_dir, env.carrying = agent[:2], agent[2], carrying
    game._look()
    return game


def lines(game: BabyAI) -> list[str]:
    """What is seen, without the goal."""
    return game.board().splitlines()[1:]


def test_objects_are_told_from_where_the_agent_stands_and_numbered_by_distance() -> None:
    game = world(
        {(4, 3): Ball("red"), (6, 3): Ball("red"), (3, 1): Key("blue"), (5, 4): Box("grey"), (1, 3): Ball("green")},
        (2, 3, 0),
    )
    assert lines(game) == [
        "There is a red ball 1, 2 steps right in front of you. There is a blue key 1, 1 step in front of you and 2 "
        "steps to your left. There is a grey box 1, 3 steps in front of you and 1 step to your right. There is a red "
        "ball 2, 4 steps right in front of you.",
        "There is a wall 3 steps to your left.",
        "You are not carrying anything.",
    ]


def test_walls_and_closed_doors_hide_what_is_behind() -> None:
    wall = {(4, row): Door("yellow", is_locked=row == 3) for row in range(1, 7)}
    game = world({**wall, (6, 3): Ball("red")}, (2, 3, 0))
    assert "yellow door 1 (locked), 2 steps right in front of you" in game.board()
    assert "(closed)" in game.board() and "red ball" not in game.board()
    assert "There are walls 3 steps to your left" not in game.board()


def test_go_to_walks_around_and_faces_the_object() -> None:
    game = world({(5, 3): Ball("red"), (3, 3): Box("grey")}, (2, 3, 0))
    game.step("go to red ball 1")
    assert "There is a red ball 1, 1 step right in front of you." in game.board()
    before = game._env.step_count
    assert not game.step("Go to  RED ball 1.")[4]["invalid_action"]
    assert game._env.step_count == before + 1


def test_a_locked_door_needs_its_key() -> None:
    wall = {(4, row): Door("yellow", is_locked=True) for row in range(1, 7)}
    game = world(wall, (3, 3, 0))
    assert not [command for command in game.legal_actions() if command.startswith("go through") or command == "toggle"]
    assert "you need the yellow key" in game.step("go through yellow door 1")[0]
    game = world(wall, (3, 3, 0), carrying=Key("blue"))
    assert "you need the yellow key" in game.step("toggle")[0]
    game = world(wall, (3, 3, 0), carrying=Key("yellow"))
    assert not game.step("go through yellow door 1")[4]["invalid_action"]
    assert tuple(map(int, game._env.agent_pos)) == (5, 3)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", "the actions are"),
        ("go to purple box 9", "you see no 'purple box 9'"),
        ("go through red ball 1", "is no door"),
        ("toggle", "no door or box"),
        ("drop", "not carrying"),
        ("move forward", "something is in the way"),
        ("go to " * 2000, "you see no"),
    ],
)
def test_what_cannot_be_done_is_explained_and_changes_nothing(reply: str, said: str) -> None:
    game = world({(3, 3): Ball("red")}, (2, 3, 0))
    before = game.board()
    observation, reward, _, _, info = game.step(reply)
    assert info["invalid_action"] and said in observation and reward == pytest.approx(-0.1)
    assert game.board() == before and game._env.step_count == 0


RED_BALL, BLUE_KEY = ObjDesc("ball", "red"), ObjDesc("key", "blue")
KNOWN = {
    "face it": (GoToInstr(RED_BALL), {(5, 3): Ball("red")}, ["go to red ball 1"], 2),
    "face it step by step": (GoToInstr(RED_BALL), {(5, 3): Ball("red")}, ["move forward", "move forward"], 2),
    "take it": (PickupInstr(BLUE_KEY), {(4, 3): Key("blue")}, ["pick up blue key 1"], 2),
    "open it": (OpenInstr(ObjDesc("door", "red")), {(7, 3): Door("red")}, ["go to red door 1", "toggle"], 5),
    "put it beside": (
        PutNextInstr(BLUE_KEY, RED_BALL),
        {(4, 3): Key("blue"), (2, 2): Ball("red")},
        ["pick up blue key 1", "turn left", "drop"],
        4,
    ),
    "take nothing else": (
        PickupInstr(RED_BALL, strict=True),
        {(4, 3): Key("blue"), (2, 1): Ball("red")},
        ["pick up blue key 1"],
        None,
    ),
    "open nothing else": (
        OpenInstr(ObjDesc("door", "red"), strict=True),
        {(7, 3): Door("yellow"), (2, 7): Door("red")},
        ["go through yellow door 1"],
        None,
    ),
}
"""Goals, rooms with the agent at column 2, row 3, looking east, replies, and after how many of the engine's steps the
goal is reached; ``None``: it is missed.
"""


@pytest.mark.parametrize("what", KNOWN)
def test_known_episodes_pay_what_the_rules_say(what: str) -> None:
    """1 - 0.9 t/T, T being 64 for one room."""
    goal, things, replies, steps = KNOWN[what]
    game = world({place: copy.copy(thing) for place, thing in things.items()}, (2, 3, 0))
    game._env.instrs = goal
    goal.reset_verifier(game._env)
    *before, last = [game.step(reply) for reply in replies]
    assert [step[1:4] for step in before] == [(0.0, False, False)] * len(before)
    reward, terminated, truncated, info = last[1:]
    assert reward == (0.0 if steps is None else pytest.approx(1 - 0.9 * steps / 64))
    assert (terminated, truncated, info["success"]) == (True, False, steps is not None)
    assert game.board().startswith("The goal was missed." if steps is None else "The goal is reached.")


def test_a_bot_that_plans_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bot, "MAX_SEARCHES", 0)
    game = begun(BabyAI(split="all", show_rules=False), seed=2)
    assert game.expert_action() == game.legal_actions()[0]


@pytest.mark.parametrize("number", range(1, 40))
def test_every_level_can_be_begun(number: int) -> None:
    game = BabyAI(level=number, show_rules=False)
    observation, info = game.reset(seed=number)
    assert observation.startswith("Your goal: ") and info["legal_actions"]
    assert not game.step(info["legal_actions"][-1])[4]["invalid_action"]
