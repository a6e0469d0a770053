"""RLlib's EnvRunner for text games: many games at once, one coroutine each, against inference engines elsewhere.

No method of the runner is a coroutine: Ray would make it an asyncio actor, in which `sample` could not run a loop of its own.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import random
import threading
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.checkpoints import Checkpointable

from rllib_lmgame.envs.registry import game_spec, make_session
from rllib_lmgame.envs.session import GameSession
from rllib_lmgame.errors import ConfigError, MissingDependencyError
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.chat import ChatFormat
from rllib_lmgame.policies.mapping import MappingFn
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.episode_log import EpisodeLog, episode_record
from rllib_lmgame.rollouts.episodes import summarize, to_multi_agent_episode
from rllib_lmgame.rollouts.game_calls import GameCalls
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes, stable_seed
from rllib_lmgame.rollouts.play import PlayedEpisode, play_episode
from rllib_lmgame.rollouts.records import TEXT_SPACE, Failure, GameConfig, PlayResult, PlaySettings
from rllib_lmgame.rollouts.runner_config import RunnerConfig
from rllib_lmgame.rollouts.seats import EngineReplies, EpisodeFailed, ExpertReplies, LanguageModelSeat, ReplySource, ScriptedSeat, Seat
from rllib_lmgame.text import first_line

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    from rllib_lmgame.inference.client import EngineClient

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TextGameEnvRunner(EnvRunner, Checkpointable):
    """Plays text games for RLlib.

    Args:
        config: The algorithm's configuration.
        worker_index: 0 for the runner in the algorithm's own process.
    """

    def __init__(self, *, config: RunnerConfig, worker_index: int = 0, **kwargs: Any) -> None:
        super().__init__(config=config, worker_index=worker_index, num_workers=kwargs.get("num_workers", config.num_env_runners))
        self.module = MultiRLModuleSpec(
            rl_module_specs={module_id: config.module_spec(module_id, inference_only=True) for module_id in config.player_options}
        ).build()
        self._chats: dict[str, ChatFormat] = {}
        self._clients: dict[str, EngineClient] = {}
        self._sessions: dict[str, list[GameSession]] = collections.defaultdict(list)
        self._sampled = 0

    # -- playing ------------------------------------------------------------------------------------------------

    def play(self, plans: list[EpisodePlan], settings: PlaySettings) -> PlayResult:
        """Play ``plans``, at most ``num_envs_per_env_runner`` games at once.

        What no other episode can get round either (a wrong configuration, a fault of this package) is returned as
        ``error``: raised here, RLlib would restart the runner and hide the cause.
        """
        start = time.perf_counter()
        try:
            result = run_to_end(_play_all(self, plans, settings))
        except BaseExceptionGroup as group:
            result = PlayResult(error=_first_error(group))
        result.wall_s = time.perf_counter() - start
        return result

    def sample(self, *, num_episodes: int | None = None, num_timesteps: int | None = None, **kwargs: Any) -> list[MultiAgentEpisode]:
        """RLlib's own entry point: complete episodes with levels of this runner's own seeds.

        Args:
            num_episodes: How many; by default this runner's share of ``episodes_per_iteration``.
            num_timesteps: Ignored: only complete episodes are sampled.

        Raises:
            Exception: whatever :meth:`play` found that no other episode can get round either.
        """
        config = self.config
        count = num_episodes or max(1, config.text_rollout_options.episodes_per_iteration // max(1, config.num_env_runners))
        self._sampled += 1
        games = config.training_games()
        plans = plan_episodes(
            count,
            run_seed=config.seed or 0,
            purpose=f"runner-{self.worker_index}",
            iteration=self._sampled,
            game_weights=[game.weight for game in games],
        )
        result = self.play(plans, PlaySettings(games))
        if result.error is not None:
            raise result.error
        return result.episodes

    def free_session(self, game: GameConfig) -> GameSession | None:
        """A session of ``game`` that is not in play, if there is one."""
        pool = self._sessions[game.key]
        return pool.pop() if pool else None

    def release(self, game: GameConfig, session: GameSession) -> None:
        """Keep ``session`` for the next episode."""
        self._sessions[game.key].append(session)

    def chat(self, module_id: str) -> ChatFormat:
        """Chat format of a language-model policy."""
        if module_id not in self._chats:
            options = self.config.language_model_of(module_id)
            self._chats[module_id] = ChatFormat(load_tokenizer(self.config.model_files[module_id].directory(), options), options)
        return self._chats[module_id]

    def client(self, module_id: str) -> EngineClient:
        """Client of the engines that hold the policy's weights."""
        from rllib_lmgame.inference.client import EngineClient

        if module_id not in self._clients:
            timeout = self.config.inference_options.request_timeout_s
            self._clients[module_id] = EngineClient(self.config.engine_names[module_id], request_timeout_s=timeout)
        return self._clients[module_id]

    def forget(self, plan: EpisodePlan) -> None:
        """The episode is over: its prefixes need not stay where they are."""
        for client in self._clients.values():
            client.forget(plan.episode_id)

    # -- RLlib --------------------------------------------------------------------------------------------------

    def assert_healthy(self) -> None:
        """The runner is built."""
        assert self.module is not None

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """Text in, text out, for every module."""
        space = (TEXT_SPACE, TEXT_SPACE)
        return {INPUT_ENV_SPACES: space, INPUT_ENV_SINGLE_SPACES: space, **dict.fromkeys(self.config.player_options, space)}

    def get_metrics(self) -> dict[str, Any]:
        """Nothing: episode numbers travel with the episodes."""
        return {}

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """A runner has no state worth keeping: seeds come from the driver, weights live in the engines."""
        return {"sampled": self._sampled}

    def set_state(self, state: dict[str, Any]) -> None:
        """See :meth:`get_state`."""
        self._sampled = int(state.get("sampled", self._sampled))

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """For RLlib's checkpoints."""
        return (), {"config": self.config, "worker_index": self.worker_index}

    def stop(self) -> None:
        """Close every game and client."""
        for pool in self._sessions.values():
            for session in pool:
                try:
                    session.close()
                except Exception as error:
                    logger.warning("%s could not be closed: %s", session.game_id, error)
        self._sessions.clear()
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def load_tokenizer(directory: str, options: Any) -> Any:
    """The policy's tokenizer.

    Raises:
        ConfigError: if there is none at ``directory``.
    """
    from transformers import AutoTokenizer

    source = options.tokenizer or directory
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=options.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError("config.language_model.tokenizer", f"no tokenizer at {source!r}: {first_line(error)}") from error


