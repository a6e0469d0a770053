"""Many games side by side, each at its own pace: what an env runner does with a set of plans."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.errors import ConfigError, MissingDependencyError
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.game_calls import abandon, open_session
from rllib_lmgame.rollouts.oversampling import Race
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import PlayedEpisode, play_episode
from rllib_lmgame.rollouts.records import Failure, GameConfig
from rllib_lmgame.rollouts.restarts import check_reached
from rllib_lmgame.rollouts.seats import EpisodeFailed, Seat
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions
from rllib_lmgame.text import in_words

logger = logging.getLogger(__name__)


class Sessions(Protocol):
    """Who keeps the games between episodes."""

    def free_session(self, game: GameConfig) -> GameSession | None:
        """A session of ``game`` that is not in play, if there is one."""

    def release(self, game: GameConfig, session: GameSession) -> None:
        """Keep ``session`` for the next episode."""

    def forget(self, plan: EpisodePlan) -> None:
        """The episode is over."""


class PlayedPlans(NamedTuple):
    """What became of plans, each list in their order.

    Attributes:
        episodes: Those that were played.
        failures: Those that failed.
        aborted: Ids of those that were left behind when enough others had finished.
    """

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
    at_once: int,
) -> PlayedPlans:
    """Play every plan; where some are spare, until enough have finished (:mod:`~rllib_lmgame.rollouts.oversampling`).

    Args:
        plans: What to play.
        games: What ``EpisodePlan.game`` points into.
        seats: Sits the players down.
        sessions: Keeps the games.
        options: Limits of an episode and of one call into a game.
        at_once: Games in play at the same time, at most.
    """
    played: list[PlayedEpisode] = []
    failures: list[Failure] = []
    race, places = Race(plans), asyncio.Semaphore(max(1, at_once))

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
    """One episode; what ends it alone becomes a failure. A game is used again if it cannot be to blame, and if nothing
    is under way in it.

    Raises:
        ConfigError: no other episode can get round it.
        MissingDependencyError: if the game needs a package that is not installed.
    """
    session: GameSession | None = None
    reusable = False
    try:
        async with asyncio.timeout(options.episode_timeout_s) as limit:
            session = sessions.free_session(game) or await open_session(game, options.env_step_timeout_s)
            episode = await play_episode(session, plan, seats, options.env_step_timeout_s)
            check_reached(episode)
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


def first_error(group: BaseExceptionGroup) -> Exception:
    """The first plain error of a task group; an interrupt goes on."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return first_error(error)
        if not isinstance(error, Exception):
            raise error
        return error
    raise AssertionError("an exception group is never empty")
