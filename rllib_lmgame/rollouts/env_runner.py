"""RLlib's EnvRunner for text games: many games at once, one coroutine each, which ask inference engines.

No method of the runner is a coroutine: Ray would make it an asyncio actor, and `sample` could not run its own loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build
from rllib_lmgame.base.limits import CALL_LIMIT_S
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.envs.support.asked_models import Policies, policies_of_run
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.policies.options import LANGUAGE_MODEL, LIMITS, LanguageModelOptions
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.engine_judge import AS_ASKED, EngineAnswers
from rllib_lmgame.rollouts.episode_log import EpisodeLog, episode_record
from rllib_lmgame.rollouts.episode_sample import SAMPLE_BYTES, chosen, thin
from rllib_lmgame.rollouts.episodes import summarize
from rllib_lmgame.rollouts.game_calls import abandon, close_games, run_to_end
from rllib_lmgame.rollouts.game_options import shares_of
from rllib_lmgame.rollouts.hooks import Hooks
from rllib_lmgame.rollouts.options import EPISODES_OF_SAMPLE
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.play import GameInPlay, PlayedEpisode, PlayedPlans, Sessions, first_error, play_many
from rllib_lmgame.rollouts.players import LanguageModel, Player, Scripted, engine_replies, sampled_in, take_seats
from rllib_lmgame.rollouts.records import TEXT_SPACE, GameConfig, PlayResult, PlaySettings
from rllib_lmgame.rollouts.runner_config import RunnerConfig
from rllib_lmgame.rollouts.seats import ExpertReplies, ReplySource, Seat
from rllib_lmgame.rollouts.sources import AgentMapper
from rllib_lmgame.telemetry.phases import GAMES, Share, telling

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    from rllib_lmgame.inference.serving.client import EngineClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_SHOWN = 4000
"""Characters of a game in play that are shown."""
_SETS_OF_GAMES = 4
"""Sets of games that are kept between episodes: of training, of evaluations, and those before a change."""


class TextGameEnvRunner(EnvRunner, Checkpointable, Sessions):
    config: RunnerConfig

    def __init__(self, *, config: RunnerConfig, worker_index: int = 0, **kwargs: Any) -> None:
        super().__init__(
            config=config, worker_index=worker_index, num_workers=kwargs.get("num_workers", config.num_env_runners)
        )
        self.module = MultiRLModuleSpec(
            rl_module_specs={
                module_id: config.module_spec(module_id, inference_only=True) for module_id in config.run.policies
            }
        ).build()
        self._hooks = Hooks(self)
        self._chats: dict[tuple[str, str], ChatFormat] = {}
        self._clients: dict[str, EngineClient] = {}
        self._games_played: list[frozenset[str]] = []
        self._sampled = 0
        self._share = Share(0)
        self._watched: GameInPlay | None = None

    def __repr__(self) -> str:
        """Name of the actor in Ray's dashboard and logs."""
        return f"env runner {self.worker_index}"

    # -- playing ------------------------------------------------------------------------------------------------

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        """Play ``plans``, which have assignments, at most ``num_envs_per_env_runner`` games at once.

        With spare plans, games still in play when enough groups have finished are stopped. An error that concerns
        every episode is returned as ``error``: if it were raised, RLlib would restart the runner and hide the cause.
        """
        start = time.perf_counter()
        options = settings.rollouts or self.config.run.text_rollouts

        @cache
        def player(number: int, assignment: AgentAssignment) -> Player:
            return self.player(settings, assignment, settings.games[number])

        def seats(session: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
            return take_seats(session, plan, partial(player, plan.game))

        at_once = self.config.num_envs_per_env_runner
        try:
            coroutine = play_many(plans, settings.games, seats, self, options, at_once)
            with telling(self.config.watched_as, GAMES, str(self.worker_index), len(plans)) as self._share:
                self._share.game = self._in_play
                played = run_to_end(self._with_policies(coroutine))
            self._write_log(played.episodes, settings)
            result = self._collect(played, settings.keep)
        except BaseExceptionGroup as group:
            result = PlayResult(error=first_error(group))
        except ConfigError as error:
            result = PlayResult(error=error)
        self._hooks.forget_all()
        self._close_old_sessions(settings.games)
        result.wall_s = time.perf_counter() - start
        return result

    def sample(
        self, *, num_episodes: int | None = None, num_timesteps: int | None = None, **kwargs: Any
    ) -> list[MultiAgentEpisode]:
        """RLlib's entry point: complete episodes on levels of this runner's own seeds; errors are raised.

        The default is this runner's share of ``episodes_per_iteration``; ``num_timesteps`` is ignored.
        """
        config = self.config
        share = config.run.text_rollouts.episodes_per_iteration // max(1, config.num_env_runners)
        count = num_episodes or max(1, share)
        self._sampled += 1
        games = config.training_games()
        plans = plan_episodes(
            count,
            run_seed=config.seed or 0,
            purpose=f"runner-{self.worker_index}",
            iteration=self._sampled,
            game_weights=shares_of(games),
        )
        seated, _ = self.agent_mapper.assigned(plans, games)
        result = self.play(seated, PlaySettings(games))
        if result.error is not None:
            raise result.error
        return result.episodes

    def _collect(self, played: PlayedPlans, keep: str) -> PlayResult:
        result = PlayResult(failures=played.failures, aborted=played.aborted)
        result.summaries = [summarize(episode) for episode in played.episodes]
        kept = keep == "episodes"
        wanted = played.episodes if kept or self._hooks.hears("on_sample_end") else []
        episodes = [self._hooks.episode_of(episode) for episode in wanted]
        result.metrics = self._hooks.sampled(episodes)
        result.episodes = episodes if kept else []
        return result

    def _close_old_sessions(self, games: Sequence[GameConfig]) -> None:
        """Close games whose options are no longer used; a schedule may change options in every iteration."""
        keys = frozenset(game.key for game in games)
        self._games_played = [*(played for played in self._games_played if played != keys), keys][-_SETS_OF_GAMES:]
        wanted = frozenset().union(*self._games_played)
        for key in [key for key in self._sessions if key not in wanted]:
            for session in self._sessions.pop(key):
                abandon(session)

    def chat(
        self, module_id: str, changes: Mapping[str, Any] | None = None, game: GameConfig | None = None
    ) -> ChatFormat:
        """Chat format of a language-model policy in a game, cached by its options.

        ``changes`` are options that a schedule has changed; own options of the policy or game take precedence.
        """
        own = self.config.run.policies[module_id].language_model
        asked = {} if game is None else game.asked(own)
        limits = {key: value for key, value in (changes or {}).items() if key not in own}
        limits |= {key: value for key, value in asked.items() if key in LIMITS}
        talk = {key: value for key, value in sorted(asked.items()) if key not in LIMITS}
        key = (module_id, repr(talk))
        if key not in self._chats:
            options = build(LanguageModelOptions, talk, "language_model", self.config.language_model_of(module_id))
            tokenizer = load_tokenizer(self.config.model_files[module_id].directory(), options)
            self._chats[key] = ChatFormat(tokenizer, options)
            self._chats[key].tells_observed = self.config.learns_observations(module_id)
        return self._chats[key].with_options(**limits) if limits else self._chats[key]

    def entry(self, game_id: str, name: str | None) -> GameConfig | None:
        """The training game of this name, or else of this id; ``None`` if there is none."""
        games = self.config.training_games()
        for game in games:
            if name is not None and game.name == name:
                return game
        # Looking up an import path takes 10 ms, and each episode of a log asks for it.
        return next((game for game in games if game.env == game_id or game_spec(game.env).game_id == game_id), None)

    def client(self, weights: str, members: Mapping[str, tuple[str, ...]] | None = None) -> EngineClient:
        """Client of the engines that hold the weights of a policy or a member. Raises: ConfigError: none does."""
        from rllib_lmgame.inference.serving.client import EngineClient

        held = (members or {}).get(weights)
        key = weights if held is None else " ".join(held)  # Tomorrow these engines hold another member.
        if key not in self._clients:
            names = self.config.engine_names.get(weights) if held is None else list(held)
            if names is None:
                there = ", ".join([*self.config.engine_names, *(members or {})]) or "none"
                raise ConfigError("config.policies", f"no engine holds the weights {weights!r}; engines hold {there}")
            self._clients[key] = EngineClient(names, request_timeout_s=self.config.run.inference.request_timeout_s)
        return self._clients[key]

    def forget(self, plan: EpisodePlan) -> None:
        """Called when an episode is over: engines may drop its prefixes."""
        self._share.done += 1
        if self._watched is not None and self._watched.plan.episode_id == plan.episode_id:
            self._watched = None
        for client in self._clients.values():
            client.forget(plan.episode_id)

    def opened(self, game: GameConfig, session: GameSession) -> None:
        self._hooks.opened(game, session)

    def begin(self, plan: EpisodePlan, session: GameSession) -> None:
        self._hooks.created(plan, session)

    def end(self, episode: PlayedEpisode, session: GameSession) -> None:
        self._hooks.ended(episode, session)

    def watch(self, game: GameInPlay) -> None:
        """Call callbacks, and show one game until its end, then another one."""
        self._hooks.went_on(game)
        if self._watched is None:
            self._watched = game

    def _in_play(self) -> str:
        game = self._watched
        return "" if game is None else game.text[:MOST_SHOWN]

    @cached_property
    def agent_mapper(self) -> AgentMapper:
        return AgentMapper(self.config)

    def player(self, settings: PlaySettings, assignment: AgentAssignment, game: GameConfig) -> Player:
        """The player of a seat: a scripted player, or a policy on its engines."""
        name = assignment.module_id
        if assignment.player != LANGUAGE_MODEL:
            return Scripted(name, assignment.player)
        chat = self.chat(name, settings.language_model, game)
        options = settings.rollouts or self.config.run.text_rollouts
        if game.format_penalty is not None:
            options = options.model_copy(update={"format_penalty": game.format_penalty})
        replies = partial(self._replies, settings, game, assignment)
        temperature = game.temperature if settings.expert is None else None
        return LanguageModel(name, assignment.weights, chat, replies, options, temperature)

    def _replies(
        self, settings: PlaySettings, game: GameConfig, assignment: AgentAssignment, plan: EpisodePlan, seed: int
    ) -> ReplySource:
        if settings.expert is not None:
            return ExpertReplies(make_scripted_player(settings.expert), random.Random(seed))
        inference, temperature = sampled_in(game, settings.inference or self.config.run.inference, settings.temperature)
        return engine_replies(
            partial(self.client(assignment.weights, settings.members).generate, key=plan.episode_id),
            inference,
            settings.rollouts or self.config.run.text_rollouts,
            temperature=temperature,
            seeded=settings.seeded,
        )

    def _with_policies(self, played: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """``played``, during which games may ask the policies."""
        players = self.config.run.policies.items()
        models = tuple(policy for policy, options in players if options.player == LANGUAGE_MODEL)
        limit_s = self.config.run.inference.request_timeout_s

        async def asking() -> T:
            loop = asyncio.get_running_loop()
            answers = EngineAnswers(self._chat_as_asked, lambda policy: self.client(policy).generate, limit_s, loop)
            with policies_of_run(Policies(models, answers)):
                return await played

        return asking()

    def _chat_as_asked(self, policy: str) -> ChatFormat:
        key = (policy, "asked")
        if key not in self._chats:
            options = self.config.language_model_of(policy).model_copy(update=AS_ASKED)
            self._chats[key] = ChatFormat(load_tokenizer(self.config.model_files[policy].directory(), options), options)
        return self._chats[key]

    def _write_log(self, played: Sequence[PlayedEpisode], settings: PlaySettings) -> None:
        if settings.log is None:
            return
        if settings.log_most is not None:
            played = chosen(played, settings.log_most)
        if not played:
            return
        directory = Path(self.config.episode_log_dir or ".")
        try:
            log = EpisodeLog(directory / f"{settings.log}-{self.worker_index}.jsonl")
            log.write([episode_record(episode) for episode in played])
        except (OSError, ValueError, TypeError, RecursionError) as error:
            logger.error("The episode log in %s could not be written: %s", directory, error)
            return
        if settings.log_most is not None:
            thin(log.path, SAMPLE_BYTES * settings.log_most // EPISODES_OF_SAMPLE)
        for episode in played:
            episode.logged = True

    # -- RLlib --------------------------------------------------------------------------------------------------

    def assert_healthy(self) -> None:
        assert self.module is not None

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        space = (TEXT_SPACE, TEXT_SPACE)
        return {
            INPUT_ENV_SPACES: space,
            INPUT_ENV_SINGLE_SPACES: space,
            **dict.fromkeys(self.config.run.policies, space),
        }

    def get_metrics(self) -> dict[str, Any]:
        """Nothing: episode numbers travel with the episodes."""
        return {}

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """A runner has no state worth keeping: seeds come from the driver, weights live in the engines."""
        return {"sampled": self._sampled}

    def set_state(self, state: dict[str, Any]) -> None:
        self._sampled = int(state.get("sampled", self._sampled))

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"config": self.config, "worker_index": self.worker_index}

    def stop(self) -> None:
        close_games((session for pool in self._sessions.values() for session in pool), CALL_LIMIT_S)
        self._sessions.clear()
        for client in self._clients.values():
            client.close()
        self._clients.clear()
