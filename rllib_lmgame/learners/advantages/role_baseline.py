"""Returns against what the role usually gets in the game: no value function is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_lmgame.base.json_files import number_of
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs, Estimator, rewards_to_go


class RoleBaseline(Estimator):
    """``G_t`` less a running mean of the returns of game and role: RAE of SPIRAL (arXiv 2506.24119), by batches.

    The mean is exponential, over batches, of scaled returns. It takes in a batch before it is used on it, and begins as
    the mean of the first one. So it is the same on all learners, and a role that is good for the player (moving first,
    say) makes no reply look good. SPIRAL takes in one episode after the other, and its ``G`` is the return of the whole
    episode: the same with a reward at the end alone and ``gamma: 1``.
    """

    needs_critic = False
    keeps_baseline = True

    def __init__(self) -> None:
        self.baselines: dict[tuple[str, str], float] = {}
        """By game and role; in rewards scaled by :attr:`reward_scales`."""
        self.reward_scales: dict[str, float] = {}
        """By game, of the last batch; none before any."""

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        self._follow_scales(inputs)
        returns = rewards_to_go(inputs)
        names = [(game, role) for game in inputs.game_names for role in inputs.role_names]
        seats = inputs.games * len(inputs.role_names) + inputs.roles
        played = np.diff(inputs.offsets) > 0
        self._take_in(names, seats[played], returns[inputs.offsets[:-1][played]], inputs)
        baselines = np.array([self.baselines.get(name, 0.0) for name in names])
        return (returns - inputs.per_token(baselines[seats])).astype(np.float32)

    def _take_in(
        self, names: list[tuple[str, str]], seats: np.ndarray, returns: np.ndarray, inputs: AdvantageInputs
    ) -> None:
        """A batch's returns, of all learners: ``seats`` says whose each is, as a place in ``names``."""
        counts, sums = inputs.all_reduce(
            np.stack([np.bincount(seats, weights=weights, minlength=len(names)) for weights in (None, returns)])
        )
        for place in np.flatnonzero(counts).tolist():
            name, mean = names[place], float(sums[place] / counts[place])
            before = self.baselines.get(name, mean)
            self.baselines[name] = inputs.baseline_decay * before + (1.0 - inputs.baseline_decay) * mean

    def _follow_scales(self, inputs: AdvantageInputs) -> None:
        """With another ``reward_scale`` after a resume, baselines are those of the same rewards."""
        scales = {game: inputs.scale_in(game) for game in (*inputs.game_names, *(game for game, _ in self.baselines))}
        for (game, role), value in self.baselines.items():
            before = self.reward_scales.get(game, scales[game])
            if scales[game] != before:
                self.baselines[game, role] = value * scales[game] / before
        self.reward_scales = scales

    def get_state(self) -> dict[str, Any]:
        baselines = [[*name, value] for name, value in sorted(self.baselines.items())]
        return {"baselines": baselines, "reward_scales": dict(self.reward_scales)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.baselines = {
            (str(game), str(role)): number_of(value, f"the baseline of {role} in {game}")
            for game, role, value in state["baselines"]
        }
        self.reward_scales = {
            str(game): number_of(scale, f"reward_scales of {game}", above=0)
            for game, scale in state.get("reward_scales", {}).items()
        }
