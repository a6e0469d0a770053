"""Returns on the scale of LMRL-Gym (arXiv 2311.18232): 50 is what the data of a game earns on average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REFERENCES = {
    "lmgame/Maze-v0": (-101.0, -83.0, -6.84),
    "lmgame/MazePartial-v0": (-101.0, -83.0, -25.75),
    "lmgame/Chess-v0": (-401.0, 0.21, 1.0),
    "lmgame/ChessEndgames-v0": (-1.0, 0.586, 1.0),
}
"""Least return, that of LMRL-Gym's data on average, and the best, by game; of its tables."""
_AS_THERE = {"lmgame/Chess-v0": {"opponent": "stockfish", "opening_plies": 0}}
"""Options without which a game is another one than LMRL-Gym's."""
_OTHERWISE = (
    *("map", "dim_maze", "history", "show_map", "invalid_action_penalty", "max_invalid_actions"),
    *("max_turns", "max_actions", "max_actions_per_turn", "colour", "piece", "min_mate", "max_mate", "defender"),
)
"""Options that make another game of it."""


def score_in(game: str, env_config: Mapping[str, Any], mean_return: float) -> float | None:
    """The score of a mean return; ``None`` of a game, or with options, that LMRL-Gym has no numbers of.

    ``50 (x - least) / (mean - least)`` up to the mean, and ``50 + 50 (x - mean) / (best - mean)`` above it.
    """
    known, as_there = REFERENCES.get(game), _AS_THERE.get(game, {})
    otherwise = [*_OTHERWISE, "observation"] if "Maze" in game else _OTHERWISE
    if known is None or any(key in env_config for key in otherwise):
        return None
    if any(env_config.get(key) != value for key, value in as_there.items()):
        return None
    least, mean, best = known
    if mean_return < mean:
        return 50.0 * (mean_return - least) / (mean - least)
    return 50.0 + 50.0 * (mean_return - mean) / (best - mean)
