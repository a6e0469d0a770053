"""From plans to episodes: plans get their assignments, are played, and are replaced where they fail.

Guarantees (each has a test):

1. Each plan gives one episode, or none after the largest number of replacements.
2. Each failure is returned with its reason and replaced: by the same level, or by another one if the level may be to
   blame. An episode that continues from a state of another one is then dropped instead.
3. Episodes lost with their env runner have failed (``env_runner_lost``), as have those with a reply of weights older
   than ``oldest_version`` (``stale``).
4. If nothing finishes for several rounds, an error says why.
5. Episodes are returned in the order of their plans.
6. With spare plans (:mod:`~rllib_lmgame.rollouts.plans`) the first whole groups to finish are returned, for each game
   as many as are not spare; fewer only if replacements kept failing. Of the others only the ids are returned.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.mapping import KEY, VersusMapping
from rllib_lmgame.rollouts.game_calls import close_games, open_session, run_to_end
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, Race, stable_seed
from rllib_lmgame.rollouts.records import Failure, GameConfig, PlayResult, PlaySettings
from rllib_lmgame.rollouts.seats import EpisodeFailed

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

DRAWS = 32
"""Episodes whose assignments are drawn to see which policies may play."""

Roles = Mapping[str, str]
"""The seats of a game: agent id -> role."""


class AgentMapper:
    """Assigns policies to the agents of each plan by the configuration's ``policy_mapping_fn``.

    Assignments depend on the plan and the game's agents alone, so the driver makes them. Each game is built once to
    read its agents, since its options may change them.

    Args:
        players: Policy -> scripted player that plays in its place.
        guests: They take all seats but one of every episode, each equally often. The trained policies take turns in
            that one, in every seat equally often, whatever the mapping says.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        players: Mapping[str, str] | None = None,
        guests: Mapping[str, AgentAssignment] | None = None,
    ) -> None:
        self.config = config
        self.players = dict(players or {})
        self.guests = dict(guests or {})
        trained = config.trained_policies()
        self._mapping = (
            VersusMapping(trained, dict.fromkeys(self.guests, 1.0)) if guests else config.agent_to_module_mapping()
        )
        self._trained = frozenset(trained)
        self._roles: dict[str, Roles] = {}

    def assigned(
        self, plans: Sequence[EpisodePlan], games: Sequence[GameConfig]
    ) -> tuple[list[EpisodePlan], list[Failure]]:
        """``plans`` with assignments (existing ones are kept), and failures where the game could not be built.

        Raises: ConfigError: unknown game, or the mapping names no policy; MissingDependencyError.
        """
        seated: list[EpisodePlan] = []
        failures: list[Failure] = []
        unknown = {plan.game for plan in plans if not plan.assignments}
        found = {number: self._look_up(games[number]) for number in sorted(unknown)}
        for plan in plans:
            roles = {} if plan.assignments else found[plan.game]
            if isinstance(roles, EpisodeFailed):
                failures.append(Failure(plan, roles.reason.value, str(roles)))
            else:
                seated.append(replace(plan, assignments=self.assignments(plan, roles)) if roles else plan)
        return seated, failures

    def assignments(self, plan: EpisodePlan, roles: Roles) -> dict[str, AgentAssignment]:
        """The assignments of one episode. Raises: ConfigError: the mapping raises, or names no policy."""
        return {agent: self.assignment(self._policy(plan, roles, agent)) for agent in roles}

    def drawn(self, roles: Roles) -> list[dict[str, AgentAssignment]]:
        """Assignments of :data:`DRAWS` episodes."""
        return [self.assignments(EpisodePlan("", 0, seed, "", seed), roles) for seed in range(DRAWS)]

    def assignment(self, policy: str) -> AgentAssignment:
        if policy in self.guests:
            return self.guests[policy]
        player = self.players.get(policy, self.config.run.policies[policy].player)
        return AgentAssignment(policy, player, trained=policy in self._trained)

    def _policy(self, plan: EpisodePlan, roles: Roles, agent: str) -> str:
        seed = stable_seed(plan.seed, plan.index if plan.number is None else plan.number, "seats")
        try:
            policy = self._mapping(
                agent, None, role=roles[agent], roles=dict(roles), agent_ids=tuple(roles), seed=seed, number=plan.number
            )
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(KEY, f"raised {type(error).__name__} for {agent!r}: {error}") from error
        if not isinstance(policy, str) or policy not in {*self.config.run.policies, *self.guests}:
            known = ", ".join(self.config.run.policies)
            raise ConfigError(KEY, f"maps {agent!r} to {policy!r}, which is not a policy; policies: {known}")
        return policy

    def _look_up(self, game: GameConfig) -> Roles | EpisodeFailed:
        """The seats of a game, or what it raised; a game that could not be built is tried again next time."""
        if game.key not in self._roles:
            limit_s = self.config.run.text_rollouts.env_step_timeout_s
            try:
                session = run_to_end(open_session(game, limit_s))
            except EpisodeFailed as failure:
                return failure
            self._roles[game.key] = dict(session.roles)
            close_games([session], limit_s)
        return self._roles[game.key]


