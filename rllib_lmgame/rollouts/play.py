"""The coroutine that plays one game from reset to end.

Guarantees (each has a test):

1. No game waits for another: a game is one coroutine and awaits only its own replies.
2. An exception, a hang or nonsense from a game ends that episode only (``env_error``, ``timeout``); it is never rewarded or trained on.
3. An engine failure ends the episodes that were waiting for it (``engine_error``).
4. Running out of context or token budget is a stop reason: the episode is truncated and bootstraps.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rllib_lmgame.envs.session import GameSession, Observation, StepResult
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.seats import EpisodeFailed, OutOfTokens, Seat

T = TypeVar("T")


@dataclass(slots=True)
class GameStep:
    """One step of the game: who acted on what, and what came of it."""

    observations: dict[str, str]
    actions: dict[str, str]
    rewards: dict[str, float] = field(default_factory=dict)
    infos: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class PlayedEpisode:
    """A finished episode.

    Attributes:
        plan: What was asked for.
        game_id: Name of the game.
        seats: Per agent; language-model seats hold the turn records.
        steps: In order.
        final_observations: What every agent sees at the end.
        terminated: The game ended by its own rules; otherwise it was truncated.
        stop_reason: Why it ended.
        infos: The game's last infos per agent (``success`` and more).
    """

    plan: EpisodePlan
    game_id: str
    seats: dict[str, Seat]
    steps: list[GameStep]
    final_observations: dict[str, str]
    terminated: bool
    stop_reason: StopReason
    infos: dict[str, Mapping[str, Any]]


async def play_episode(
    session: GameSession,
    plan: EpisodePlan,
    seat_factory: Callable[[GameSession, EpisodePlan], dict[str, Seat]],
    step_timeout_s: float,
) -> PlayedEpisode:
    """Play one episode.

    Args:
        session: The game; reset here.
        plan: Level and ids.
        seat_factory: Makes the seats once the level stands.
        step_timeout_s: Limit of one call into a game that is not part of this package.

    Raises:
        EpisodeFailed: the episode must be dropped.
        ConfigError: the run cannot go on.
    """
    call = _GameCalls(session, step_timeout_s)
    await call(session.reset, plan.seed)
    seats = seat_factory(session, plan)
    steps: list[GameStep] = []
    while True:
        acting = session.to_act()
        if not acting:
            raise EpisodeFailed(StopReason.ENV_ERROR, f"{session.game_id}: nobody is to act, but the game has not ended")
        observations: dict[str, Observation] = {agent: await call(session.observe, agent) for agent in acting}
        try:
            actions = await _actions(session, seats, observations)
        except OutOfTokens as stop:
            return _finish(session, plan, seats, steps, terminated=False, reason=stop.reason, infos={})
        result = await call(session.step, actions)
        steps.append(_record(session, seats, observations, actions, result))
        if result.done:
            reason = StopReason.GAME_OVER if result.terminated else StopReason.MAX_TURNS
            return _finish(session, plan, seats, steps, terminated=result.terminated, reason=reason, infos=dict(result.infos))


async def _actions(session: GameSession, seats: Mapping[str, Seat], observations: Mapping[str, Observation]) -> dict[str, str]:
    if len(observations) == 1:
        ((agent, observation),) = observations.items()
        return {agent: await seats[agent].act(session, observation)}
    texts = await asyncio.gather(*(seats[agent].act(session, observation) for agent, observation in observations.items()))
    return dict(zip(observations, texts, strict=True))


def _record(
    session: GameSession,
    seats: Mapping[str, Seat],
    observations: Mapping[str, Observation],
    actions: Mapping[str, str],
    result: StepResult,
) -> GameStep:
    if result.terminated and result.truncated:
        raise EpisodeFailed(StopReason.ENV_ERROR, f"{session.game_id}: terminated and truncated at once")
    for agent in actions:
        seats[agent].turns_played += 1
        seats[agent].invalid_actions += bool(result.infos.get(agent, {}).get("invalid_action"))
    for agent, reward in result.rewards.items():
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise EpisodeFailed(StopReason.ENV_ERROR, f"{session.game_id}: reward of {agent} is {reward!r}, not a finite number")
        seats[agent].reward(float(reward))
    return GameStep(
        {agent: observation.text for agent, observation in observations.items()},
        dict(actions),
        {agent: float(reward) for agent, reward in result.rewards.items()},
        {agent: dict(info) for agent, info in result.infos.items()},
    )


def _finish(
    session: GameSession,
    plan: EpisodePlan,
    seats: dict[str, Seat],
    steps: list[GameStep],
    *,
    terminated: bool,
    reason: StopReason,
    infos: dict[str, Mapping[str, Any]],
) -> PlayedEpisode:
    for seat in seats.values():
        seat.finish(session, terminated)
    final = {agent: session.observe(agent).text for agent in session.agent_ids}
    if any(info.get("forfeit") for info in infos.values()):
        reason = StopReason.FORFEIT
    return PlayedEpisode(plan, session.game_id, seats, steps, final, terminated, reason, infos)


class _GameCalls:
    """Calls into a game: in place for the package's own games, which are bounded; in a daemon thread with a limit for others."""

    def __init__(self, session: GameSession, timeout_s: float) -> None:
        self.game_id = session.game_id
        self.trusted = session.trusted
        self.timeout_s = timeout_s

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        try:
            if self.trusted:
                return function(*args)
            return await asyncio.wait_for(_in_daemon_thread(function, *args), self.timeout_s)
        except (ConfigError, EpisodeFailed):
            raise
        except TimeoutError:
            message = f"{self.game_id}: {function.__name__} took longer than env_step_timeout_s={self.timeout_s:g}"
            raise EpisodeFailed(StopReason.TIMEOUT, message) from None
        except Exception as error:
            raise EpisodeFailed(StopReason.ENV_ERROR, f"{self.game_id}: {type(error).__name__}: {error}") from error


async def _in_daemon_thread(function: Callable[..., T], *args: Any) -> T:
    """Run ``function`` in a thread that cannot keep the process alive: a game that hangs is left behind."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = function(*args)
        except BaseException as caught:
            error = RuntimeError(repr(caught)) if isinstance(caught, StopIteration | StopAsyncIteration) or not isinstance(caught, Exception) else caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=work, daemon=True, name="game-call").start()
    return await future
