"""Token-level PPO on text games."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.tune import register_trainable

from rllib_lmgame.algorithms.async_rollouts import ASYNC_ROLLOUTS, AsyncRollouts
from rllib_lmgame.algorithms.base import LMGameAlgorithm
from rllib_lmgame.algorithms.checkpoints.manifest import FileRecords
from rllib_lmgame.algorithms.cluster import workers
from rllib_lmgame.algorithms.cluster.workers import foreach_learner, update_learners
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.league import LeaguePlay
from rllib_lmgame.algorithms.scheduled import check_followed, schedules_of
from rllib_lmgame.algorithms.sft import SupervisedStage
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.schedule import (
    COUNTERS,
    ENV_STEPS,
    NUMBERS,
    RL_ITERATION,
    ScheduleOptions,
    Schedules,
    game_of,
    shown_key,
)
from rllib_lmgame.config import algorithms as registry
from rllib_lmgame.config.rllib import SCHEDULED_KEYS
from rllib_lmgame.config.run import RunConfig
from rllib_lmgame.learners.data.sharding import group_of
from rllib_lmgame.rollouts.episode_log import end_before, log_of_training
from rllib_lmgame.rollouts.item_order import ItemOrder, is_list, passes
from rllib_lmgame.rollouts.options import (
    DataSelectionOptions,
    DroppedGroups,
    OverlongOptions,
    groups_needed,
    share_of_groups,
)
from rllib_lmgame.rollouts.plans import EpisodePlan, deal_games, plan_episodes, stable_seed
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, PlayResult, PlaySettings, played_parts, turns_of
from rllib_lmgame.telemetry.metrics import (
    ASYNC_ROLLOUT_NAMES,
    DATA_EPOCHS,
    ROLLOUT_TIMER,
    UPDATE_TIMER,
    WEIGHT_SYNC_TIMER,
)

if TYPE_CHECKING:
    from typing import Self

logger = logging.getLogger(__name__)

EQUAL = 1e-6
"""Returns whose deviation is no larger than this are equal."""

SELECTION = "data_selection"
COUNTS = (
    "groups",
    "zero_variance_groups",
    "kept_groups",
    "kept_episodes",
    "aborted_episodes",
    "refill_rounds",
    "overlong_rate",
)
"""``data_selection/<name>`` in a result."""

Play = Callable[[Sequence[EpisodePlan]], PlayResult]
PlanMore = Callable[[int, int], list[EpisodePlan]]
"""Plans of a refill: number of the round, counted from 1, and groups wanted."""


class LMGamePPOConfig(LMGameConfig):
    """Configuration of :class:`LMGamePPO`.

    .. code-block:: python

        config = (
            LMGamePPOConfig()
            .environment("lmgame/Sokoban-v0")
            .language_model(model="Qwen/Qwen2.5-0.5B-Instruct")
            .inference(num_engines=1)
            .text_rollouts(episodes_per_iteration=128)
            .training(lr=1e-6, policy_loss={"clip_high": 0.28})
        )
    """

    entry = registry.PPO
    follows_schedules = True

    def warm_start(self, **options: Any) -> Self:
        """Supervised learning before PPO: :class:`~rllib_lmgame.datasets.options.SupervisedOptions`."""
        return self.change({"warm_start": options})

    def data_selection(self, **options: Any) -> Self:
        """What of the episodes is trained on: :class:`~rllib_lmgame.rollouts.options.DataSelectionOptions`."""
        return self.change({"data_selection": options})

    def league(self, **options: Any) -> Self:
        """Past versions of the policies as opponents: :class:`~rllib_lmgame.league.options.LeagueOptions`."""
        return self.change({"league": options})

    def async_rollouts(self, **options: Any) -> Self:
        """Playing while updates go on: :class:`~rllib_lmgame.config.algorithms.AsyncRolloutOptions`."""
        return self.change({"async_rollouts": options})

    def teacher(self, **options: Any) -> Self:
        """A model that judges each sampled token: :class:`~rllib_lmgame.learners.options.TeacherOptions`."""
        return self.change({"teacher": options})


class LMGamePPO(LMGameAlgorithm):
    """Language models learn to play text games: play, build rows, update, push weights.

    With ``warm_start`` the first iterations are supervised (``phase`` 0), then PPO begins (``phase`` 1).
    ``stop`` should name ``rl_iteration``, which counts only PPO's iterations.
    """

    config: LMGamePPOConfig
    config_class = LMGamePPOConfig
    _present: RunConfig | None = None
    _ahead: AsyncRollouts | None = None
    _engines_before: tuple[dict[str, float], float] | None = None
    _list_sizes: Mapping[str, int] = {}

    def setup(self, config: LMGamePPOConfig) -> None:
        self._rl_iteration = 0
        self._gaps_checked: set[str] = set()
        self._warm_start: SupervisedStage | None = None
        self._league: LeaguePlay | None = None
        self._schedules, self._followed = schedules_of(self.config), False
        self._selects = self.config.run.selects
        super().setup(config)
        self._list_sizes = {str(n): 0 for n, game in enumerate(self.config.training_games()) if is_list(game)}
        self._item_order = ItemOrder(self.config.seed or 0, "train") if self._list_sizes else None
        self._needs_groups = self.config.run.compares is not None
        if self.config.run.supervised_stage is not None:
            self._warm_start = SupervisedStage(self, self.config.run.supervised_stage)
        if self.config.run.league is not None:
            self._league = LeaguePlay(self, self.config.run.league)
        if self.config.run.async_rollouts.max_staleness:
            self._shared_runners = workers.SharedRunners(
                self.env_runner_group, self.config.sample_timeout_s, self._heal, self.config.restart_failed_env_runners
            )
            self._ahead = AsyncRollouts(self, self.config.run.async_rollouts.max_staleness)

    def cleanup(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        super().cleanup()

    def training_step(self) -> None:
        """One iteration: of the warm start until it is done, of PPO after that."""
        if self._warm_start is not None and not self._warm_start.done:
            self._warm_start.step()
            if self._warm_start.done:
                self.begin_rl()
            self._log_phase(0)
            return
        self._log_phase(1)
        if self._league is not None:
            self._league.prepare(self._rl_iteration)
        result = self.play_batch()
        if self._ahead is not None:
            self._ahead.begin()
        self.after_update(self.update(result))
        self._check_logprob_diffs()
        with self.timed(WEIGHT_SYNC_TIMER):
            self.push_weights()
        self._rl_iteration += 1
        self.log_numbers((), {"rl_iteration": self._rl_iteration})
        if self._list_sizes:
            self.log_numbers((), {DATA_EPOCHS: passes(self.items_trained_on(), self._list_sizes)})

    def begin_rl(self) -> None:
        """The weights PPO starts from are the reference of the KL penalty; the average begins with its first update."""
        with self.learners_present():
            foreach_learner(self.learner_group, lambda learner: learner.begin_rl())

    def at_present(self) -> RunConfig:
        """What schedules make of the configuration in this iteration."""
        values = self._values(self._schedules)
        if self._present is None or self._present.present != values:
            self._present = self.config.run.at(values)
        return self._present

    def expected(self, iteration: int) -> RunConfig:
        """:meth:`at_present` of a later ``iteration``, as far as that is known now: counters alone go on."""
        schedules = copy.deepcopy(self._schedules)
        schedules.observe({RL_ITERATION: iteration, NUMBERS[ENV_STEPS]: self._env_steps()})
        return self.config.run.at(self._values(schedules))

    def _values(self, schedules: Schedules) -> dict[str, float]:
        now, games = schedules.values(), self.config.games
        return {key: now[shown_key(key, games)] for key in self.config.run.schedules}

    def play_batch(self) -> PlayResult:
        """Play this iteration with the current weights: episodes to train on, and numbers of all episodes."""
        present = self.at_present()
        before, began = self._engines_before or (workers.engine_stats(self.engine_groups), None)
        with self.timed(ROLLOUT_TIMER):
            if self._ahead is None:
                selected = self.play_and_select(present, self._rl_iteration)
            else:
                selected = self._ahead.take(self._rl_iteration, present)
        if self._league is not None:
            self._league.record(selected.result.summaries)
        after = workers.engine_stats(self.engine_groups)
        result = selected.result
        told = {str(played.game): played.num_levels for played in result.summaries if played.num_levels}
        self._list_sizes = {game: told.get(game, size) for game, size in self._list_sizes.items()}
        wall_s = result.wall_s if began is None else time.perf_counter() - began
        result.wall_s = min(result.wall_s, wall_s)  # Others were played meanwhile.
        self.log_episodes(result, workers.engine_metrics(before, after, wall_s))
        if self._ahead is not None:
            self._engines_before = after, time.perf_counter()
            self.log_numbers(ASYNC_ROLLOUTS, self._ahead.numbers)
        if self._selects:
            self.log_numbers(SELECTION, selected.counts)
        result.episodes = selected.episodes
        return result

    def planned(
        self,
        present: RunConfig,
        iteration: int,
        purpose: str = "train",
        episodes: int | None = None,
        exact: Sequence[int | None] | None = None,
    ) -> list[EpisodePlan]:
        """The plans of ``iteration``, or others of it; their items of lists are dealt."""
        plans = plan_episodes(
            present.text_rollouts.episodes_per_iteration if episodes is None else episodes,
            run_seed=self.config.seed or 0,
            purpose=purpose,
            iteration=iteration,
            game_weights=[game.weight for game in present.games],
            oversample=present.data_selection.oversample,
            sizes=present.group_sizes,
            exact=[game.episodes for game in present.games] if exact is None else exact,
        )
        return plans if self._item_order is None else self._item_order.dealt(plans, present.games)

    def play_and_select(
        self,
        present: RunConfig,
        iteration: int,
        oldest: int | None = None,
        planned: Sequence[EpisodePlan] | None = None,
    ) -> Selected:
        """Play ``iteration``, by its plans if they are ``planned`` already, and choose; without replies of weights
        older than version ``oldest``.

        With ``async_rollouts`` threads of their own call it, and nothing else changes what it reads.
        """
        if planned is None:
            planned = self.planned(present, iteration)
        settings, sizes = dataclasses.replace(_settings(present), oldest_version=oldest), present.group_sizes
        exact = [game.episodes for game in present.games]

        def play(plans: Sequence[EpisodePlan]) -> PlayResult:
            if self._league is None:
                return self.play(plans, settings)
            return self._league.play(plans, settings, iteration)

        def refill(number: int, groups: int) -> list[EpisodePlan]:
            purpose = f"train-refill-{number}"
            if not any(exact):
                return self.planned(present, iteration, purpose, groups * present.shared_size)
            played = Counter(plan.game for plan in planned if not plan.spare)  # Each game is dealt as large a share.
            shares = [played[game] // size for game, size in enumerate(sizes)]
            dealt = Counter(deal_games(groups, shares, stable_seed(self.config.seed or 0, iteration, purpose)))
            again = [dealt[game] * size for game, size in enumerate(sizes)]
            return self.planned(present, iteration, purpose, sum(again), again)

        return play_and_select(
            planned,
            play,
            refill,
            present.data_selection,
            least=groups_needed(self.config.num_learners, present.least_size, self._needs_groups),
            all_teach=self.config.run.teacher is not None,
        )

    # -- playing ahead, see :class:`~rllib_lmgame.algorithms.async_rollouts.AsyncRollouts` -----------------------------

    @property
    def rl_iteration(self) -> int:
        """PPO's iterations before the present one."""
        return self._rl_iteration

    @property
    def overlaps(self) -> bool:
        """Whether iterations may be in play at the same time: none depends on what another has played."""
        constant = self.config.run.data_selection.zero_variance_groups
        refills = isinstance(constant, DroppedGroups) and constant.max_refill != 0
        return self._league is None and not self._unknown() and not (refills and self._item_order is not None)

    def _unknown(self) -> list[ScheduleOptions]:
        """Schedules of play whose values in an iteration depend on those before it."""
        return [
            options
            for key, options in self.config.run.schedules.items()
            if not (key in SCHEDULED_KEYS or key.startswith(("training.", "teacher.")) or options.by == RL_ITERATION)
        ]

    def may_begin(self, iteration: int) -> bool:
        """Whether the later ``iteration`` may be played with what is there now: its settings are known, too."""
        follows_next = iteration == self._rl_iteration + 1
        for options in self._unknown():
            if not follows_next or (options.points is not None and options.by not in COUNTERS):
                return False  # Stages go on seldom.
        return self._league is None or (follows_next and self._league.prepare_without_snapshots(iteration))

    def played_by(self, present: RunConfig) -> Any:
        """Of an iteration's settings, those by which it is played."""
        return _settings(present), present.data_selection, present.group_sizes

    def items_dealt(self) -> dict[str, int]:
        """How many items of each list have been dealt so far."""
        return {} if self._item_order is None else self._item_order.state()

    def items_trained_on(self) -> Mapping[str, int]:
        """Those of :meth:`items_dealt` but for what is played ahead."""
        return self.items_dealt() if self._ahead is None else self._ahead.items

    def deal_items_after(self, items: Mapping[str, int]) -> None:
        """Go on as if only ``items`` had been dealt."""
        if self._item_order is not None:
            self._item_order.set_state(items)

    def unlog(self, iteration: int) -> None:
        """``iteration`` and later ones are played again: what they left in the logs goes."""
        end_before(self.config.episode_log_dir, iteration)

    def _heal(self, runners: EnvRunnerGroup) -> None:
        if self._ahead is not None:
            self._ahead.check_open()
        super()._heal(runners)

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """As every algorithm's; nothing else is played meanwhile, and the engines' work counts for no rollout."""
        if self._ahead is None:
            return super().evaluate(parallel_train_future)
        self._ahead.drain()
        numbers = super().evaluate(parallel_train_future)
        self._engines_before = None
        return numbers

    def update(self, result: PlayResult) -> list[dict[str, Any]]:
        return self.update_on(result, self._needs_groups)

    def update_on(self, result: PlayResult, needs_groups: bool, **how: Any) -> list[dict[str, Any]]:
        """Train on these episodes by the values of schedules; ``how``: more arguments of the learners' ``update``."""
        data = self.training_data(result.episodes, needs_groups)
        with self.timed(UPDATE_TIMER), self.engines_asleep(pushed=True):
            timesteps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: self._env_steps()}
            values = {key: value for key, value in self.at_present().present.items() if game_of(key)[0] is None}
            return update_learners(self.learner_group, data, timesteps, scheduled=values, **how)

    def _check_logprob_diffs(self) -> None:
        for policy in [name for name in self.config.trained_policies() if name not in self._gaps_checked]:
            if not self.metrics.peek((LEARNER_RESULTS, policy, "trained_tokens"), default=0.0) > 0:
                continue  # It was not updated: NaN, or nothing yet.
            most = self.config.get_config_for_module(policy).run.training.max_logprob_diff
            gap = float(self.metrics.peek((LEARNER_RESULTS, policy, "logprob_diff_mean"), default=0.0))
            if most is not None and (math.isnan(gap) or gap > most):
                other = "transformers" if self.config.run.inference.engine.type == "vllm" else "vllm"
                differ = f"log-probabilities of engine and learner differ by {gap:.2g} on average"
                cure = f"try inference.engine: {other}, inference.dtype: float32, top_p: 1 and top_k: 0"
                raise ConfigError("config.training.max_logprob_diff", f"{policy}: {differ}; {cure}; null goes on")
            self._gaps_checked.add(policy)

    def _env_steps(self) -> int:
        return int(self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))

    def _log_phase(self, phase: int) -> None:
        self.log_numbers((), {"phase": phase, "rl_iteration": self._rl_iteration})
        if phase == 0 and self._selects:
            self.log_numbers(SELECTION, dict.fromkeys(COUNTS, float("nan")))
        if phase == 0 and self._ahead is not None:
            self.log_numbers(ASYNC_ROLLOUTS, dict.fromkeys(ASYNC_ROLLOUT_NAMES, float("nan")))
        self.log_numbers("schedules", self._schedules.values())

    def milestones(self) -> dict[str, dict[str, float]]:
        return {} if self._warm_start is None else self._warm_start.milestones

    def lmgame_state(self) -> dict[str, Any]:
        warm_start = None if self._warm_start is None else self._warm_start.state()
        league = None if self._league is None else self._league.league.state()
        return {
            **super().lmgame_state(),
            "rl_iteration": self._rl_iteration,
            "warm_start": warm_start,
            "league": league,
            "item_order": self.items_trained_on(),
            "schedules": self._schedules.state(),
        }

    def set_lmgame_state(self, state: dict[str, Any]) -> None:
        if self._ahead is not None:
            self._ahead.forget()
        super().set_lmgame_state(state)
        self._rl_iteration = int(state["rl_iteration"])
        if self._warm_start is not None and state["warm_start"] is not None:
            self._warm_start.set_state(state["warm_start"])
        if self._league is not None and state.get("league") is not None:
            self._league.set_state(state["league"])
        if self._item_order is not None:
            self._item_order.set_state(state.get("item_order", {}))
        if self._ahead is not None:
            self._ahead.items = self.items_dealt()
        self.unlog(self._rl_iteration)
        counters = {RL_ITERATION: self._rl_iteration, ENV_STEPS: self._env_steps() if self._rl_iteration else 0}
        self._schedules.set_state(state.get("schedules", {}), counters)

    def restore_learners(self, checkpoint: Path) -> None:
        if self._ahead is not None:  # What was played ahead is of the weights that are given up.
            self._ahead.forget()
            self.unlog(self._rl_iteration)
        super().restore_learners(checkpoint)

    def save_own_files(self, checkpoint: Path) -> None:
        super().save_own_files(checkpoint)
        if self._league is not None:
            self._league.save(checkpoint)

    def recorded_files(self) -> FileRecords:
        return {} if self._league is None else self._league.recorded_files()

    def load_own_files(self, checkpoint: Path) -> None:
        super().load_own_files(checkpoint)
        if self._league is not None:
            self._league.load(checkpoint)

    def step(self) -> dict[str, Any]:
        """RLlib's iteration and the league's numbers: of its members, which come and go."""
        result = super().step()
        if self._league is not None:
            result["league"] = self._league.numbers()
        return result

    def log_result(self, result: dict[str, Any]) -> None:
        """The result is whole, with Tune's numbers and those of callbacks: the schedules know of it from now on."""
        super().log_result(result)
        if result.get("phase") != 1:
            return
        if not self._followed:
            check_followed(self.config.run.schedules, result)
            self._followed = True
        self._schedules.observe(result)


