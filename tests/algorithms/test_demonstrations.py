"""Turns that a game's solver shows: which levels they are from, and that nobody else meets these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rllib_lmgame.algorithms import demonstrations
from rllib_lmgame.algorithms.demonstrations import with_demonstrations
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract import InvalidAction, TextGame
from rllib_lmgame.envs.contract.splits import TRAIN, split_of_digest
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, stable_seed
from rllib_lmgame.rollouts.play import GameInPlay
from rllib_lmgame.rollouts.players import Scripted, take_seats
from rllib_lmgame.rollouts.records import GameConfig

SUMS = {"families": ["arithmetic"], "difficulty": [1, 1], "max_turns": 1, "split": "test"}
MATH = GameConfig(env="lmgame/MathReasoning-v0", env_config=SUMS)


class Digits(TextGame):
    """Say the digit: ten levels, eight of which fall into the training split."""

    def levels(self, rng: Any) -> Any:
        while True:
            yield rng.randrange(10)

    def level_key(self, level: Any) -> str:
        return f"digit {level}"

    def split_of_level(self, digest: str, level: Any) -> str:
        return "test" if level == 0 else "validation" if level == 1 else "train"

    def start(self, level: Any) -> None:
        self.level, self.said = level, -1

    def board(self) -> str:
        return f"Say {self.level}."

    def legal_actions(self) -> tuple[str, ...]:
        return tuple("0123456789")

    def read_move(self, text: str) -> int:
        if text not in self.legal_actions():
            raise InvalidAction("a digit is due.")
        return int(text)

    def play_move(self, move: Any) -> float:
        self.said = move
        return float(self.success)

    @property
    def success(self) -> bool:
        return bool(self.said == self.level)

    def solve(self) -> list[str] | None:
        return [str(self.level)]


class Unsolved(Digits):
    """The same for which there is no solver."""

    def expert_action(self) -> str | None:
        return None


DIGITS = GameConfig(env=f"{__name__}:Digits")
KUHN = GameConfig(env="lmgame/KuhnPoker-v0")


def made(game: GameConfig, count: int, seed: int = 0, **options: Any) -> list[dict[str, Any]]:
    given = LanguageModelOptions(demonstrations=count, **options)
    return with_demonstrations(given, [game], seed).demonstrations  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstrations, "_MADE", {})


def test_the_solver_shows_training_levels_by_the_runs_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = made(MATH, 5)
    assert len({turn["level"] for turn in turns}) == 5
    for turn in turns:
        assert split_of_digest(turn["level"]) == TRAIN
        assert str(eval(turn["observation"].removeprefix("Calculate ").removesuffix("."))) == turn["action"]
    monkeypatch.setattr(demonstrations, "_MADE", {})
    assert made(MATH, 5) == turns == made(MATH.model_copy(update={"env_config": {**SUMS, "split": "validation"}}), 5)
    assert made(MATH, 3) == turns[:3] and made(MATH, 5, seed=1) != turns


def test_of_games_of_several_turns_the_nth_shows_the_nth_turn() -> None:
    turns = made(GameConfig(env="lmgame/Wordle-v0"), 3)
    assert [turn["observation"].count("=") // 5 for turn in turns] == [0, 1, 2]
    assert [turn["turns_left"] for turn in turns] == [6, 5, 4]
    roles = [turn["role"] for turn in made(GameConfig(env="lmgame/TicTacToe-v0"), 2)]
    assert roles == ["first", "first", "second", "second"]


def test_the_first_configuration_of_a_game_shows_for_all() -> None:
    """So an evaluation on other levels shows what training showed."""
    hard = MATH.model_copy(update={"env_config": {**SUMS, "difficulty": [5, 5]}})
    options = LanguageModelOptions(demonstrations=2)
    both = with_demonstrations(options, [MATH, GameConfig(env="lmgame/Sokoban-v0"), hard], 0)
    assert both.demonstrations[:2] == made(MATH, 2)
    assert [turn["game"] for turn in both.demonstrations] == ["lmgame/MathReasoning-v0"] * 2 + ["lmgame/Sokoban-v0"] * 2


def test_a_game_without_a_solver_or_with_too_few_levels_is_told() -> None:
    with pytest.raises(ConfigError, match=r"language_model\.demonstrations: .*Unsolved has no solver"):
        made(GameConfig(env=f"{__name__}:Unsolved"), 1)
    assert len(made(DIGITS, 7)) == 7
    with pytest.raises(ConfigError, match=r"is 8, but .*Digits can show at most 7 with .*, since a level must be left"):
        made(DIGITS, 8)
    assert len(made(KUHN, 9)) == 18
    with pytest.raises(ConfigError, match=r"is 10, but .*KuhnPoker-v0 can show at most 9 with these options$"):
        made(KUHN, 10)


def test_a_level_that_was_shown_is_not_played() -> None:
    turns = made(DIGITS, 5)
    shown = frozenset(turn["level"] for turn in turns)
    session = make_session(DIGITS.env, {})

    def begun(seed: int, levels: frozenset[str]) -> tuple[int, str]:
        def seats(session: Any, plan: EpisodePlan) -> Any:
            there = take_seats(session, plan, lambda seat: Scripted(seat.module_id, "solver"))
            there["player"].not_played = lambda: levels  # type: ignore[method-assign]
            return there

        plan = EpisodePlan("e", 0, seed, "g", 0, assignments={"player": AgentAssignment("player", "solver")})
        game = asyncio.run(GameInPlay.begin(session, plan, seats, 5.0))
        return game.plan.seed, str(session.level())

    played = [begun(seed, shown) for seed in range(40)]
    plain = [begun(seed, frozenset()) for seed in range(40)]
    assert {level for _, level in plain} > shown and not {level for _, level in played} & shown
    assert len({level for _, level in played}) == 3
    for seed, (mine, own) in enumerate(zip(played, plain, strict=True)):
        assert own[0] == seed and (mine == own) == (own[1] not in shown)
    assert played == [begun(seed, shown) for seed in range(40)]
    assert played[0][0] in {0, *(stable_seed(0, "not shown", n) for n in range(50))}


def test_a_configuration_knows_them_and_its_checkpoint_makes_the_same(make_config: Callable[..., Any]) -> None:
    config = make_config(
        env=MATH.env, env_config=SUMS, seed=4, language_model={"demonstrations": 2, "context_length": 512}
    )
    config.validate()
    known = config.language_model_of("player")
    assert known.demonstrations == made(MATH, 2, seed=4)
    again = type(config)().update_from_dict(config.run.as_yaml())
    assert again.language_model_of("player") == known
    assert config.module_spec("player").model_config["options"] == known
    with pytest.raises(ConfigError, match=r"Unsolved has no solver"):
        make_config(env=f"{__name__}:Unsolved", env_config={}, language_model={"demonstrations": 1}).validate()
