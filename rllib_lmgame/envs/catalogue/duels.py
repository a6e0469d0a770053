"""Games for two and more."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/TicTacToe-v0",
        "rllib_lmgame.envs.games.duels.tic_tac_toe:TicTacToe",
        "Three in a row.",
        kind="aec",
        players="2",
        roles=("first", "second"),
        reward_range=(-2.1, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/ConnectFour-v0",
        "rllib_lmgame.envs.games.duels.connect_four:ConnectFour",
        "Four in a row, of stones that fall.",
        kind="aec",
        players="2",
        roles=("first", "second"),
        reward_range=(-5.3, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/KuhnPoker-v0",
        "rllib_lmgame.envs.games.duels.kuhn_poker:KuhnPoker",
        "One card each, one bet.",
        kind="aec",
        players="2-3",
        roles=("player_0", "player_1"),
        reward_range=(-2.4, 2.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/LeducPoker-v0",
        "rllib_lmgame.envs.games.duels.leduc_poker:LeducPoker",
        "Six cards, two rounds of betting, one open card.",
        kind="aec",
        players="2",
        roles=("player_0", "player_1"),
        reward_range=(-13.8, 13.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/LiarsDice-v0",
        "rllib_lmgame.envs.games.duels.liars_dice:LiarsDice",
        "Bids on hidden dice.",
        kind="aec",
        players="2",
        roles=("player_0", "player_1"),
        reward_range=(-2.5, 1.0),
        solver=True,
    ),
)