# -- between play and update: which episodes are trained on, with what rewards ----------------------------------------


@dataclass(frozen=True)
class Selected:
    """What was played (``result``), the episodes that are trained on, and :data:`COUNTS`."""

    result: PlayResult
    episodes: list[MultiAgentEpisode]
    counts: dict[str, float]


def play_and_select(
    plans: Sequence[EpisodePlan],
    play: Play,
    plan_more: PlanMore,
    options: DataSelectionOptions,
    *,
    least: int = 1,
    all_teach: bool = False,
) -> Selected:
    """Play, play more to replace dropped groups, and choose.

    Args:
        plan_more: Makes more plans.
        least: Groups that are kept even if constant: what the learners need.
        all_teach: Constant groups are kept, since there is more to learn than what they compare.
    """
    result, rounds, planned = play(plans), 0, len(plans)
    wanted = len({plan.group for plan in plans if not plan.spare})
    constant = options.zero_variance_groups
    while isinstance(constant, DroppedGroups) and rounds < constant.max_refill:
        missing = wanted - sum(spread > EQUAL for spread in group_spreads(result.episodes).values())
        if missing <= 0:
            break
        rounds += 1
        more = [dataclasses.replace(plan, index=planned + plan.index) for plan in plan_more(rounds, missing)]
        planned += len(more)
        played = play(more)
        wall_s = result.wall_s + played.wall_s
        result.extend(played)
        result.wall_s = wall_s
    spreads = group_spreads(result.episodes)
    drop = isinstance(constant, DroppedGroups) and not all_teach
    kept = kept_groups(spreads, options.reward_variance_filter, drop, least)
    episodes = [episode for episode in result.episodes if (group := group_of(episode)) in kept or not group]
    counts = {
        "groups": float(len(spreads)),
        "zero_variance_groups": float(sum(spread <= EQUAL for spread in spreads.values())),
        "kept_groups": float(len(kept)),
        "kept_episodes": float(len(episodes)),
        "refill_rounds": float(rounds),
        "aborted_episodes": float(len(result.aborted)),
        "overlong_rate": punish_overlong(episodes, options.overlong),
    }
    if options.normalize_rewards is not None:
        normalize_rewards(episodes, options.normalize_rewards.type, options.normalize_rewards.deviation)
    return Selected(result, episodes, counts)


