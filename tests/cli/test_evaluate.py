"""``rllib evaluate``: the numbers and the rows it prints, whom players meet, and what is wrong before Ray starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.cli import main
from rllib_lmgame.cli.evaluate import say_other_options
from rllib_lmgame.cli.tables import evaluation_table
from rllib_lmgame.evaluation.evaluate import game_numbers
from rllib_lmgame.measures.statistics import wilson_interval
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episodes import episode_metrics, seed_and_level, success_by_seed
from rllib_lmgame.rollouts.item_order import evaluated_levels
from rllib_lmgame.rollouts.records import GameConfig, PlaySettings
from rllib_lmgame.rollouts.sources import AgentMapper

RPS = "lmgame/RockPaperScissors-v0"
ROUNDS = ["--games", f"{RPS}@{{rounds: 3}}"]
PAPER, STONE = (f"{__name__}:{name}" for name in ("Paper", "Stone"))


class Paper:
    """Always plays the paper."""

    def act(self, *args) -> str:
        return "paper"


class Stone:
    """Always plays the stone."""

    def act(self, *args) -> str:
        return "rock"


def measured(*games: GameConfig, player: str = "solver", policies=None, mapping=None, episodes: int = 20):
    """Numbers of policies in whose place ``player`` plays: no engine is needed."""
    config = LMGamePPOConfig().environment(games[0].env)
    if policies:
        config.players(policies, mapping)
    agent_mapper = AgentMapper(config, {} if policies else {"player": player})
    plans, _ = agent_mapper.assigned(evaluated_levels(games, episodes), games)
    summaries = TextGameEnvRunner(config=config).play(plans, PlaySettings(games, temperature=0.0)).summaries
    own = [[one for one in summaries if one.game == number] for number in range(len(games))]
    zipped = zip(games, own, strict=True)
    rows = [game_numbers(game, some, (), temperature=game.sampled_at(0.0)) for game, some in zipped]
    return {**episode_metrics(summaries), "successes": success_by_seed(summaries), "evaluated": rows}


def text(numbers: dict[str, Any]) -> list[str]:
    """The lines of the table of :func:`measured` numbers."""
    rows = [{"player": "p", "name": row["game"], **row} for row in numbers["evaluated"]]
    return evaluation_table({**numbers, "evaluated": rows}).splitlines()


def evaluated(capsys, *words: str, status: int = 0) -> tuple[dict[str, Any], list[str]]:
    """The numbers of ``rllib evaluate``, and the lines of its table."""
    assert main(["evaluate", *words, "--json"]) == status
    numbers = json.loads(capsys.readouterr().out)
    return numbers, evaluation_table(numbers).splitlines()


def test_levels_that_come_again_are_counted_once() -> None:
    """The solver wins all levels of Blocksworld's test split, and the one of a maze."""
    blocks = {"env": "lmgame/Blocksworld-v0", "env_config": {"split": "test"}}
    numbers = measured(GameConfig(**blocks), GameConfig(**blocks, name="warm", temperature=0.7), episodes=200)
    game, warm = numbers["evaluated"]
    assert game["success_rate"] == 1.0 and game["levels"] == 15
    assert game["success_interval"] == pytest.approx((wilson_interval(15, 15)[0], 1.0), abs=0.1)
    assert len({seed_and_level(name)[1] for name in numbers["successes"]}) == 2 * 15
    assert (warm["temperature"], game["temperature"]) == (0.7, 0.0)
    columns, row, again, *_ = text(numbers)
    assert columns.split()[:6] == ["player", "game", "split", "episodes", "levels", "success"]
    assert row.split()[3:6] == ["200", "15", "1.000"]
    assert [dict(zip(columns.split()[-7:], line.split()[-7:], strict=True))["T"] for line in (row, again)] == [
        "0",
        "0.7",
    ]
    _, row, *_ = text(measured(GameConfig(env="lmgame/MazeUmaze-v0", env_config={"split": "test"})))
    assert row.split()[3:7] == ["20", "1", "1.000", "-"]


def test_replies_that_cannot_be_read_stand_apart_from_illegal_moves_and_some_are_shown() -> None:
    """Of a model that never writes the tags, and of one that writes them around nonsense."""
    row = {"game": "lmgame/MathReasoning-v0", "split": "test", "num_episodes": 8, "success_rate": 0.0}
    unread = [f"the sum\nis {'4' * 300}", "\x1b[2J\u202eevil", "The <answer> is four"]
    numbers = {
        "temperature": 1.0,
        "evaluated": [
            row | {"format_error_rate": 0.998, "illegal_action_rate": 0.001, "unreadable": unread},
            row | {"format_error_rate": 0.0, "illegal_action_rate": 1.0},
        ],
    }
    lines = text(numbers)
    assert lines[1].split()[-3:] == ["0.998", "0.001", "-"] and lines[-1].split()[-3:] == ["0.000", "1.000", "-"]
    *shown, note = lines[3:-1]
    assert "max_tokens_per_turn" in note and len(shown) == 3
    assert all(len(line) < 120 and line.isprintable() for line in shown)
    assert shown[0].startswith('    "the sum\\nis 4') and shown[0].endswith(' ..."')


