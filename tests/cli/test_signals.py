"""A signal ends a command in one line, also in the middle of games that are played side by side."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal

import pytest

from rllib_lmgame.cli import main
from rllib_lmgame.cli.main import raised_signals


def test_a_signal_among_games_side_by_side_leaves_no_traces(caplog: pytest.LogCaptureFixture) -> None:
    """It arrives inside one of them, whose error nobody would ever ask for."""
    closed: list[int] = []

    async def game(number: int) -> None:
        try:
            await asyncio.sleep(0)
            if number == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            closed.append(number)

    async def play() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(game(number))

    ended: list[int] = []
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background jobs ignore it.
    try:
        with pytest.raises(KeyboardInterrupt), raised_signals(ended):
            asyncio.run(play())
    finally:
        signal.signal(signal.SIGINT, ignored)
    gc.collect()
    assert sorted(closed) == [0, 1, 2, 3] and ended == [signal.SIGTERM]
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_command_that_was_ended_by_sigterm_says_so_whatever_it_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A game that a person leaves by Ctrl-C is left with status 0; inside an event loop SIGTERM looks the same."""

    def dispatch(*args: object) -> int:
        try:
            asyncio.run(asyncio.to_thread(os.kill, os.getpid(), signal.SIGTERM))
        except KeyboardInterrupt:
            return 0
        return 1

    monkeypatch.setattr(importlib.import_module("rllib_lmgame.cli.main"), "_dispatch", dispatch)
    assert main(["play"]) == 128 + signal.SIGTERM
