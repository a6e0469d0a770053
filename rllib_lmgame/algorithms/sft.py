"""Supervised learning on episodes of an expert or of files: the algorithm, and its stage, which PPO may begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS
from ray.tune import register_trainable

from rllib_lmgame.algorithms.base import LMGameAlgorithm
from rllib_lmgame.algorithms.cluster.workers import measured_losses, update_learners
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.config import algorithms as registry
from rllib_lmgame.config.algorithms import LEFT_OUT
from rllib_lmgame.datasets.options import StopOptions, SupervisedOptions
from rllib_lmgame.datasets.sft import SFTDataset
from rllib_lmgame.learners.objectives import SupervisedObjective
from rllib_lmgame.rollouts.episodes import episode_metrics, success_by_seed
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.options import shares_of
from rllib_lmgame.rollouts.plans import plan_episodes
from rllib_lmgame.rollouts.records import PlayResult, PlaySettings
from rllib_lmgame.telemetry.metrics import EXPERT_TIMER, READING, UPDATE_TIMER, WEIGHT_SYNC_TIMER

if TYPE_CHECKING:
    from typing import Self


class SupervisedStage:
    """Takes supervised optimizer steps, some per training iteration, until a stop criterion holds."""

    def __init__(self, algorithm: LMGameAlgorithm, options: SupervisedOptions) -> None:
        self.algorithm = algorithm
        self.options = options
        self.steps = 0
        self.done = False
        self._validated: dict[str, Any] = {}
        self.milestones: dict[str, dict[str, float]] = {}
        self._items = ItemOrder(algorithm.config.seed or 0, "supervised")
        self.data = None if options.data is None else SFTDataset(options, algorithm.config.row_limits())
        self.last_step = options.last_step(len(self.data.training)) if self.data else options.max_steps

    def step(self) -> None:
        """One training iteration: up to ``steps_per_iteration`` optimizer steps, then perhaps a validation."""
        algorithm, options = self.algorithm, self.options
        if self.steps == 0:
            self.milestone("before warm start")
            self._validate_by_loss("validation_loss_before")
        steps = min(options.steps_per_iteration, self.last_step - self.steps)
        played = self.episodes(self.steps, steps * options.episodes_per_step)
        algorithm.log_of_callbacks(played)
        self.learn(played.episodes, steps)
        self.steps += steps
        self._validate_by_loss("validation_loss")
        with algorithm.timed(WEIGHT_SYNC_TIMER):
            algorithm.push_weights()
        stop = options.stop_at
        if stop is not None and (self.steps % stop.every < steps or self.steps >= self.last_step):
            self._validate(stop)
        self.done = self.steps >= self.last_step or self._criterion_holds()
        if self.done:
            self.milestone("after warm start")
        left_out = {} if self.data is None else {LEFT_OUT: self.data.left_out}
        algorithm.log_numbers((), {"supervised_steps": self.steps} | left_out)

    def state(self) -> dict[str, Any]:
        own = {"steps": self.steps, "done": self.done, "milestones": self.milestones, "items": self._items.state()}
        return own | {"passed_over": 0 if self.data is None else self.data.passed_over}

    def set_state(self, state: dict[str, Any]) -> None:
        self.steps, self.done = int(state["steps"]), bool(state["done"])
        self.milestones = dict(state["milestones"])
        self._items.set_state(state.get("items", {}))
        if self.data is not None:
            self.data.passed_over = int(state.get("passed_over", 0))

    def episodes(self, step: int, count: int) -> PlayResult:
        """So many episodes to learn from after ``step`` optimizer steps: read from files, or played by the expert."""
        algorithm, config = self.algorithm, self.algorithm.config
        with algorithm.timed(EXPERT_TIMER, None if self.data is None else READING):
            if self.data is not None:
                start = step * self.options.episodes_per_step
                return PlayResult(episodes=self.data.episodes(start, count, algorithm.env_runner))
            games = config.training_games()
            plans = plan_episodes(
                count, run_seed=config.seed or 0, purpose="supervised", iteration=step, game_weights=shares_of(games)
            )
            return algorithm.play(self._items.dealt(plans, games), PlaySettings(games, expert=self.options.expert))

    def learn(self, episodes: Sequence[Any], steps: int, passes: int = 1) -> None:
        """Take so many optimizer steps in each of the ``passes`` over the episodes."""
        algorithm, objective = self.algorithm, self.objective(steps)
        with algorithm.timed(UPDATE_TIMER), algorithm.engines_asleep(pushed=True):
            data = algorithm.training_data(episodes)
            for _ in range(passes):
                algorithm.after_update(update_learners(algorithm.learner_group, data, {}, objective=objective))

    def objective(self, steps: int) -> SupervisedObjective:
        """What the learners minimise in so many optimizer steps."""
        own, share = self.options, min(1.0, self.steps / self.last_step)
        return SupervisedObjective(steps, own.lr_after(share), own.lr_warmup_steps, own.env_token_loss_weight)

    def _validate_by_loss(self, name: str) -> None:
        if self.data is None or not self.data.validation:
            return
        episodes = self.data.held_out(self.algorithm.env_runner)
        with self.algorithm.engines_asleep():
            losses = measured_losses(self.algorithm.learner_group, episodes, SupervisedObjective(1, self.options.lr))
        self.algorithm.log_numbers((), {name: sum(losses.values()) / len(losses)})

    def _validate(self, stop: StopOptions) -> None:
        algorithm = self.algorithm
        games = [game.evaluated(None) for game in algorithm.config.games_for_evaluation()]
        result = algorithm.evaluate_games(games, stop.episodes, purpose="validation")
        self._validated = episode_metrics(result.summaries)
        algorithm.log_numbers(("evaluation", ENV_RUNNER_RESULTS), self._validated)

    def milestone(self, name: str) -> None:
        """Play the held-out test levels and keep the success on each for the report."""
        if episodes := self.options.test_episodes:
            games = [game.evaluated(None) for game in self.algorithm.config.games_for_evaluation("test")]
            self.milestones[name] = success_by_seed(self.algorithm.evaluate_games(games, episodes).summaries)

    def _criterion_holds(self) -> bool:
        stop, seen = self.options.stop_at, self._validated
        if stop is None or not seen:
            return False
        success = stop.success is not None and (seen.get("success_rate") or 0.0) >= stop.success
        legal = stop.invalid_rate is not None and seen["invalid_action_rate"] <= stop.invalid_rate
        return success or legal


class LMGameSFTConfig(LMGameConfig):
    """Configuration of :class:`LMGameSFT`."""

    entry = registry.SFT

    def supervised(self, **options: Any) -> Self:
        """The supervised learning: :class:`~rllib_lmgame.datasets.options.SupervisedOptions`."""
        return self.change({"supervised": options})


class LMGameSFT(LMGameAlgorithm):
    """Cross-entropy on the reply tokens of an expert (a solver, random legal moves, an episode log).

    ``done`` is reported after ``max_steps``, or when a stop criterion of ``supervised`` holds.
    """

    config: LMGameSFTConfig
    config_class = LMGameSFTConfig
    stage_class: type[SupervisedStage] = SupervisedStage

    def setup(self, config: LMGameSFTConfig) -> None:
        super().setup(config)
        self._stage = self.stage_class(self, self.config.run.supervised_stage or SupervisedOptions())

    def training_step(self) -> None:
        self._stage.step()

    def progress(self) -> float:
        return 1.0 if self._stage.done else self._stage.steps / self._stage.last_step

    def milestones(self) -> dict[str, dict[str, float]]:
        return self._stage.milestones

    def lmgame_state(self) -> dict[str, Any]:
        return {**super().lmgame_state(), "supervised": self._stage.state()}

    def set_lmgame_state(self, state: dict[str, Any]) -> None:
        super().set_lmgame_state(state)
        self._stage.set_state(state["supervised"])


register_trainable(LMGameSFT.__name__, LMGameSFT)
