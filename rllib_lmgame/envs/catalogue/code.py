"""Programs, queries and tools."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/CodeExecution-v0",
        "rllib_lmgame.envs.games.code.code_execution.game:CodeExecution",
        "Write a Python function that passes hidden tests.",
        horizon=3,
        reward_range=(-0.3, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/BIRD-v0",
        "rllib_lmgame.envs.games.code.bird.game:BIRD",
        "Answer a question with an SQL query, one try.",
        horizon=1,
        reward_range=(-0.5, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/BIRDFiveTries-v0",
        "rllib_lmgame.envs.games.code.bird.game:BIRD",
        "BIRD with five tries.",
        horizon=5,
        reward_range=(-0.5, 1.0),
        solver=True,
        defaults={"max_turns": 5},
    ),
    GameSpec(
        "lmgame/ToolUse-v0",
        "rllib_lmgame.envs.games.code.tool_use.game:ToolUse",
        "Solve a task with a calculator, search, programs and files.",
        horizon=8,
        reward_range=(-0.6, 1.0),
        solver=True,
    ),
)
