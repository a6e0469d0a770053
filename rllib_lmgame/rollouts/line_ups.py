"""Line-ups: who takes which seat of an episode, decided before it is played.

A line-up follows from the plan and from the seats of its game alone, so the driver makes it, and whoever plays, logs or
learns from the episode reads it in the plan. How many seats a game has is an option of many a game: a :class:`LineUps`
builds it once, looks at it, and closes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.policies.mapping import KEY, VersusMapping
from rllib_lmgame.rollouts.game_calls import GameCalls, open_session, run_to_end
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment, stable_seed
from rllib_lmgame.rollouts.records import Failure, GameConfig
from rllib_lmgame.rollouts.runner_config import RunnerConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed

logger = logging.getLogger(__name__)

Roles = Mapping[str, str]
"""The seats of a game: agent id -> role."""


class LineUps:
    """Gives plans their line-ups by the configuration's seat mapping.

    Args:
        config: Policies and seat mapping.
        players: Policy -> scripted player that plays in its place.
        guests: Who takes all seats but one of every episode, each as often; the trained policies take that one, in
            turns and every seat as often, whatever the configuration maps.
    """

    def __init__(
        self,
        config: RunnerConfig,
        players: Mapping[str, str] | None = None,
        guests: Mapping[str, SeatAssignment] | None = None,
    ) -> None:
        self.config = config
        self.players = dict(players or {})
        self.guests = dict(guests or {})
        trained = config.trained_policies()
        self._mapping = VersusMapping(trained, dict.fromkeys(self.guests, 1.0)) if guests else config.seat_mapping()
        self._trained = frozenset(trained)
        self._roles: dict[str, Roles] = {}

    def seated(
        self, plans: Sequence[EpisodePlan], games: Sequence[GameConfig]
    ) -> tuple[list[EpisodePlan], list[Failure]]:
        """``plans`` with line-ups, and those whose game could not be built; a line-up that stands already is kept.

        Args:
            plans: What is to be played.
            games: What ``EpisodePlan.game`` points into.

        Raises:
            ConfigError: for an unknown game, or if the mapping names no policy.
            MissingDependencyError: if a game needs a package that is not installed.
        """
        seated: list[EpisodePlan] = []
        failures: list[Failure] = []
        unknown = {plan.game for plan in plans if not plan.line_up}
        found = {number: self._look_up(games[number]) for number in sorted(unknown)}
        for plan in plans:
            roles = {} if plan.line_up else found[plan.game]
            if isinstance(roles, EpisodeFailed):
                failures.append(Failure(plan, roles.reason.value, str(roles)))
            else:
                seated.append(replace(plan, line_up=self.line_up(plan, roles)) if roles else plan)
        return seated, failures

    def line_up(self, plan: EpisodePlan, roles: Roles) -> dict[str, SeatAssignment]:
        """Who sits where: the same for the same plan, whoever asks.

        Args:
            plan: The episode.
            roles: The seats of its game.

        Raises:
            ConfigError: if the mapping raises, or names no policy.
        """
        return {agent: self.assignment(self._policy(plan, roles, agent)) for agent in roles}

    def assignment(self, policy: str) -> SeatAssignment:
        """A seat for one of the policies, or guests."""
        if policy in self.guests:
            return self.guests[policy]
        player = self.players.get(policy, self.config.player_options[policy].player)
        return SeatAssignment(policy, player, trained=policy in self._trained)

    def _policy(self, plan: EpisodePlan, roles: Roles, agent: str) -> str:
        seed = stable_seed(plan.seed, plan.index, "seats")
        try:
            policy = self._mapping(
                agent,
                None,
                role=roles[agent],
                roles=dict(roles),
                agent_ids=tuple(roles),
                seed=seed,
                number=plan.number,
            )
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(KEY, f"raised {type(error).__name__} for {agent!r}: {error}") from error
        if not isinstance(policy, str) or policy not in {*self.config.player_options, *self.guests}:
            known = ", ".join(self.config.player_options)
            raise ConfigError(KEY, f"maps {agent!r} to {policy!r}, which is not a policy; policies: {known}")
        return policy

    def _look_up(self, game: GameConfig) -> Roles | EpisodeFailed:
        """The seats of a game; what it raised if it could not be built, and it is tried again next time."""
        if game.key not in self._roles:
            try:
                self._roles[game.key] = run_to_end(_roles_of(game, self.config.text_rollout_options.env_step_timeout_s))
            except EpisodeFailed as failure:
                return failure
        return self._roles[game.key]


async def _roles_of(game: GameConfig, timeout_s: float) -> Roles:
    session = await open_session(game, timeout_s)
    try:
        await GameCalls(game.env, session.trusted, timeout_s)("close", session.close)
    except Exception as error:
        logger.debug("%s could not be closed: %s", game.env, error)
    return dict(session.roles)
