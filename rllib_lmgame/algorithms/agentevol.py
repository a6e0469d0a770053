"""AgentEvol: the policy explores, and what succeeded is imitated from the first weights, again and again."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Sequence
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.tune import register_trainable

from rllib_lmgame.algorithms.base import LMGameAlgorithm
from rllib_lmgame.algorithms.checkpoints.learner_files import read_by_learners, written_by_learners
from rllib_lmgame.algorithms.checkpoints.manifest import FileRecords, file_records
from rllib_lmgame.algorithms.cluster import workers
from rllib_lmgame.algorithms.cluster.workers import foreach_learner
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.sft import SupervisedStage
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.config import algorithms as registry
from rllib_lmgame.config.algorithms import BASE, LEFT_OUT, EvolutionOptions
from rllib_lmgame.datasets.options import SupervisedOptions
from rllib_lmgame.datasets.preferences import alone, has_choice
from rllib_lmgame.datasets.sft import Facts, choose
from rllib_lmgame.league.files import copy_directory, move_directory
from rllib_lmgame.rollouts.episode_log import end_before, log_of_training
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.options import shares_of
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, PlayResult, PlaySettings, played_parts
from rllib_lmgame.telemetry.metrics import ROLLOUT_TIMER, WEIGHT_SYNC_TIMER

if TYPE_CHECKING:
    from typing import Self

DIRECTORY = "base"
"""Where the first weights are, in a trial's directory and in a checkpoint."""


class LMGameAgentEvolConfig(LMGameConfig):
    """Configuration of :class:`LMGameAgentEvol`."""

    entry = registry.AGENTEVOL

    def supervised(self, **options: Any) -> Self:
        """How is imitated, and the data from the start: :class:`~rllib_lmgame.datasets.options.SupervisedOptions`."""
        return self.change({"supervised": options})

    def agentevol(self, **options: Any) -> Self:
        """What is explored and kept: :class:`~rllib_lmgame.config.algorithms.EvolutionOptions`."""
        return self.change({"agentevol": options})

    def validate(self) -> None:
        """As every algorithm's; there must be games to explore."""
        super().validate()
        if not self.run.games:
            raise ConfigError("config.env", "set env to a game to explore, e.g. lmgame/TextCraft-v0")


