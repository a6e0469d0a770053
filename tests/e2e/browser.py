"""A headless Chromium, driven over its DevTools protocol: what a person would see of a page."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--remote-debugging-port=0",
        "--window-size=1400,1000",
    ),
]


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def command(self, method: str, **params: Any) -> Any:
        """Result of one command of the protocol."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async for message in self._socket:
            answer = json.loads(message.data)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
        raise ConnectionError("the browser went away")

    async def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression."""
        for _ in range(50):
            try:
                answer = await self.command(
                    "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
                )
                break
            except (
                AssertionError
            ) as error:  # The page went on to another address meanwhile: asked again, the new one answers.
                if not any(
                    words in str(error)
                    for words in ("navigated or closed", "context was destroyed", "Cannot find context")
                ):
                    raise
                await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"the page never stood still for {script!r}")
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def text(self) -> str:
        """The page as text."""
        return str(await self.evaluate("document.body ? document.body.innerText : ''"))

    async def until(self, text: str, timeout_s: float = 60.0) -> str:
        """The page's text once it contains ``text``."""
        shown, began = "", time.monotonic()
        while text not in (shown := await self.text()):
            assert time.monotonic() - began < timeout_s, f"no {text!r} in {timeout_s:g} s: {shown}"
            await asyncio.sleep(0.05)
        return shown


@contextlib.asynccontextmanager
async def open_page(url: str) -> AsyncIterator[Page]:
    """A fresh browser, without a cookie, on ``url``."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        assert CHROMIUM is not None
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = await _port(Path(profile, "DevToolsActivePort"))
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    address = next(tab["webSocketDebuggerUrl"] for tab in await answer.json() if tab["type"] == "page")
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    page = Page(socket)
                    await page.command("Page.navigate", url=url)
                    yield page
        finally:
            process.terminate()
            process.wait(timeout=30)


async def _port(file: Path) -> int:
    async with asyncio.timeout(60):
        while not (file.exists() and file.read_text().count("\n")):
            await asyncio.sleep(0.1)
    return int(file.read_text().split("\n")[0])
