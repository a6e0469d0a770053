"""Plays many games at once, each in a coroutine from reset to end.

Guarantees (each has a test):

1. No game waits for another: a game awaits only its own replies.
2. An exception, a hang or an invalid result of a game ends its episode only (``env_error``, ``timeout``); the episode
   is never rewarded or trained on.
3. An engine failure ends the episodes that were waiting for the engine (``engine_error``).
4. Each seat has its own end: a player may leave before the game is over, with its verdict.
5. A seat that runs out of context or token budget ends alone. The game passes for it, or it forfeits. If the game
   supports neither, an empty reply is passed in while a language model is left; then the episode is truncated.
6. A reward goes to its player's last turn, even if the opponent's move earned it. After a seat was truncated its turns
   get no reward: the value of its last state stands for what follows.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.text import in_words
from rllib_lmgame.envs.contract.infos import plain_info
from rllib_lmgame.envs.contract.session import GameSession, Observation, StepResult
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.demonstrations import KEY
from rllib_lmgame.rollouts.game_calls import GameCalls, abandon, open_session
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import EpisodePlan, Race, stable_seed
from rllib_lmgame.rollouts.records import Failure, GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed, OutOfTokens, Seat

logger = logging.getLogger(__name__)


class Sessions:
    """Keeps the games between episodes: ``idle``, by :attr:`.GameConfig.key`, at most ``most`` of each."""

    def __init__(self, most: float = math.inf) -> None:
        self.most = most
        self.idle: dict[str, list[GameSession]] = defaultdict(list)

    def free_session(self, game: GameConfig) -> GameSession | None:
        pool = self.idle[game.key]
        return pool.pop() if pool else None

    def release(self, game: GameConfig, session: GameSession) -> None:
        pool = self.idle[game.key]
        pool.append(session) if len(pool) < self.most else abandon(session)

    def opened(self, game: GameConfig, session: GameSession) -> None:
        """Called when a game was made."""

    def begin(self, plan: EpisodePlan, session: GameSession) -> None:
        """Called before an episode's reset."""

    def watch(self, game: GameInPlay) -> None:
        """Called before each step of a game."""

    def end(self, episode: PlayedEpisode, session: GameSession) -> None:
        """Called when an episode was played to its end."""

    def forget(self, plan: EpisodePlan) -> None:
        """Called when an episode is over or has failed."""

    def close(self) -> None:
        while self.idle:
            for session in self.idle.popitem()[1]:
                abandon(session)


class PlayedPlans(NamedTuple):
    """Results of plans, in their order. ``aborted``: ids of episodes that were stopped once enough had finished."""

    episodes: list[PlayedEpisode]
    failures: list[Failure]
    aborted: list[str]


SeatFactory = Callable[[GameSession, EpisodePlan], dict[str, Seat]]


async def play_many(
    plans: Sequence[EpisodePlan],
    games: Sequence[GameConfig],
    seats: SeatFactory,
    sessions: Sessions,
    options: TextRolloutOptions,
    at_once: int | asyncio.Semaphore,
) -> PlayedPlans:
    """Play all plans, ``at_once`` at a time; with spare ones, until enough have finished (:class:`.Race`).

    ``at_once`` may be a semaphore, which other plans share. ``EpisodePlan.game`` is an index into ``games``.
    """
    played: list[PlayedEpisode] = []
    failures: list[Failure] = []
    race, places = Race(plans), asyncio.Semaphore(max(1, at_once)) if isinstance(at_once, int) else at_once

    async def play_in_turn(plan: EpisodePlan) -> None:
        async with places:
            outcome = await play_one(plan, games[plan.game], seats, sessions, options)
        if isinstance(outcome, Failure):
            failures.append(outcome)
            return
        played.append(outcome)
        if race.finish(plan.episode_id):
            for other in plans:
                if not race.wants(other.episode_id):
                    tasks[other.episode_id].cancel()

    async with asyncio.TaskGroup() as group:
        tasks = {plan.episode_id: group.create_task(play_in_turn(plan)) for plan in plans}
    episodes = sorted((one for one in played if race.wants(one.plan.episode_id)), key=lambda one: one.plan.index)
    failures.sort(key=lambda failure: failure.plan.index)
    known = {one.plan.episode_id for one in episodes} | {failure.plan.episode_id for failure in failures}
    return PlayedPlans(episodes, failures, [plan.episode_id for plan in plans if plan.episode_id not in known])


