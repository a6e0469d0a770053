"""Estimators without a value function: returns against those of the group, and others.

A group is the trajectories of one game, one seed and one role. Where groups are compared,
all tokens of a trajectory have its advantage, returns are not discounted, a trajectory without action tokens is left
out, and one that is alone in its group has advantage 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_lmgame.base.group import Scheduled, option, tag
from rllib_lmgame.base.plugin import LazyModule
from rllib_lmgame.learners.advantages.base import AdvantageInputs, Estimator, discounted_sums, normalize, rewards_to_go

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

ROUNDING = 1e-6
"""A mean of returns no larger than this, as a multiple of the mean of their sizes, is what rounding left."""


class GroupRelative(Estimator):
    """What estimators that compare whole trajectories have in common."""

    needs_groups = True
    needs_critic = False
    own_scale = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        played = np.diff(inputs.offsets) > 0
        advantages = np.zeros(len(played))
        advantages[played] = self.of_trajectories(
            inputs.returns[played], inputs.groups[played], np.array(inputs.episodes, object)[played]
        )
        return inputs.per_token(advantages).astype(np.float32)

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        """Advantages, float64 ``[N]``; with several seats of one role a group has several of an episode."""
        raise NotImplementedError


class GRPO(GroupRelative):
    """``(R - mean) / (std + epsilon)`` of the group; ``std`` over its number less one, as TRL and verl have it
    (DeepSeekMath, arXiv 2402.03300, sec. 4.1.2).
    """

    type: str = tag("grpo", "Its name.")
    std_epsilon: float = option(1e-6, "Added to the deviation.", gt=0)

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        centred = returns - group_means(returns, groups)
        return centred / (group_deviations(returns, groups) + self.std_epsilon)


class DrGRPO(GroupRelative):
    """``R - mean`` of the group (Dr. GRPO, arXiv 2503.20783): a level won by half counts no more than another."""

    type: str = tag("dr_grpo", "Its name.")

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        return returns - group_means(returns, groups)


class RLOO(GroupRelative):
    """``R`` less the mean of the group's other episodes (REINFORCE leave-one-out, arXiv 2402.14740).

    Two seats of one role in one episode depend on each other, so neither is a baseline for the other.
    """

    type: str = tag("rloo", "Its name.")

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        _, number = np.unique(episodes.astype(str), return_inverse=True)
        _, own = np.unique(groups * (number.max(initial=0) + 1) + number, return_inverse=True)
        others = _counts(groups) - _counts(own)
        centred = returns - _member(returns, groups)
        sums = _sums(centred, groups) - _sums(centred, own)
        return np.where(others > 0, centred - sums / np.maximum(others, 1), 0.0)


class MaxRL(GroupRelative):
    """``(R - mean) / mean`` of the group, 0 where the mean is not positive (MaxRL, arXiv 2602.02710).

    It is for returns of 0 and 1, of which rare ones count more.
    """

    type: str = tag("max_rl", "Its name.")

    def of_trajectories(self, returns: np.ndarray, groups: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        means = group_means(returns, groups)
        positive = means > ROUNDING * group_means(np.abs(returns), groups)
        return np.where(positive, (returns - means) / np.where(positive, means, 1.0), 0.0)


class GiGPO(Estimator):
    """``A_episode + w A_step``: ``grpo``'s, and the return from a turn on (``gamma`` per turn) against that of the
    group's turns before which the player saw the same text (GiGPO, arXiv 2505.10978).

    ``A_episode = (R - mean) / F`` and ``A_step = (G_u - mean) / F`` with ``G_u = R_u + gamma G_{u+1}``; a turn before
    which nobody else saw that text has 0. ``F`` is the deviation (over the number less one) plus ``std_epsilon``, or 1.
    """

    type: str = tag("gigpo", "Its name.")
    step_weight: float = option(1.0, "`w`.", ge=0)
    divide_by_std: bool = option(True, "Whether `F` is the deviation; else 1.")
    std_epsilon: float = option(1e-6, "Added to the deviation.", gt=0)

    needs_groups = True
    needs_critic = False
    own_scale = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        trajectory = np.repeat(np.arange(len(inputs.groups)), np.diff(inputs.turn_ranges))
        played, of_episodes = np.unique(trajectory), np.zeros(len(inputs.groups))
        of_episodes[played] = self._compared(inputs.returns[played], inputs.groups[played])
        seen = np.stack([inputs.groups[trajectory], inputs.turn_observations], axis=1)
        states = np.unique(seen, axis=0, return_inverse=True)[1].reshape(-1)
        of_steps = self._compared(self.turn_returns(inputs, states), states)
        return inputs.turn_per_token(of_episodes[trajectory] + self.step_weight * of_steps).astype(np.float32)

    def turn_returns(self, inputs: AdvantageInputs, states: np.ndarray) -> np.ndarray:
        """``G_u``, float64 ``[U]``; ``states`` int64 ``[U]`` are equal where one group saw the same text."""
        return discounted_sums(inputs.turn_rewards, inputs.gamma, inputs.turn_ranges)

    def _compared(self, values: np.ndarray, groups: np.ndarray) -> np.ndarray:
        centred = values - group_means(values, groups)
        return centred / (group_deviations(values, groups) + self.std_epsilon) if self.divide_by_std else centred


def group_means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Mean of each one's group, float64 ``[N]``; exactly their value where all are equal."""
    member = _member(values, groups)
    return member + _sums(values - member, groups) / _counts(groups)


