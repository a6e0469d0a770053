"""Sokoban: rewards, budgets, levels, solver."""

from __future__ import annotations

import random
import warnings
from collections import deque

import numpy as np
import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.grids.sokoban import Sokoban
from rllib_lmgame.envs.games.grids.sokoban_rooms import Distances, Level, bits, carve, directions, inner_cells, move
from rllib_lmgame.envs.games.grids.sokoban_walks import pulled_apart, walked_room
from tests.envs.begun import begun

ONE_PUSH = ["######", "#P_X_#", "#____#", "#____#", "#__O_#", "######"]


def level(rows: list[str]) -> Level:
    """A level drawn by hand."""
    masks = dict.fromkeys("#_OXPS√", 0)
    for i, char in enumerate("".join(rows)):
        masks[char] |= 1 << i
    free = sum(mask for char, mask in masks.items() if char != "#")
    targets = masks["O"] | masks["S"] | masks["√"]
    return Level(len(rows), len(rows[0]), free, targets, masks["X"] | masks["√"], masks["P"] | masks["S"], 0)


def game_of(rows: list[str], **config: object) -> Sokoban:
    """A game at a level drawn by hand."""
    return begun(Sokoban(dim_room=(len(rows), len(rows[0])), show_rules=False, **config), level=level(rows))


@pytest.mark.parametrize("reply", ["up || RIGHT", "Up||Right", "  Up  ||\nRight ", "Up || Right."])
def test_replies_that_are_understood(reply: str) -> None:
    info = game_of(ONE_PUSH).step(reply)[4]
    assert (info["invalid_action"], info["actions_taken"]) == (False, 2)


@pytest.mark.parametrize(
    "reply", ["", "||", "Up ||", "Up Right", "Up, Right", "Jump", "Up || Jump", "I go Up", "<answer>Up</answer>"]
)
def test_a_reply_is_read_as_a_whole_or_not_at_all(reply: str) -> None:
    game = game_of(ONE_PUSH)
    before = game.board()
    observation, reward, _, _, info = game.step(reply)
    assert (reward, info["invalid_action"], info["actions_taken"]) == (pytest.approx(-0.1), True, 0)
    assert observation.startswith("Invalid action: ") and observation.endswith(before)


def test_solving_with_the_last_action_is_an_end_and_not_a_cut() -> None:
    game = game_of(
        ["######", "#PXO_#", "######", "######", "######", "######"],
        max_actions=1,
        max_turns=1,
        min_distance=1,
        max_distance=1,
    )
    assert game.step("Right")[2:4] == (True, False)


def breadth_first(start: Level) -> int | None:
    """Moves of the shortest solution, searched forwards: the independent reference."""
    queue, seen = deque([(start.boxes, start.player, 0)]), {(start.boxes, start.player)}
    while queue:
        boxes, player, depth = queue.popleft()
        if boxes == start.targets:
            return depth
        for step in directions(start.width).values():
            after = move(start.free, boxes, player, step)
            if after and after not in seen:
                seen.add(after)
                queue.append((*after, depth + 1))
    return None


@pytest.mark.parametrize(
    "config", [{}, {"dim_room": (8, 8)}, {"dim_room": (8, 8), "num_boxes": 2}], ids=["6x6", "8x8", "two boxes"]
)
def test_the_solver_takes_the_fewest_moves(config: dict) -> None:
    game = Sokoban(show_rules=False, **config)
    for seed in range(60):
        start = level(game.reset(seed=seed)[0].splitlines())
        path = game.solve() or []
        assert len(path) == breadth_first(start) and 3 <= len(path) <= 10


def test_distances_agree_with_a_search_forwards_everywhere() -> None:
    known = []
    for seed in range(3):
        rng = random.Random(seed)
        free = carve(rng, 6, 6)
        cells = [1 << i for i in range(36) if free >> i & 1]
        target = rng.choice(cells)
        distances = Distances(free, target, 6)
        states = [(box, player) for box in cells for player in cells if box != player]
        found = {state: breadth_first(Level(6, 6, free, target, *state, 0)) for state in states}
        assert {state: distances.of(*state) for state in states} == found
        known += found.values()
    assert None in known and max(d for d in known if d is not None) > 8


def test_the_solver_gives_up_on_a_stuck_box_and_the_expert_plays_on() -> None:
    game = game_of(["######", "#X__P#", "#____#", "#__O_#", "#____#", "######"])
    assert game.solve() is None
    assert game.expert_action() == "Down"


