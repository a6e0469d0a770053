"""MiniWoB in a real browser: tasks done by scripts, pages that hang, browsers that die (7 s), processes that end."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("browsergym.miniwob")

from rllib_lmgame.envs.contract.base import GameError, InvalidAction
from rllib_lmgame.envs.games.web.browser import host
from rllib_lmgame.envs.games.web.browser.actions import ON_A_PAGE, read_call
from rllib_lmgame.envs.games.web.browser.sight import elements_of
from rllib_lmgame.envs.games.web.mini_wob import game as game_module
from rllib_lmgame.envs.games.web.mini_wob.expert import SOLVED
from rllib_lmgame.envs.games.web.mini_wob.game import MiniWoB
from tests.envs.begun import begun, played_by_expert
from tests.envs.chromium import missing_for_browser

END_TIMEOUT_S = 120

missing = missing_for_browser(game_module.pages_url)
needs_browser = pytest.mark.skipif(bool(missing), reason=missing)


@pytest.fixture(scope="module")
def browser() -> Iterator[host.Pages]:
    """A game that keeps the browser open, so that not every test starts one."""
    pages = host.Pages(15.0)
    pages.begin({})
    yield pages
    pages.close()


def chromiums() -> list[psutil.Process]:
    """The browsers that this process has started, without the processes below them."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # It has just ended.
            line = each.cmdline()
            if "--headless" in line and not any("--type=" in argument for argument in line):
                found.append(each)
    return found


@needs_browser
@pytest.mark.parametrize(
    "task", [*list(SOLVED)[:4], *(pytest.param(task, marks=pytest.mark.slow) for task in list(SOLVED)[4:])]
)
def test_the_script_does_its_task(task: str, browser: host.Pages) -> None:
    game = begun(MiniWoB(tasks=task, split="all"), seed=3)
    total, info = played_by_expert(game)
    assert total == 1.0 and info["success"]
    game.close()


@needs_browser
def test_a_mistake_ends_the_task_without_reward(browser: host.Pages) -> None:
    game = begun(MiniWoB(tasks="click-test-2", split="all"))
    wrong = next(each.id for each in elements_of(game.board()) if each.role == "button" and each.name == "TWO")
    assert "Click button ONE" in game.board()
    board, reward, done, cut, info = game.step(f"click('{wrong}')")
    assert (reward, done, cut, info["success"]) == (0.0, True, False, False) and board.endswith("The task is failed.")
    game.close()


@needs_browser
def test_what_the_page_does_not_allow_is_told_and_the_game_goes_on(browser: host.Pages) -> None:
    game = begun(MiniWoB(tasks="enter-text", split="all"))
    button = next(each.id for each in elements_of(game.board()) if each.role == "button")
    board, reward, done, _, info = game.step(f"fill('{button}', 'a')")
    assert reward == 0 and not done and not info["invalid_action"] and "The last action failed: " in board
    board, reward, _, _, info = game.step("click('999')")
    assert reward == -0.1 and info["invalid_action"] and "no element '999'" in board
    assert played_by_expert(game)[0] == 1.0
    game.close()


@needs_browser
def test_a_level_is_the_same_every_time(browser: host.Pages) -> None:
    game = MiniWoB(tasks="click-checkboxes")
    first = game.reset(seed=5)[0]
    assert game.reset(seed=6)[0] != first and game.reset(seed=5)[0] == first
    game.close()


@needs_browser
def test_a_page_that_computes_for_ever_costs_one_episode(monkeypatch: pytest.MonkeyPatch, browser: host.Pages) -> None:
    game, other = (begun(MiniWoB(tasks="click-test", split="all")) for _ in range(2))
    page = game._pages.page
    game._pages.do(
        "a trap", page.evaluate, "() => document.querySelector('button').onclick = () => { while (true) {} }"
    )
    with monkeypatch.context() as patch, pytest.raises(GameError, match="click: the page did not answer within 1 s"):
        patch.setattr(game._pages, "_limit_s", 1.0)
        game.step(game.expert_action())
    assert played_by_expert(other)[0] == 1.0
    with pytest.raises(GameError, match="closed"):
        game.step(game.expert_action())
    game.reset(seed=1)
    assert played_by_expert(game)[0] == 1.0
    game.close()
    other.close()


