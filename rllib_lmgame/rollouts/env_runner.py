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
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils import force_list
from ray.rllib.utils.checkpoints import Checkpointable

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build
from rllib_lmgame.base.plugin import asking
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.policies.options import LANGUAGE_MODEL, LIMITS, LanguageModelOptions
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.episode_log import SAMPLE_BYTES, EpisodeLog, chosen, episode_record, shorten
from rllib_lmgame.rollouts.episodes import new_episode, summarize, to_multi_agent_episode
from rllib_lmgame.rollouts.game_calls import abandon, close_games, run_to_end
from rllib_lmgame.rollouts.options import EPISODES_OF_SAMPLE, shares_of
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.play import GameInPlay, PlayedEpisode, PlayedPlans, Sessions, first_error, play_many
from rllib_lmgame.rollouts.players import LanguageModel, Player, Scripted, sampled_in, take_seats
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, TEXT_SPACE, GameConfig, PlayResult, PlaySettings
from rllib_lmgame.rollouts.seats import EngineReplies, ExpertReplies, ReplySource, Seat
from rllib_lmgame.rollouts.sources import AgentMapper

if TYPE_CHECKING:
    from rllib_lmgame.inference.serving.client import EngineClient

logger = logging.getLogger(__name__)

_SETS_OF_GAMES = 4
"""Sets of games that are kept between episodes: of training, of evaluations, and those before a change."""


