"""The coroutine that plays one game from reset to end.

Guarantees (each has a test):

1. No game waits for another: a game is one coroutine and awaits only its own replies.
2. An exception, a hang or nonsense from a game ends that episode only (``env_error``, ``timeout``); it is never rewarded or trained on.
3. An engine failure ends the episodes that were waiting for it (``engine_error``).
4. Running out of context or token budget is a stop reason: the episode is truncated and bootstraps.
5. A reward is credited to its player's last turn, also when the opponent's move earned it. A reply that never reached the game (in a
   game of simultaneous moves, when another player had no tokens left) is no turn.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.envs.session import GameSession, Observation, StepResult
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.game_calls import GameCalls
from rllib_lmgame.rollouts.infos import plain_info
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, OutOfTokens, Seat


@dataclass(slots=True)
class GameStep:
    """One step of the game: who acted on what, with what reasoning (where there was any), and what came of it."""

    observations: dict[str, str]
    actions: dict[str, str]
    turns_left: dict[str, int | None] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    infos: dict[str, dict[str, Any]] = field(default_factory=dict)
    thoughts: dict[str, str] = field(default_factory=dict)


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
        instructions: The game's rules.
        cooperative: The players reach the goal together or not at all.
    """

    plan: EpisodePlan
    game_id: str
    seats: dict[str, Seat]
    steps: list[GameStep]
    final_observations: dict[str, str]
    terminated: bool
    stop_reason: StopReason
    infos: dict[str, dict[str, Any]]
    instructions: str = ""
    cooperative: bool = False


Views = dict[str, Observation]
"""What agents see."""


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
    call = GameCalls(session.game_id, session.trusted, step_timeout_s)
    views: Views = await call("reset", _reset, session, plan.seed)
    seats = seat_factory(session, plan)
    steps: list[GameStep] = []
    while True:
        try:
            actions = await _actions(session, seats, views, call)
        except OutOfTokens as stop:
            views = await call("observe", _look, session, session.agent_ids)
            return _finish(session, plan, seats, steps, views, terminated=False, reason=stop.reason, infos={})
        result, following = await call("step", _step, session, actions)
        infos = {agent: plain_info(info) for agent, info in result.infos.items()}
        steps.append(_record(session, seats, views, actions, result, infos))
        views = following
        if result.done:
            reason = StopReason.GAME_OVER if result.terminated else StopReason.MAX_TURNS
            return _finish(session, plan, seats, steps, views, terminated=result.terminated, reason=reason, infos=infos)


def _reset(session: GameSession, seed: int) -> Views:
    """Start the level; returns what those see who are to act."""
    session.reset(seed)
    return _look(session, session.to_act())


def _step(session: GameSession, actions: Mapping[str, str]) -> tuple[StepResult, Views]:
    """Make a step; returns what those see who are to act next, or what everybody sees at the end."""
    result = session.step(actions)
    if not isinstance(result, StepResult):
        raise TypeError(f"step() returned {type(result).__name__}, not a StepResult")
    if result.terminated and result.truncated:
        raise ValueError("the game is terminated and truncated at once")
    return result, _look(session, session.agent_ids if result.done else session.to_act())


def _look(session: GameSession, agents: tuple[str, ...]) -> Views:
    if not agents:
        raise ValueError("nobody is to act, but the game has not ended")
    views = {agent: session.observe(agent) for agent in agents}
    for agent, view in views.items():
        if not isinstance(view, Observation) or not isinstance(view.text, str):
            raise TypeError(f"the observation of {agent} is {view!r}, not text")
    return views


async def _actions(session: GameSession, seats: Mapping[str, Seat], views: Views, call: GameCall) -> dict[str, str]:
    """The actions of all who are to act. If one of them cannot reply, the replies of the others are withdrawn."""
    if len(views) == 1:
        ((agent, view),) = views.items()
        return {agent: await seats[agent].act(session, view, call)}
    outcomes = await asyncio.gather(*(seats[agent].act(session, view, call) for agent, view in views.items()), return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        for agent in views:
            seats[agent].withdraw()
        raise next((error for error in errors if not isinstance(error, OutOfTokens)), errors[0])
    return dict(zip(views, outcomes, strict=True))  # type: ignore[arg-type]


def _record(
    session: GameSession, seats: Mapping[str, Seat], views: Views, actions: Mapping[str, str], result: StepResult, infos: dict[str, dict[str, Any]]
) -> GameStep:
    for agent in actions:
        seats[agent].acted(bool(infos.get(agent, {}).get("invalid_action")))
    for agent, reward in result.rewards.items():
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise EpisodeFailed(StopReason.ENV_ERROR, f"{session.game_id}: the reward of {agent} is {reward!r}, not a finite number")
        seats[agent].reward(float(reward))
    return GameStep(
        {agent: view.text for agent, view in views.items()},
        dict(actions),
        {agent: view.turns_left for agent, view in views.items()},
        {agent: float(reward) for agent, reward in result.rewards.items()},
        infos,
        {agent: thought for agent in actions if (thought := seats[agent].thought) is not None},
    )


def _finish(
    session: GameSession,
    plan: EpisodePlan,
    seats: dict[str, Seat],
    steps: list[GameStep],
    views: Views,
    *,
    terminated: bool,
    reason: StopReason,
    infos: dict[str, dict[str, Any]],
) -> PlayedEpisode:
    for agent, seat in seats.items():
        seat.finish(views[agent], reason, terminated)
    if any(info.get("forfeit") for info in infos.values()):
        reason = StopReason.FORFEIT
    final = {agent: view.text for agent, view in views.items()}
    return PlayedEpisode(plan, session.game_id, seats, steps, final, terminated, reason, infos, session.instructions, session.cooperative)
