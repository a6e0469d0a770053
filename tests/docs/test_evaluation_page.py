"""The commands of the page on evaluations, with a tiny checkpoint, a tiny model, an endpoint of this process and fewer
episodes.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.algorithms.checkpoints.manifest import write_manifest
from rllib_lmgame.algorithms.checkpoints.paths import MARKER
from rllib_lmgame.algorithms.config import CONFIG_FILE
from rllib_lmgame.cli import main
from rllib_lmgame.cli.game_list import listed
from rllib_lmgame.cli.main import make_parser
from rllib_lmgame.evaluation.players.naming import split_name

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in re.findall(r"^\$ (rllib evaluate .*)", block, re.MULTILINE)
]
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
ENDPOINT = re.compile(r"openai:\S+")
SUITE = "suite.yaml"
"""Instead of one whose data would have to be fetched."""
GAME = "lmgame/TicTacToe-v0"
TRAINED = {"env": GAME, "env_config": {}, "text_rollouts": {"constrained_decoding": True}}


@pytest.fixture
def here(tmp_path: Path, tiny_model_dir: str, make_config: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the run, the model and the suite that the commands name."""
    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / "runs" / "NAME" / "TRIAL" / "checkpoint_000000"
    for place in (checkpoint / "hf", tmp_path / MODEL):
        shutil.copytree(tiny_model_dir, place)
    config = make_config(**TRAINED)
    (checkpoint / CONFIG_FILE).write_text(json.dumps(config.run.as_yaml()))
    (checkpoint / MARKER).write_text("{}")
    write_manifest(checkpoint)
    run = {"run": "LMGamePPO", "env": GAME, "config": {"evaluation_config": {"games": [{"env": GAME}]}}}
    (tmp_path / SUITE).write_text(json.dumps({"suite": run}))
    return tmp_path


def fewer(command: list[str], endpoint: Any) -> list[str]:
    """The command with this process's endpoint and a suite of one game, on two levels of each game."""
    words = [ENDPOINT.sub(endpoint.player, word) for word in command]
    if "--suite" in words:
        words[words.index("--suite") + 1] = SUITE
    if "--episodes" in words:
        words[words.index("--episodes") + 1] = "2"
        return [*words, "--json"]
    return [*words, "--episodes", "2", "--json"]


def test_the_page_shows_commands() -> None:
    assert len(COMMANDS) >= 5 and all(words[0] == "evaluate" for words in COMMANDS)


@pytest.mark.parametrize(
    "command", [COMMANDS[0], *(pytest.param(command, marks=pytest.mark.slow) for command in COMMANDS[1:])], ids=" ".join
)
def test_a_command_plays_what_it_names(
    command: list[str], here: Path, endpoint: Any, ray_cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.text = "A1"
    args = make_parser("evaluate").parse_args(command)
    assert main(fewer(command, endpoint)) == 0
    rows = json.loads(capsys.readouterr().out)["evaluated"]
    assert {row["player"] for row in rows} == {split_name(player)[0] or player for player in args.players}
    names = [split_name(game)[0] or game for game in listed(args.games or [GAME])]
    assert len(rows) == len(names) * len(args.players) and {row["name"] for row in rows} == {*names}
    assert all(row["num_episodes"] == 2 * args.samples for row in rows)
    assert all((row["player"] == args.baseline) != ("return_gain" in row) for row in rows if args.baseline)
    assert bool(endpoint.asked) == ("openai:" in " ".join(command))
    if args.out:
        assert (here / args.out / "results.md").is_file()
