"""Supervised learning on episodes of an expert: the stage that ``LMGameSFT`` is made of and PPO may begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rllib_lmgame.algorithms.cluster.learner_calls import update_learners
from rllib_lmgame.learners.data.rows import WholeEpisodes
from rllib_lmgame.learners.objectives import SupervisedObjective
from rllib_lmgame.rollouts.episodes import success_by_seed
from rllib_lmgame.rollouts.log.replay import LoggedEpisodes
from rllib_lmgame.rollouts.metrics import episode_metrics
from rllib_lmgame.rollouts.plans import plan_episodes
from rllib_lmgame.rollouts.records import PlayResult, PlaySettings
from rllib_lmgame.settings.sections.supervised import StopOptions, SupervisedOptions
from rllib_lmgame.telemetry.metrics import EXPERT_TIMER, UPDATE_TIMER, WEIGHT_SYNC_TIMER

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.base import LMGameAlgorithm


class SupervisedStage:
    """Takes supervised optimizer steps, some per training iteration, until a stop criterion holds."""

    def __init__(self, algorithm: LMGameAlgorithm, options: SupervisedOptions) -> None:
        self.algorithm = algorithm
        self.options = options
        self.steps = 0
        self.done = False
        self._validated: dict[str, Any] = {}
        self.milestones: dict[str, dict[str, float]] = {}
        self._log = LoggedEpisodes(options.data) if options.data else None

    def step(self) -> None:
        """One training iteration: up to ``steps_per_iteration`` optimizer steps, then perhaps a validation."""
        algorithm, options = self.algorithm, self.options
        if self.steps == 0:
            self._milestone("before warm start")
        steps = min(options.steps_per_iteration, options.max_steps - self.steps)
        with algorithm.timed(EXPERT_TIMER):
            result = self._episodes(steps * options.episodes_per_step)
        with algorithm.timed(UPDATE_TIMER):
            results = self._update(result, steps)
        algorithm.after_update(results)
        self.steps += steps
        with algorithm.timed(WEIGHT_SYNC_TIMER):
            algorithm.push_weights()
        stop = options.stop_at
        if stop is not None and (self.steps % stop.every < steps or self.steps >= options.max_steps):
            self._validate(stop)
        self.done = self.steps >= options.max_steps or self._criterion_holds()
        if self.done:
            self._milestone("after warm start")
        algorithm.metrics.log_value("supervised_steps", self.steps, window=1, reduce="mean")

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"steps": self.steps, "done": self.done, "milestones": self.milestones}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over a state of :meth:`state`."""
        self.steps, self.done = int(state["steps"]), bool(state["done"])
        self.milestones = dict(state["milestones"])

    def _episodes(self, count: int) -> PlayResult:
        if self._log is not None:
            return PlayResult(
                episodes=self._log.episodes(
                    self.steps * self.options.episodes_per_step, count, self.algorithm.env_runner
                )
            )
        config = self.algorithm.config
        games = config.training_games()
        plans = plan_episodes(
            count,
            run_seed=config.seed or 0,
            purpose="supervised",
            iteration=self.steps,
            game_weights=[game.weight for game in games],
        )
        return self.algorithm.play(plans, PlaySettings(games, expert=self.options.expert))

    def _update(self, result: PlayResult, steps: int) -> list[dict[str, Any]]:
        config = self.algorithm.config
        data = WholeEpisodes(
            episodes=result.episodes,
            modules=config.trained_policies(),
            share_prompts=config.token_ppo_options.share_prompts,
        )
        objective = SupervisedObjective(steps, self.options.lr, self.options.lr_warmup_steps)
        with self.algorithm.engines_asleep():
            return update_learners(self.algorithm.learner_group, data, {}, objective=objective)

    def _validate(self, stop: StopOptions) -> None:
        algorithm = self.algorithm
        games = algorithm.config.games_for_evaluation()
        result = algorithm.evaluate_games(games, stop.episodes, purpose="validation")
        self._validated = episode_metrics(result.summaries)
        algorithm.log_numbers(("evaluation", ENV_RUNNER_RESULTS), self._validated)

    def _milestone(self, name: str) -> None:
        """Play the held-out test levels and keep the success on each for the report."""
        if not self.options.test_episodes:
            return
        games = self.algorithm.config.games_for_evaluation("test")
        result = self.algorithm.evaluate_games(games, self.options.test_episodes)
        self.milestones[name] = success_by_seed(result.summaries)

    def _criterion_holds(self) -> bool:
        """Whether the last validation saw enough success, or few enough invalid actions."""
        stop, seen = self.options.stop_at, self._validated
        if stop is None or not seen:
            return False
        success = stop.success is not None and (seen.get("success_rate") or 0.0) >= stop.success
        legal = stop.invalid_rate is not None and seen["invalid_action_rate"] <= stop.invalid_rate
        return success or legal
