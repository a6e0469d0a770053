"""``rllib play --players``: a person in any seat, players of any kind in the others."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from rllib_lmgame.cli import main

TIC_TAC_TOE = "lmgame/TicTacToe-v0"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines that are typed, then Ctrl-D."""
    lines: list[str] = []

    def answer(prompt: str = "") -> str:
        if not lines:
            raise EOFError
        print(prompt, end="")
        return lines.pop(0)

    monkeypatch.setattr("builtins.input", answer)
    return lines


def test_a_person_takes_the_seat_nobody_else_has(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    typed += ["!"] * 5
    assert main(["play", TIC_TAC_TOE, "--players", "X=random", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{TIC_TAC_TOE}; X: random, O: you\n") and "You are O." in out
    assert "X (random)> (has replied)" in out and "the game is over" in out


def test_players_without_a_seat_take_the_others(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", TIC_TAC_TOE, "--players", "O=minimax", "random", "--seat", "none", "--no-pause"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{TIC_TAC_TOE}; X: random, O: minimax\n") and "X (random)> " in out
    typed += ["!"] * 9
    assert main(["play", TIC_TAC_TOE, "--players", "random", "--seat", "O"]) == 0
    assert "; X: random, O: you" in capsys.readouterr().out
    kuhn = ["play", "lmgame/KuhnPoker-v0", "--env-config", "{players: 3}", "--players", "player_1=solver", "random"]
    typed[:] = ["!"] * 3
    assert main([*kuhn, "--no-pause"]) == 0
    assert "player_0: you, player_1: solver, player_2: random" in capsys.readouterr().out


def test_what_others_do_is_not_shown_to_a_person(
    typed: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before the person has decided in a game in which all decide at once, nor after it."""
    from rllib_lmgame.policies.scripted import RandomPlayer

    order: list[str] = []
    act = RandomPlayer.act

    def told(self: Any, session: Any, agent: str, *args: Any) -> str:
        order.append(agent)
        return act(self, session, agent, *args)

    monkeypatch.setattr(RandomPlayer, "act", told)
    monkeypatch.setattr("builtins.input", lambda prompt="": order.append("me") or "rock")
    game = ["play", "lmgame/RockPaperScissors-v0", "--env-config", "{chat_turns: 0}"]
    assert main([*game, "--players", "player_0=random", "--seat", "player_1"]) == 0
    assert order[:4] == ["me", "player_0", "me", "player_0"]
    out = capsys.readouterr().out
    assert "(random)> (has replied)" in out and not re.search(r"\(random\)> (rock|paper|scissors)", out)


def test_a_person_talks_freely(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person says the others hear, and the other way round; an action ends it."""
    heard: list[str] = []

    class Answers:
        def act(self, session: Any, agent: str, observation: Any, rng: Any) -> str:
            heard.append(observation.text)
            return "The ball is mine."

    monkeypatch.setattr(f"{__name__}.Answers", Answers, raising=False)
    said = iter(["Shall we share the hats?", "no deal"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(said))
    command = ["play", "lmgame/Negotiation-v0", "--players", f"player_1={__name__}:Answers", "--seat", "player_0"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert any("[Other player] Shall we share the hats?" in text for text in heard)
    assert "[Other player] The ball is mine." in out and "There is no deal." in out


def test_a_checkpoint_and_a_model_play_each_other(
    checkpoint: Any, tiny_model_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = checkpoint(env=TIC_TAC_TOE, env_config={}, text_rollouts={"legal_moves_only": True})
    players = [f"X={place}", f"O=hf:{tiny_model_dir}"]
    outputs = []
    for _ in range(2):
        assert main(["play", TIC_TAC_TOE, "--players", *players, "--no-pause", "--temperature", "0"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert f"X ({place})> <answer>" in outputs[0] and f"O (hf:{tiny_model_dir})> " in outputs[0]


@pytest.fixture
def server() -> Iterator[str]:
    """An endpoint whose model says a line with a terminal's control code, and plays nothing legal."""
    loop = asyncio.new_event_loop()
    started: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"choices": [{"message": {"content": "\x1b[2J<answer>resign</answer>"}}]})

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        started.append(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")

    loop.run_until_complete(serve())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield started[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_an_endpoint_plays_and_cannot_write_to_the_terminal(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    players = [f"X=openai:any@{server}", "random"]
    assert main(["play", TIC_TAC_TOE, "--players", *players, "--seat", "none", "--no-pause"]) == 0
    out = capsys.readouterr().out
    assert "\\x1b[2J<answer>resign</answer>" in out and "\x1b" not in out and "the game is over" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--players", "Y=random"], "there is no seat 'Y'; seats: X, O"),
        (["--players", "X=random", "X=minimax"], "seat 'X' is given twice"),
        (["--players", "random", "minimax"], "cannot both take all other seats"),
        (["--players", "X=random", "--seat", "X"], "seat 'X' is yours and random's"),
        (["--players", "X=random", "--seat", "none"], "nobody takes the seat 'O'"),
        (["--players", "X=randm"], "did you mean 'random'?"),
        (["--players", "X=random", "--against", "random"], "--against: does not go with --players"),
        (
            ["--players", "X=openai:m@http://127.0.0.1:1/v1", "--config", "{endpoint: {attempts: 1}}"],
            "no answer from http://127.0.0.1:1/v1",
        ),
        (["--players", "X=random", "--config", "{endpoint: {attempts: 0}}"], "--config.endpoint.attempts"),
        (["--config", "{language_model: {}}"], "--config: is for hf: and openai: players"),
        (["--against", "random", "--time-limit", "5"], "--time-limit: is for endpoints"),
        (["--seed", "-1"], "--seed: must be at least 0, got -1"),
    ],
)
def test_mistakes(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", TIC_TAC_TOE, *arguments]) == 2
    assert words in capsys.readouterr().err