ENV_RUNNER_LOST = "env_runner_lost"
"""Reason of episodes that were lost with their runner."""

STALE = "stale"
"""Reason of episodes that old weights have played."""

LEVEL_TO_BLAME = (StopReason.ENV_ERROR.value, StopReason.TIMEOUT.value)
"""Reasons of failures that another level may not have."""


class RolloutError(RuntimeError):
    """No episode could be finished in several rounds; the message says why."""


def play_all(
    runners: Any,
    plans: Sequence[EpisodePlan],
    settings: PlaySettings,
    agent_mapper: AgentMapper,
    max_failed_rounds: int,
) -> PlayResult:
    """Play ``plans`` in rounds; each round replaces the episodes that failed in the one before.

    ``runners`` (:class:`~rllib_lmgame.algorithms.cluster.workers.RunnerGroup`) play plans, and heal what died.

    Raises: RolloutError: no episode finished in ``max_failed_rounds`` rounds in a row; ConfigError: none can work.
    """
    start = time.perf_counter()
    result, race, pending = PlayResult(), Race(plans), list(plans)
    empty_rounds, again = 0, False
    while pending:
        if again:
            runners.heal()
        now, failures = agent_mapper.assigned(pending, settings.games)
        now = race.marked(now)
        played = runners.play(now, settings) if now else PlayResult()
        if played.error is not None:
            raise played.error
        played.failures += failures + lost(now, played) + without_stale(now, played, settings.oldest_version)
        for episode_id in played.aborted:
            race.leave(episode_id)
        for summary in played.summaries:
            race.finish(summary.episode_id)
        again_played = replacements(played.failures, max_failed_rounds)
        pending = [plan for plan in again_played if race.wants(plan.episode_id)]
        again = True
        empty_rounds = 0 if played.summaries else empty_rounds + 1
        result.extend(played)
        if empty_rounds >= max_failed_rounds or not (result.summaries or pending):
            reasons = sorted({failure.message for failure in played.failures})
            raise RolloutError(f"no episode was finished in {empty_rounds} rounds: {'; '.join(reasons[:3])}")
    names = [summary.episode_id for summary in result.summaries]
    result.aborted += [name for name in names if not race.wants(name)]
    # By the plans, so that the batch does not depend on which runner was faster.
    kept = [place for place, name in enumerate(names) if race.wants(name)]
    result.choose(sorted(kept, key=lambda place: result.summaries[place].index))
    result.wall_s = time.perf_counter() - start
    return result


def lost(plans: Sequence[EpisodePlan], played: PlayResult) -> list[Failure]:
    """Failures for plans without a result: their env runner died or did not answer in time."""
    known = {summary.episode_id for summary in played.summaries} | {*played.aborted}
    known |= {failure.plan.episode_id for failure in played.failures}
    message = "an env runner died, or gave no answer within sample_timeout_s"
    return [Failure(plan, ENV_RUNNER_LOST, message) for plan in plans if plan.episode_id not in known]


def without_stale(plans: Sequence[EpisodePlan], played: PlayResult, oldest: int | None) -> list[Failure]:
    """Remove episodes from ``played`` in which weights older than ``oldest`` replied in a trained seat."""
    if oldest is None:
        return []
    versions = [
        min((seat.min_policy_version for seat in summary.seats if seat.trained and seat.turns), default=oldest)
        for summary in played.summaries
    ]
    by_id = {plan.episode_id: plan for plan in plans}
    stale = [
        Failure(by_id[summary.episode_id], STALE, f"weights of version {version} replied, older than {oldest}")
        for summary, version in zip(played.summaries, versions, strict=True)
        if version < oldest
    ]
    played.choose([place for place, version in enumerate(versions) if version >= oldest])
    return stale


def replacements(failures: Sequence[Failure], limit: int) -> list[EpisodePlan]:
    """Plans that replace failed ones, in order; a level that may be to blame is exchanged."""
    again = [failure for failure in failures if failure.plan.attempt < limit]
    again.sort(key=lambda failure: failure.plan.index)
    return [failure.plan.replacement(new_level=failure.reason in LEVEL_TO_BLAME) for failure in again]
