"""Games of teams, and of all together."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/Werewolf-v0",
        "rllib_lmgame.envs.games.teams.werewolf.game:Werewolf",
        "Hidden roles, nights and days, talk and votes.",
        kind="aec",
        players="5-9",
        roles=("werewolf",) * 2 + ("seer", "doctor") + ("villager",) * 3,
        reward_range=(-5.9, 2.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/Hanabi-v0",
        "rllib_lmgame.envs.games.teams.hanabi.game:Hanabi",
        "All build fireworks together, nobody sees its own cards; the small game.",
        kind="aec",
        players="2-5",
        roles=("player", "player"),
        reward_range=(-3.7, 1.0),
        solver=True,
    ),
)