async def play_one(
    plan: EpisodePlan, game: GameConfig, seats: SeatFactory, sessions: Sessions, options: TextRolloutOptions
) -> PlayedEpisode | Failure:
    """Play one episode, or return its failure. The session is kept for later unless it may be to blame.

    Raises: ConfigError: no episode can work; MissingDependencyError: the game needs a missing package.
    """
    session: GameSession | None = None
    reusable = False
    try:
        async with asyncio.timeout(options.episode_timeout_s) as limit:
            session = sessions.free_session(game)
            if session is None:
                session = await open_session(game, options.env_step_timeout_s)
                sessions.opened(game, session)
            sessions.begin(plan, session)
            episode = await play_episode(session, plan, seats, options.env_step_timeout_s, game, sessions.watch)
            sessions.end(episode, session)
        reusable = True
        return episode
    except (ConfigError, MissingDependencyError):
        raise
    except asyncio.CancelledError:
        reusable = session is not None and session.trusted  # Such a game is called in place: it is between two calls.
        raise
    except EpisodeFailed as failure:
        reusable = failure.reason is StopReason.ENGINE_ERROR
        return Failure(plan, failure.reason.value, str(failure))
    except Exception as error:
        if isinstance(error, TimeoutError) and limit.expired():
            message = f"{game.env}: the episode took longer than episode_timeout_s={options.episode_timeout_s:g}"
            return Failure(plan, StopReason.TIMEOUT.value, message)
        logger.warning("Episode %s of %s failed", plan.episode_id, game.env, exc_info=True)
        return Failure(plan, StopReason.ENV_ERROR.value, f"{game.env}: {in_words(error)}")
    finally:
        sessions.forget(plan)
        if session is not None and reusable:
            sessions.release(game, session)
        elif session is not None:
            abandon(session)


@dataclass(slots=True)
class GameStep:
    """One step of the game: observations, actions, reasoning and results.

    ``passes`` holds what was passed in for players that ran out of tokens; these are not their actions.
    """

    observations: dict[str, str]
    actions: dict[str, str]
    turns_left: dict[str, int | None] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    infos: dict[str, dict[str, Any]] = field(default_factory=dict)
    thoughts: dict[str, str] = field(default_factory=dict)
    passes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeatEnd:
    """How one player's game ended, and after how many steps."""

    terminated: bool
    stop_reason: StopReason
    step: int


@dataclass
class PlayedEpisode:
    """An episode, as far as it was played.

    Attributes:
        seats: Per agent; language-model seats hold the turn records.
        final_observations: Per agent, what it saw at its end.
        infos: The game's last infos per agent (``success`` and more), also of agents that left early.
        instructions: The game's rules.
        cooperative: The players reach the goal together or not at all.
        game: Its entry in the configuration, if it has one.
        logged: It is in an episode log.
    """

    plan: EpisodePlan
    game_id: str
    seats: dict[str, Seat]
    steps: list[GameStep] = field(default_factory=list)
    ends: dict[str, SeatEnd] = field(default_factory=dict)
    final_observations: dict[str, str] = field(default_factory=dict)
    stop_reason: StopReason = StopReason.GAME_OVER
    infos: dict[str, dict[str, Any]] = field(default_factory=dict)
    instructions: str = ""
    cooperative: bool = False
    game: GameConfig | None = None
    logged: bool = False

    @property
    def called(self) -> str:
        """Name of the game in metrics and logs: that of its entry, or its id."""
        return self.game_id if self.game is None else self.game.called(self.game_id)

    @property
    def terminated(self) -> bool:
        """Whether the game ended by its own rules for every player."""
        return all(end.terminated for end in self.ends.values())


Views = dict[str, Observation]
"""What agents see."""


async def play_episode(
    session: GameSession,
    plan: EpisodePlan,
    seat_factory: SeatFactory,
    step_timeout_s: float,
    config: GameConfig | None = None,
    watch: Callable[[GameInPlay], None] | None = None,
) -> PlayedEpisode:
    """Play one episode; ``step_timeout_s`` limits calls into games of others, ``watch`` is called before each step.

    Raises: EpisodeFailed: the episode must be dropped; ConfigError: the run cannot continue.
    """
    game = await GameInPlay.begin(session, plan, seat_factory, step_timeout_s, config)
    while game.views:
        if watch is not None:
            watch(game)
        await game.advance()
    return game