def group_spreads(episodes: Iterable[MultiAgentEpisode]) -> dict[str, float]:
    """Group -> population deviation of its returns, of the trained seat where it is largest; in play order.

    Seats are not added up: what one player wins another may lose.
    """
    returns: dict[str, dict[str, list[float]]] = {}
    for episode in episodes:
        group = group_of(episode)
        for part in played_parts(episode) if group else ():
            returns.setdefault(group, {}).setdefault(str(part.agent_id), []).append(part.get_return())
    return {group: max(float(np.std(found)) for found in seats.values()) for group, seats in returns.items()}


def kept_groups(spreads: Mapping[str, float], share: float, drop_constant: bool, least: int = 1) -> set[str]:
    """The share of groups with the largest spreads (StarPO-S, arXiv 2504.20073, section 3.3); ties in play order.

    Args:
        share: Of the groups that may stay, rounded down.
        drop_constant: Drop groups of equal returns (DAPO's dynamic sampling, arXiv 2503.14476, section 3.2).
        least: At least so many stay.
    """
    order = sorted(spreads, key=lambda group: -spreads[group])
    varied = [group for group in order if spreads[group] > EQUAL] if drop_constant else order
    return set(order[: max(share_of_groups(share, len(varied)), least)])


def overlong_punishment(tokens: int, limit: int, buffer: int) -> float:
    """From 0 to -1 over the last ``buffer`` tokens before ``limit``, then -1 (DAPO, arXiv 2503.14476, equation 13)."""
    if tokens <= limit - buffer:
        return 0.0
    return -1.0 if tokens > limit else (limit - buffer - tokens) / buffer


