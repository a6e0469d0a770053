"""Options that cannot be are refused by their key, with what is wrong (4 s: all games); limits are the schema's."""

from __future__ import annotations

from contextlib import suppress

import pytest

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.envs import make_game
from rllib_lmgame.envs.registry import own_games

REFUSED = [
    ("Sokoban", {"dim_rom": [6, 6]}, "dim_rom", "did you mean 'dim_room'"),
    ("Sokoban", {"dim_room": [4, 4]}, "dim_room", "three cells in a line"),
    ("Sokoban", {"max_distance": 12}, "max_distance", "budget of 10"),
    ("Sokoban", {"symbols": "#_OXXPS"}, "symbols", "7 different characters"),
    ("Sokoban", {"moves": ["a", "b", "c", "A"]}, "moves", "four different words"),
    ("Sokoban", {"numbered_cells": True, "show_grid": False}, "numbered_cells", "show_grid"),
    ("Sokoban", {"invalid_action_penalty": float("nan")}, "invalid_action_penalty", "finite"),
    ("Sokoban", {"generator": "gym_sokoban", "dim_room": [4, 5], "min_distance": 9}, "min_distance", "lower it"),
    ("TicTacToe", {"max_invalid_actions": None}, "max_invalid_actions", ""),
    ("FrozenLake", {"size": 10, "frozen_probability": 0.1}, "frozen_probability", ""),
    ("FrozenLake", {"frozen_probability": 1.0, "split": "test"}, "split", ""),
    ("Blocksworld", {"min_distance": 9}, "min_distance", "3 blocks"),
    ("2048", {"goal": 100}, "goal", "or 32768, got the whole number 100"),
    ("Sudoku", {"size": 5}, "size", "must be 4 or 9, got the whole number 5"),
    ("Sudoku", {"empty": 13}, "empty", "with one solution has at most 12 empty cells here; lower it or set unique"),
    ("Sudoku", {"empty": 16, "unique": False}, "empty", "at most 15 empty cells"),
    ("Sudoku", {"size": 9, "empty": 32}, "empty", "32 cells cannot be filled with 20 moves"),
    ("RubiksCube", {"scramble": 4, "max_turns": 3}, "scramble", "4 turns cannot be undone in 3 moves"),
    ("Maze", {"map": "random", "dim_maze": [8, 9]}, "dim_maze", "odd"),
    ("Tetris", {"rows": 10, "columns": 3, "pieces": "tetrominoes"}, "columns", "tetrominoes need 4"),
    ("Tetris", {"rows": 2, "columns": 7, "max_actions": 8}, "max_actions", "fewer columns"),
    ("Wordle", {"word_length": 3, "num_words": 5000}, "num_words", "words of 3"),
    ("CarDealer", {"personas": ["grumpy"]}, "personas", "grumpy"),
    ("GSM8K", {"steps": [3, 9]}, "steps", ""),
    ("MathProblems", {"tolerance": 2}, "tolerance", ""),
    ("MathReasoning", {"difficulty": [4, 2]}, "difficulty", ""),
    ("TextCraft", {"depth": [9, 9]}, "depth", "the deepest item lies at 4"),
    ("BIRD", {"max_actions_per_turn": 2}, "max_actions_per_turn", ""),
    ("DeepSearch", {"min_hops": 3, "max_hops": 2}, "min_hops", "must not be more than max_hops"),
    ("WebShop", {"goals_data": "x.json"}, "goals_data", "belongs to a catalogue file"),
    ("WebNavigation", {"sections": ["shop", "blog"]}, "sections", "got the text 'blog'"),
    ("WebNavigation", {"families": ["shop_steal"]}, "families", "got the text 'shop_steal'"),
    ("KuhnPoker", {"players": 4}, "players", "equal to 3"),
    ("ConnectFour", {"rows": 4, "columns": 5, "connect": 6}, "connect", "5 columns and 4 rows"),
    ("IteratedPrisonersDilemma", {"reward": 6}, "", "temptation > reward"),
    ("StagHunt", {"hare": 4}, "", "stag > hare > alone"),
    ("PublicGoods", {"players": 3, "multiplier": 3}, "multiplier", "less than `players`"),
    ("Werewolf", {"players": 6, "werewolves": 3}, "werewolves", "fewer than half"),
    ("Hanabi", {"players": 5, "colours": 1, "hand_size": 5}, "hand_size", "hands of 5 need more"),
    ("ChessEndgames", {"piece": "queen", "min_mate": 11}, "min_mate", "at most 10"),
    ("BabyAI", {"level": "GotoLocal"}, "level", "did you mean 'GoToLocal'"),
    ("Chess", {"opponent_depth": 4}, "opponent_depth", "is for opponent 'alpha_beta'"),
    ("Chess", {"opponent": "stockfish", "engine_elo": 1000}, "engine_elo", "1350 at least"),
    ("Chess", {"opponent": "stockfish", "engine_elo": 1500, "engine_skill": 3}, "", "set one"),
    ("GymFrozenLake", {"env_id": "Blackjack-v1"}, "observation", "no render mode 'ansi'"),
    ("GymFrozenLake", {"env_kwargs": {"sise": 3}}, "env_kwargs", ""),
    ("GymFrozenLake", {"action_names": ["Left", "Right"]}, "action_names", "4 actions"),
    ("GymFrozenLake", {"env_id": "Pendulum-v1", "observation": "values"}, "", "only Discrete and Text"),
    ("ReasoningGym", {"task": "chain_sums"}, "task", "did you mean 'chain_sum'"),
    ("ReasoningGym", {"task": "chain_sum", "task_config": {"min_term": 2}}, "", "did you mean 'min_terms'"),
    ("ReasoningGym", {"task": "chain_sum", "task_config": {"seed": 2}}, "", "is set by the game"),
    ("ReasoningGym", {"task": "chain_sum", "task_config": {"min_terms": -2}}, "", "chain_sum does not take"),
    ("TextArena", {"env_id": "Wordle-v0"}, "env_id", "downloads word lists"),
    ("TextArena", {"env_id": "TwentyQuestions-v0"}, "env_id", "language model"),
    ("TextArena", {"env_id": "TicTacToe-v0"}, "env_id", "several players: lmgame/TextArenaMatch-v0"),
    ("TextArenaMatch", {"env_id": "Sudoku-v0"}, "env_id", "one player: lmgame/TextArena-v0"),
    ("TextArenaMatch", {"env_id": "Chess-v0"}, "env_id", "no valid Python"),
    ("TextArenaMatch", {"env_id": "ConectFour-v0"}, "env_id", "did you mean 'ConnectFour-v0'"),
    ("TextArenaMatch", {"env_id": "TicTacToe-v0", "players": 3}, "players", "takes 2"),
    ("OpenSpiel", {"game": "leduc_pokr"}, "game", "no game 'leduc_pokr'; did you mean 'leduc_poker'"),
    ("OpenSpiel", {"game": "leduc_poker", "parameters": {"players": 30}}, "", "num_players"),
    ("OpenSpiel", {"game": "leduc_poker(players=3)", "parameters": {"players": 3}}, "", "say them in one place"),
    ("OpenSpiel", {"game": "go", "parameters": {"board_size": 100}}, "parameters", "OpenSpiel does not make 'go'"),
    ("OpenSpiel", {"game": "mfg_garnet"}, "", "mean-field"),
    ("OpenSpiel", {"game": "negotiation"}, "", "draws its chance itself"),
    ("OpenSpiel", {"game": "crossword"}, "", "does not number its actions"),
    ("OpenSpiel", {"game": "hearts", "observation": "both"}, "observation", "hearts has no observation"),
]
"""Game, options, the key that is named (nothing: whichever) and some of the words."""


@pytest.mark.parametrize(("game", "config", "key", "said"), REFUSED)
def test_options_that_cannot_be_are_refused(game, config, key, said) -> None:
    with pytest.raises(ConfigError) as caught:
        try:
            make_game(f"lmgame/{game}-v0", config).reset(seed=0)
        except MissingDependencyError as missing:
            pytest.skip(str(missing))
    assert caught.value.path.startswith(f"env_config.{key}" if key else "env_config") and said in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "said"), [("splt", "test", "did you mean 'split'"), ("split", "tset", "did you mean 'test'")]
)
def test_every_game_names_the_nearest_key_and_value(key: str, value: str, said: str) -> None:
    for game in own_games():
        with suppress(MissingDependencyError):
            with pytest.raises(ConfigError, match=said) as caught:
                make_game(game, {key: value})
            assert caught.value.path == f"env_config.{key}"
