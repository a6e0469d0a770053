"""Servers that games need are asked before Ray starts; a dry run only says that one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from agentgym_server import serving

from rllib_lmgame.cli.main import main
from tests.endpoint_server import Endpoint, JSONRequests, listening

MODEL: dict[str, Any] = {
    "language_model": {
        "model": "tiny",
        "tiny": {"hidden_size": 32, "num_layers": 1, "num_heads": 1},
        "context_length": 1024,
    },
    "inference": {"engine": "transformers"},
}


def run(path: Path, url: str, *flags: str, **env_config: Any) -> int:
    game = {"url": url, "ids": "0-9", "split": "all", "max_turns": 2, **env_config}
    config = {"env_config": game, **MODEL}
    experiment = {"run": "LMGamePPO", "env": "agentgym:textcraft", "stop": {"rl_iteration": 1}, "config": config}
    path.write_text(yaml.safe_dump({"crafting": experiment}))
    return main(["train", "file", str(path), "--storage-path", str(path.parent / "runs"), *flags])


def test_a_dry_run_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving("textcraft") as server:
        assert run(tmp_path / "a.yaml", server.url, "--dry-run") == 0
        assert f"#   agentgym:textcraft answers at {server.url} and opens sessions" in capsys.readouterr().out
        assert server.created == server.asked["/close"] and not server.open
    assert run(tmp_path / "a.yaml", "http://127.0.0.1:9", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "#   warning: agentgym:textcraft: no server answers at http://127.0.0.1:9" in told
    assert "start one with: textcraft --host 127.0.0.1 --port 9" in told


def test_a_run_without_its_server_never_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "a.yaml", "http://127.0.0.1:9") == 2
    told = capsys.readouterr().err
    assert "a.yaml:" in told and "config.env_config.url: agentgym:textcraft: no server answers" in told
    assert "Connection refused" in told and not (tmp_path / "runs").exists()
    with serving("textcraft", fault=lambda path, body: (500, b"out of order") if path == "/create" else None) as server:
        assert run(tmp_path / "a.yaml", server.url) == 2
    assert "no session of textcraft can be opened" in capsys.readouterr().err


@pytest.mark.parametrize("above", ["", "evaluation_config."])
def test_the_entry_of_a_missing_server_is_named(above: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second of a list, whether it is trained on or evaluated."""
    options = {"url": "http://127.0.0.1:9", "ids": "0-9", "split": "all"}
    served = {"env": "agentgym:textcraft", "env_config": options}
    games: dict[str, Any] = {"games": ["lmgame/Maze-v0", served]}
    config = {"env": "lmgame/Maze-v0", "evaluation_config": games} if above else games
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({"crafting": {"run": "LMGamePPO", "config": {**config, **MODEL}}}))
    assert main(["train", "file", str(path), "--storage-path", str(tmp_path / "runs")]) == 2
    assert f"config.{above}games[1].env_config.url: agentgym:textcraft: no server" in capsys.readouterr().err


def test_each_model_that_is_asked_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(Endpoint()) as server:
        games = [
            {"env": "lmgame/TwentyQuestions-v0", "name": name, "env_config": {"oracle": oracle, "max_turns": 2}}
            for name, oracle in (("one", server.player), ("other", "openai:stone@http://127.0.0.1:9/v1"))
        ]
        experiment = {"run": "LMGamePPO", "stop": {"rl_iteration": 1}, "config": {"games": games, **MODEL}}
        path = tmp_path / "a.yaml"
        path.write_text(yaml.safe_dump({"guessing": experiment}))
        assert main(["train", "file", str(path), "--dry-run"]) == 0
        told = capsys.readouterr().out
        assert (
            f"#   lmgame/TwentyQuestions-v0 asks {server.player.removeprefix('openai:').replace('@', ' at ')}" in told
        )
        assert "#   warning: lmgame/TwentyQuestions-v0: no answer from http://127.0.0.1:9/v1" in told


def test_a_model_that_is_nowhere_is_told_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines would be waited for, for minutes; a dry run needs no model."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    nowhere = {"language_model": {"model": "models/not-here"}}
    for config, place in (
        (nowhere, "config.language_model.model"),
        ({"policies": {"player": nowhere}}, "config.policies.player.language_model.model"),
        ({"language_model": {"tokenizer": "models/not-here"}}, "config.language_model.tokenizer"),
        ({**MODEL, "teacher": {"model": "models/not-here"}, "warm_start": {}}, "config.teacher.model"),
    ):
        experiment = {"run": "LMGamePPO", "env": "lmgame/FrozenLake-v0", "stop": {"rl_iteration": 1}, "config": config}
        (tmp_path / "a.yaml").write_text(yaml.safe_dump({"playing": experiment}))
        command = ["train", "file", str(tmp_path / "a.yaml"), "--storage-path", str(tmp_path / "runs")]
        assert main(command) == 2
        said = f"{place}: 'models/not-here' is no directory here, and the hub does not give it"
        assert said in capsys.readouterr().err and not (tmp_path / "runs").exists()
        assert main([*command, "--dry-run"]) == 0


def test_a_teacher_behind_an_endpoint_is_asked_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model_dir: str
) -> None:
    """Whether it is there, and whether it has the policy's tokens; a dry run goes on."""
    experiment: dict[str, Any] = {"run": "LMGamePPO", "env": "lmgame/FrozenLake-v0", "stop": {"rl_iteration": 1}}
    command = ["train", "file", str(tmp_path / "a.yaml"), "--storage-path", str(tmp_path / "runs")]

    def said(url: str, **config: Any) -> tuple[str, str]:
        experiment["config"] = {**MODEL, "teacher": {"model": f"openai:big@{url}"}, **config}
        (tmp_path / "a.yaml").write_text(yaml.safe_dump({"taught": experiment}))
        assert main(command) == 2
        told = capsys.readouterr().err
        assert "config.teacher.model: " in told and not (tmp_path / "runs").exists()
        assert main([*command, "--dry-run"]) == 0
        return told, capsys.readouterr().out

    for config in ({}, {"language_model": {"model": tiny_model_dir}}):
        for told in said("http://127.0.0.1:9/v1", **config):
            assert "no answer from http://127.0.0.1:9/v1: Connection refused" in told
    with scoring_endpoint() as url:
        for told in said(url, language_model={"model": tiny_model_dir}):
            assert "the teacher of player must have the same vocabulary: token 1 is" in told
            assert f"and 'another' at {url}" in told
    experiment["config"] = {**MODEL, "teacher": {"model": "openai:nowhere"}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"taught": experiment}))
    assert main([*command, "--dry-run"]) == 2
    assert "config.teacher.model: 'openai:nowhere' is no endpoint" in capsys.readouterr().err


@contextmanager
def scoring_endpoint() -> Iterator[str]:
    """The address of a server whose every token is called `another`."""

    class Requests(JSONRequests):
        def do_GET(self) -> None:
            self.send(200, {"data": [{"id": "big"}]})

        def do_POST(self) -> None:
            there = [{str(each): {"logprob": -1.0, "decoded_token": "another"}} for each in self.asked()["prompt"][1:]]
            self.send(200, {"choices": [{"prompt_logprobs": [None, *there]}]})

    with listening(ThreadingHTTPServer(("127.0.0.1", 0), Requests)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
