"""``rllib evaluate``: what it takes, whom it plays against, and the rows it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.tune.experiment import Trial
from ray.tune.utils import flatten_dict

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli import main
from rllib_lmgame.cli.evaluation_table import evaluation_table
from rllib_lmgame.evaluation.evaluate import LoadedPolicies, check_games, measure, opponents_of
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.measures.statistics import wilson_interval
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episodes import seed_and_level
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed

RPS = GameConfig(env="lmgame/RockPaperScissors-v0", env_config={"rounds": 3})
PAPER, STONE = (f"{__name__}:{name}" for name in ("Paper", "Stone"))


class Paper:
    """Always plays the paper."""

    def act(self, *args) -> str:
        return "paper"


class Stone:
    """Always plays the stone."""

    def act(self, *args) -> str:
        return "rock"


def measured(*games: GameConfig, player: str = "solver", against=(), policies=None, mapping=None, episodes: int = 20):
    """Numbers of policies in whose place ``player`` plays: no engine is needed."""
    config = LMGamePPOConfig().environment(games[0].env)
    if policies:
        config.players(policies, mapping)
    loaded = LoadedPolicies(config, TextGameEnvRunner(config=config))
    others = opponents_of(against, PlayerSettings(sections={"endpoint": {"attempts": 1}}), config)
    instead = {} if policies and "player" not in policies else {"player": player}
    return measure(loaded, games, episodes, 0.0, instead, None, others)


def test_one_row_per_game_with_what_was_played() -> None:
    small, large = ({"split": split, "dim_room": size} for split, size in (("test", [5, 5]), ("validation", [6, 6])))
    numbers = measured(
        GameConfig(env="lmgame/Sokoban-v0", env_config=small),
        GameConfig(env="lmgame/Sokoban-v0", env_config=large),
        GameConfig(env="lmgame/FrozenLake-v0", env_config={}),
    )
    head, columns, *rows = evaluation_table(numbers).splitlines()
    assert head == "temperature 0 (greedy)"
    assert columns.split() == [
        "game",
        "split",
        "episodes",
        "levels",
        "success",
        "95",
        "%",
        "interval",
        "return",
        "turns",
        "tokens",
        "unreadable",
        "illegal",
        "truncated",
    ]
    assert [row.split()[:4] for row in rows[:2]] == [
        ["lmgame/Sokoban-v0", "test", "20", "16"],
        ["lmgame/Sokoban-v0", "validation", "20", "20"],
    ]
    assert rows[1].split()[4:8] == ["1.000", "0.839", "-", "1.000"]  # 20 of 20 is not certain,
    assert rows[0].split()[4:8] == ["1.000", "0.770", "-", "1.000"]  # and 16 of 16 less so.
    assert rows[2].split()[:2] == ["lmgame/FrozenLake-v0", "-"]


def test_levels_that_come_again_are_counted_once() -> None:
    """The solver wins all levels of Blocksworld's test split, and the one of a maze."""
    numbers = measured(GameConfig(env="lmgame/Blocksworld-v0", env_config={"split": "test"}), episodes=200)
    (game,) = numbers["evaluated"]
    assert game["success_rate"] == game["success_each_level_once"] == 1.0 and game["levels"] == 15
    assert game["success_interval"] == pytest.approx((wilson_interval(15, 15)[0], 1.0), abs=0.1)
    assert len({seed_and_level(name)[1] for name in numbers["successes"]}) == 15
    _, _, row, note = evaluation_table(numbers).splitlines()
    assert row.split()[2:5] == ["200", "15", "1.000"] and note.endswith("counted once each: 1.000, exactly")
    _, _, row, *notes = evaluation_table(
        measured(GameConfig(env="lmgame/MazeUmaze-v0", env_config={"split": "test"}))
    ).splitlines()
    assert row.split()[2:6] == ["20", "1", "1.000", "-"] and "no interval over levels" in notes[0]


def test_a_game_with_a_temperature_of_its_own_is_not_called_greedy() -> None:
    blocks = "lmgame/Blocksworld-v0", {"split": "test"}
    numbers = measured(GameConfig(*blocks, name="warm", temperature=0.7), GameConfig(*blocks), episodes=200)
    warm, greedy = numbers["evaluated"]
    assert (warm["temperature"], greedy["temperature"]) == (0.7, 0.0)
    assert "success_each_level_once" not in warm and greedy["success_each_level_once"] == 1.0
    head, _, _, told, *rest = evaluation_table(numbers).splitlines()
    assert (head, told) == ("temperature 0 (greedy)", "  temperature 0.7 in this game")
    assert len(rest) == 2 and rest[1].endswith("exactly")


