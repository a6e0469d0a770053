"""Games whose engine is a package of its own."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/TextArena-v0",
        "rllib_lmgame.envs.games.adapted.text_arena.games:TextArenaGame",
        summary="Any offline TextArena environment for one player (default: lights out).",
        horizon=200,
        reward_range=(-13.4, 1.0),
        extra="textarena",
    ),
    GameSpec(
        "lmgame/TextArenaMatch-v0",
        "rllib_lmgame.envs.games.adapted.text_arena.games:TextArenaMatch",
        summary="Any offline TextArena environment for several players (default: TicTacToe).",
        kind="aec",
        players="2-15",
        roles=("player_0", "player_1"),
        reward_range=(-2.1, 1.0),
        extra="textarena",
    ),
    GameSpec(
        "lmgame/OpenSpiel-v0",
        "rllib_lmgame.envs.games.adapted.open_spiel.game:OpenSpielGame",
        summary="Any of some 100 OpenSpiel games (default: Leduc poker).",
        kind="aec",
        players="1-10",
        roles=("player_0", "player_1"),
        reward_range=(-13.9, 13.0),
        extra="open_spiel",
    ),
    GameSpec(
        "lmgame/SciWorld-v0",
        "rllib_lmgame.envs.games.adapted.sci_world.game:SciWorld",
        summary="A science experiment in the ScienceWorld simulator (needs Java).",
        horizon=20,
        reward_range=(-1.4, 1.0),
        extra="sciworld",
        solver=True,
    ),
    GameSpec(
        "lmgame/TextNav-v0",
        "rllib_lmgame.envs.games.adapted.text_nav.game:TextNav",
        summary="An errand in a house made by TextWorld, all of it in view.",
        horizon=20,
        reward_range=(-1.4, 1.0),
        extra="textworld",
        solver=True,
    ),
    GameSpec(
        "lmgame/TextNavPartial-v0",
        "rllib_lmgame.envs.games.adapted.text_nav.game:TextNav",
        summary="An errand in a house made by TextWorld, one room in view.",
        horizon=20,
        reward_range=(-1.4, 1.0),
        extra="textworld",
        solver=True,
        defaults={"observation": "partial"},
    ),
    GameSpec(
        "lmgame/Chess-v0",
        "rllib_lmgame.envs.games.adapted.chess_games.game:Chess",
        summary="Chess against random, greedy, alpha-beta or Stockfish.",
        horizon=400,
        reward_range=(-267.0, 1.0),
        extra="chess",
        solver=True,
    ),
    GameSpec(
        "lmgame/ChessEndgames-v0",
        "rllib_lmgame.envs.games.adapted.chess_games.endgames:ChessEndgames",
        summary="Mate a lone king with queen or rook against perfect defence.",
        horizon=400,
        reward_range=(-267.0, 1.0),
        extra="chess",
        solver=True,
    ),
    GameSpec(
        "lmgame/GymFrozenLake-v0",
        "rllib_lmgame.envs.games.adapted.gym_games.game:GymTextGame",
        summary="Gymnasium's slippery FrozenLake on its 4x4 map.",
        horizon=100,
        reward_range=(-6.7, 1.0),
        solver=True,
        defaults={
            "action_names": ("Left", "Down", "Right", "Up"),
            "rules": (
                "You cross a frozen lake from the start S to the goal G over the ice F; a hole H ends the game. "
                "Brackets show where you are.\n"
                "The ice is slippery: one time in three each you go where you want, or to one side or the other of "
                "it. The goal gives 1."
            ),
            "split_by_start": False,
        },
    ),
    GameSpec(
        "lmgame/Taxi-v0",
        "rllib_lmgame.envs.games.adapted.gym_games.toy_text:Taxi",
        summary="Gymnasium's Taxi: fetch a passenger, bring the passenger to a stand.",
        horizon=12,
        reward_range=(-600.0, 15.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/CliffWalking-v0",
        "rllib_lmgame.envs.games.adapted.gym_games.game:GymTextGame",
        summary="Gymnasium's CliffWalking: walk along a cliff to the goal.",
        horizon=20,
        reward_range=(-10000.0, -13.0),
        solver=True,
        defaults={
            "env_id": "CliffWalking-v1",
            "action_names": ("Up", "Right", "Down", "Left"),
            "rules": "You walk from the lower left corner to the target. x is you, o ground, C cliff, T the target.\n"
            "Each step costs 1; a step onto the cliff costs 100 and takes you back to the start.",
            "split_by_start": False,
            "success_above": -50.0,
            "max_turns": 20,
            "max_actions_per_turn": 5,
            "invalid_action_penalty": -5.0,
            "max_invalid_actions": None,
        },
    ),
    GameSpec(
        "lmgame/Blackjack-v0",
        "rllib_lmgame.envs.games.adapted.gym_games.toy_text:Blackjack",
        summary="Gymnasium's Blackjack: one hand against the dealer.",
        horizon=20,
        reward_range=(-14.0, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/BabyAI-v0",
        "rllib_lmgame.envs.games.adapted.babyai.game:BabyAI",
        summary="Follow an instruction among doors, keys, balls and boxes.",
        horizon=20,
        reward_range=(-1.4, 1.0),
        extra="babyai",
        solver=True,
    ),
    GameSpec(
        "lmgame/ReasoningGym-v0",
        "rllib_lmgame.envs.games.adapted.reasoning_tasks:ReasoningGym",
        "Any task of Reasoning Gym.",
        horizon=1,
        reward_range=(-0.1, 1.0),
        extra="reasoning-gym",
        solver=True,
    ),
)
