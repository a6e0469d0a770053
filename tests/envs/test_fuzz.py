"""Whatever is typed into whichever game: nothing raises.

Replies are drawn from what players write (the game's own actions and the expert's), mutated, and from plain noise.
``make test`` types some into every game, the slow test a million over all games.
"""

from __future__ import annotations

import math
import random
import string
import time

import pytest

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.registry import own_games
from tests.envs.begun import each_game

STRINGS = 150
MILLION = 1_000_000
SECONDS_OF_A_SLOW_GAME = 20.0
"""Games that start a process for every reply cannot read their share of a million."""

FRAGMENTS = (
    *["||", "<answer>", "</answer>", "<think>", "<search>", "```", "<tool_call>", "</tool_call>", "<|im_end|>", "####"],
    *[
        "{", "}", "[", "]", "((((", "))))", "-1", "1e309", "nan", "9^9^9^9", "1/0", "%s%n", "٣", "½", "²", "'", '"',
        "\\", ";--", "\ud800", "\u202e", "\ufeff", "😀",
    ],
    *("```python\n", "```sql\n", "SELECT * FROM", "import os", '{"name":', "0" * 40, "\x00", "é" * 30, "\r\n", "\t"),
    *(" " * 200, "a" * 3000),
)  # fmt: skip


def noise(chance: random.Random) -> str:
    """Characters without sense."""
    letters = string.printable if chance.random() < 0.7 else [chr(chance.randrange(0x11000)) for _ in range(20)]
    return "".join(chance.choice(letters) for _ in range(chance.randrange(40)))


def mutated(text: str, chance: random.Random) -> str:
    """``text`` with pieces cut, doubled, swapped or put in."""
    for _ in range(chance.randrange(1, 4)):
        at, to = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
        text = chance.choice(
            (
                text[:at] + text[to:],
                text[:at] + text[at:to] * 3 + text[to:],
                text[:at] + chance.choice(FRAGMENTS) + text[at:],
                text[:at] + noise(chance) + text[to:],
                text.swapcase(),
                text[::-1],
            )
        )[:20_000]
    return text


def reply(session, agent: str, chance: random.Random) -> str:
    """Something a player might write, or nobody would."""
    kind = chance.random()
    legal = session.observe(agent).legal_actions
    if kind < 0.35 and legal:
        return chance.choice(legal) if kind < 0.1 else mutated(chance.choice(legal), chance)
    if kind < 0.45:
        return mutated(session.expert_action(agent) or "", chance)
    if kind < 0.7:
        return "".join(chance.choice(FRAGMENTS) + noise(chance) for _ in range(chance.randrange(1, 5)))
    return noise(chance)


def fuzz(game: str, strings: int, seconds: float = math.inf, salt: str = "") -> int:
    """Type ``strings`` replies into ``game``; returns how many were typed within ``seconds``. Another ``salt`` gives
    other replies.
    """
    session = make_session(game)
    chance = random.Random(game + salt)
    deadline, typed, seed = time.monotonic() + seconds, 0, 0
    try:
        while typed < strings and time.monotonic() < deadline:
            if not session.to_act():
                session.reset(seed)
                seed += 1
            actions = {agent: reply(session, agent, chance) for agent in session.to_act()}
            try:
                result = session.step(actions)
            except Exception as error:
                raise AssertionError(f"{game}, level {seed - 1}, replies {actions!r}: {error}") from error
            typed += len(actions)
            assert all(math.isfinite(reward) for reward in result.rewards.values())
            assert not (result.terminated and result.truncated)
    finally:
        session.close()
    return typed


def is_installed(game: str) -> bool:
    """Whether the game's package or program is there."""
    try:
        make_session(game).close()
    except MissingDependencyError:
        return False
    return True


@each_game
def test_some_strings(game: str) -> None:
    assert fuzz(game, STRINGS, SECONDS_OF_A_SLOW_GAME) > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_strings_over_all_games() -> None:
    here = [game for game in own_games() if is_installed(game)]
    share = -(-MILLION // len(here))
    typed = {game: fuzz(game, share, SECONDS_OF_A_SLOW_GAME) for game in here}
    fast = [game for game, count in typed.items() if count >= share]
    more = -(-(MILLION - sum(typed.values())) // len(fast))
    for game in fast:
        typed[game] += fuzz(game, more, salt="more")
    assert sum(typed.values()) >= MILLION
    assert all(typed.values()), typed
