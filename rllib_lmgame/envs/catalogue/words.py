"""Games of words and talk."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/Wordle-v0",
        "rllib_lmgame.envs.games.words.wordle:Wordle",
        "Find a word of five letters by the colours of guesses.",
        horizon=6,
        reward_range=(-6.0, 0.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/WordleFour-v0",
        "rllib_lmgame.envs.games.words.wordle:Wordle",
        "Wordle with four letters.",
        horizon=6,
        reward_range=(-6.0, 0.0),
        solver=True,
        defaults={"word_length": 4},
    ),
    GameSpec(
        "lmgame/WordleThree-v0",
        "rllib_lmgame.envs.games.words.wordle:Wordle",
        "Wordle with three letters.",
        horizon=6,
        reward_range=(-6.0, 0.0),
        solver=True,
        defaults={"word_length": 3},
    ),
    GameSpec(
        "lmgame/TwentyQuestions-v0",
        "rllib_lmgame.envs.games.words.guessing.twenty_questions:TwentyQuestions",
        "Find one of 158 objects by yes-or-no questions.",
        horizon=20,
        reward_range=(-20.0, 0.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/GuessMyCity-v0",
        "rllib_lmgame.envs.games.words.guessing.guess_my_city:GuessMyCity",
        "Find one of 100 cities by open questions.",
        horizon=20,
        reward_range=(-20.0, 0.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/CarDealer-v0",
        "rllib_lmgame.envs.games.words.car_dealer.game:CarDealer",
        "Sell a car to a buyer who bargains, in free talk.",
        roles=("seller",),
        horizon=25,
        reward_range=(-8.5, 1.1),
        solver=True,
    ),
)
