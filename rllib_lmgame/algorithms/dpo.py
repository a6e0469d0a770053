"""Learning from preferences: of two trajectories on one level, the better one is made more likely than the worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.tune import register_trainable

from rllib_lmgame.algorithms.ppo import LMGamePPO, LMGamePPOConfig
from rllib_lmgame.config import algorithms as registry
from rllib_lmgame.config.algorithms import LEFT_OUT
from rllib_lmgame.datasets.options import DPOOptions
from rllib_lmgame.datasets.preferences import Candidate, PreferenceDataset, choose_pairs, has_choice, side_of
from rllib_lmgame.learners.objectives import PreferenceObjective
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, PlayResult, played_parts
from rllib_lmgame.telemetry.metrics import EXPERT_TIMER, READING

if TYPE_CHECKING:
    from typing import Self


class LMGameDPOConfig(LMGamePPOConfig):
    """Configuration of :class:`LMGameDPO`: PPO's without a value function, and eight games on each level."""

    entry = registry.DPO

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class)
        self.text_rollouts(group_size=8)

    def dpo(self, **options: Any) -> Self:
        """What is compared, and how: :class:`~rllib_lmgame.datasets.options.DPOOptions`."""
        return self.change({"dpo": options})


class LMGameDPO(LMGamePPO):
    """PPO's loop with the loss of preferences (DPO, IPO, SimPO), on groups played now or on files.

    The reference is the policy as PPO would begin with it: behind the warm start, if there is one.
    """

    config: LMGameDPOConfig
    config_class = LMGameDPOConfig

    def setup(self, config: LMGameDPOConfig) -> None:
        own = self.config.run.dpo
        self._data = None if own.data is None else PreferenceDataset(own, self.config.row_limits())
        self._last_iteration: int | None = None
        if self._data is not None and own.epochs is not None:
            self._last_iteration = max(1, math.ceil(own.epochs * len(self._data) / own.pairs_per_iteration - 1e-9))
        super().setup(config)

    @property
    def options(self) -> DPOOptions:
        """The section as it is in this iteration."""
        options: DPOOptions = self.at_present().dpo
        return options

    def play_batch(self) -> PlayResult:
        """The next pairs of the files, or groups of episodes that are played with the current weights."""
        if self._data is None:
            result = super().play_batch()
            result.episodes = self._sides(result.episodes)
            return result
        count = self.options.pairs_per_iteration
        with self.timed(EXPERT_TIMER, READING):
            episodes = self._data.episodes(self._rl_iteration * count, count, self.env_runner)
        self.log_numbers((), {LEFT_OUT: self._data.passed_over})
        return PlayResult(episodes=episodes)

    def _sides(self, episodes: Sequence[MultiAgentEpisode]) -> list[MultiAgentEpisode]:
        """Those of the pairs among what was played on each level from the same seat."""
        options = self.options
        found = [
            Candidate((part.module_id, part.custom_data[CUSTOM_DATA_KEY].group, agent), part.get_return(), part)
            for episode in episodes
            for part in played_parts(episode, self.config.trained_policies())
            if has_choice(part) and (agent := str(part.agent_id))
        ]
        pairs = choose_pairs(found, options)
        return [
            side_of(part, f"pair-{number}", f"pair-{number}-{('rejected', 'chosen')[chosen]}", chosen)
            for number, pair in enumerate(pairs)
            for part, chosen in zip(pair, (True, False), strict=True)
        ]

    def update(self, result: PlayResult) -> list[dict[str, Any]]:
        """Train on the pairs; with fewer than there are learners the weights stay as they are."""
        options, count = self.options, len(result.episodes) // 2
        self.log_numbers((), {"pairs": count})
        if count < max(1, self.config.num_learners):
            return []
        objective = PreferenceObjective(options.loss, options.beta, options.sft_weight, of_files=self._data is not None)
        return self.update_on(result, True, objective=objective)

    def after_update(self, results: list[dict[str, Any]]) -> None:
        """Nothing is new where there was nothing to learn from."""
        if results:
            super().after_update(results)

    def lmgame_state(self) -> dict[str, Any]:
        passed_over = 0 if self._data is None else self._data.passed_over
        return {**super().lmgame_state(), "passed_over": passed_over}

    def set_lmgame_state(self, state: dict[str, Any]) -> None:
        super().set_lmgame_state(state)
        if self._data is not None:
            self._data.passed_over = int(state.get("passed_over", 0))

    def progress(self) -> float | None:
        """With ``epochs`` that of the passes over the files."""
        return None if self._last_iteration is None else self._rl_iteration / self._last_iteration


register_trainable(LMGameDPO.__name__, LMGameDPO)
