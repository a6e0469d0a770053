"""What PPO and supervised learning share: engines, playing episodes, weights, evaluation, checkpoints."""

from __future__ import annotations

import json
import logging
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import methodcaller
from pathlib import Path
from typing import Any, ClassVar

import ray
from pyarrow.fs import FileSystem, LocalFileSystem
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_LEARNER_GROUP, DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    TIMERS,
)
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.tune import PlacementGroupFactory
from ray.tune.result import TRIAL_INFO

from rllib_lmgame.algorithms.checkpoints import manifest as checkpoints
from rllib_lmgame.algorithms.checkpoints.background import EVERY, WRITTEN, BackgroundCheckpoints
from rllib_lmgame.algorithms.checkpoints.learner_files import check_models, load_learners, save_learners
from rllib_lmgame.algorithms.checkpoints.paths import is_checkpoint
from rllib_lmgame.algorithms.cluster import workers
from rllib_lmgame.algorithms.cluster.footprint import computing_dtype, engine_numerics, learner_rooms
from rllib_lmgame.algorithms.cluster.ray_cluster import be_connected
from rllib_lmgame.algorithms.cluster.threads import (
    is_small,
    learners_use_cores,
    places,
    thread_words,
    threads_of,
    with_kept_threads,
)
from rllib_lmgame.algorithms.cluster.workers import RunnerGroup, foreach_learner, push_from_learners
from rllib_lmgame.algorithms.config import CONFIG_FILE, RUN, LMGameConfig
from rllib_lmgame.algorithms.measuring.measures import LAST, measure_policies, measured_columns
from rllib_lmgame.algorithms.models import prepare_models
from rllib_lmgame.algorithms.validation import check_on_hub, check_teacher
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.numerics import has_bfloat16_units
from rllib_lmgame.base.schedule import number_at
from rllib_lmgame.base.storage import expanded, is_uri
from rllib_lmgame.config.algorithms import reference
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.options import WeightUse
from rllib_lmgame.measures.collapse import CollapseGuard
from rllib_lmgame.rollouts.episodes import OVER_SAMPLES, episode_metrics, over_levels, over_samples, returns_by_seat
from rllib_lmgame.rollouts.item_order import evaluated_levels
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.records import GameConfig, PlayResult, PlaySettings
from rllib_lmgame.rollouts.sources import ENV_RUNNER_LOST, STALE, AgentMapper, play_all
from rllib_lmgame.telemetry.gauges import LMGameGauges
from rllib_lmgame.telemetry.metrics import COLLAPSE, PHASES, WEIGHT_SYNC_TIMER, flatten, with_columns
from rllib_lmgame.telemetry.progress import CHOSEN, ENGINES, MODELS, START, WHY_DROPPED, WORKERS, tell_phase

logger = logging.getLogger(__name__)

BEST = "best"
"""Name of the checkpoint with the best ``evaluation_config.best``, in the trial's directory."""

_REASONS = 5
"""Messages about dropped episodes that are said of an iteration."""

_ENDS = (*(StopReason.GAME_OVER, StopReason.MAX_TURNS, StopReason.FORFEIT), StopReason.CONTEXT_OVERFLOW)
_DROPS = (StopReason.ENV_ERROR, StopReason.ENV_BUSY, StopReason.ENGINE_ERROR, StopReason.TIMEOUT)
COUNTED: dict[tuple[str, ...], tuple[str, ...]] = {
    (ENV_RUNNER_RESULTS, "stop_reason"): tuple(each.value for each in (*_ENDS, StopReason.TOKEN_BUDGET)),
    (ENV_RUNNER_RESULTS, "dropped"): (*(each.value for each in _DROPS), ENV_RUNNER_LOST, STALE),
}
"""Where episodes are counted by what became of them: why they may have ended, or been dropped."""