def test_all_data_sets_that_are_missing_are_named_with_their_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLLIB_LMGAME_DATA", str(tmp_path))
    games = [
        GameConfig(env="lmgame/GSM8K-v0", env_config={"data": "data:gsm8k"}),
        GameConfig(env="lmgame/Sokoban-v0", env_config={}),
        GameConfig(env="lmgame/MathProblems-v0", env_config={"data": "data:math500", "split": "test"}, name="MATH"),
    ]
    said = r"env_config\.data: lmgame/GSM8K-v0: data set 'gsm8k' is .*; MATH: data set 'math500' .*data fetch math500"
    with pytest.raises(ConfigError, match=said):
        check_games(games)


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
    lines = evaluation_table(numbers).splitlines()
    assert lines[2].split()[-3:] == ["0.998", "0.001", "-"] and lines[-1].split()[-3:] == ["0.000", "1.000", "-"]
    *shown, note = lines[4:-1]
    assert (
        "max_tokens_per_turn" in note
        and len(shown) == 3
        and all(len(line) < 120 and line.isprintable() for line in shown)
    )
    assert shown[0].startswith('    "the sum\\nis 4') and shown[0].endswith(' ..."')


def test_games_against_others_say_who_won_in_which_role() -> None:
    policies = {"player": {}, "opponent": {"player": "random"}}
    numbers = measured(
        GameConfig(env="lmgame/TicTacToe-v0", env_config={}),
        policies=policies,
        mapping={"X": "player", "O": "opponent"},
    )
    _, _, row, *details = evaluation_table(numbers).splitlines()
    won = numbers["win_rate"]["player"]["first"]
    assert f" {won:.3f} " in row and won == numbers["success_rate"] > 0.5
    assert [line.strip().split(":")[0] for line in details] == ["opponent as second", "player as first"]
    alone = measured(GameConfig(env="lmgame/TicTacToe-v0", env_config={}))
    assert evaluation_table(alone).splitlines()[2].split()[3:5] == ["-", "-"]  # Of self-play there is no success.
    assert "successes" in alone and alone["successes"] == {}


def test_what_a_game_measures_stands_below_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllib_lmgame.envs.games.duels.tic_tac_toe.TicTacToe.measures", lambda *_: {"half": 0.5})
    numbers = measured(GameConfig(env="lmgame/TicTacToe-v0", env_config={}), episodes=4)
    assert numbers["measures"] == numbers["evaluated"][0]["measures"] == {"half": 0.5}
    assert "  half 0.500" in evaluation_table(numbers).splitlines()


def test_teams_with_hidden_roles_are_seated_and_counted_by_role() -> None:
    """Line-ups are made before a game is dealt; so seats are roles, and win rates by role are those by team."""
    policies = {"village": {"player": "solver"}, "wolves": {"player": "random"}}
    game = GameConfig(env="lmgame/Werewolf-v0", env_config={"players": 5})
    numbers = measured(game, policies=policies, mapping={"werewolf": "wolves", "*": "village"}, episodes=30)
    measures = numbers["measures"]
    assert 0 < measures["village_win"] < 1 and measures["village_win"] + measures["werewolf_win"] <= 1
    assert numbers["win_rate"]["wolves"] == {"werewolf": measures["werewolf_win"]}
    assert set(numbers["win_rate"]["village"].values()) == {measures["village_win"]}
    assert set(numbers["win_rate"]["village"]) == {"seer", "doctor", "villager"}
    assert numbers["episode_return_mean"] == pytest.approx(0)


@pytest.mark.parametrize(
    ("game", "options", "names"),
    [
        ("Negotiation", {}, ("deal", "pareto_efficient", "joint_share", "nash_share")),
        ("IteratedPrisonersDilemma", {"rounds": 3}, ("cooperation_rate", "social_welfare", "best_response_gap")),
        ("PublicGoods", {"rounds": 3}, ("cooperation_rate", "social_welfare")),
        ("Werewolf", {"players": 5}, ("village_win", "werewolf_win", "days")),
    ],
)
def test_a_run_can_be_ended_by_what_games_for_many_measure(game, options, names) -> None:
    """As results of an evaluation, which Tune compares with ``stop``."""
    numbers = measured(GameConfig(env=f"lmgame/{game}-v0", env_config=options), episodes=4)
    trial = Trial("x", stopping_criterion={}, stub=True)
    for name in names:
        trial.stopping_criterion = {f"evaluation/env_runners/measures/{name}": numbers["measures"][name]}
        assert trial.should_stop(flatten_dict({"evaluation": {"env_runners": numbers}})), name
        trial.stopping_criterion = {key: value + 0.01 for key, value in trial.stopping_criterion.items()}
        assert not trial.should_stop(flatten_dict({"evaluation": {"env_runners": numbers}})), name


