"""Sessions of a game server, whatever it speaks."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiohttp import web
from served_games import TOKEN, running

from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.adapted.agentgym.server import Server
from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.servers.served_episode import REMOTE, RemoteSeat
from rllib_lmgame.servers.sessions import SessionPool, open_games
from tests.envs.begun import begun

LAKE, KUHN, TIC_TAC_TOE = (f"lmgame/{name}-v0" for name in ("FrozenLake", "KuhnPoker", "TicTacToe"))


@pytest.mark.parametrize("name", ["KuhnPoker", "IteratedPrisonersDilemma", "PublicGoods"])
def test_each_seat_earns_what_the_game_gives_it_and_a_seed_is_a_level(name: str) -> None:
    """Of a client's seats the reward is that of who replied, each is told once, at the next view; without a seed levels
    differ.
    """

    async def play() -> None:
        pool = SessionPool(await open_games({"game": GameConfig(env=f"lmgame/{name}-v0", env_config={})}))
        game = pool.games["game"].config
        told: set[tuple[float, ...]] = set()
        for seed in range(6):
            rng, moves, session = random.Random(seed), {}, begun(make_session(f"lmgame/{name}-v0"), seed=seed)
            episode = pool.begin(game, None, seed)
            view = await episode.next_view()
            assert not any(view.rewards.values())
            while not view.over:
                before = view.agent
                assert view.observation.text == session.observe(before).text
                moves[before] = rng.choice(view.observation.legal_actions)
                view = await episode.reply(moves[before])
                due: Any = {}
                if {*moves} == {*session.to_act()}:
                    due, moves = session.step(moves).rewards, {}
                assert view.rewards == {agent: due.get(agent, 0.0) for agent in session.agent_ids}
                assert view.replied == before and view.reward == due.get(before, 0.0)
                told.add(tuple(view.rewards.values()))
        assert len(told) > 2
        episodes = [pool.begin(game, None, None) for _ in range(30)]
        texts = {(await episode.next_view()).observation.text for episode in episodes}
        assert len(texts) == (3 if name == "KuhnPoker" else 1)
        for episode in episodes:
            await episode.leave()
        assert [len(kept) for kept in pool.sessions.idle.values()] == [8], "of a busy hour not all stay for ever"
        pool.sessions.close()

    asyncio.run(play())


def test_one_seat_against_a_scripted_player_earns_its_result() -> None:
    """Also what several moves of others earn it before it is asked again."""
    seat = RemoteSeat("X", "X", REMOTE)
    seat.reward(1.0)
    seat.reward(2.0)
    assert seat.earned == 3.0

    async def play() -> None:
        pool = SessionPool(await open_games({"game": GameConfig(env=TIC_TAC_TOE, env_config={})}))
        episode, earned = pool.begin(pool.games["game"].config, ["remote", "minimax"], 0), 0.0
        view = await episode.next_view()
        while not view.over:
            view = await episode.reply(view.observation.legal_actions[-1])
            earned += view.rewards["X"]
        assert earned == view.infos["X"]["result"] and {*view.rewards} == {"X"}
        pool.sessions.close()

    asyncio.run(play())


def test_a_token_that_a_server_says_again_stands_in_no_message() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=500, text=f"cannot route: Authorization: {request.headers['Authorization']}")

    def application(pool: Any, token: str | None) -> web.Application:
        gateway = web.Application()
        gateway.router.add_route("*", "/{path:.*}", answer)
        return gateway

    with running(application, LAKE) as served, pytest.raises(GameError) as error:
        Server(served.url, "env_config.url", 5, 0, TOKEN).post("/create")
    assert TOKEN not in str(error.value) and "***" in str(error.value)