@dataclass(frozen=True, slots=True)
class _AfterStep:
    """Results of a step. Infos are plain data from here on: a game's own objects may run code when they are read."""

    result: StepResult
    infos: dict[str, dict[str, Any]]
    following: Views
    last: Views


MAX_LEVELS = 1000
"""Levels that are tried until one is found that no demonstration has shown."""


@dataclass(kw_only=True)
class GameInPlay(PlayedEpisode):
    """An episode between two steps; ``views`` is what the players that act next see, empty at the end.

    If a demonstration has shown the plan's level, ``plan`` has the seed of another one.
    """

    session: GameSession
    call: GameCalls
    views: Views

    @classmethod
    async def begin(
        cls,
        session: GameSession,
        plan: EpisodePlan,
        seat_factory: SeatFactory,
        step_timeout_s: float,
        config: GameConfig | None = None,
    ) -> Self:
        call = GameCalls(session.game_id, session.trusted, step_timeout_s)
        for attempt in range(MAX_LEVELS):
            own = replace(plan, seed=stable_seed(plan.seed, "not shown", attempt)) if attempt else plan
            views: Views = await call("reset", _reset, session, own.seed)
            seats = seat_factory(session, own)
            shown = frozenset().union(*(seat.not_played() for seat in seats.values()))
            if not shown or await call("level", session.level) not in shown:
                return cls(
                    own,
                    session.game_id,
                    seats,
                    instructions=session.instructions,
                    cooperative=session.cooperative,
                    game=config,
                    session=session,
                    call=call,
                    views=views,
                )
        raise ConfigError(KEY, f"leave no level of {session.game_id} to play; take fewer")

    def __post_init__(self) -> None:
        self._in_game = list(self.seats)
        self._broken_off: StopReason | None = None

    async def advance(self) -> None:
        self.views = await self._step(self.views)
        if not self.views:
            self.stop_reason = self._reason()

    async def _step(self, views: Views) -> Views:
        asked = {agent: view for agent, view in views.items() if agent not in self.ends}
        replies = await self._replies(asked)
        absent = [agent for agent in views if agent not in replies]
        passes = await self._passes(absent)
        if None in passes.values():
            after: _AfterStep | None = None
            if len(views) == 1 < len(self.seats):
                after = await self.call("forfeit", _forfeit, self.session, absent[0], self._in_game)
            if after is not None:
                self._broken_off = self.ends[absent[0]].stop_reason
                return self._take(after, {}, {}, {absent[0]: ""})
            if not any(seat.played_for and agent not in self.ends for agent, seat in self.seats.items()):
                return await self._break_off(self.ends[absent[0]].stop_reason)
        said = {agent: text or "" for agent, text in passes.items()}
        after = await self.call("step", _step, self.session, {**replies, **said}, self._in_game)
        return self._take(after, {agent: asked[agent] for agent in replies}, replies, said)

    async def _passes(self, absent: Sequence[str]) -> dict[str, str | None]:
        if len(self.seats) == 1:
            return dict.fromkeys(absent)
        return {agent: await self.call("pass_action", self.session.pass_action, agent) for agent in absent}

    def _reason(self) -> StopReason:
        if self._broken_off is not None:
            return self._broken_off
        reasons = {end.stop_reason for end in self.ends.values() if end.step == len(self.steps)}
        return next(
            (reason for reason in (StopReason.FORFEIT, StopReason.MAX_TURNS) if reason in reasons), StopReason.GAME_OVER
        )

    async def _replies(self, views: Views) -> dict[str, str]:
        if len(views) == 1:
            ((agent, view),) = views.items()
            outcomes: list[Any] = [await self._reply(agent, view)]
        else:
            outcomes = await asyncio.gather(
                *(self._reply(agent, view) for agent, view in views.items()), return_exceptions=True
            )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return {agent: outcome for agent, outcome in zip(views, outcomes, strict=True) if outcome is not None}

    async def _reply(self, agent: str, view: Observation) -> str | None:
        try:
            return await self.seats[agent].act(self.session, view, self.call)
        except OutOfTokens as stop:
            self._end(agent, view, terminated=False, reason=stop.reason)
            return None
        except (EpisodeFailed, ConfigError):
            self.seats[agent].failed = True
            raise

    def _take(self, after: _AfterStep, views: Views, replies: dict[str, str], passes: dict[str, str]) -> Views:
        result, infos = after.result, after.infos
        for agent in replies:
            self.seats[agent].acted(bool(infos.get(agent, {}).get("invalid_action")))
        rewards = self._reward(result)
        texts = {agent: view.text for agent, view in views.items()}
        turns_left = {agent: view.turns_left for agent, view in views.items()}
        thoughts = {agent: thought for agent in replies if (thought := self.seats[agent].thought) is not None}
        self.steps.append(GameStep(texts, dict(replies), turns_left, rewards, infos, thoughts, passes))
        for agent, view in after.last.items():
            self._in_game.remove(agent)
            self.infos[agent] = infos.get(agent, {})
            self._end(agent, view, terminated=bool(result.end_of(agent)), reason=_reason(result, agent, infos))
        return after.following

    def _reward(self, result: StepResult) -> dict[str, float]:
        for agent, reward in result.rewards.items():
            if not isinstance(reward, int | float) or not math.isfinite(reward):
                said = f"{self.session.game_id}: the reward of {agent} is {reward!r}, not a finite number"
                raise EpisodeFailed(StopReason.ENV_ERROR, said)
            self.seats[agent].reward(float(reward))
        return {agent: float(reward) for agent, reward in result.rewards.items()}

    def _end(self, agent: str, view: Observation, *, terminated: bool, reason: StopReason) -> None:
        """End a seat; if it was truncated before the game was over for it, only its verdict comes later."""
        if agent in self.ends:
            return
        self.ends[agent] = SeatEnd(terminated, reason, len(self.steps))
        self.final_observations[agent] = view.text
        self.seats[agent].finish(view, reason, terminated)

    async def _break_off(self, reason: StopReason) -> Views:
        """Truncate the episode for all that are left: no language model plays any more."""
        self._broken_off = reason
        left = tuple(agent for agent in self.seats if agent not in self.ends)
        for agent, view in (await self.call("observe", _look, self.session, left)).items():
            self._end(agent, view, terminated=False, reason=reason)
        return {}


