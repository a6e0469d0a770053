"""Who is evaluated: one player of any kind, or the policies of a run, who sit as in its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rllib_lmgame.algorithms.checkpoints.manifest import MANIFEST, file_hash
from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import as_mapping
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.evaluation.evaluate import engines_for, saved_policies
from rllib_lmgame.evaluation.players.endpoint import EndpointPlayer
from rllib_lmgame.evaluation.players.language_model import LocalModel, talked_to
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.policies.mapping import MappingFn, SharedMapping, VersusMapping
from rllib_lmgame.rollouts.plans import AgentAssignment, AgentAssignments, EpisodePlan
from rllib_lmgame.rollouts.play import Sessions
from rllib_lmgame.rollouts.players import Player, Scripted
from rllib_lmgame.rollouts.records import GameConfig, PlaySettings
from rllib_lmgame.rollouts.sources import AgentMapper, Roles

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner


Connect = Callable[[], object]
"""Connects to a Ray cluster, unless this process is."""


class OnePlayer:
    """A player who takes all seats, or every seat as often against ``opponents``.

    As of :class:`PoliciesOfRun`: entering it loads what plays; ``options`` limit its episodes; it plays ``at_once``
    games unless another number is given; ``temperature`` is of its replies (``None``: it has none). Who has the lowest
    ``turn`` plays first: those whose fault shows at once, and what is loaded last.
    """

    def __init__(self, player: Player, opponents: Mapping[str, Player], settings: PlayerSettings, connect: Connect):
        self.name = player.name
        self.options, self.at_once = settings.sections.text_rollouts, settings.at_once
        self.temperature = settings.temperature
        if self.temperature is None and isinstance(player, LocalModel):
            self.temperature = player.options.inference.temperature
        self._player, self._opponents, self._connect = player, opponents, connect
        against = dict.fromkeys(opponents, 1.0)
        self._mapping: MappingFn = VersusMapping([player.name], against) if opponents else SharedMapping(player.name)
        self.turn = 0 if isinstance(player, EndpointPlayer) else 1 if isinstance(player, Scripted) else 2
        self.identity, self.counts, self.sessions = player.identity, player.counts, Sessions

    async def __aenter__(self) -> Self:
        if isinstance(self._player, LocalModel) and self._player.by_vllm:
            self._connect()
        await self._player.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._player.__aexit__(*error)

    def temperature_in(self, game: GameConfig) -> float | None:
        """Of its replies in a game, which may have one of its own; of what is scripted none."""
        return None if isinstance(self._player, Scripted) else game.sampled_at(self.temperature)

    def assignments(self, plan: EpisodePlan, roles: Roles) -> AgentAssignments:
        """Who sits where. The same for the same plan."""
        seats = {agent: self._mapping(agent, agent_ids=tuple(roles), number=plan.number) for agent in roles}
        own = replace(self._player.assignment, trained=True, member=None)
        return {agent: own if who == self.name else self._opponents[who].assignment for agent, who in seats.items()}

    def player(self, assignment: AgentAssignment, game: GameConfig) -> Player:
        """Who takes a seat of one of its assignments in a game."""
        who = self._player if assignment.module_id == self.name else self._opponents[assignment.module_id]
        return who.in_game(game)


class PoliciesOfRun:
    """The policies of a checkpoint, or of the newest one of a trial, on engines of their own settings.

    Raises: CheckpointError: not one of this package, damaged or not to be trusted; ConfigError: wrong settings, or an
    opponent is called like a policy.
    """

    turn = 3

    def __init__(
        self, name: str, source: str, settings: PlayerSettings, opponents: Mapping[str, Player], connect: Connect
    ) -> None:
        place = find_checkpoint(source)
        config = saved_policies(place, trust=settings.trust)
        asked = config.run.evaluation_config.sampling if settings.temperature is None else settings.temperature
        self.name, self.temperature = name, config.run.inference.temperature if asked is None else asked
        self.options, self.at_once = config.run.text_rollouts, config.num_envs_per_env_runner
        for taken in opponents:
            if taken in config.run.policies:
                raise ConfigError(
                    "--against", f"a policy of {name} is called {taken!r} too; write NAME={opponents[taken].source}"
                )
        self.config, self._hash = config, file_hash(Path(place) / MANIFEST)
        self._opponents, self._asked, self._connect, self._talked_to = opponents, asked, connect, talked_to(config)
        for game in config.run.evaluation_config.games or ():  # It plays these as during training.
            self._talked_to.pop(game_spec(game.env).game_id, None)
        self._agent_mapper = AgentMapper(config, guests={name: player.assignment for name, player in opponents.items()})
        self._stack = AsyncExitStack()
        self._runner: TextGameEnvRunner | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._connect()
            self._runner = stack.enter_context(engines_for(self.config, None))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def temperature_in(self, game: GameConfig) -> float | None:
        return game.sampled_at(self.temperature)

    def counts(self) -> dict[str, int]:
        return {}

    def assignments(self, plan: EpisodePlan, roles: Roles) -> AgentAssignments:
        return self._agent_mapper.assignments(plan, roles)

    def player(self, assignment: AgentAssignment, game: GameConfig) -> Player:
        assert self._runner is not None
        settings = PlaySettings((), temperature=self._asked, seeded=True)
        if assignment.module_id in self._opponents:
            return self._opponents[assignment.module_id].in_game(game)
        if not game.language_model and (known := self._talked_to.get(game_spec(game.env).game_id)):
            game = game.model_copy(update={"language_model": known.language_model})
        return self._runner.player(settings, assignment, game)

    def sessions(self) -> Sessions:
        assert self._runner is not None
        return self._runner.hooks

    def identity(self) -> dict[str, Any]:
        policies = self.config.language_model_policies()
        inference = self.config.run.inference
        return {
            "checkpoint": self._hash,
            "temperature": self.temperature,
            "sampling": [inference.top_p, inference.top_k] if self._asked is None else [],
            "constrained_decoding": self.options.constrained_decoding,
            "language_models": {policy: as_mapping(self.config.language_model_of(policy)) for policy in policies},
        }


EvaluatedModel = OnePlayer | PoliciesOfRun
"""A row of the table."""