class TextGameEnvRunner(EnvRunner, Checkpointable):
    """Plays on the configuration of an algorithm (:class:`~rllib_lmgame.algorithms.ppo.LMGamePPOConfig`)."""

    def __init__(self, *, config: AlgorithmConfig, worker_index: int = 0, **kwargs: Any) -> None:
        super().__init__(
            config=config, worker_index=worker_index, num_workers=kwargs.get("num_workers", config.num_env_runners)
        )
        self.module = MultiRLModuleSpec(
            rl_module_specs={
                module_id: config.module_spec(module_id, inference_only=True) for module_id in config.run.policies
            }
        ).build()
        self.hooks = Hooks(self)
        self._chats: dict[tuple[str, str], ChatFormat] = {}
        self._clients: dict[str, EngineClient] = {}
        self._games_played: list[frozenset[str]] = []
        self._sampled = 0
        self._loop = asyncio.Runner()
        self._plays: dict[int, asyncio.Task[PlayResult]] = {}
        self._places = asyncio.Semaphore(config.num_envs_per_env_runner)

    def __repr__(self) -> str:
        """Name of the actor in Ray's dashboard and logs."""
        return f"env runner {self.worker_index}"

    # -- playing ------------------------------------------------------------------------------------------------

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        """Play ``plans``, which have assignments, at most ``num_envs_per_env_runner`` games at once.

        With spare plans, games still in play when enough groups have finished are stopped. An error that concerns
        every episode is returned as ``error``: if it were raised, RLlib would restart the runner and hide the cause.
        """
        return run_to_end(self._playing(plans, settings, asyncio.Semaphore(self.config.num_envs_per_env_runner)))

    def go_on(
        self, number: int, begun: Mapping[int, tuple[Sequence[EpisodePlan], PlaySettings]], seconds: float
    ) -> tuple[int, dict[int, PlayResult], list[int]]:
        """Play several sets of plans side by side, for ``seconds`` or until one is done; then the games stand still.

        ``begun`` are those that begin now, by keys of the caller. Returns ``number``, the results of :meth:`play` of
        those that are done, and the keys of the others.
        """

        async def go_on() -> None:
            for key, (plans, settings) in begun.items():
                self._plays[key] = asyncio.create_task(self._playing(plans, settings, self._places))
            if self._plays:
                await asyncio.wait(self._plays.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

        self._loop.run(go_on())
        done = [key for key, task in self._plays.items() if task.done()]
        return number, {key: self._plays.pop(key).result() for key in done}, list(self._plays)

    def _playing(
        self, plans: Sequence[EpisodePlan], settings: PlaySettings, places: asyncio.Semaphore
    ) -> Coroutine[Any, Any, PlayResult]:
        start = time.perf_counter()
        options = settings.rollouts or self.config.run.text_rollouts

        @cache
        def player(number: int, assignment: AgentAssignment) -> Player:
            return self.player(settings, assignment, settings.games[number])

        def seats(session: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
            return take_seats(session, plan, partial(player, plan.game))

        async def played() -> PlayResult:
            try:
                found = await play_many(plans, settings.games, seats, self.hooks, options, places)
                self._write_log(found.episodes, settings)
                result = self._collect(found, settings.keep)
            except BaseExceptionGroup as group:
                result = PlayResult(error=first_error(group))
            except ConfigError as error:
                result = PlayResult(error=error)
            for plan in plans:
                self.hooks.shown.pop(plan.episode_id, None)
            self._close_old_sessions(settings.games)
            result.wall_s = time.perf_counter() - start
            return result

        return played()

    def set_weights(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: engines have the weights."""

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
        wanted = played.episodes if kept or self.hooks.hears("on_sample_end") else []
        episodes = [self.hooks.episode_of(episode) for episode in wanted]
        result.metrics = self.hooks.sampled(episodes)
        result.episodes = episodes if kept else []
        return result

    def _close_old_sessions(self, games: Sequence[GameConfig]) -> None:
        keys = frozenset(game.key for game in games)
        self._games_played = [*(played for played in self._games_played if played != keys), keys][-_SETS_OF_GAMES:]
        wanted = frozenset().union(*self._games_played)
        idle = self.hooks.idle
        for key in [key for key in idle if key not in wanted]:
            for session in idle.pop(key):
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
        generate = partial(self.client(assignment.weights, settings.members).generate, key=plan.episode_id)
        constrained = (settings.rollouts or self.config.run.text_rollouts).constrained_decoding
        return EngineReplies(generate, inference, temperature, constrained, settings.seeded)

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
            shorten(log.path, SAMPLE_BYTES * settings.log_most // EPISODES_OF_SAMPLE)
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
        self._loop.close()
        close_games((session for pool in self.hooks.idle.values() for session in pool), CALL_LIMIT_S)
        self.hooks.idle.clear()
        for client in self._clients.values():
            client.close()
        self._clients.clear()


EPISODE_HOOKS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")
HOOKS = ("on_environment_created", *EPISODE_HOOKS, "on_sample_end")
"""Callbacks of an env runner."""


class Hooks(Sessions):
    """Keeps the games of an env runner, and calls its callbacks; those that are not overridden cost nothing."""

    def __init__(self, runner: TextGameEnvRunner) -> None:
        super().__init__()
        config: Any = runner.config
        self._runner = runner
        self._objects = [made() for made in force_list(config.callbacks_class)]
        self._functions = {hook: getattr(config, f"callbacks_{hook}") for hook in HOOKS}
        own = {hook: [getattr(type(each), hook, None) for each in self._objects] for hook in HOOKS}
        overridden = {
            hook for hook, found in own.items() if any(each is not getattr(RLlibCallback, hook) for each in found)
        }
        self._heard = {hook for hook in HOOKS if self._functions[hook] or hook in overridden}
        self.shown: dict[str, _Shown] = {}

    def hears(self, *hooks: str) -> bool:
        """Whether one of ``hooks`` is overridden."""
        return not self._heard.isdisjoint(hooks)

    def opened(self, game: GameConfig, session: GameSession) -> None:
        runner: Any = self._runner
        context = EnvContext(
            dict(game.env_config), worker_index=runner.worker_index, num_workers=runner.num_workers, remote=False
        )
        self._call("on_environment_created", env=_env_of(session), env_context=context)

    def begin(self, plan: EpisodePlan, session: GameSession) -> None:
        if self.hears(*EPISODE_HOOKS):
            shown = self.shown[plan.episode_id] = _Shown(plan)
            self._tell("on_episode_created", shown, session)

    def watch(self, game: GameInPlay) -> None:
        shown = self.shown.get(game.plan.episode_id)
        if shown is not None:
            shown.go_on(game)
            self._tell("on_episode_step" if game.steps else "on_episode_start", shown, game.session)

    def end(self, episode: PlayedEpisode, session: GameSession) -> None:
        shown = self.shown.get(episode.plan.episode_id)
        if shown is not None:
            shown.episode = to_multi_agent_episode(episode, shown.episode)
            if len(episode.steps) > shown.steps:  # Else it was broken off before a step that was not taken.
                self._tell("on_episode_step", shown, session)
            self._tell("on_episode_end", shown, session)

    def forget(self, plan: EpisodePlan) -> None:
        for client in self._runner._clients.values():  # Engines may drop its prefixes.
            client.forget(plan.episode_id)

    def episode_of(self, played: PlayedEpisode) -> MultiAgentEpisode:
        """RLlib's episode, the same object that callbacks have seen."""
        shown = self.shown.get(played.plan.episode_id)
        if shown is None:
            return to_multi_agent_episode(played)
        for part in shown.episode.agent_episodes.values():
            if CUSTOM_DATA_KEY in part.custom_data:
                part.custom_data[CUSTOM_DATA_KEY].logged = played.logged
        return shown.episode

    def sampled(self, episodes: list[MultiAgentEpisode]) -> list[dict[str, Any]]:
        """Called with played episodes; returns what callbacks logged, for ``MetricsLogger.aggregate`` on the driver."""
        self._call("on_sample_end", samples=episodes)
        return [self._runner.metrics.reduce()] if self._heard else []

    def _tell(self, hook: str, shown: _Shown, session: GameSession) -> None:
        self._call(
            hook, episode=shown.episode, env=_env_of(session), env_index=shown.index, rl_module=self._runner.module
        )

    def _call(self, hook: str, **given: Any) -> None:
        if hook in self._heard:
            with asking(hook, "config.callbacks"):
                make_callback(
                    hook,
                    self._objects,
                    self._functions[hook],
                    kwargs={"env_runner": self._runner, "metrics_logger": self._runner.metrics, **given},
                )


class _Shown:
    """The episode of a game in play."""

    def __init__(self, plan: EpisodePlan) -> None:
        modules = {agent: assignment.module_id for agent, assignment in plan.assignments.items()}
        self.index = plan.index
        self.steps = 0
        self.episode = new_episode(plan.episode_id, modules)
        self._waiting: set[str] = set()
        """Agents that have acted and have not seen an observation since."""

    def go_on(self, game: GameInPlay) -> None:
        episode, ends = self.episode, game.ends
        seen = {agent: view.text for agent, view in game.views.items() if agent not in ends}
        if not game.steps:
            episode.add_env_reset(observations=seen)
            return
        step, self.steps = game.steps[-1], len(game.steps)
        over = {agent: end.terminated for agent, end in ends.items() if end.step == len(game.steps)}
        seen |= {agent: game.final_observations[agent] for agent in over}
        self._waiting |= step.actions.keys()
        parts = episode.agent_episodes
        seen = {agent: text for agent, text in seen.items() if agent in self._waiting or agent not in parts}
        self._waiting -= seen.keys()
        rewards = dict.fromkeys(step.actions, 0.0) | step.rewards
        episode.add_env_step(
            observations=seen,
            actions=step.actions,
            # RLlib refuses those of agents that are out of the game.
            rewards={agent: x for agent, x in rewards.items() if agent not in parts or not parts[agent].is_done},
            infos={agent: step.infos.get(agent, {}) for agent in seen},
            terminateds={agent: terminated for agent, terminated in over.items() if agent in seen},
            truncateds={agent: not terminated for agent, terminated in over.items() if agent in seen},
        )


def _env_of(session: GameSession) -> Any:
    return getattr(session, "env", session)
