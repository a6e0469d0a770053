"""Games against scripted players as a measure of an evaluation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar

import pytest

from rllib_lmgame.algorithms.measuring.against import Against
from rllib_lmgame.algorithms.measuring.measures import measured_columns
from rllib_lmgame.algorithms.trust import check_config
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.trust import Gate
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe
from rllib_lmgame.rollouts import game_calls
from rllib_lmgame.rollouts.episodes import summarize
from rllib_lmgame.rollouts.game_calls import run_to_end
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import Sessions, play_many
from rllib_lmgame.rollouts.players import Scripted, take_seats
from rllib_lmgame.rollouts.records import GameConfig, PlayResult

LET_GO = threading.Event()
TIC_TAC_TOE, CONNECT_FOUR = GameConfig(env="lmgame/TicTacToe-v0"), GameConfig(env="lmgame/ConnectFour-v0")


class Asked:
    """Policies that are scripted players; the plans that they played."""

    seats: ClassVar[dict[str, str]] = {"X": "first", "O": "second"}

    def __init__(self, player: str, lost: int = 0) -> None:
        self.player, self.lost = player, lost
        self.plans: list[EpisodePlan] = []

    def play(self, plans: Sequence[EpisodePlan], game: GameConfig) -> PlayResult:
        self.plans = list(plans)
        seats = partial(
            take_seats, player_of=lambda one: Scripted(one.module_id, self.player if one.trained else one.player)
        )
        with closing(Sessions()) as sessions:
            played = run_to_end(play_many(plans[self.lost :], [game], seats, sessions, TextRolloutOptions(), 64))
        return PlayResult(summaries=[summarize(episode) for episode in played.episodes])


@pytest.mark.parametrize(("player", "exact"), [("random", (0.4365, 0.1270, 0.4365)), ("minimax", (0, 0.1274, 0.8726))])
def test_rates_are_those_of_the_exact_chances(player: str, exact: tuple[float, ...]) -> None:
    """Uniform play at TicTacToe: within four standard errors of what a walk over all lines gives."""
    numbers = Against(player, games=200)(TIC_TAC_TOE, Asked("random"))  # type: ignore[arg-type]
    for what, expected in zip(("win_rate", "draw_rate", "loss_rate"), exact, strict=True):
        assert numbers[f"{what}_{player}"] == pytest.approx(expected, abs=4 * (0.25 / 200) ** 0.5)
    assert numbers[f"illegal_{player}"] == numbers[f"failed_{player}"] == 0


def test_the_depth_of_the_solver_is_an_option_and_seats_are_balanced() -> None:
    against = Against("solver", games=8, name="depth_2", env_config={"expert_depth": 2})
    asked = Asked("random")
    weak = against(CONNECT_FOUR, asked)  # type: ignore[arg-type]
    assert tuple(weak) == against.columns and sum(list(weak.values())[:4]) == pytest.approx(1.0)
    assert weak["win_rate_depth_2"] < 0.2
    learns = [agent for plan in asked.plans for agent, seat in plan.assignments.items() if seat.trained]
    assert learns == ["X", "O"] * 4 and len({plan.seed for plan in asked.plans}) == 4
    assert {plan.assignments["O"].module_id for plan in asked.plans} == {"solver", "second"}


def test_games_that_were_not_finished_have_failed() -> None:
    numbers = Against("random", games=8)(TIC_TAC_TOE, Asked("random", lost=2))  # type: ignore[arg-type]
    assert numbers["failed_random"] == 0.25


class Unlisted(TicTacToe):
    """TicTacToe that lists no legal actions and draws none."""

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return ()

    def random_action(self, agent: str, rng: Any) -> None:
        return None


class Bad(TicTacToe):
    """TicTacToe of another author that cannot begin."""

    looked_at: ClassVar[list[str]] = []

    def __init__(self, fault: str, **options: Any) -> None:
        super().__init__(**options)
        self.fault = fault
        self.looked_at.append(fault)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if self.fault == "hang":
            LET_GO.wait()
        elif self.fault == "raise":
            raise RuntimeError("boom")
        super().reset(seed, options)
        self.agents = self.agents if self.fault != "nobody" else []


@pytest.mark.parametrize(
    ("fault", "says"), [("raise", "boom"), ("hang", "took longer"), ("nobody", "nobody is to act")]
)
def test_a_game_that_cannot_begin_has_no_such_games_and_is_looked_at_once(fault, says, monkeypatch) -> None:
    LET_GO.clear()
    monkeypatch.setattr(game_calls, "CALL_LIMIT_S", 0.5 if fault == "hang" else 60.0)
    game = GameConfig(env=f"{__name__}:Bad", env_config={"fault": fault})
    try:
        problems = {Against("random").problem(game) for _ in range(2)}
    finally:
        LET_GO.set()
    assert len(problems) == 1 and says in str(problems) and Bad.looked_at.count(fault) == 1


def test_a_game_without_the_option_is_left_out(make_config: Callable[..., Any]) -> None:
    depth = {"type": "against", "player": "solver", "name": "depth_2", "env_config": {"expert_depth": 2}}
    games = [CONNECT_FOUR.env, "lmgame/KuhnPoker-v0"]

    def validated() -> Any:
        config = make_config(
            env=CONNECT_FOUR.env,
            env_config={},
            evaluation_interval=1,
            evaluation_config={"games": games, "measures": [depth]},
        )
        config.validate()
        return config

    config = validated()
    played = measured_columns(config, [depth], [GameConfig(env=game) for game in games])
    assert ("win_rate_depth_2",) in played and ("failed_depth_2",) in played
    depth["env_config"] = {"expert_dept": 2}
    with pytest.raises(ConfigError, match=r"measures\[0\].*ConnectFour.*expert_dept.*KuhnPoker.*env_config"):
        validated()


def test_what_is_wrong_is_said_before_anything_starts(make_config: Callable[..., Any]) -> None:
    def validated(env: str, *measures: Any) -> Any:
        config = make_config(env=env, env_config={}, evaluation_interval=1, evaluation_config={"measures": [*measures]})
        config.validate()
        return config

    random_player = {"type": "against", "player": "random"}
    depth = {"type": "against", "player": "solver", "name": "depth_2", "env_config": {"expert_depth": 2}}
    dice = {**random_player, "player": "solver", "env_config": {"dice": 2, "sides": 4}}
    config = validated(CONNECT_FOUR.env, random_player, depth)
    assert ("win_rate_depth_2",) in measured_columns(config, config.run.evaluation_config.measures, [CONNECT_FOUR])
    check_config({"evaluation_config": {"measures": [random_player, depth]}}, Gate("a stranger", "trust it"))
    for env, wrong, says in (
        ("lmgame/Sokoban-v0", random_player, "nobody plays against another"),
        (f"{__name__}:Unlisted", random_player, "the random player needs legal actions"),
        ("lmgame/LiarsDice-v0", dice, "LiarsDice-v0 has no solver with these options"),
        (CONNECT_FOUR.env, {**random_player, "player": "rnadom"}, "did you mean 'random'"),
        (CONNECT_FOUR.env, {**depth, "env_config": {"depth": 2}}, "depth"),
        (CONNECT_FOUR.env, {**depth, "name": "depth/2"}, "letters and digits"),
        (CONNECT_FOUR.env, {**depth, "env_config": [1]}, r"measures\[0\].env_config: must be"),
        (CONNECT_FOUR.env, {**depth, "games": 10**9}, "equal to 1000000"),
    ):
        with pytest.raises(ConfigError, match=says):
            validated(env, wrong)
    with pytest.raises(ConfigError, match=r"names already: .*win_rate_random"):
        validated(CONNECT_FOUR.env, random_player, {**random_player, "games": 8})