async def _play_all(runner: TextGameEnvRunner, plans: list[EpisodePlan], settings: PlaySettings) -> PlayResult:
    """Play every plan; the games run side by side, each at its own pace."""
    played: list[PlayedEpisode] = []
    failures: list[Failure] = []
    queue = collections.deque(plans)
    concurrency = min(len(plans), max(1, runner.config.num_envs_per_env_runner))
    table = _Table(runner, settings)

    async def play_from_queue() -> None:
        while queue:
            plan = queue.popleft()
            outcome = await table.play(plan)
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                played.append(outcome)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(play_from_queue())
    played.sort(key=lambda episode: episode.plan.index)
    failures.sort(key=lambda failure: failure.plan.index)
    _write_log(runner, played, settings)
    return _collect(played, failures, settings, runner.config.trained_policies())


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, in a thread of its own where a loop is running already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "play") as executor:
        return executor.submit(asyncio.run, coroutine).result()


def _abandon(session: GameSession) -> None:
    """Close a game that failed, without waiting for it."""

    def close() -> None:
        try:
            session.close()
        except Exception as error:
            logger.debug("%s could not be closed: %s", session.game_id, error)

    threading.Thread(target=close, daemon=True, name="game-close").start()


def _first_error(group: BaseExceptionGroup) -> Exception:
    """The first plain error of a task group; an interrupt goes on."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first_error(error)
        if not isinstance(error, Exception):
            raise error
        return error
    raise AssertionError("an exception group is never empty")


def module_of_seat(config: RunnerConfig, mapping: MappingFn, session: GameSession, plan: EpisodePlan, agent: str) -> str:
    """The policy that plays a seat in this episode.

    Raises:
        ConfigError: if the mapping names no policy.
    """
    seed = stable_seed(plan.seed, plan.index, "seats")
    module_id = mapping(agent, None, role=session.roles[agent], agent_ids=session.agent_ids, seed=seed)
    if module_id not in config.player_options:
        known = ", ".join(config.player_options)
        raise ConfigError("config.policy_mapping_fn", f"maps {agent!r} to {module_id!r}, which is not a policy; policies: {known}")
    return module_id


class _Table:
    """Plays single plans with one set of settings."""

    def __init__(self, runner: TextGameEnvRunner, settings: PlaySettings) -> None:
        self.runner = runner
        self.config = runner.config
        self.settings = settings
        self.mapping = self.config.seat_mapping()

    async def play(self, plan: EpisodePlan) -> PlayedEpisode | Failure:
        options = self.config.text_rollout_options
        game = self.settings.games[plan.game]
        session: GameSession | None = None
        reusable = False
        try:
            async with asyncio.timeout(options.episode_timeout_s) as limit:
                session = self.runner.free_session(game) or await self._new_session(game)
                episode = await play_episode(session, plan, self.seats, options.env_step_timeout_s)
            reusable = True
            return episode
        except (ConfigError, MissingDependencyError):
            raise
        except EpisodeFailed as failure:
            reusable = failure.reason is StopReason.ENGINE_ERROR
            return Failure(plan, failure.reason.value, str(failure))
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                message = f"{game.env}: the episode took longer than episode_timeout_s={options.episode_timeout_s:g}"
                return Failure(plan, StopReason.TIMEOUT.value, message)
            logger.warning("Episode %s of %s failed", plan.episode_id, game.env, exc_info=True)
            return Failure(plan, StopReason.ENV_ERROR.value, f"{game.env}: {type(error).__name__}: {error}")
        finally:
            self.runner.forget(plan)
            if session is not None and reusable:
                self.runner.release(game, session)
            elif session is not None:
                _abandon(session)

    async def _new_session(self, game: GameConfig) -> GameSession:
        """A new session; the constructor of a game that is not ours may hang like any other call into it."""
        timeout = self.config.text_rollout_options.env_step_timeout_s
        return await GameCalls(game.env, game_spec(game.env).own, timeout)("the constructor", make_session, game.env, dict(game.env_config))

    def seats(self, session: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
        return {agent: self._seat(session, plan, agent) for agent in session.agent_ids}

    def _seat(self, session: GameSession, plan: EpisodePlan, agent: str) -> Seat:
        role = session.roles[agent]
        module_id = module_of_seat(self.config, self.mapping, session, plan, agent)
        player = self.settings.players.get(module_id, self.config.player_options[module_id].player)
        seed = stable_seed(plan.seed, plan.episode_id, agent, "player")
        if player != "language_model":
            return ScriptedSeat(agent, role, module_id, player=make_scripted_player(player), seed=seed)
        return LanguageModelSeat(
            agent,
            role,
            module_id,
            chat=self.runner.chat(module_id),
            source=self._source(module_id, seed, plan.episode_id),
            instructions=session.instructions,
            episode_id=plan.episode_id,
            seed=seed,
            format_penalty=self.config.text_rollout_options.format_penalty,
            bootstrap_turn_limit=self.config.text_rollout_options.bootstrap_turn_limit,
            bootstrap_token_budget=self.config.text_rollout_options.bootstrap_token_budget,
        )

    def _source(self, module_id: str, seed: int, key: str) -> ReplySource:
        settings, inference = self.settings, self.config.inference_options
        if settings.expert is not None:
            return ExpertReplies(make_scripted_player(settings.expert), random.Random(seed))
        return EngineReplies(
            partial(self.runner.client(module_id).generate, key=key),
            temperature=inference.temperature if settings.temperature is None else settings.temperature,
            top_p=inference.top_p if settings.temperature is None else 1.0,
            top_k=inference.top_k if settings.temperature is None else 0,
            legal_moves_only=self.config.text_rollout_options.legal_moves_only,
            seeded=settings.seeded,
        )


def _collect(played: Iterable[PlayedEpisode], failures: list[Failure], settings: PlaySettings, trained: list[str]) -> PlayResult:
    result = PlayResult(failures=failures)
    for episode in played:
        result.summaries.append(summarize(episode, trained))
        if settings.keep == "episodes":
            result.episodes.append(to_multi_agent_episode(episode))
    return result


def _write_log(runner: TextGameEnvRunner, played: list[PlayedEpisode], settings: PlaySettings) -> None:
    if settings.log is None:
        return
    directory = Path(runner.config.episode_log_dir or ".")
    try:
        EpisodeLog(directory / f"{settings.log}-{runner.worker_index}.jsonl").write([episode_record(episode) for episode in played])
    except (OSError, ValueError) as error:
        logger.error("The episode log in %s could not be written: %s", directory, error)