def test_rooms_are_connected_and_inside_the_border() -> None:
    rng = random.Random(1)
    for _ in range(200):
        free = carve(rng, 7, 9)
        assert free & ~inner_cells(7, 9) == 0
        reached = free & -free
        while True:
            wider = (reached | reached << 1 | reached >> 1 | reached << 9 | reached >> 9) & free
            if wider == reached:
                break
            reached = wider
        assert reached == free


@pytest.mark.parametrize("config", [{}, {"dim_room": (8, 8), "num_boxes": 2}])
def test_the_rules_are_those_of_gym_sokoban(config: dict) -> None:
    """Random moves in our levels: the board of gym-sokoban goes through the same states and pays the same rewards."""
    game = Sokoban(
        show_rules=False, symbols="0123456", max_turns=50, max_actions=None, max_distance=10, split="all", **config
    )
    chance = random.Random(0)
    pushed = solved = 0
    for seed in range(150):
        game.reset(seed=seed)
        reference = gym_sokoban_at(game.board(), config.get("num_boxes", 1))
        moves = game.solve() if seed % 3 == 0 else chance.choices(game.options.moves, k=40)
        for name in moves:
            boxes = reference.room_state == 4
            reward, done = gym_sokoban_step(reference, 1 + game.options.moves.index(name))
            observation, ours, terminated, _, _ = game.step(name)
            # gym-sokoban draws a player on a target as a player.
            assert observation.replace("6", "5") == "\n".join("".join(map(str, row)) for row in reference.room_state)
            assert (ours, terminated) == (pytest.approx(reward), done)
            pushed += (boxes != (reference.room_state == 4)).any()
            solved += done
            if done:
                break
    assert pushed > 150 and solved >= 50


@pytest.mark.parametrize("boxes", [1, 2])
def test_walked_rooms_and_starts_are_those_of_gym_sokoban(boxes: int) -> None:
    theirs, found = gym_sokoban("room_utils"), []
    for seed in range(40):
        random.seed(seed)
        room, rng = theirs.room_topology_generation((6, 6), 0.35, 20), random.Random(seed)
        free = walked_room(rng, 6, 6)
        assert [free >> cell & 1 for cell in range(36)] == room.ravel().tolist()
        if free.bit_count() > boxes + 1:
            player, *targets = rng.sample(bits(free), boxes + 1)
            room.flat[[target.bit_length() - 1 for target in targets]] = 2
            state = np.where(room == 2, 4, room)
            state.flat[player.bit_length() - 1] = 5
            drawn, score, _ = theirs.reverse_playing(state, room)
            start = pulled_apart(free, sorted(targets), player, 6, 300)
            masks = [sum(1 << int(cell) for cell in np.flatnonzero(kind)) for kind in (drawn % 5 > 2, drawn == 5)]
            assert start == (tuple(masks) if score > 0 else None)
            found.append(start)
    assert sum(start is not None for start in found) >= 10


def test_a_search_for_rooms_that_hardly_occur_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllib_lmgame.envs.games.grids.sokoban.MAX_SEARCH_S", 0.05)
    rare = {"dim_room": (12, 12), "num_boxes": 2, "min_distance": 100, "max_actions": None, "max_turns": 30}
    with pytest.raises(ConfigError, match=r"12x12 with num_boxes=2 was found .* 100 to 150 moves; .*dim_room"):
        next(Sokoban(generator="gym_sokoban", **rare).levels(random.Random(0)))


def gym_sokoban(module: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(f"gym_sokoban.envs.{module}")


def gym_sokoban_at(room: str, num_boxes: int):
    """The real engine with one of our rooms (it has no way to be given one, so its state is set)."""
    engine = gym_sokoban("sokoban_env").SokobanEnv
    rows = np.array([[int(char) for char in row] for row in room.splitlines()])
    env = engine(dim_room=rows.shape, num_boxes=num_boxes, reset=False)
    env.room_fixed = np.where(np.isin(rows, (2, 3, 6)), 2, np.where(rows == 0, 0, 1))
    env.room_state = np.where(rows == 6, 5, rows)
    env.player_position = np.argwhere(env.room_state == 5)[0]
    env.num_env_steps, env.reward_last = 0, 0
    env.boxes_on_target = int((rows == 3).sum())
    return env


def gym_sokoban_step(env, action: int) -> tuple[float, bool]:
    """A push (or move) in the real engine, without drawing it."""
    env._push(action)
    env._calc_reward()
    return float(env.reward_last), bool(env._check_if_all_boxes_on_target())