@pytest.mark.parametrize("source", ["model", "Qwen/Qwen2.5-0.5B-Instruct", "random"])
def test_who_was_not_trained_needs_a_game(source, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert main(["evaluate", source]) == 2
    said = capsys.readouterr().err
    assert f"{source} was trained on no game; name the games it is to play with --games" in said


def test_what_is_neither_checkpoint_nor_model_is_named(tmp_path, capsys) -> None:
    assert main(["evaluate", str(tmp_path / "nowhere"), "--env", "lmgame/Sokoban-v0"]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_an_endpoint_takes_the_other_seats_and_its_tokens_are_counted(endpoint) -> None:
    numbers = measured(RPS, player=PAPER, against=[f"stone={endpoint.player}"], episodes=8)
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
    numbers = measured(RPS, player=PAPER, against=[f"stone={STONE}"], episodes=8)
    (game,) = numbers["evaluated"]
    assert game["episode_return_mean"] == 0.0 and game["own_return_mean"] == 3.0
    _, columns, row, *details = evaluation_table(numbers).splitlines()
    assert row.split()[-6] == "+3.000" and columns.split()[-6] == "return"
    assert [line for line in details if " as " in line] == [
        *(f"  player as {role}: win 1.000, draw 0.000, loss 0.000, return +3.000" for role in ("column", "row")),
        *(f"  stone as {role}: win 0.000, draw 0.000, loss 1.000, return -3.000" for role in ("column", "row")),
    ]


def test_players_who_win_together_have_returns_by_role() -> None:
    numbers = measured(GameConfig(env="lmgame/Hanabi-v0"), player="random", against=["wild=random"], episodes=2)
    (game,) = numbers["evaluated"]
    _, _, row, *details = evaluation_table(numbers).splitlines()
    assert row.split()[-6] == f"{game['own_return_mean']:+.3f}"
    assert game["episode_return_mean"] == pytest.approx(2 * game["own_return_mean"])
    assert [line.split(":")[0].split()[0] for line in details if " as " in line] == ["player", "wild"]


def test_games_that_fail_for_want_of_a_reply_are_dropped_and_counted(endpoint) -> None:
    endpoint.refused = {3}
    numbers = measured(RPS, player=PAPER, against=[endpoint.player], episodes=8)
    assert numbers["num_episodes"] == 7 and numbers["dropped"] == {"engine_error": 1}
    assert numbers["counts"][endpoint.player]["failed_requests"] == 1
    text = evaluation_table(numbers)
    assert "  dropped, engine_error: 1" in text.splitlines() and "1 failed requests" in text
    endpoint.refused = set(range(1000))
    with pytest.raises(EpisodeFailed, match=r"none of 8 episodes could be played.*not today"):
        measured(RPS, player=PAPER, against=[endpoint.player], episodes=8)


def test_several_opponents_are_met_as_often() -> None:
    numbers = measured(RPS, player=PAPER, against=["wild=random", f"mirror={PAPER}"], episodes=24)
    assert "counts" in numbers and numbers["counts"] == {"wild": {}, "mirror": {}}
    roles = [numbers["draw_rate"][name] for name in ("wild", "mirror")]
    assert all(set(seats) == {"row", "column"} for seats in roles) and set(roles[1].values()) == {1.0}
    game = GameConfig(env="lmgame/PublicGoods-v0", env_config={"players": 3, "multiplier": 2.0, "rounds": 1})
    assert set(measured(game, player=PAPER, against=["a=random", "b=solver"], episodes=6)["loss_rate"]) == {
        "player",
        "a",
        "b",
    }


def test_an_opponent_that_cannot_be_reached_is_named_before_a_game_is_played(endpoint) -> None:
    address = endpoint.player
    endpoint.server_close()
    with pytest.raises(ConfigError, match="player 'gone': no answer from"):
        measured(RPS, player=PAPER, against=[f"gone={address}"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--env", "lmgame/Sokobn-v0"], "did you mean 'lmgame/Sokoban-v0'"),
        (["--env", "lmgame/Sokoban-v0", "--env-config", "{dim_rom: 3}"], "dim_room"),
        (["--env", RPS.env, "--against", "rnadom"], "--against: unknown player 'rnadom'; did you mean 'random'?"),
        (
            ["--env", RPS.env, "--against", "player=random"],
            " is called 'player' too; write NAME=random",
        ),
        (["--env", RPS.env, "--against", "random", "random"], "two players are called 'random'"),
        (["--env", "lmgame/Sokoban-v0", "--against", "random"], "has one seat; there is nobody to play against"),
        (["--env", RPS.env, "--time-limit", "3"], "players of your own"),
        (["--env", RPS.env, "--against", "random", "--time-limit", "0"], "--time-limit: must be"),
        (["--env", RPS.env, "--against", "openai:m@http://h/v1", "-c", "{endpoint: {atempts: 3}}"], "atempts"),
    ],
)
def test_what_is_wrong_is_said_before_ray_starts(flags, words, tiny_model_dir, monkeypatch, capsys) -> None:
    started = []
    monkeypatch.setattr("rllib_lmgame.experiments.run.cluster.join_or_start", lambda *args: started.append(args))
    assert main(["evaluate", tiny_model_dir, *flags]) == 2
    assert words in capsys.readouterr().err and not started
