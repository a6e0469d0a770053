"""Games, players and seat mappings in the directory a command is given in; as a console script, which does not look
there by itself.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rllib_lmgame.base import registry
from rllib_lmgame.base.group import declared
from rllib_lmgame.base.plugin import IMPORTING_KEYS, find_in_current_directory, named_in
from rllib_lmgame.base.registry import Registry
from rllib_lmgame.cli import main
from rllib_lmgame.cli.game_list import listed, named_games
from rllib_lmgame.config.algorithms import OWN
from rllib_lmgame.envs.registry import load_factory, options_of, own_games
from rllib_lmgame.experiments.spec import ExperimentOptions
from rllib_lmgame.policies.options import PlayerOptions

MINE = """
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe


class MyGame(TicTacToe):
    \"\"\"A game of the user's own.\"\"\"


class FirstLegal:
    def act(self, session, agent_id, observation, rng):
        return observation.legal_actions[0]


def told(trials, words):
    print(words, [trial.last_result["env_runners"]["num_episodes"] for trial in trials])
"""


ONE_ITERATION = {"run": "LMGamePPO", "stop": {"rl_iteration": 1}, "storage_path": "results"}


def rllib(directory: Path, *arguments: str) -> str:
    """What a command prints; ``-P`` keeps the current directory off the path, as it is for a console script."""
    command = [sys.executable, "-P", "-m", "rllib_lmgame.cli", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def mine(here: Path):
    (here / "mine.py").write_text(MINE)
    yield here
    sys.modules.pop("mine", None)


def test_commands_find_what_is_here(mine: Path) -> None:
    assert "2 episodes" in rllib(
        mine, "collect", "mine:MyGame", "--player", "mine:FirstLegal", "--episodes", "2", "--out", "log.jsonl"
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("play mine:MyGame", "left"),
        ("play lmgame/TicTacToe-v0 --seat none --no-pause", "X: mine:FirstLegal, O: random"),
        ("tournament lmgame/TicTacToe-v0 --games 2", "\nX "),
    ],
)
def test_a_game_and_players_with_a_name_or_a_seat_are_found(line, shown, mine, monkeypatch, capsys) -> None:
    players = [] if "mine:" in line else ["--players", "X=mine:FirstLegal", "random"]
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    assert main([*line.split(), *players]) == 0
    assert shown in capsys.readouterr().out


def test_a_file_that_is_not_there_is_answered_with_one_that_is(mine: Path, capsys) -> None:
    assert main(["play", "minee:MyGame"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"cannot import 'minee'.*did you mean 'mine', which is in the current directory\?", said)


@pytest.mark.parametrize(
    "named", ["lmgame/Sokoban-v0", "json:dumps", "other:Game", "./mine:Game", None, {"a": ["no", 3]}]
)
def test_nothing_here_is_importable_unless_it_was_named(mine: Path, named: object) -> None:
    (mine / "json.py").write_text("raise RuntimeError('a file here stands for a package')")
    find_in_current_directory(named)
    assert str(mine) not in sys.path
    find_in_current_directory({"policies": {"a": {"player": "mine:FirstLegal"}}})
    assert sys.path[-1] == str(mine)


@pytest.mark.parametrize("games", ["own=mine:MyGame", "lmgame/Sokoban-v0,mine:MyGame"])
def test_lists_and_names_of_games_find_those_here(games: str, mine: Path) -> None:
    assert len(named_games(listed([games]), {})) == 1 + ("," in games)
    assert sys.path[-1] == str(mine)


def test_options_in_a_list_find_parts_here(mine: Path) -> None:
    named_games(listed(["lmgame/Debate-v0@{judge: mine:Judge}"]), {})
    assert sys.path[-1] == str(mine)


def test_free_text_names_nothing_here(mine: Path) -> None:
    find_in_current_directory(
        {"config": {"language_model": {"system_prompt": "mine:Prompt", "answer_tag": ["mine:a"]}}, "name": "mine:x"}
    )
    assert str(mine) not in sys.path
    find_in_current_directory({"games": [{"env": {"grid_search": ["lmgame/Sokoban-v0", "mine:MyGame"]}}]})
    assert sys.path[-1] == str(mine)


def test_every_option_that_takes_an_import_path_is_looked_at() -> None:
    """The options say so in their documentation, or their parts derive from a class that is made for that."""
    games = (options_of(spec.game_id) for spec in own_games().values() if spec.extra is None)
    groups = [ExperimentOptions, PlayerOptions, *(group for entry in OWN.values() for group in entry.groups.values())]
    groups += [group for group in games if group is not None]
    options = [each for group in groups for each in declared(group).values()]
    named = {each.key for each in options if "`package.module:" in each.says["doc"]}
    named |= {each.key for each in options if each.parts is not None and each.parts.base != Registry.base}
    assert {"run", "aggregation", "loss", "player", "expert", "engine", "oracle"} <= named <= IMPORTING_KEYS


def test_what_a_registry_takes_by_its_path_is_looked_at() -> None:
    taken = [each for each in vars(registry).values() if isinstance(each, registry.Registry)]
    assert {each.key.rpartition(".")[2] for each in taken} <= IMPORTING_KEYS


def keys_of_the_table() -> list[str]:
    """Keys of what can be brought along, from the top of an experiment on."""
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| part \| key \|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [row.split(" | ")[1] for row in table.splitlines()[1:]]
    named = {key for cell in cells for key in re.findall(r"`([^`\s]+)`", cell)}
    below_config = {key for key in named if key.startswith("config.")}
    places = {"config.env_config", "config.games[*]"}  # of a game's options, which stand there by their own names
    options, at_the_top = {"judge", "oracle"}, {"run", "env", "report", "callbacks[*]"}
    assert at_the_top | options <= named and places < below_config
    in_games = {f"{place}.{name}" for place in ("config.env_config", "config.games[*].env_config") for name in options}
    return sorted(below_config - places | at_the_top | in_games)


def settings_at(key: str, value: object) -> object:
    """``value`` where ``key`` says: an item of a list for ``[*]``, some name for ``*``."""
    for part in reversed(key.split(".")):
        name = part.removesuffix("[*]")
        value = {"some" if name == "*" else name: [value] if part.endswith("[*]") else value}
    return value


@pytest.mark.parametrize("key", keys_of_the_table())
def test_every_key_of_the_table_is_looked_at(key: str) -> None:
    given: list[object] = ["mine:Thing", {"type": "mine:Thing", "name": "other:Name", "scale": 2}]
    for value in [*given, {"choice": given[:1]}]:
        assert list(named_in(settings_at(key, value))) == ["mine:Thing"], value


@pytest.mark.slow
def test_a_run_finds_game_player_and_report_in_workers_too(mine: Path, tiny_dict) -> None:
    """Straight from YAML through Tune, with a policy for each seat."""
    config = tiny_dict(
        env="mine:MyGame",
        env_config={},
        policies={"player": {}, "opponent": {"player": "mine:FirstLegal"}},
        policy_mapping_fn={"X": "player", "O": "opponent"},
        num_env_runners=1,
        text_rollouts={"episodes_per_iteration": 4},
    )
    report = {"type": "mine:told", "words": "the report says"}
    settings = {**ONE_ITERATION, "config": config, "report": report}
    (mine / "mine.yaml").write_text(yaml.safe_dump({"mine": settings}))
    printed = rllib(mine, "train", "file", "mine.yaml")
    assert "iter    1" in printed and "the report says [4" in printed


@pytest.mark.parametrize(
    ("line", "meant"), [("import rllib_lmgam.envs", "rllib_lmgame"), ("from numppy import array", "numpy")]
)
def test_a_misspelt_import_is_not_advised_to_be_installed(line, meant, tmp_path, monkeypatch) -> None:
    from rllib_lmgame.base.errors import MissingDependencyError
    from rllib_lmgame.envs.registry import game_spec

    name = f"bad_{meant}"
    (tmp_path / f"{name}.py").write_text(f"# A game\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError) as caught:
        load_factory(game_spec(f"{name}:Game"))
    missing = line.split()[1].partition(".")[0]
    assert str(caught.value) == f"game '{name}:Game': {name}.py:2 imports {missing!r}, which is not installed"


@pytest.mark.slow
def test_a_games_file_is_found_where_the_command_is_run(tmp_path: Path, tiny_dict) -> None:
    """By the trial itself, which plays without env runners; Tune would change its directory."""
    problems = [{"question": f"What is {n} plus 1?", "answer": f"#### {n + 1}"} for n in range(40)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    config = tiny_dict(
        env="lmgame/GSM8K-v0",
        env_config={"data": "sums.jsonl"},
        num_env_runners=0,
        text_rollouts={"episodes_per_iteration": 4},
    )
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump({"sums": {**ONE_ITERATION, "config": config}}))
    assert "iter    1" in rllib(tmp_path, "train", "file", "sums.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "sums.jsonl", "sums.yaml"]
