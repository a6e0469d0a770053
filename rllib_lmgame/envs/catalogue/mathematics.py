"""Word problems and mathematics."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/GSM8K-v0",
        "rllib_lmgame.envs.games.mathematics.gsm8k:GSM8K",
        "Word problems of several steps, one try.",
        horizon=1,
        reward_range=(-0.1, 10.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/GSM8KFiveTries-v0",
        "rllib_lmgame.envs.games.mathematics.gsm8k:GSM8K",
        "Word problems of several steps, five tries.",
        horizon=5,
        reward_range=(-0.5, 10.0),
        solver=True,
        defaults={"max_turns": 5},
    ),
    GameSpec(
        "lmgame/MathReasoning-v0",
        "rllib_lmgame.envs.games.mathematics.math_reasoning.game:MathReasoning",
        "Arithmetic, algebra and word problems, checked exactly.",
        horizon=3,
        reward_range=(-0.3, 1.0),
        solver=True,
    ),
)