def _member(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The value of one of each one's group, float64 ``[N]``: differences from it are exactly 0 where all are equal."""
    members = np.zeros(groups.max(initial=-1) + 1)
    members[groups] = values
    return members[groups]


def group_deviations(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Standard deviation of each one's group, over its number less one, float64 ``[N]``; 0 where alone."""
    squares = _sums((values - group_means(values, groups)) ** 2, groups)
    return np.sqrt(squares / np.maximum(_counts(groups) - 1, 1))


def _sums(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return np.bincount(groups, weights=values)[groups]


def _counts(groups: np.ndarray) -> np.ndarray:
    return np.bincount(groups)[groups]


class Reinforce(Estimator):
    """``G_t = r_t + gamma G_{t+1}``, nothing after a cut and without a baseline (Williams 1992)."""

    type: str = tag("reinforce", "Its name.")

    needs_critic = False
    own_scale = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        return rewards_to_go(inputs).astype(np.float32)


class ReinforcePP(Estimator):
    """``(G_t - mean) / std`` over all action tokens of all learners (REINFORCE++, arXiv 2501.03262).

    The paper's return counts a KL penalty on each token; here it does where the rewards of the update do.
    """

    type: str = tag("reinforce_pp", "Its name.")

    needs_critic = False
    own_scale = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        return normalize(rewards_to_go(inputs), "batch", inputs)


class RoleBaseline(Estimator):
    """``G_t`` less a running mean of the returns of game and role: RAE of SPIRAL (arXiv 2506.24119), by batches.

    The mean is exponential, over batches, of scaled returns. It takes in a batch before it is used on it, and begins as
    the mean of the first one. So it is the same on all learners, and a role that is good for the player (moving first,
    say) makes no reply look good. SPIRAL takes in one episode after the other, and its ``G`` is the return of the whole
    episode: the same with a reward at the end alone and ``gamma: 1``.
    """

    type: str = tag("rae", "Its name.")
    baseline_decay: Scheduled[float] = option(
        0.95, "With every batch `baseline = decay * baseline + (1 - decay) * the batch's mean return`.", ge=0, le=1
    )

    needs_critic = False
    keeps_baseline = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        baselines = {(game, role): value for game, role, value in inputs.memory.get("baselines", ())}
        returns = rewards_to_go(inputs)
        names = [(game, role) for game in inputs.game_names for role in inputs.role_names]
        seats = inputs.games * len(inputs.role_names) + inputs.roles
        played = np.diff(inputs.offsets) > 0
        firsts = returns[inputs.offsets[:-1][played]]
        counts, sums = inputs.all_reduce(
            np.stack([np.bincount(seats[played], weights=w, minlength=len(names)) for w in (None, firsts)])
        )
        for place in np.flatnonzero(counts).tolist():
            name, mean = names[place], float(sums[place] / counts[place])
            before = baselines.get(name, mean)
            baselines[name] = self.baseline_decay * before + (1.0 - self.baseline_decay) * mean
        inputs.memory["baselines"] = [[*name, value] for name, value in sorted(baselines.items())]
        of_names = np.array([baselines.get(name, 0.0) for name in names])
        return (returns - inputs.per_token(of_names[seats])).astype(np.float32)
