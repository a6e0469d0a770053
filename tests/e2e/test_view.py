"""The viewer's page in a browser: one file, and from its server."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import re
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import browser
import pytest
from commands import Command
from episode_parts import collected

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli import main
from rllib_lmgame.rollouts.episode_log import EpisodeLog, episode_record
from rllib_lmgame.servers.viewer import Viewer
from rllib_lmgame.viewer.library import Library, sources_of

in_browser = pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed")

HOSTILE = (
    "</script><script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
    "\x00\x1b[31m\u202e\u200b\U000e0041"
)


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """Two-player games, and one of a model that says everything a page must not follow."""
    played = [episode_record(each) for each in collected("lmgame/TicTacToe-v0", player="random", episodes=12)]
    turn = {
        "new_row": True,
        "prompt_ids": [1, 2],
        "prompt": HOSTILE,
        "response_ids": [5, 6, 7],
        "rollout_logprobs": [-0.25, -1.5, 0.0],
        "text": f"<think>hidden thought</think>{HOSTILE}",
        "text_lengths": [7, 22, len(HOSTILE)],
        "allowed_counts": [0, 3, 1],
        "allowed_ids": [6, 8, 9, 7],
        "reward": 1.0,
        "policy_version": 4,
        "stop_reason": "eos",
    }
    seat = {
        "agent_id": "player",
        "role": HOSTILE,
        "module_id": HOSTILE,
        "return": 1.5,
        "success": True,
        "turns": [turn, {**turn, "response_ids": [5, 9, 7]}],
    }
    step = {"observations": {"player": HOSTILE}, "actions": {"player": HOSTILE}, "rewards": {"player": 1.5}}
    odd = {
        "episode_id": "train-6-3",
        "game": "odd/Game-v0",
        "seed": 2**60,
        "stop_reason": HOSTILE,
        "instructions": HOSTILE,
        "infos": {"player": {"level": "0" * 16}},
        "steps": [{**step, "infos": {"player": {"said": HOSTILE}}}],
        "final_observations": {"player": HOSTILE},
        "trajectories": [seat, {**seat, "agent_id": "constructor", "outcome": "toString", "turns": []}],
    }
    return [*played, odd]


def _visit(url: str, does: Callable[[browser.Page], Coroutine[Any, Any, Any]]) -> Any:
    async def visit() -> Any:
        async with browser.open_page(url) as page:
            return await does(page)

    return asyncio.run(visit())


async def _press(page: browser.Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        await page.command("Input.dispatchKeyEvent", type=kind, key=key, text=key if len(key) == 1 else "")


COLOURS = """(async () => {
  const field = document.getElementById("colour");
  field.value = "%s";
  field.dispatchEvent(new Event("change"));
  await open();
  return [...document.querySelectorAll(".tok")].slice(0, 3).map(token => token.style.backgroundColor);
})()"""


def _colour(text: str) -> Any:
    """Red, green, blue and opacity; ``None`` for no colour."""
    numbers = re.fullmatch(r"rgba?\((.+)\)", text)
    return None if text == "transparent" else tuple(map(float, numbers[1].split(","))) if numbers else text


async def _choose(page: browser.Page, name: str, value: str) -> None:
    await page.evaluate(
        f"{{ const field = document.getElementById('f-{name}'); field.value = {json.dumps(value)};"
        "field.dispatchEvent(new Event('input')); field.dispatchEvent(new Event('change')); }"
    )


@in_browser
def test_an_exported_page_opens_from_a_file(records, tmp_path):
    EpisodeLog(tmp_path / "episodes" / "train-0.jsonl").write(records)
    known = {"old_logprobs": [-0.25001, -1.5, None, -1.4], "advantages": [0.5, -2.0, 1e-9, 3], "entropies": [0.1] * 4}
    note = {"episode_id": "train-6-3", "agent_id": "player", "rollout_sum": -3.5, **known}
    EpisodeLog(tmp_path / "episodes" / "learner-0.tokens").write([note])
    library = Library(sources_of([str(tmp_path)]))
    list(library.refresh())
    out = tmp_path / "page.html"
    assert main(["view", str(tmp_path), "--export", str(out)]) == 0
    assert main(["view", str(tmp_path), "--export", str(out)]) == 2, "it is there already"

    async def look(page: browser.Page) -> None:
        await page.until("13 of 13")
        await _choose(page, "g", "odd/Game-v0")
        await page.until("1 of 13")
        await _press(page, "j")
        shown = await page.until("at the end")
        assert "</script><script>document.title='taken'</script>" in shown, "text stays text"
        assert (
            "\u2400\u241b[31m\u27e8U+202E\u27e9\u27e8U+200B\u27e9\u27e8U+E0041\u27e9" in shown and "\x1b" not in shown
        )
        assert "hidden thought" not in shown, "reasoning is folded"
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
        assert await page.evaluate("document.title") == tmp_path.name
        await _press(page, "t")
        await page.until("masked: 2 tokens")
        tokens = await page.evaluate("[...document.querySelectorAll('.tok')].map(t => [t.textContent, t.className])")
        assert [text for text, _ in tokens][:2] == ["<think>", "hidden thought</think>"]
        assert [kind for _, kind in tokens] == ["tok", "tok", "tok forced"]
        await page.evaluate(
            "document.querySelectorAll('.tok')[1].dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
        )
        tip = await page.evaluate("document.getElementById('tip').textContent")
        assert "-1.5" in tip and "one of 3 legal" in tip and "version   4" in tip and "advantage -2" in tip
        learnt, forced = "var(--learnt)", "var(--masked)"
        for name, wanted in (
            ("mask", [learnt, learnt, forced]),
            ("advantage", [(30, 160, 80, 0.5), (215, 60, 50, 0.8), None]),
            ("logprobs", [(225, 140, 20, 1 - math.exp(logprob)) for logprob in (-0.25, -1.5, 0.0)]),
            ("entropy", [(225, 140, 20, 1 - math.exp(-0.1))] * 2 + [None]),
            ("version", [(225, 140, 20, 4 / 12 + 0.1)] * 3),
        ):
            assert [_colour(text) for text in await page.evaluate(COLOURS % name)] == [
                each if each is None or isinstance(each, str) else pytest.approx(each, abs=0.005) for each in wanted
            ]
        await page.evaluate(COLOURS % "mask")
        for number in (12, 3):
            assert await page.evaluate(f"data.episode({number})") == library.episode(number)
        address = await page.evaluate("location.hash")
        assert "e=episodes%2Ftrain-0.jsonl%3A13" in address and "tk=1" in address
        await _choose(page, "g", "")
        await _choose(page, "q", "hidden THOUGHT")
        await page.until("1 of 13")
        blocked = (
            "new Promise(done => {"
            "document.addEventListener('securitypolicyviolation', e => done(e.effectiveDirective));"
        )
        assert await page.evaluate(blocked + "fetch('https://example.invalid/').catch(() => 0); })") == "connect-src"
        assert (
            await page.evaluate(
                blocked + "const s = document.createElement('script'); s.textContent = '1'; document.body.append(s); })"
            )
            == "script-src-elem"
        )

    _visit(out.as_uri(), look)

    async def deep(page: browser.Page) -> None:
        shown = await page.until("at the end")
        assert "player_0" not in shown and "lmgame/TicTacToe-v0" in shown
        order = "[...document.querySelectorAll('#scroll .row')].map(row => +row.children[6].textContent)"
        turns = await page.evaluate(order)
        assert turns == sorted(turns, reverse=True) and len(set(turns)) > 1
        seats = await page.evaluate(
            "[...document.querySelectorAll('.turn')].map(turn => turn.querySelectorAll('.seat').length)"
        )
        assert set(seats) == {2}, "both seats side by side"
        assert await page.evaluate("document.querySelector('.turn.at').dataset.t") == "2"
        assert await page.evaluate("[state.col, document.getElementById('colour').value]") == ["mask", "mask"]

    _visit(f"{out.as_uri()}#e=episodes%2Ftrain-0.jsonl%3A2&t=2&by=-t&col=toString&constructor=1", deep)


@pytest.mark.slow
@in_browser
def test_the_page_of_a_run_goes_on_by_itself(records, tmp_path):
    log = EpisodeLog(tmp_path / "episodes" / "train-0.jsonl")
    log.write(records[:2])
    library = Library(sources_of([str(tmp_path)]))

    async def look(page: browser.Page) -> None:
        await page.until("2 of 2")
        await _press(page, "j")
        await page.until("at the end")
        EpisodeLog(tmp_path / "episodes" / "train-1.jsonl").write(records[2:5])
        await page.until("5 of 5")
        assert "at the end" in await page.text(), "what is looked at stays"
        log.path.write_text("")
        await page.until("3 of 3")
        with log.path.open("w") as file:
            file.write("{")
        await page.until("ends in 1 bytes")

    with Viewer(library, "run", 0, lambda: sources_of([str(tmp_path)])) as viewer:
        _visit(viewer.address, look)


@in_browser
def test_a_person_plays_on_the_page(tmp_path):
    command = Command("play lmgame/TicTacToe-v0 --players X=minimax --web --port 0 --no-browser")
    try:
        command.wait_for("^Play: ")

        async def look(page: browser.Page) -> None:
            assert "You are O." in await page.until("O>")
            for _ in range(5):
                if not await page.evaluate("!!document.querySelector('#moves button')"):
                    break
                before = await page.evaluate("document.querySelectorAll('#said .seen').length")
                await page.evaluate("document.querySelector('#moves button').click()")
                while await page.evaluate("document.querySelectorAll('#said .seen').length") == before:
                    await asyncio.sleep(0.05)
            assert "success: X" in await page.until("at the end"), "the viewer shows the whole game"
            await page.evaluate("document.querySelectorAll('#reply button')[1].click()")
            await page.until("The whole game stands here when it is over")

        _visit(re.search(r"http\S+", command.text)[0], look)
        command.process.send_signal(signal.SIGINT)
        command.finish(0)
    finally:
        command.end()


def test_the_server_answers_this_machine_under_its_own_names(records, tmp_path):
    EpisodeLog(tmp_path / "x.jsonl").write(records)
    library = Library(sources_of([str(tmp_path)]))
    list(library.refresh())
    with Viewer(library, "run", 0, lambda: ()) as viewer:
        port = int(viewer.address.rstrip("/").rpartition(":")[2])

        def ask(path: str, host: str = f"127.0.0.1:{port}", method: str = "GET") -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request(method, path, headers={"Host": host})
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer.status, text

        assert ask("/")[0] == 200 and ask("/", f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
            assert ask("/", host)[0] == 403
        assert json.loads(ask("/api/episode?number=12&generation=0")[1])["game"] == "odd/Game-v0"
        for path in ("/api/episode?number=99&generation=0", "/api/episode?number=-1&generation=0", "/api/news?from=x"):
            assert ask(path)[0] == 400
        assert ask("/api/episode?number=0&generation=7")[0] == 400
        assert ask("/../../etc/passwd")[0] == 404 and ask("/", method="POST")[0] == 405
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
            Viewer(library, "run", port, lambda: ()).__enter__()
