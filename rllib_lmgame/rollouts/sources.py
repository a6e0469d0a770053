"""Where episodes come from: plans are given in, finished episodes come out, and what failed is played again.

Guarantees (each has a test):

1. Every plan that was given comes out once: as an episode, or not at all after as many replacements as there may be.
2. Everything that failed comes out as a failure with its reason, and is replaced: by the same level, unless the level
   may be to blame. An episode that goes on from a state of another one is left out then.
3. What was lost with its env runner has failed (``env_runner_lost``).
4. If round after round nothing is finished, that is an error that says why. A game of which at least
   :data:`MANY_HANGS` episodes were played and every one took too long is not tried again: each try takes as long.
5. :func:`play_all` gives episodes in the order of their plans, whoever was faster.
6. Where plans are spare (:mod:`~rllib_lmgame.rollouts.oversampling`), as many groups of a game come out as are not
   spare, the first to finish, and whole; fewer, or some that lack episodes, only where replacements failed again and
   again. Of what is left behind only its id comes out.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.line_ups import LineUps
from rllib_lmgame.rollouts.oversampling import Race, with_spares
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.records import Failure, PlayResult, PlaySettings

ENV_RUNNER_LOST = "env_runner_lost"
"""Reason of the episodes that were lost with their runner."""

LEVEL_TO_BLAME = (StopReason.ENV_ERROR.value, StopReason.TIMEOUT.value)
"""Reasons of failures that another level may not have."""


MANY_HANGS = 8
"""Episodes of a game that show, if all of them take too long, that no level is to blame."""


class RolloutError(RuntimeError):
    """No episode could be finished in several rounds; the message says why."""


class EpisodeSource(ABC):
    """Plays what it is given, with one set of settings."""

    @abstractmethod
    def give(self, plans: Sequence[EpisodePlan]) -> None:
        """Play these as well."""

    @abstractmethod
    def take(self) -> PlayResult | None:
        """What has come since the last call, after waiting for something to come; ``None`` if everything given has come
        out.

        Raises:
            RolloutError: if nothing gets finished.
            ConfigError: if the configuration cannot work for any episode.
        """


class Runners(Protocol):
    """Env runners, as a source sees them."""

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        """Play plans side by side; of those whose runner was lost nothing comes back."""

    def heal(self) -> None:
        """Bring back what died."""


class Rounds(EpisodeSource):
    """Plays everything there is to play at once and waits for all of it; what failed is played in the next round.

    Args:
        runners: Who plays.
        settings: How.
        line_ups: Decides who sits where.
        max_failed_rounds: Rounds in a row without a finished episode that end it; also how often an
            episode is replaced.
    """

    def __init__(self, runners: Runners, settings: PlaySettings, line_ups: LineUps, max_failed_rounds: int) -> None:
        self._runners = runners
        self._settings = settings
        self._line_ups = line_ups
        self._limit = max_failed_rounds
        self._pending: list[EpisodePlan] = []
        self._race = Race()
        self._hurt = False
        self._empty_rounds = 0
        self._played: set[int] = set()
        """Games of which an episode was finished."""

    def give(self, plans: Sequence[EpisodePlan]) -> None:
        self._pending += plans
        self._race.add(plans)

    def take(self) -> PlayResult | None:
        if not self._pending:
            return None
        if self._hurt:
            self._runners.heal()
        plans, failures = self._line_ups.seated(self._pending, self._settings.games)
        plans = self._race.marked(plans)
        played = self._runners.play(plans, self._settings) if plans else PlayResult()
        if played.error is not None:
            raise played.error
        played.failures += failures + lost(plans, played)
        for episode_id in played.aborted:
            self._race.leave(episode_id)
        for summary in played.summaries:
            self._race.finish(summary.episode_id)
        self._played |= {summary.game for summary in played.summaries}
        again = replacements(played.failures, self._limit)
        hanging = _hanging(played.failures) - self._played
        self._pending = [plan for plan in again if self._race.wants(plan.episode_id) and plan.game not in hanging]
        self._hurt = bool(self._pending)
        self._empty_rounds = 0 if played.summaries else self._empty_rounds + 1
        if self._empty_rounds >= self._limit or not (self._played or self._pending):
            reasons = sorted({failure.message for failure in played.failures})
            raise RolloutError(f"no episode was finished in {self._empty_rounds} rounds: {'; '.join(reasons[:3])}")
        return played


def play_all(source: EpisodeSource, plans: Sequence[EpisodePlan]) -> PlayResult:
    """Play ``plans`` to their end: the finished episodes in the order of the plans, all failures, and the seconds it
    took.

    Raises:
        RolloutError, ConfigError: as :meth:`EpisodeSource.take`.
    """
    start = time.perf_counter()
    result = PlayResult()
    source.give(plans)
    while (part := source.take()) is not None:
        result.extend(part)
    if with_spares(plans):
        _leave_out(result, plans)
    _sort(result)
    result.wall_s = time.perf_counter() - start
    return result


def lost(plans: Sequence[EpisodePlan], played: PlayResult) -> list[Failure]:
    """Plans of which nothing came back: the env runner that had them died or gave no answer in time."""
    known = {summary.episode_id for summary in played.summaries} | {*played.aborted}
    known |= {failure.plan.episode_id for failure in played.failures}
    message = "an env runner died, or gave no answer within sample_timeout_s"
    return [Failure(plan, ENV_RUNNER_LOST, message) for plan in plans if plan.episode_id not in known]


def replacements(failures: Sequence[Failure], limit: int) -> list[EpisodePlan]:
    """Plans in place of those that failed, in order; a level that may be to blame is exchanged."""
    again = sorted(
        (failure for failure in failures if failure.plan.attempt < limit and not _final(failure)),
        key=lambda failure: failure.plan.index,
    )
    return [failure.plan.replacement(new_level=failure.reason in LEVEL_TO_BLAME) for failure in again]


def _hanging(failures: Sequence[Failure]) -> set[int]:
    """Games of which many episodes failed, and all because they took too long."""
    reasons: dict[int, list[str]] = {}
    for failure in failures:
        reasons.setdefault(failure.plan.game, []).append(failure.reason)
    return {game for game, why in reasons.items() if len(why) >= MANY_HANGS and {*why} == {StopReason.TIMEOUT.value}}


def _final(failure: Failure) -> bool:
    """Whether an episode that goes on from a state would fail again: no other level has this state."""
    blamed = (*LEVEL_TO_BLAME, StopReason.RESTART_MISMATCH.value)
    return failure.plan.beginning is not None and failure.reason in blamed


def _leave_out(result: PlayResult, plans: Sequence[EpisodePlan]) -> None:
    """Leave out what finished in groups that did not: others finished while the rest of them was to be replaced."""
    race = Race(plans)
    for episode_id in result.aborted:
        race.leave(episode_id)
    for summary in result.summaries:
        race.finish(summary.episode_id)
    kept = [race.wants(summary.episode_id) for summary in result.summaries]
    result.aborted += [summary.episode_id for summary, keep in zip(result.summaries, kept, strict=True) if not keep]
    if result.episodes:
        result.episodes = [episode for episode, keep in zip(result.episodes, kept, strict=True) if keep]
    result.summaries = [summary for summary, keep in zip(result.summaries, kept, strict=True) if keep]


def _sort(result: PlayResult) -> None:
    """Sort by plan index, so that the batch does not depend on which runner was faster."""
    order = sorted(range(len(result.summaries)), key=lambda i: result.summaries[i].index)
    if result.episodes:
        result.episodes = [result.episodes[i] for i in order]
    result.summaries = [result.summaries[i] for i in order]
