"""Social dilemmas: all players decide at once."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/IteratedPrisonersDilemma-v0",
        "rllib_lmgame.envs.games.dilemmas.prisoners_dilemma:IteratedPrisonersDilemma",
        "Cooperate or defect, round after round.",
        kind="parallel",
        players="2",
        roles=("row", "column"),
        horizon=10,
        reward_range=(0.0, 50.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/RockPaperScissors-v0",
        "rllib_lmgame.envs.games.dilemmas.rock_paper_scissors:RockPaperScissors",
        "No hand is best; ten rounds.",
        kind="parallel",
        players="2",
        roles=("row", "column"),
        horizon=10,
        reward_range=(-10.7, 10.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/StagHunt-v0",
        "rllib_lmgame.envs.games.dilemmas.stag_hunt:StagHunt",
        "The stag needs both, the hare is certain.",
        kind="parallel",
        players="2",
        roles=("row", "column"),
        horizon=10,
        reward_range=(0.0, 40.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/PublicGoods-v0",
        "rllib_lmgame.envs.games.dilemmas.public_goods:PublicGoods",
        "Give to a common pot, or keep.",
        kind="parallel",
        players="3-20",
        roles=("player",) * 4,
        horizon=10,
        reward_range=(1.7, 22.0),
        solver=True,
    ),
)