def test_policies_of_a_run_play_their_roles_and_measures_stand_below_the_row() -> None:
    """Assignments are made before a game is dealt; so seats are roles, and win rates by role are those by team."""
    policies = {"village": {"player": "solver"}, "wolves": {"player": "random"}}
    game = GameConfig(env="lmgame/Werewolf-v0", env_config={"players": 5})
    numbers = measured(game, policies=policies, mapping={"werewolf": "wolves", "*": "village"}, episodes=30)
    measures = numbers["measures"]
    assert 0 < measures["village_win"] < 1 and measures["village_win"] + measures["werewolf_win"] <= 1
    assert numbers["win_rate"]["wolves"] == {"werewolf": measures["werewolf_win"]}
    assert set(numbers["win_rate"]["village"].values()) == {measures["village_win"]}
    assert numbers["episode_return_mean"] == pytest.approx(0)
    lines = text(numbers)
    assert any(line.startswith("  village as seer: win ") for line in lines)
    assert f"village_win {measures['village_win']:.3f}" in "".join(lines)
    alone = measured(
        GameConfig(env="lmgame/TicTacToe-v0", env_config={}), episodes=4
    )  # Of self-play there is no success.
    assert text(alone)[1].split()[4:6] == ["-", "-"] and alone["successes"] == {}


@pytest.mark.parametrize("source", ["model", "Qwen/Qwen2.5-0.5B-Instruct", "random"])
def test_who_was_not_trained_needs_a_game(source, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert main(["evaluate", source]) == 2
    assert f"{source} was trained on no game; name the games" in capsys.readouterr().err


def test_other_options_than_those_of_training_are_said(capsys) -> None:
    trained = [GameConfig(env="a", env_config={"size": 6, "split": "train"}), GameConfig(env="b")]
    same = GameConfig(env="a", env_config={"size": 6, "split": "test"})
    say_other_options(trained, [same, GameConfig(env="b", env_config={"split": "test"}), GameConfig(env="c")])
    assert capsys.readouterr().err == ""
    say_other_options(trained, [GameConfig(env="a")])
    assert capsys.readouterr().err == "note: a was trained with other options: {size: 6}\n"


def test_an_endpoint_takes_the_other_seats_and_its_tokens_are_counted(endpoint, capsys) -> None:
    """The return is the player's own, not the sum over the table, which is 0 in a zero-sum game, whoever wins."""
    others = ["--against", f"stone={endpoint.player}", "--episodes", "8"]
    numbers, lines = evaluated(capsys, f"paper={PAPER}", *ROUNDS, *others)
    (row,) = numbers["evaluated"]
    assert row["success_rate"] == 1.0 and row["episode_return_mean"] == 0.0 and row["own_return_mean"] == 3.0
    assert row["win_rate"] == {"paper": {"row": 1.0, "column": 1.0}, "stone": {"row": 0.0, "column": 0.0}}
    assert numbers["counts"] == {"stone": {"requests": 24, "prompt_tokens": 168, "completion_tokens": 72}}
    assert lines[-1] == "stone: 24 requests, 168 prompt tokens, 72 completion tokens"
    assert [line for line in lines if "paper as " in line] == [
        f"  paper as {role}: win 1.000, draw 0.000, loss 0.000, return +3.000" for role in ("column", "row")
    ]
    seats = [body["messages"][-1]["content"] for body in endpoint.asked]
    assert len(seats) == 24 and sum("You are player_0" in seen for seen in seats) == 12, "each seat as often"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--env", "lmgame/Sokoban-v0", "--env-config", "{dim_rom: 3}"], "dim_room"),
        (["--env", RPS, "--against", "random", "--time-limit", "0"], "--time-limit: must be"),
    ],
)
def test_what_is_wrong_is_said_before_ray_starts(flags, words, tiny_model_dir, monkeypatch, capsys) -> None:
    started = []
    monkeypatch.setattr("rllib_lmgame.experiments.run.cluster.join_or_start", lambda *args: started.append(args))
    assert main(["evaluate", tiny_model_dir, *flags]) == 2
    assert words in capsys.readouterr().err and not started
