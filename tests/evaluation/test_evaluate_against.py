"""``rllib evaluate --against``: opponents that are no policies of the run, endpoints above all."""

from __future__ import annotations

from typing import Any

import pytest
from endpoint_server import Endpoint

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.cli import main
from rllib_lmgame.cli.evaluation_table import evaluation_table
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.evaluation.evaluate import LoadedPolicies, measure, opponents_of
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed

RPS = GameConfig("lmgame/RockPaperScissors-v0", {"rounds": 3})
NO_WAIT = {"endpoint": {"attempts": 1}}


class Paper:
    """Always plays the paper."""

    def act(self, *args: Any) -> str:
        return "paper"


class Stone:
    """Always plays the stone."""

    def act(self, *args: Any) -> str:
        return "rock"


def measured(
    *against: str, episodes: int = 8, game: GameConfig = RPS, player: str = f"{__name__}:Paper"
) -> dict[str, Any]:
    """Numbers of a policy in whose place ``player`` plays: no engine is needed."""
    config = LMGamePPOConfig().environment(game.env)
    loaded = LoadedPolicies(config, TextGameEnvRunner(config=config))
    others = opponents_of(against, PlayerSettings(sections=NO_WAIT), config)
    return measure(loaded, (game,), episodes, 0.5, {"player": player}, None, others)


def test_an_endpoint_takes_the_other_seats_and_its_tokens_are_counted(endpoint: Endpoint) -> None:
    numbers = measured(f"stone={endpoint.player}")
    assert numbers["success_rate"] == 1.0 and numbers["num_episodes"] == 8
    assert numbers["win_rate"] == {"player": {"row": 1.0, "column": 1.0}, "stone": {"row": 0.0, "column": 0.0}}
    assert numbers["loss_rate"]["stone"] == {"row": 1.0, "column": 1.0}
    assert numbers["counts"] == {"stone": {"requests": 24, "prompt_tokens": 168, "completion_tokens": 72}}
    *_, last = evaluation_table(numbers).splitlines()
    assert last == "stone: 24 requests, 168 prompt tokens, 72 completion tokens"
    seats = [body["messages"][-1]["content"] for body in endpoint.asked]
    assert len(seats) == 24 and sum("You are player_0" in seen for seen in seats) == 12, "each seat as often"


def test_the_return_is_the_policys_own() -> None:
    """Not the sum over the table, which is 0 in a zero-sum game, whoever wins."""
    numbers = measured(f"stone={__name__}:Stone")
    (game,) = numbers["evaluated"]
    assert game["episode_return_mean"] == 0.0 and game["own_return_mean"] == 3.0
    _, columns, row, *details = evaluation_table(numbers).splitlines()
    assert row.split()[-5] == "+3.000" and columns.split()[-5] == "return"
    assert [line for line in details if " as " in line] == [
        *(f"  player as {role}: win 1.000, draw 0.000, loss 0.000, return +3.000" for role in ("column", "row")),
        *(f"  stone as {role}: win 0.000, draw 0.000, loss 1.000, return -3.000" for role in ("column", "row")),
    ]


def test_players_who_win_together_have_returns_by_role() -> None:
    numbers = measured("wild=random", episodes=2, game=GameConfig("lmgame/Hanabi-v0"), player="random")
    (game,) = numbers["evaluated"]
    _, _, row, *details = evaluation_table(numbers).splitlines()
    assert row.split()[-5] == f"{game['own_return_mean']:+.3f}"
    assert game["episode_return_mean"] == pytest.approx(2 * game["own_return_mean"])
    assert [line.split(":")[0].split()[0] for line in details if " as " in line] == ["player", "wild"]


def test_games_that_fail_for_want_of_a_reply_are_dropped_and_counted(endpoint: Endpoint) -> None:
    endpoint.refused = {3}
    numbers = measured(endpoint.player)
    assert numbers["num_episodes"] == 7 and numbers["dropped"] == {"engine_error": 1}
    assert numbers["counts"][endpoint.player]["failed_requests"] == 1
    text = evaluation_table(numbers)
    assert "  dropped, engine_error: 1" in text.splitlines() and "1 failed requests" in text
    endpoint.refused = set(range(1000))
    with pytest.raises(EpisodeFailed, match=r"none of 8 episodes could be played.*not today"):
        measured(endpoint.player)


def test_several_opponents_are_met_as_often() -> None:
    numbers = measured("wild=random", f"mirror={__name__}:Paper", episodes=24)
    assert "counts" in numbers and numbers["counts"] == {"wild": {}, "mirror": {}}
    roles = [numbers["draw_rate"][name] for name in ("wild", "mirror")]
    assert all(set(seats) == {"row", "column"} for seats in roles) and set(roles[1].values()) == {1.0}
    game = GameConfig("lmgame/PublicGoods-v0", {"players": 3, "multiplier": 2.0, "rounds": 1})
    assert set(measured("a=random", "b=solver", episodes=6, game=game)["loss_rate"]) == {"player", "a", "b"}


def test_an_opponent_that_cannot_be_reached_is_named_before_a_game_is_played(endpoint: Endpoint) -> None:
    address = endpoint.player
    endpoint.server_close()
    with pytest.raises(ConfigError, match="player 'gone': no answer from"):
        measured(f"gone={address}")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--env", RPS.env, "--against", "rnadom"], "--against: unknown player 'rnadom'; did you mean 'random'?"),
        (
            ["--env", RPS.env, "--against", "player=random"],
            "a policy of the run is called 'player' too; write NAME=random",
        ),
        (["--env", RPS.env, "--against", "random", "random"], "two players are called 'random'"),
        (["--env", "lmgame/Sokoban-v0", "--against", "random"], "has one seat; there is nobody to play against"),
        (["--env", RPS.env, "--time-limit", "3"], "see --against"),
        (["--env", RPS.env, "--against", "random", "--time-limit", "0"], "--time-limit: must be"),
        (["--env", RPS.env, "--against", "openai:m@http://h/v1", "-c", "{endpoint: {atempts: 3}}"], "atempts"),
    ],
)
def test_what_is_wrong_is_said_before_ray_starts(
    flags: list[str], words: str, tiny_model_dir: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    started: list[Any] = []
    monkeypatch.setattr("rllib_lmgame.experiments.run.cluster.join_or_start", lambda *args: started.append(args))
    assert main(["evaluate", tiny_model_dir, *flags]) == 2
    assert words in capsys.readouterr().err and not started