def contexts_of(browser: host.Pages) -> int:
    return len(browser._held.browser._browser.contexts)


@needs_browser
def test_pages_that_open_too_late_are_closed(monkeypatch: pytest.MonkeyPatch, browser: host.Pages) -> None:
    new_context, opened = host.Chromium.new_context, threading.Event()

    def late(self: host.Chromium, settings: dict) -> object:
        browser.page.wait_for_timeout(500)
        opened.set()
        return new_context(self, settings)

    before = contexts_of(browser)
    monkeypatch.setattr(host.Chromium, "new_context", late)
    pages = host.Pages(0.1)
    with pytest.raises(GameError, match=r"opening a page: the page did not answer within 0\.1 s"):
        pages.begin({})
    pages.close()
    assert opened.wait(END_TIMEOUT_S)
    browser.do("waiting", browser.page.wait_for_timeout, 500)
    assert contexts_of(browser) == before


@needs_browser
def test_pages_are_closed_when_a_task_is_over_and_when_a_game_is_forgotten(browser: host.Pages) -> None:
    def contexts() -> int:
        return contexts_of(browser)

    before = contexts()
    game = begun(MiniWoB(tasks="click-test", split="all"))
    assert contexts() == before + 1
    played_by_expert(game)
    assert contexts() == before
    begun(game)
    assert contexts() == before + 1
    del game
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "browser-close":
            thread.join(END_TIMEOUT_S)
    assert contexts() == before


def kill_browser() -> None:
    """Kill that of this process, and wait until it is known to be dead."""
    (browser, _), (process,) = host._shared[os.getpid()], chromiums()
    process.kill()
    browser._thread.join(END_TIMEOUT_S)


@needs_browser
def test_a_browser_that_dies_fails_its_games_and_the_next_one_is_another() -> None:
    game = begun(MiniWoB(tasks="click-test", split="all"))
    kill_browser()
    with pytest.raises(GameError):
        game.step("click('13')")
    game.reset(seed=0)
    assert played_by_expert(game)[0] == 1.0 and len(chromiums()) == 1
    game.close()
    assert not chromiums()


@needs_browser
@pytest.mark.parametrize(
    "end",
    [
        *(pytest.param(end, marks=pytest.mark.slow) for end in ("game.close()", "sys.exit(0)")),
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})",
    ],
)
def test_the_browser_ends_with_the_last_game_and_with_the_process(end: str) -> None:
    code = (
        "import os, sys; from tests.envs.test_mini_wob import MiniWoB, chromiums\n"
        "game = MiniWoB(tasks='click-test'); game.reset(seed=0); (browser,) = chromiums()\n"
        f"print(browser.pid, flush=True); {end}; print(browser.is_running())"
    )
    # A killed process leaves the browser's profile behind. Chromium's socket lies in it, and its path must be short.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profiles:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
            cwd=Path.cwd(),
            env={**os.environ, "TMPDIR": profiles},
        )
    pid, *rest = done.stdout.split()
    assert rest == (["False"] if end == "game.close()" else [])
    if psutil.pid_exists(int(pid)):
        psutil.Process(int(pid)).wait(END_TIMEOUT_S)
    assert not psutil.pid_exists(int(pid))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "click",
        "click('12'); click('13')",
        "click(bid=__import__('os').getcwd())",
        "upload_file('12', '/etc/passwd')",
        "noop(1e9)",
        "select_option('12', [1])",
        "click('12', modifiers=['Hyper'])",
        "fill('12', 'a', 'b', 'c', 'd')",
        "(" * 5000,
    ],
)
def test_what_is_no_action(text: str) -> None:
    with pytest.raises(InvalidAction):
        read_call(text, ON_A_PAGE)