class LMGameAgentEvol(LMGameAlgorithm):
    """Each iteration: explore, keep what succeeded, imitate it from the base (AgentEvol, arXiv 2406.04151).

    With data from the start (files, or an expert's episodes) the first iteration imitates these alone. Filtered
    behaviour cloning online is the same loop with ``start: last`` and ``top_share``.
    """

    config: LMGameAgentEvolConfig
    config_class = LMGameAgentEvolConfig

    def setup(self, config: LMGameAgentEvolConfig) -> None:
        self._explored, self._imitated = 0, False
        self._solved: set[str] = set()
        self._kept: list[MultiAgentEpisode] = []
        self._first: list[MultiAgentEpisode] | None = None
        self._item_order = ItemOrder(self.config.seed or 0, "explore")
        self._base = self.trial_directory() / DIRECTORY
        self._base_files: FileRecords = {}
        super().setup(config)
        self._stage = SupervisedStage(self, self.config.run.supervised_stage or SupervisedOptions())

    def training_step(self) -> None:
        """Explore, unless there is other data to begin with; imitate; push."""
        own = self.config.run.agentevol
        if own.start == BASE and not self._base_files:
            self._write_base()
        first = not self._imitated and not self._explored
        if first:
            self._stage.milestone("before imitation")
        original = self._original()
        explores = not (first and original)
        kept = self._explore(own) if explores else []
        if own.accumulate:
            kept = [*self._kept, *kept]
            self._kept = kept
        learnt = [*kept, *(original if own.keep_original or not explores else ())]
        if len(learnt) >= max(1, self.config.num_learners):
            self._imitate(learnt, own)
        self._explored += explores
        self._imitated = True
        numbers = {"evolution": self._explored, "levels_solved": len(self._solved), "imitated_episodes": len(learnt)}
        self.log_numbers((), numbers)
        if first and not explores:
            self._stage.milestone("after imitation")

    def _original(self) -> list[MultiAgentEpisode]:
        """The data that is there from the start, made once in a process: always the same."""
        if self._first is None:
            stage, count = self._stage, self.config.run.agentevol.original_episodes
            if stage.data is not None:
                self._first = stage.episodes(0, len(stage.data.training)).episodes
                self.log_numbers((), {LEFT_OUT: stage.data.passed_over})
            else:
                self._first = stage.episodes(0, count).episodes if count else []
        return self._first

    def _explore(self, own: EvolutionOptions) -> list[MultiAgentEpisode]:
        rollouts, before = self.config.run.text_rollouts, workers.engine_stats(self.engine_groups)
        settings = PlaySettings(
            self.config.training_games(), seeded=self.config.run.deterministic, **log_of_training(rollouts.episode_log)
        )
        with self.timed(ROLLOUT_TIMER):
            result = self.play(self._plans(own), settings)
        after = workers.engine_stats(self.engine_groups)
        self.log_episodes(result, workers.engine_metrics(before, after, result.wall_s))
        kept = self._successes(result, own)
        self.log_numbers((), {"kept_episodes": len(kept)})
        return kept

    def _plans(self, own: EvolutionOptions) -> list[EpisodePlan]:
        """The levels of this iteration; where they are always the same their episodes have other names each time.

        Of a list each item comes once before any comes again.
        """
        seed, games = self.config.seed or 0, self.config.training_games()
        order = self._item_order if own.new_levels else ItemOrder(seed, "explore")
        plans = plan_episodes(
            own.levels * own.samples_per_level,
            run_seed=seed,
            purpose="explore",
            iteration=self._explored if own.new_levels else 0,
            group_size=own.samples_per_level,
            game_weights=shares_of(games),
        )
        return [
            dataclasses.replace(plan, episode_id=f"explore-{self._explored}-{plan.index}")
            for plan in order.dealt(plans, games)
        ]

    def _successes(self, result: PlayResult, own: EvolutionOptions) -> list[MultiAgentEpisode]:
        """Each trained seat that succeeded as an episode of its own, chosen as the options say."""
        by_return = own.min_return is not None or own.top_share is not None
        facts, parts = [], []
        for episode, summary in zip(result.episodes, result.summaries, strict=True):
            seats = {seat.agent_id: seat for seat in summary.seats}
            for part in played_parts(episode, self.config.trained_policies()):
                seat, level = seats[str(part.agent_id)], summary.level or str(summary.seed)
                won = bool(seat.success) if seat.outcome is None else seat.outcome == "win"
                if won:
                    self._solved.add(f"{summary.game_id} {level}")
                game = part.custom_data[CUSTOM_DATA_KEY].game
                if has_choice(part) and (won or by_return):
                    facts.append(Facts(summary.episode_id, game, f"{level} {seat.role}", part.get_return()))
                    parts.append(part)
        if not facts:
            return []
        chosen = SupervisedOptions(min_return=own.min_return, one_per_level=own.one_per_level, top_share=own.top_share)
        try:
            found, _ = choose(facts, chosen)
        except ConfigError as error:
            if error.path == "min_return":  # Nothing was good enough this time.
                return []
            raise ConfigError(f"config.agentevol.{error.path}", error.message) from None
        return [alone(parts[place], f"kept-{self._explored}-{n}") for n, place in enumerate(found)]

    def _imitate(self, learnt: Sequence[MultiAgentEpisode], own: EvolutionOptions) -> None:
        if own.start == BASE and (self._imitated or self._explored):
            self._begin_again()
        options = self._stage.options
        self._stage.learn(learnt, max(1, math.ceil(len(learnt) / options.episodes_per_step)), passes=own.epochs)
        with self.timed(WEIGHT_SYNC_TIMER):
            self.push_weights()

    def _write_base(self) -> None:
        scratch = self.trial_directory() / f".writing-{DIRECTORY}"
        shutil.rmtree(scratch, ignore_errors=True)
        with self.learners_present(), written_by_learners(self.learner_group, scratch):
            for policy in self.config.trained_policies():
                foreach_learner(self.learner_group, methodcaller("save_policy", scratch / policy, policy))
        self._base_files = file_records(scratch)
        move_directory(scratch, self._base)

    def _begin_again(self) -> None:
        """Restart all policies in learners, not in engines. Raises: CheckpointError: their first files have changed."""
        if file_records(self._base) != self._base_files:
            raise CheckpointError(f"{self._base} does not hold what the run began with any more")
        with self.learners_present(), read_by_learners(self.learner_group, self._base):
            for policy in self.config.trained_policies():
                foreach_learner(self.learner_group, methodcaller("begin_again", self._base / policy, policy))

    def milestones(self) -> dict[str, dict[str, float]]:
        """Before and after the first imitation of the data that is there from the start."""
        return self._stage.milestones

    def progress(self) -> float:
        """That of the explorations."""
        return self._explored / self.config.run.agentevol.iterations

    def lmgame_state(self) -> dict[str, Any]:
        return {
            **super().lmgame_state(),
            "explored": self._explored,
            "imitated": self._imitated,
            "solved": sorted(self._solved),
            "kept": self._kept,
            "milestones": self._stage.milestones,
            "base": self._base_files,
            "item_order": self._item_order.state(),
        }

    def set_lmgame_state(self, state: dict[str, Any]) -> None:
        super().set_lmgame_state(state)
        self._explored, self._imitated = int(state["explored"]), bool(state["imitated"])
        self._solved, self._kept = set(state["solved"]), list(state["kept"])
        self._stage.milestones = dict(state["milestones"])
        self._base_files = state["base"]
        self._item_order.set_state(state.get("item_order", {}))
        end_before(self.config.episode_log_dir, self._explored)

    def save_own_files(self, checkpoint: Path) -> None:
        super().save_own_files(checkpoint)
        if self._base_files:
            copy_directory(self._base, checkpoint / DIRECTORY)

    def recorded_files(self) -> FileRecords:
        return {f"{DIRECTORY}/{name}": record for name, record in self._base_files.items()}

    def load_own_files(self, checkpoint: Path) -> None:
        super().load_own_files(checkpoint)
        if self._base_files:
            copy_directory(checkpoint / DIRECTORY, self._base)


register_trainable(LMGameAgentEvol.__name__, LMGameAgentEvol)