class LMGameAlgorithm(PPO):
    """Plays text games with language models through inference engines.

    Engines are created before RLlib's set-up, on their own bundles, so that learners cannot take their place.
    """

    config: LMGameConfig
    config_class: ClassVar[type[LMGameConfig]]
    """Of the default configuration."""

    @classmethod
    def get_default_config(cls) -> Any:
        return cls.config_class()

    def __init__(self, config: Any = None, *args: Any, **kwargs: Any) -> None:
        # RLlib's configuration object drops what Tune says of the trial before Tune's own base class looks for it.
        by_tune = config if isinstance(config, dict) else {}
        self._tune_trial = by_tune.get(TRIAL_INFO)
        self._checkpoints = BackgroundCheckpoints(by_tune.get(EVERY, 0))
        super().__init__(config, *args, **kwargs)

    _shared_runners: RunnerGroup | None = None
    """Env runners of training on which several threads play."""

    _guard: CollapseGuard | None = None

    _asleep = False  # Engines are, so that it is the learners' turn on GPUs.
    _away = False  # Learners are, or an error left some of them so.

    def setup(self, config: LMGameConfig) -> None:
        """Prepare models, start engines, then RLlib's runners and learners; also Ray, if nobody has."""
        self._trial_info: Any = self._tune_trial
        self.engine_groups: dict[str, Any] = {}
        self._restoring = threading.Lock()
        self._policy_version = 0
        self._at_start = True
        self._best: float | None = None
        run = self.config.run
        if run.on_collapse is not None:
            games = repr([game.key for game in (*run.games, *(run.evaluation_config.games or ()))])
            self._guard = CollapseGuard(run.on_collapse, games, max(run.group_sizes, default=1))
        own = self.config.copy(copy_frozen=False)
        own.episode_log_dir = str(self.trial_directory() / "episodes")
        if self._tune_trial is None:  # Else Tune's callbacks print what it does.
            print(f"{type(self).__name__}: {', '.join(START[1:])} ...", file=sys.stderr, flush=True)
        self.tell(MODELS)
        if not own.model_files:
            check_on_hub(own)
            own.model_files = prepare_models(own)
            made = {policy: str(files.directory()) for policy, files in own.model_files.items()}
            check_teacher(own, made, fetch=True)
        try:
            if not ray.is_initialized():
                # RLlib leaves "class" when it restores a configuration.
                values = {key: value for key, value in own.to_dict().items() if key != "class"}
                bundles = self.default_resource_request(values).bundles
                be_connected(num_cpus=math.ceil(sum(bundle.get("CPU", 0) for bundle in bundles)))
            own.learner_rooms = learner_rooms(own)
            self.tell(ENGINES)
            self._places = places(own, len(workers.engine_bundles(own)))
            if own.run.deterministic:
                self._places = with_kept_threads(*self._results_place(), self._places)
            self.engine_groups = workers.start_engines(own, self._places)
            if learners_use_cores(own):
                own.learner_threads = self._places.learner_threads()
            own.engine_names = {module_id: list(group.names) for module_id, group in self.engine_groups.items()}
            self._measured: tuple[tuple[str, ...], ...] = ()
            if own.evaluation_interval:
                measures, games = own.run.evaluation_config.measures or (), own.games_for_evaluation()
                self._measured = measured_columns(own, measures, games, averaged=own.run.averages)
                if own.run.evaluation_config.samples > 1:
                    self._measured += tuple((ENV_RUNNER_RESULTS, name) for name in OVER_SAMPLES)
            own.freeze()
            self.config = own
            self.agent_mapper = AgentMapper(own)
            self.tell(WORKERS)
            self._sleep(drop=True)
            super().setup(own)
            self.tell(PHASES[WEIGHT_SYNC_TIMER].doing)
            self.push_weights()
            self.tell(self._chosen(), CHOSEN)
        except BaseException:
            self.cleanup()
            raise

    def _chosen(self) -> str:
        sizes = foreach_learner(self.learner_group, lambda learner: learner.microbatches())[0]
        several = len(sizes) > 1
        of = ", ".join(f"{tokens:,} tokens" + f" ({policy})" * several for policy, tokens in sizes.items())
        words = [*thread_words(*threads_of(self.config, self._places)), *_dtype_words(self.config)]
        return ", ".join([f"micro-batches of {of}", *words])

    @classmethod
    def default_resource_request(cls, config: Any) -> PlacementGroupFactory:
        """RLlib's bundles, then one bundle per engine."""
        base = super().default_resource_request(config)
        resolved = cls.get_default_config().update_from_dict(config) if isinstance(config, dict) else config
        return PlacementGroupFactory([*base.bundles, *workers.engine_bundles(resolved)], strategy=base.strategy)

    def cleanup(self) -> None:
        for callback in getattr(self, "callbacks", ()):
            if isinstance(callback, LMGameGauges):
                callback.close()
        try:
            if hasattr(self, "_checkpoints"):
                self._checkpoints.take(wait=True)
        except CheckpointError as error:
            logger.error("%s", error)
        try:
            if hasattr(self, "env_runner_group"):
                super().cleanup()
        finally:
            for group in workers.each_group(self.engine_groups):
                group.shutdown()
            self.engine_groups = {}

    # -- playing ------------------------------------------------------------------------------------------------

    def play(
        self,
        plans: Sequence[EpisodePlan],
        settings: PlaySettings,
        *,
        runners: EnvRunnerGroup | None = None,
        agent_mapper: AgentMapper | None = None,
    ) -> PlayResult:
        """Play ``plans`` on the env runners; failed episodes are counted and replaced.

        Args:
            runners: By default those of training.
            agent_mapper: Who sits where; by default from the configuration's mapping.

        Returns:
            Finished episodes in the order of the plans, without those whose replacements all failed.

        Raises: RolloutError: ``max_failed_rounds`` rounds in a row finished nothing; ConfigError: no episode can work.
        """
        config = self.config
        if config.engine_names and not self.engine_groups:
            raise ConfigError("", "this algorithm was stopped; build another, or take it from a checkpoint")
        if self._asleep:  # What failed left engines so.
            self.push_weights()
        group = self._shared_runners if runners is None else None
        limit_s = config.sample_timeout_s if runners is None else config.evaluation_sample_timeout_s
        group = group or RunnerGroup(
            runners or self.env_runner_group, limit_s, self._heal, config.restart_failed_env_runners
        )
        most = config.run.text_rollouts.max_failed_rounds
        return play_all(group, plans, settings, agent_mapper or self.agent_mapper, most)

    def _heal(self, runners: EnvRunnerGroup) -> None:
        self._restart_engines()
        if runners.num_remote_env_runners() and (restored := self.restore_env_runners(runners)):
            config = self.config if runners is self.env_runner_group else self.evaluation_config
            self._make_on_env_runners_recreated_callbacks(
                config=config, env_runner_group=runners, restored_env_runner_indices=restored
            )

    def restore_env_runners(self, env_runner_group: EnvRunnerGroup) -> list[int]:
        """RLlib's; one thread at a time, since another may play ahead."""
        with self._restoring:
            restored: list[int] = super().restore_env_runners(env_runner_group)
        return restored

    def _restart_engines(self) -> None:
        for group in workers.each_group(self.engine_groups):
            group.restart_dead()

    # -- models and weights -------------------------------------------------------------------------------------

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """A policy's module: the learner's if it learns in this process (``num_learners: 0``), else without weights.

        ``module_id`` is optional if there is only one policy. Raises: ConfigError: if there is no such policy.
        """
        policies = list(self.config.run.policies)
        if module_id == DEFAULT_MODULE_ID and len(policies) == 1:
            module_id = policies[0]
        if module_id not in policies:
            raise ConfigError("", f"get_module: there is no policy {module_id!r}; there are {', '.join(policies)}")
        if self.learner_group.is_local and module_id in self.config.trained_policies():
            return self.learner_group._learner.module[module_id]
        return super().get_module(module_id)

    def add_module(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: ConfigError: engines would not follow; nor with the others."""
        raise ConfigError("", "policies are those an algorithm is built with; set policies, or a league")

    remove_module = add_policy = remove_policy = add_module

    def get_policy(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: ConfigError: so does what asks for it: ``compute_single_action``, ``export_policy_model``, ..."""
        instead = "evaluate() plays, `rllib play` and `rllib serve --policy` play a checkpoint, with its model in hf/"
        raise ConfigError("", f"old or offline RLlib is not here: get_module(POLICY) has the weights, {instead}")

    evaluate_offline = get_policy

    @property
    def policy_version(self) -> int:
        """Version of the learners' weights: the number of updates."""
        return self._policy_version

    def push_weights(self, use: WeightUse = WeightUse.TRAINING) -> None:
        """Send the learners' weights to the engines, if there are any; their version is the number of updates.

        ``use`` decides whether averaged weights go (``training.ema_decay``). Then it is the engines' turn on GPUs.
        """
        if self.config.run.training.offload_during_rollout:
            self._sleep(drop=True)
        for module_id in self.config.trained_policies() if self.engine_groups else ():
            push_from_learners(self.learner_group, self.engine_groups[module_id], module_id, self._policy_version, use)
        self._wake()

    @contextmanager
    def engines_asleep(self, pushed: bool = False) -> Iterator[None]:
        """With ``inference.sleep_during_update`` engines sleep meanwhile, or (``pushed``) until a push that follows."""
        begins = self._sleep(drop=pushed)
        try:
            yield
        finally:
            if begins and not pushed:
                self._wake()

    def learners_present(self, pushed: bool = False) -> AbstractContextManager[None]:
        """Inside it learners have their weights; with ``training.offload_during_rollout`` engines sleep meanwhile."""
        return self.engines_asleep(pushed) if self.config.run.training.offload_during_rollout else nullcontext()

    def _sleep(self, drop: bool) -> bool:
        """Whether it was the engines' turn; now it is the learners'. ``drop``: engines drop what a push replaces."""
        here = self._asleep and not self._away
        if here or not self.engine_groups or not self.config.run.inference.sleep_during_update:
            return False
        self._asleep, dropped = True, self.config.trained_policies() if drop else []
        for key, group in self.engine_groups.items():
            group.call("sleep", 2 if key in dropped else 1)
        self._move_learners("reload")
        return True

    def _wake(self) -> None:
        if self._asleep:
            self._move_learners("offload")
            for group in self.engine_groups.values():
                group.call("wake_up")
            self._asleep = False

    def _move_learners(self, method: str) -> None:
        if self.config.run.training.offload_during_rollout and self.learner_group is not None:
            self._away = True
            foreach_learner(self.learner_group, methodcaller(method))
            self._away = method == "offload"

    @contextmanager
    def timed(self, name: str, doing: str | None = None) -> Iterator[None]:
        """Log the seconds a phase of this iteration took as ``timers/<name>``; ``doing``: what else is said of it."""
        self.tell(doing or (PHASES[name].doing if name in PHASES else name))
        start = time.perf_counter()
        yield
        self.metrics.log_value((TIMERS, name), time.perf_counter() - start, window=1, reduce="mean")

    def tell(self, words: str, what: str = "") -> None:
        """Say to whoever watches the trial what it begins to do, or ``what`` else."""
        trial = getattr(self, "_tune_trial", None)
        if trial is not None:
            tell_phase(f"{trial.trial_id}{what}", words)

    def step(self) -> dict[str, Any]:
        """RLlib's iteration; every result has the same columns, with NaN for what this iteration did not measure.

        With ``evaluation_config.at_start`` the first call is iteration 0: it evaluates and trains nothing.
        """
        begins = self._at_start and self.config.run.evaluation_config.at_start
        if begins and self.config.evaluation_interval and not (self.iteration or self.policy_version):
            evaluated = self._run_one_evaluation()
            self._iteration = -1  # Tune counts on after every result.
            result: dict[str, Any] = self._compile_iteration_results(train_results={}, eval_results=evaluated)
        else:
            result = super().step()
        self._at_start = False
        if (progress := self.progress()) is not None:
            result |= {"progress": progress, "done": progress >= 1}
        entry, stage = self.config.entry, self.config.run.supervised_stage
        evaluates = bool(self.config.evaluation_interval) or (stage is not None and stage.stop_at is not None)
        return with_columns(
            result,
            top=entry.metrics,
            modules=self.config.trained_policies(),
            learner=entry.learner_metrics,
            evaluates=evaluates,
            measured=self._measured,
            counts=COUNTED,
        )

    def progress(self) -> float | None:
        """Share of its work that is done, if the trial ends by itself: at 1."""
        return None

    def train(self) -> dict[str, Any]:
        """RLlib's iteration, counted; what evaluated best so far is then saved as :data:`BEST`.

        A checkpoint that is due is begun (:class:`BackgroundCheckpoints`); the result has one that became whole.
        """
        result: dict[str, Any] = super().train()
        own = self.config.run.evaluation_config
        value = None if own.best is None else number_at(result, own.best)
        evaluated = self.iteration % (self.config.evaluation_interval or math.inf) == 0
        if number_at(result, "phase") == 0 and str(own.best).startswith("evaluation/") and not evaluated:
            value = None  # It is of a validation of the warm start.
        sign = 1 if own.best_order == "max" else -1
        if value is not None and (self._best is None or sign * value > sign * self._best):
            self._best = value
            self.save_to_path(self.trial_directory() / BEST)
        if self._guard is not None and (seen := self._guard.seen(result)):
            self._collapsed(seen, result)
        due = bool(self._checkpoints.every) and self.iteration % self._checkpoints.every == 0
        written = self._checkpoints.take(wait=due)
        if due:
            files = Path(tempfile.mkdtemp())
            try:
                self._write_files(files)
            except BaseException:
                shutil.rmtree(files, ignore_errors=True)
                raise
            self._checkpoints.begin(self._storage, files, self.recorded_files(), dict(result))
        return result if written is None else {**result, WRITTEN: written}

    def _collapsed(self, seen: str, result: dict[str, Any]) -> None:
        """Go back to the best weights, or end the trial; ``result`` tells why."""
        best, back, then = self.trial_directory() / BEST, False, "the trial ends; there is no best checkpoint"
        if is_checkpoint(best):
            kept = f"iteration {checkpoints.iteration_of(best)} ({best})"
            broken = checkpoints.manifest_problem(best)
            back = broken is None and self._guard is not None and self._guard.goes_back()
            then = f"training goes on with the weights of {kept}" if back else f"the trial ends; the best is of {kept}"
            then += f", but {broken}" if broken else ""
            if back:
                self.restore_learners(best)
        result[COLLAPSE] = f"collapse in iteration {self.iteration}: {seen}; {then}"
        result["done"] |= not back
        if self._tune_trial is None:
            print(result[COLLAPSE], file=sys.stderr, flush=True)

    def restore_learners(self, checkpoint: Path) -> None:
        """Give learners and engines the weights and the optimizer of a checkpoint; all that counts goes on."""
        checkpoints.verify_manifest(checkpoint)
        with self.learners_present(pushed=True):
            load_learners(self.learner_group, checkpoint)
            self.push_weights()

    # -- metrics ------------------------------------------------------------------------------------------------

    def log_episodes(self, result: PlayResult, engine_numbers: dict[str, float]) -> None:
        """Log the numbers of this iteration's training episodes, and say why some were dropped."""
        if result.failures:
            reasons = sorted({failure.message for failure in result.failures})
            self.tell("; ".join(reasons[:_REASONS]) + "; ..." * (len(reasons) > _REASONS), WHY_DROPPED)
        self.log_of_callbacks(result)
        numbers = _numbers_of(result)
        numbers["generated_tokens_per_s"] = numbers.get("response_tokens", 0) / max(result.wall_s, 1e-9)
        numbers |= engine_numbers
        # A name that is not logged in every iteration would turn into NaN in those where it is not.
        for (_, name), ends in COUNTED.items():
            numbers[name] = dict.fromkeys(ends, 0) | numbers.get(name, {})
        self.log_numbers(ENV_RUNNER_RESULTS, {key: value for key, value in numbers.items() if key != NUM_EPISODES})
        counted = {
            (NUM_ENV_STEPS_SAMPLED, NUM_ENV_STEPS_SAMPLED_LIFETIME): sum(each.steps for each in result.summaries),
            (NUM_EPISODES, NUM_EPISODES_LIFETIME): len(result.summaries),
        }
        for (name, lifetime), count in counted.items():
            self.metrics.log_value((ENV_RUNNER_RESULTS, name), count, reduce="sum")
            self.metrics.log_value((ENV_RUNNER_RESULTS, lifetime), count, reduce="lifetime_sum")

    def log_of_callbacks(self, result: PlayResult) -> None:
        """Log what callbacks of env runners have logged there, under ``env_runners`` as RLlib does."""
        if result.metrics:
            self.metrics.aggregate(result.metrics, key=ENV_RUNNER_RESULTS)

    def log_numbers(self, key: str | tuple[str, ...], numbers: dict[str, Any]) -> None:
        """Log this iteration's ``numbers``, which may be nested, below ``key``; ``()`` is the top of the result."""
        prefix = (key,) if isinstance(key, str) else key
        for path, value in flatten(numbers):
            self.metrics.log_value((*prefix, *path), float(value), window=1, reduce="mean")

    def training_data(self, episodes: Sequence[Any], needs_groups: bool = False) -> WholeEpisodes:
        """Whole ``episodes`` for one update; ``needs_groups``: those of a group stay on one learner."""
        return WholeEpisodes(
            episodes=list(episodes),
            modules=self.config.trained_policies(),
            needs_groups=needs_groups,
            share_prompts=self.config.run.training.share_prompts,
        )

    def after_update(self, results: list[dict[str, Any]]) -> None:
        """An update is over: the weights have a new version, the learners' numbers are logged."""
        self._policy_version += 1
        self.metrics.aggregate(results, key=LEARNER_RESULTS)

    # -- evaluation ---------------------------------------------------------------------------------------------

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Play ``evaluation_duration`` levels of every evaluation game, always the same, and take the measures.

        If evaluation uses averaged weights, the last iterate is measured too.
        """
        self._call_back("on_evaluate_start")
        games = self.config.games_for_evaluation()
        measured: dict[str, Any] = {}
        own, averages = self.config.run.evaluation_config, self.config.run.averages
        if averages:
            self._measure(measured, suffix=LAST)
            self.push_weights(WeightUse.EVALUATION)
        try:
            duration = self.config.evaluation_duration
            result = self.evaluate_games(games, duration, samples=own.samples)
            self._measure(measured)
        finally:
            if averages:
                self.push_weights()
        numbers = {**_numbers_of(result), **_over_levels(result), **over_samples(result.summaries, own.samples)}
        logged = MetricsLogger(root=True, stats_cls_lookup=self.config.stats_cls_lookup)
        logged.aggregate(result.metrics)
        evaluated = {ENV_RUNNER_RESULTS: {**logged.compile(), **numbers}, **measured}
        self._call_back("on_evaluate_end", evaluation_metrics=evaluated)
        return evaluated

    def _call_back(self, hook: str, **given: Any) -> None:
        functions = getattr(self.config, f"callbacks_{hook}")
        make_callback(
            hook, self.callbacks, functions, kwargs={"algorithm": self, "metrics_logger": self.metrics, **given}
        )

    def _measure(self, result: dict[str, Any], suffix: str = "") -> None:
        measure_policies(
            self.config,
            self.config.run.evaluation_config.measures or (),
            self.config.games_for_evaluation(),
            self._restart_engines,
            lambda plans, game: self._evaluate_plans(plans, [game], self.config.run.evaluation_config.sampling),
            suffix=suffix,
            result=result,
        )

    def evaluate_games(
        self,
        games: Sequence[GameConfig],
        num_episodes: int,
        *,
        purpose: str = "evaluation",
        samples: int = 1,
    ) -> PlayResult:
        """Play ``num_episodes`` of every game that does not say how many, each ``samples`` times.

        The n-th plan is always the same level. Replies are sampled as ``evaluation_config`` says.
        """
        self.tell("evaluating")
        plans = evaluated_levels(games, num_episodes, purpose, samples)
        return self._evaluate_plans(plans, games, self.config.run.evaluation_config.sampling)

    def _evaluate_plans(
        self, plans: Sequence[EpisodePlan], games: Sequence[GameConfig], temperature: float | None
    ) -> PlayResult:
        settings = PlaySettings(
            tuple(games), temperature=temperature, seeded=self.config.run.deterministic, keep="nothing"
        )
        evaluators = self.eval_env_runner_group
        remote = evaluators is not None and evaluators.num_remote_env_runners()
        return self.play(plans, settings, runners=evaluators if remote else None)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def lmgame_state(self) -> dict[str, Any]:
        """State of this package's own, beside RLlib's: what a resumed run must know."""
        own = {"policy_version": self._policy_version, "best": self._best, "at_start": self._at_start}
        return own if self._guard is None else {**own, COLLAPSE: self._guard.state()}

    def set_lmgame_state(self, state: dict[str, Any]) -> None:
        self._policy_version = int(state["policy_version"])
        self._best = state.get("best")
        self._at_start = bool(state.get("at_start", False))
        if self._guard is not None:
            self._guard.set_state(state.get(COLLAPSE, {}))

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        with self.learners_present():
            state = super().get_state(components, not_components=not_components, **kwargs)
        return {**state, "lmgame": self.lmgame_state()}

    def get_weights(self, policies: Any = None) -> Any:
        with self.learners_present():
            return super().get_weights(policies)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore; where learners are restored, the engines get their weights."""
        with self.learners_present(pushed=True):
            super().set_state(state)
            if "lmgame" in state:
                self.set_lmgame_state(state["lmgame"])
            if COMPONENT_LEARNER_GROUP in state:
                self.push_weights()

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Tune's; a checkpoint that is still being written is waited for, and is the one if it is of this iteration."""
        written = self._checkpoints.take(wait=True)
        if written is not None and written.metrics[checkpoints.TRAINING_ITERATION] == self.iteration:
            return written
        saved = super().save(checkpoint_dir)
        if written is not None:
            setattr(saved.checkpoint, WRITTEN, written)
        return saved

    def save_to_path(self, path: Any = None, **kwargs: Any) -> str:
        """Save RLlib's files, learner shards, ``hf/`` and a manifest; ``path`` appears only when all is written.

        Raises: CheckpointError: if writing fails; nothing half-written is left.
        """
        target = expanded(path).absolute() if path is not None else Path(tempfile.mkdtemp())
        if kwargs.get("state") is not None or kwargs.get("filesystem") is not None:
            with self.learners_present():
                return str(super().save_to_path(path, **kwargs))
        kwargs.pop("state", None)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".saving-", dir=target.parent))
        try:
            self._write_files(scratch, **kwargs)
            checkpoints.write_manifest(scratch, self.recorded_files())
            checkpoints.move_into(scratch, target)
        except Exception as error:
            cause = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise CheckpointError(f"checkpoint {target} could not be written: {cause[0]}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return str(target)

    def _write_files(self, scratch: Path, **kwargs: Any) -> None:
        # The learners write their own part: RLlib would ask one learner only, and not say if it failed.
        with self.learners_present():
            super().save_to_path(str(scratch), state=self.get_state(not_components=COMPONENT_LEARNER_GROUP), **kwargs)
            save_learners(self.learner_group, scratch, self.config)
        saved = {RUN: reference(self.config.entry), **self.config.run.as_yaml()}
        (scratch / CONFIG_FILE).write_text(json.dumps(saved, indent=1), encoding="utf-8")
        checkpoints.write_iteration(scratch, self.iteration)
        self.save_own_files(scratch)
        if self.milestones():
            (scratch / checkpoints.MILESTONES_FILE).write_text(json.dumps(self.milestones()), encoding="utf-8")

    @classmethod
    def from_checkpoint(cls, path: Any, *args: Any, **kwargs: Any) -> Any:
        """The algorithm of a checkpoint; files are checked before they are read. Raises: CheckpointError."""
        if isinstance(path, str | Path) and not is_uri(path):
            path = expanded(path).absolute()
            checkpoints.verify_manifest(path)
        return super().from_checkpoint(path, *args, **kwargs)

    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Restore a checkpoint.

        Raises: CheckpointError: if files are damaged, or tokenizers, adapters or league policies differ.
        """
        if "component" not in kwargs:
            path = expanded(path).absolute()
            checkpoints.verify_manifest(path)
            check_models(path, self.config)
        with self.learners_present(pushed=True):
            super().restore_from_path(path, *args, **kwargs)
            if "component" not in kwargs:
                load_learners(self.learner_group, Path(path))
                self.load_own_files(Path(path))
                self.push_weights()

    def save_own_files(self, checkpoint: Path) -> None:
        """Write what an algorithm keeps in files of its own into a checkpoint."""

    def recorded_files(self) -> checkpoints.FileRecords:
        """Files of :meth:`save_own_files` unchanged since they were hashed, by path in a checkpoint."""
        return {}

    def load_own_files(self, checkpoint: Path) -> None:
        """Undo :meth:`save_own_files`; the state is restored already."""

    def trial_directory(self) -> Path:
        """The trial's results directory if every node can write there, else RLlib's log directory on this node."""
        files, directory = self._results_place()
        return Path(directory if files.type_name == "local" else self.logdir)

    def _results_place(self) -> tuple[FileSystem, str]:
        """Where ``--resume`` finds what the trial left, on whatever machine."""
        storage: Any = getattr(self, "_storage", None)
        if storage is None:
            return LocalFileSystem(), self.logdir
        return storage.storage_filesystem, storage.trial_fs_path

    def milestones(self) -> dict[str, dict[str, float]]:
        """Success on held-out levels so far, for the report: name -> level -> share of the trained seats that won."""
        return {}


def _numbers_of(result: PlayResult) -> dict[str, Any]:
    dropped = (failure.reason for failure in result.failures)
    return {**episode_metrics(result.summaries, dropped), **returns_by_seat(result.summaries)}


def _over_levels(result: PlayResult) -> dict[str, float]:
    """How many levels an evaluation was of, and the interval of its success rate over them, where there are any."""
    levels, rate = over_levels(result.summaries)
    low, high = (rate and rate.interval) or (None, None)
    found = {"levels": levels, "success_low": low, "success_high": high}
    return {name: float(number) for name, number in found.items() if number is not None}


def _dtype_words(config: Any) -> list[str]:
    """What learners and engines of models that are not small compute in on processors, in words."""
    learner = {f"{computing_dtype(config, policy)} in each learner" for policy in config.trained_policies()}
    numerics = {engine_numerics(config, policy)[0] for policy in config.language_model_policies()}
    engine = [f"{dtype} in each engine" for dtype in sorted(numerics)] * (not config.run.inference.on_gpu)
    words = [] if is_small(config) else sorted(learner) * (not config.num_gpus_per_learner) + engine
    return words + ["this processor has no units for bfloat16"] * (bool(words) and not has_bfloat16_units())