def _reset(session: GameSession, seed: int) -> Views:
    session.reset(seed)
    return _look(session, _to_act(session))


def _step(session: GameSession, actions: Mapping[str, str], in_game: Sequence[str]) -> _AfterStep:
    return _after_step(session, session.step(actions), in_game)


def _forfeit(session: GameSession, agent: str, in_game: Sequence[str]) -> _AfterStep | None:
    result = session.forfeit(agent)
    return None if result is None else _after_step(session, result, in_game)


def _after_step(session: GameSession, result: StepResult, in_game: Sequence[str]) -> _AfterStep:
    if not isinstance(result, StepResult):
        raise TypeError(f"step() returned {type(result).__name__}, not a StepResult")
    if result.terminated and result.truncated:
        raise ValueError("the game is terminated and truncated at once")
    following = {} if result.done else _look(session, _to_act(session))
    infos = {agent: plain_info(info) for agent, info in result.infos.items()}
    return _AfterStep(
        result, infos, following, _look(session, [agent for agent in in_game if result.end_of(agent) is not None])
    )


def _to_act(session: GameSession) -> tuple[str, ...]:
    agents = session.to_act()
    if not agents:
        raise ValueError("nobody is to act, but the game has not ended")
    return agents


def _look(session: GameSession, agents: Sequence[str]) -> Views:
    views = {agent: session.observe(agent) for agent in agents}
    for agent, view in views.items():
        if not isinstance(view, Observation) or not isinstance(view.text, str):
            raise TypeError(f"the observation of {agent} is {view!r}, not text")
    return views


def _reason(result: StepResult, agent: str, infos: Mapping[str, Mapping[str, Any]]) -> StopReason:
    if not result.end_of(agent):
        return StopReason.MAX_TURNS
    return StopReason.FORFEIT if infos.get(agent, {}).get("forfeit") else StopReason.GAME_OVER


def first_error(group: BaseExceptionGroup) -> Exception:
    """The first plain error of a task group; interrupts are raised."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return first_error(error)
        if not isinstance(error, Exception):
            raise error
        return error
    raise AssertionError("an exception group is never empty")
