"""Experts reach the goal of every level, within the limits of the game and in replies it takes: 4 s for all games."""

from __future__ import annotations

import pytest

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.envs import make_session

ALONE = [
    ("Sokoban", {}, 1000, 10.0),
    ("SokobanLarge", {}, 300, 10.0),
    ("SokobanTwoBoxes", {}, 300, 10.0),
    ("Sokoban", {"generator": "gym_sokoban", "num_boxes": 2, "min_distance": 1, "max_actions": 25}, 300, 8.0),
    ("FrozenLake", {}, 1000, 1.0),
    ("Bandit", {"split": "all"}, 300, 0.0),
    ("Sudoku", {}, 1000, 16.0),
    ("SudokuLarge", {}, 300, 42.0),
    ("RubiksCube", {"scramble": 11, "any_orientation": True, "max_turns": 11}, 100, 1.0),
    ("Blocksworld", {}, 1000, 5.0),
    *(
        ("Blocksworld", {"num_blocks": blocks, "observation": form, "split": "all"}, 60, 0.0)
        for blocks in (2, 4, 5, 6)
        for form in ("text", "1d", "2d")
    ),
    ("Tetris", {"split": "all"}, 1000, 5.0),
    ("TetrisDominoes3x3", {"split": "all"}, 1000, 5.0),
    ("TetrisDominoes", {"split": "all"}, 1000, 5.0),
    ("TetrisFull", {}, 10, 0.0),
    ("CliffWalking", {}, 3, -13.0),
    ("Taxi", {"split": "all"}, 1000, 7.7),  # The best is 7.93 over all starts: the value of an optimal policy.
    ("GSM8K", {}, 1000, 10.0),
    ("GSM8K", {"steps": (1, 5), "split": "test"}, 1000, 10.0),
    ("MathReasoning", {}, 1000, 1.0),
    ("MathProblems", {}, 300, 1.0),
    ("BIRD", {}, 1000, 1.0),
    ("DeepSearch", {}, 1000, 1.0),
    ("TextCraft", {}, 200, 1.0),
    ("TextCraft", {"depth": (4, 4)}, 200, 1.0),
    ("WebShop", {}, 1000, 1.0),
    ("WebNavigation", {"max_turns": 10}, 1000, 1.0),
    ("CarDealer", {}, 1000, 0.9),
    *(("BabyAI", {"level": name}, 30, 0.5) for name in ("GoToLocal", "PickupDist", "OpenDoor", "PutNextLocal")),
    ("BabyAI", {"level": "UnlockPickup"}, 30, 0.0),
    # The bot of minigrid finds no key here.
    *(("BabyAI", {"level": name, "max_turns": 40, "split": "all"}, 20, 0.0) for name in ("KeyInBox", "UnlockToUnlock")),
]
"""Games for one, options, levels, and the least return on average."""

QUICK = 20
"""Levels at most in ``make test``."""

SLOW = [
    *(row for row in ALONE if row[2] > QUICK),
    ("TetrisFull", {}, 1000, 0.0),
    ("2048", {"goal": 1024, "max_turns": 700}, 40, 100.0),
    ("CodeExecution", {}, 1000, 1.0),
    ("ToolUse", {}, 1000, 1.0),
    ("TextCraft", {}, 1000, 1.0),
    ("TextCraft", {"depth": (4, 4)}, 1000, 1.0),
    ("BabyAI", {}, 1000, 0.5),
    ("TextNav", {"split": "all", "max_turns": 4}, 100, 1.0),
    *(("BabyAI", {"level": number, "max_turns": 300, "split": "all"}, 10, 0.0) for number in range(1, 40)),
]

ON_AVERAGE = [
    ("FrozenLakeSlippery", {}, 400, "success", 0.3, 0.45),  # its plan wins 36.5 % on average
    ("Negotiation", {}, 60, "deal", 0.95, 1.0),
    ("Negotiation", {}, 60, "joint_share", 0.9, 1.0),
    ("NegotiationOpen", {}, 60, "deal", 0.95, 1.0),
    ("NegotiationOpen", {}, 60, "joint_share", 0.9, 1.0),
    ("CarDealerDuet", {}, 60, "success", 0.9, 1.0),
    ("TwentyQuestionsDuet", {}, 30, "success", 1.0, 1.0),
    ("TwentyQuestionsDuet", {}, 30, "false_answer_rate", 0.0, 0.0),
    ("Debate", {"split": "all"}, 80, "pro_wins", 0.4, 0.6),
    ("Debate", {"split": "all"}, 80, "speech_score", 0.3, 1.0),
    ("Hanabi", {"life_tokens": 3, "information_tokens": 8}, 40, "score", 6.0, 10.0),
    ("Hanabi", {"life_tokens": 3, "information_tokens": 8}, 40, "lives_left", 3.0, 3.0),
]
"""Games in which chance or others have a say, options, episodes, a measure, and what it is on average; ``success`` is
that of all players.
"""


def session_of(game: str, config):
    try:
        return make_session(f"lmgame/{game}-v0", config)
    except MissingDependencyError as missing:
        pytest.skip(str(missing))


def played(session, seed: int):
    """The sum of all rewards, and the last step."""
    session.reset(seed)
    total = 0.0
    while session.to_act():
        result = session.step({agent: session.expert_action(agent) or "" for agent in session.to_act()})
        assert not any(info["invalid_action"] for info in result.infos.values())
        total += sum(result.rewards.values())
    return total, result


@pytest.mark.parametrize(
    ("game", "config", "levels", "least"),
    [
        *((game, config, min(levels, QUICK), least) for game, config, levels, least in ALONE),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW),
    ],
)
def test_an_expert_alone_wins(game, config, levels, least) -> None:
    session, total = session_of(game, config), 0.0
    for seed in range(levels):
        reward, result = played(session, seed)
        assert not result.truncated and all(info["success"] for info in result.infos.values()), seed
        total += reward
    assert total / levels >= least
    session.close()


@pytest.mark.parametrize(("game", "config", "episodes", "measure", "low", "high"), ON_AVERAGE)
def test_experts_do_well(game, config, episodes, measure, low, high) -> None:
    session, total = session_of(game, config), 0.0
    for seed in range(episodes):
        infos = played(session, seed)[1].infos.values()
        total += (
            all(info["success"] for info in infos)
            if measure == "success"
            else min(info["measures"][measure] for info in infos)
        )
    assert low <= total / episodes <= high