def punish_overlong(episodes: Iterable[MultiAgentEpisode], options: OverlongOptions | None) -> float:
    """Take the punishment of every overlong reply off its reward; returns the share of such replies."""
    if options is None:
        return 0.0
    replies = long = 0
    for part in (part for episode in episodes for part in played_parts(episode)):
        for number, turn in enumerate(turns_of(part)):
            less = options.penalty * overlong_punishment(len(turn.response_ids), options.tokens, options.buffer)
            part.rewards.data[part.rewards.lookback + number] += less
            replies, long = replies + 1, long + (less < 0)
    return long / max(replies, 1)


def normalize_rewards(episodes: Iterable[MultiAgentEpisode], over: str, deviation: bool) -> None:
    """Change rewards in place so that compared returns have mean 0 and, with ``deviation``, deviation 1.

    Rewards are divided by the population deviation of returns; the mean comes off each player's last turn.

    Args:
        over: What is compared, per policy: ``group`` (and role), ``batch``, ``game``, ``role`` (and game).
    """
    compared: dict[tuple[str, ...], list[SingleAgentEpisode]] = {}
    for part in (part for episode in episodes for part in played_parts(episode)):
        data = part.custom_data[CUSTOM_DATA_KEY]
        module, game, role = str(part.module_id), data.game, data.role
        key = {"group": (data.group, role), "batch": (), "game": (game,), "role": (game, role)}[over]
        compared.setdefault((module, *key), []).append(part)
    for parts in compared.values():
        returns = np.array([part.get_return() for part in parts])
        spread = float(returns.std())
        scale = spread if deviation and spread > EQUAL else 1.0
        for part in parts:
            rewards, first = part.rewards.data, part.rewards.lookback
            rewards[first:] = [float(reward) / scale for reward in rewards[first:]]
            rewards[-1] -= float(returns.mean()) / scale


def _settings(present: RunConfig) -> PlaySettings:
    rollouts = present.text_rollouts
    return PlaySettings(
        present.games,
        seeded=present.deterministic,
        **log_of_training(rollouts.episode_log),
        rollouts=rollouts,
        inference=present.inference,
        language_model={
            key.partition(".")[2]: value for key, value in present.present.items() if key.startswith("language_model.")
        },
    )


register_trainable(LMGamePPO.__name__, LMGamePPO)
