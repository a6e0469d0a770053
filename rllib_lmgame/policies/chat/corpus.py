"""Texts of a game for a tokenizer that is trained on the spot."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from rllib_lmgame.envs.contract.session import GameSession

EPISODE_TURNS, TURNS = 500, 4_000  # At most, of an episode and in all.
Call = Callable[..., Any]
"""Makes a call into a game: its name, the function and its arguments."""


def game_corpus(
    session: GameSession,
    episodes: int = 64,
    seed: int = 0,
    call: Call = lambda what, function, *args: function(*args),
    tolerated: type[Exception] | tuple[()] = (),
    goes_on: Callable[[Any], bool] = lambda failure: True,
) -> list[str]:
    """Observations, legal and expert actions of episodes, half played by the expert, half at random, as ``seed`` says.

    ``call`` makes each call into the game. An episode that fails with ``tolerated`` is left out; raised if all fail.
    ``goes_on`` says of such a failure whether more are played.
    """
    rng = random.Random(seed)
    texts, turns = [session.instructions], iter(range(TURNS))
    played, failure = 0, None
    for episode in range(episodes):
        try:
            texts += _texts_of(session, rng, call, turns, solved=episode % 2 == 0)
            played += 1
        except tolerated as error:
            failure = error
            if not goes_on(error):
                break
    if failure is not None and not played:
        raise failure
    return [text for text in texts if text]


def _texts_of(session: GameSession, rng: random.Random, call: Call, turns: Iterator[int], solved: bool) -> list[str]:
    texts: list[str] = []
    call("reset", session.reset, rng.getrandbits(31))
    for _ in islice(turns, EPISODE_TURNS):
        acting = call("to_act", session.to_act)
        if not acting:
            break
        actions = {}
        for agent in acting:
            observation = call("observe", session.observe, agent)
            legal = list(observation.legal_actions)
            expert = call("expert_action", session.expert_action, agent) if solved else None
            actions[agent] = expert or (rng.choice(legal) if legal else "")
            texts += [observation.text, actions[agent], *legal]
        if call("step", session.step, actions).done:
            texts += [call("observe", session.observe, agent).text for agent in session.agent_ids]
            break
    return texts
