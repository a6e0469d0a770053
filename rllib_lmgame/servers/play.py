"""Games that a person plays in a browser of this machine, on the viewer's page: one in each tab.

1. A tab that is closed, or gives no sign of life, ends its game and nothing else.
2. Only the page that this server sent may ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_server import listen
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.rollouts.episode_log import episode_record
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.servers.openenv import PING_S
from rllib_lmgame.servers.sessions import MOST_BYTES
from rllib_lmgame.servers.viewer import LOOPBACK, STOP_S, local_app
from rllib_lmgame.viewer.forms import episode_of, row_of
from rllib_lmgame.viewer.page import page

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.play import PlayedEpisode

MOST_GAMES = 16
"""Tabs at the same time."""


class Tab:
    """A tab of a browser, which shows a game and is asked for replies. Raises ConnectionError once it is closed."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._send = socket.send_json
        self._asked: asyncio.Future[str] | None = None

    async def show(self, text: str, kind: str = "note") -> None:
        await self._send({"kind": kind, "text": text.strip("\n")})

    async def read(self, prompt: str, choices: Sequence[str] = ()) -> str:
        self._asked = asyncio.get_running_loop().create_future()
        await self._send({"kind": "ask", "text": prompt, "choices": choices})
        return await self._asked

    async def over(self, game: PlayedEpisode) -> None:
        """Show a whole game as the viewer does, with all seats."""
        episode = episode_of(episode_record(game))
        await self._send({"kind": "episode", "episode": episode, "row": row_of(episode, 0, 1)})

    def heard(self, text: str) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(text)


Play = Callable[[Tab, int], Awaitable[object]]
"""Plays a game in a tab: on the first level, or so many later."""


async def serve_games(play: Play, port: int, ready: Callable[[str], None]) -> None:
    """Serve the page until cancelled; ``ready`` is called with its address. Raises: ConfigError: the port is taken."""
    await listen(games_app(play), LOOPBACK, port, lambda found: ready(f"http://{LOOPBACK}:{found}/"), STOP_S)


def games_app(play: Play) -> web.Application:
    """The application that is served."""
    app, in_play = local_app(own_page=True), set[Tab]()

    async def first(request: web.Request) -> web.Response:
        return web.Response(text=page('<div id="d-play" hidden></div>'), content_type="text/html")

    async def whole(socket: web.WebSocketResponse, tab: Tab, later: int) -> None:
        try:
            if len(in_play) > MOST_GAMES:
                raise ConfigError("", f"{MOST_GAMES} games are in play; close a tab")
            await play(tab, later)
        except (ConfigError, EpisodeFailed, GameError) as error:
            await tab.show(str(error), "end")
        finally:
            await socket.close()

    async def sit(request: web.Request) -> web.WebSocketResponse:
        later = request.query.get("later", "0")
        if not later.isascii() or not later.isdecimal() or len(later) > 9:
            raise web.HTTPBadRequest(text="later must be a whole number of at most nine digits")
        socket = web.WebSocketResponse(heartbeat=PING_S, max_msg_size=MOST_BYTES)
        await socket.prepare(request)
        in_play.add(tab := Tab(socket))
        game = asyncio.create_task(whole(socket, tab, int(later)))
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    tab.heard(message.data)
        finally:
            game.cancel()
            in_play.discard(tab)
            with suppress(asyncio.CancelledError, ConnectionError):
                await game
        return socket

    app.router.add_get("/", first)
    app.router.add_get("/play", sit)
    return app
