"""Advantage estimators: what they are given, what they share, and what one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rllib_lmgame.base.group import Group, option, tag
from rllib_lmgame.base.plugin import LazyModule, import_path
from rllib_lmgame.learners.options import GROUP

if TYPE_CHECKING:
    import numpy as np

    from rllib_lmgame.learners.data.batching import TokenBatch
    from rllib_lmgame.learners.process import ProcessGroup
else:
    np = LazyModule("numpy")


AllReduce = Callable[["np.ndarray"], "np.ndarray"]


def alone(array: np.ndarray) -> np.ndarray:
    return array


@dataclass(frozen=True, eq=False, kw_only=True)
class AdvantageInputs:
    """One update of one policy on one learner: ``A`` action tokens in ``U`` turns of ``N`` trajectories.

    A trajectory is one player's view of one episode. Time runs over its sampled tokens only. A learner without rows
    calls with ``A = U = N = 0``.

    A group is the trajectories of one game, one seed and one role. An estimator that ``needs_groups`` gets whole
    groups, whose size may differ from ``group_size``: episodes may have failed, or have several seats of one role.

    Attributes:
        rewards: float64 ``[A]``; scaled, a turn's reward on its last token. With ``kl: reward`` every token has one.
        values: float32 ``[A]``; value of the state in which the token was chosen.
        bootstrap: float32 ``[N]``; value of the state after the last token, 0 where the game terminated.
        truncated: bool ``[N]``; the trajectory was cut short, which is where ``bootstrap`` counts.
        offsets: int64 ``[N + 1]``; tokens of trajectory ``n`` are ``[offsets[n], offsets[n + 1])``. Some have none.
        turn_offsets: int64 ``[U + 1]``; the same for turns. Turns without an action token are left out.
        turn_observations: int64 ``[U]``; key of the text the player saw before the turn, equal for equal texts.
        groups: int64 ``[N]``; equal for trajectories of one group, counted from 0 on this learner.
        roles, games: int64 ``[N]``; index into ``role_names`` and ``game_names``.
        role_names, game_names: Of all learners, so that indices mean the same everywhere.
        episodes: Id of the episode of each trajectory.
        old_logprobs, rollout_logprobs: float32 ``[A]``; of the learner before the update, and of the sampler.
        ref_logprobs: float32 ``[A]``; of the reference model, with ``training.kl`` or where the estimator asks for it.
        gamma, lam: Discount and lambda of GAE, per action token or per turn, as the estimator takes them.
        memory: What the estimator keeps for later updates and checkpoints: JSON, the same on all learners.
        all_reduce: Sum over all learners; all must call it alike, also those without tokens.
    """

    rewards: np.ndarray
    values: np.ndarray
    bootstrap: np.ndarray
    truncated: np.ndarray
    offsets: np.ndarray
    turn_offsets: np.ndarray
    turn_observations: np.ndarray
    groups: np.ndarray
    roles: np.ndarray
    role_names: tuple[str, ...]
    games: np.ndarray
    game_names: tuple[str, ...]
    episodes: tuple[str, ...]
    old_logprobs: np.ndarray
    rollout_logprobs: np.ndarray
    ref_logprobs: np.ndarray | None = None
    gamma: float = 1.0
    lam: float = 1.0
    memory: dict[str, Any] = field(default_factory=dict)
    all_reduce: AllReduce = alone

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each trajectory, float64 ``[N]``; not discounted, without ``bootstrap``."""
        return _sums(self.rewards, self.offsets)

    @property
    def turn_ranges(self) -> np.ndarray:
        """int64 ``[N + 1]``; turns of trajectory ``n`` are ``[turn_ranges[n], turn_ranges[n + 1])``."""
        return np.searchsorted(self.turn_offsets[:-1], self.offsets)

    @property
    def turn_rewards(self) -> np.ndarray:
        """Sum of the rewards of each turn, float64 ``[U]``."""
        return _sums(self.rewards, self.turn_offsets)

    def per_token(self, per_trajectory: np.ndarray) -> np.ndarray:
        """``[N] -> [A]``: each trajectory's entry at all of its tokens."""
        return np.repeat(per_trajectory, np.diff(self.offsets))

    def turn_per_token(self, per_turn: np.ndarray) -> np.ndarray:
        return np.repeat(per_turn, np.diff(self.turn_offsets))


def advantage_inputs(
    batch: TokenBatch,
    *,
    gamma: float,
    lam: float,
    ranks: ProcessGroup,
    with_reference: bool = False,
    memory: dict[str, Any] | None = None,
) -> AdvantageInputs:
    """Inputs of a batch of one policy with ``values``, ``old_logprobs`` and ``bootstrap_values``. All learners must
    call.
    """
    role_names, roles = _over_all(batch.roles, batch.role, ranks)
    game_names, games = _over_all(batch.games, batch.game, ranks)
    return AdvantageInputs(
        rewards=_read_only(batch.rewards),
        values=_read_only(batch.values),
        bootstrap=_read_only(batch.bootstrap_values),
        truncated=batch.needs_bootstrap,
        offsets=batch.trajectory_offsets,
        turn_offsets=batch.turn_offsets,
        turn_observations=batch.turn_observation,
        groups=batch.group,
        roles=roles,
        role_names=role_names,
        games=games,
        game_names=game_names,
        episodes=batch.episodes,
        old_logprobs=_read_only(batch.old_logprobs),
        rollout_logprobs=_read_only(batch.rollout_logprobs),
        ref_logprobs=_read_only(batch.ref_logprobs) if with_reference else None,
        gamma=gamma,
        lam=lam,
        memory={} if memory is None else memory,
        all_reduce=ranks.sum,
    )


def _sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sums of ``[offsets[n], offsets[n + 1])``, float64 ``[N]``; each by itself: equal parts have equal sums."""
    lengths = np.diff(offsets)
    part = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(part, weights=values, minlength=len(lengths)).astype(np.float64)


def _read_only(array: np.ndarray) -> np.ndarray:
    """The same numbers, which an estimator cannot change: others read them after it."""
    view = array.view()
    view.flags.writeable = False
    return view


def _over_all(names: tuple[str, ...], index: np.ndarray, ranks: ProcessGroup) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of all learners, and ``index`` into ``names`` as one into these."""
    everyones = tuple(sorted({name for part in ranks.gathered(names) for name in part}))
    return everyones, np.array([everyones.index(name) for name in names], np.int64)[index]


ROUNDING = 1e-9
"""A deviation below this multiple of the mean is what rounding left of equal numbers."""


def normalize(advantages: np.ndarray, mode: str, inputs: AdvantageInputs, *, floor: float = 1e-12) -> np.ndarray:
    """Centred and scaled advantages, float32 ``[A]``; all learners must call.

    Args:
        mode: ``batch`` (mean 0 and deviation 1 over all tokens), ``group``, ``game``, ``role`` (within each of them),
            ``center_role`` (mean 0 within each role, not scaled) or ``none``.
        floor: Least divisor; at least :data:`ROUNDING` times the mean.
    """
    values = np.asarray(advantages, np.float64)
    if mode == "none":
        return values.astype(np.float32)
    part, bins, all_reduce = np.zeros(len(values), np.int64), 1, inputs.all_reduce
    if mode == GROUP:
        part, all_reduce = inputs.per_token(inputs.groups), alone
        bins = int(part.max(initial=0)) + 1
    elif mode != "batch":
        names, numbers = (inputs.game_names, inputs.games) if mode == "game" else (inputs.role_names, inputs.roles)
        part, bins = inputs.per_token(numbers), max(1, len(names))
    sums = np.stack([np.bincount(part, minlength=bins), np.bincount(part, weights=values, minlength=bins)]).astype(
        np.float64
    )
    counts, totals = all_reduce(sums)
    counts = np.maximum(counts, 1.0)
    means = totals / counts
    centred = values - means[part]
    if mode == "center_role":
        return centred.astype(np.float32)
    squares = all_reduce(np.bincount(part, weights=centred**2, minlength=bins).astype(np.float64))
    smallest = np.maximum(ROUNDING * np.abs(means), floor)
    return (centred / np.maximum(np.sqrt(squares / counts), smallest)[part]).astype(np.float32)


def token_gae(inputs: AdvantageInputs) -> np.ndarray:
    """Generalised advantage estimates, float32 ``[A]`` (Schulman et al. 2016, eq. 16), ``bootstrap`` at the end."""
    following = next_values(inputs.values, inputs.bootstrap, inputs.offsets)
    deltas = inputs.rewards + inputs.gamma * following - inputs.values
    return discounted_sums(deltas, inputs.gamma * inputs.lam, inputs.offsets).astype(np.float32)


def monte_carlo_returns(inputs: AdvantageInputs) -> np.ndarray:
    """``G_t = r_t + gamma G_{t+1}``, float32 ``[A]``, with ``bootstrap`` after the last token of a trajectory."""
    last = next_values(np.zeros(len(inputs.rewards)), inputs.bootstrap, inputs.offsets)
    return discounted_sums(inputs.rewards + inputs.gamma * last, inputs.gamma, inputs.offsets).astype(np.float32)


def rewards_to_go(inputs: AdvantageInputs) -> np.ndarray:
    """``G_t = r_t + gamma G_{t+1}``, float64 ``[A]``, and nothing after the last token: no value function is asked."""
    return discounted_sums(inputs.rewards, inputs.gamma, inputs.offsets)


def next_values(values: np.ndarray, bootstrap: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Value after each step, float64 ``[A]``; the steps of trajectory ``n`` are ``[offsets[n], offsets[n + 1])``."""
    following = np.empty(len(values), np.float64)
    following[:-1] = values[1:]
    played = offsets[1:] > offsets[:-1]
    following[offsets[1:][played] - 1] = np.asarray(bootstrap)[played]
    return following


def discounted_sums(terms: np.ndarray, factor: float, offsets: np.ndarray) -> np.ndarray:
    """``S_t = terms_t + factor S_{t+1}`` in each trajectory (or part), float64 ``[A]``.

    A scan by doubling: after the pass with step ``k`` each entry holds the sum over the next ``2k`` terms.
    """
    sums = np.array(terms, np.float64)
    weights = np.full(len(sums), factor, np.float64)
    lengths = np.diff(offsets)
    weights[offsets[1:][lengths > 0] - 1] = 0.0
    step, longest = 1, int(lengths.max(initial=0))
    while step < longest:
        sums[:-step] += weights[:-step] * sums[step:]
        weights[:-step] *= weights[step:]
        step *= 2
    return sums


class Estimator(Group):
    """From what is known of an update to the advantage of each of its action tokens; its fields are its options.

    An estimator of your own derives from this, or is a function of :class:`AdvantageInputs`.
    """

    type: str = tag("", "Its name, or `package.module:Class`.")

    needs_critic: ClassVar[bool] = True
    """It reads ``values`` or ``bootstrap``: there is a value function."""

    needs_groups: ClassVar[bool] = False
    """It compares the trajectories of a group, which stay together on their way through learners and minibatches."""

    needs_reference: ClassVar[bool] = False
    """``ref_logprobs`` is filled also without a KL penalty."""

    own_scale: ClassVar[bool] = False
    """Its advantages are used as they are unless ``normalize_advantages`` is set."""

    keeps_baseline: ClassVar[bool] = False
    """It remembers a mean of scaled rewards, so that ``reward_scale`` follows no schedule."""

    def __call__(self, inputs: AdvantageInputs, /) -> np.ndarray:
        """Advantages, float32 ``[A]``."""
        raise NotImplementedError

    def value_targets(self, inputs: AdvantageInputs, *, monte_carlo: bool) -> np.ndarray:
        """Target of the value function, float32 ``[A]``, discounted per token: a lambda return, or with ``monte_carlo``
        the discounted rewards (and ``bootstrap`` after a cut).
        """
        return monte_carlo_returns(inputs) if monte_carlo else token_gae(inputs) + inputs.values


class FunctionEstimator(Estimator):
    """A function of :class:`AdvantageInputs` at an import path; it has a value function."""

    def __call__(self, inputs: AdvantageInputs, /) -> np.ndarray:
        return import_path(self.type, "training.advantage_estimator")(inputs)


class GAE(Estimator):
    """``A_t = r_t + gamma V_{t+1} - V_t + gamma lambda A_{t+1}``, from token to token (arXiv 1506.02438)."""

    type: str = tag("gae", "Its name.")

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        return token_gae(inputs)


class TurnGAE(Estimator):
    """The same from turn to turn: one action is a whole reply, its state what the player saw before it; ``gamma`` and
    ``lambda`` count turns (arXiv 1506.02438).

    ``delta_u = R_u + gamma V_{u+1} - V_u`` with the rewards ``R_u`` of turn ``u`` and the value ``V_u`` at its first
    token. Every token of a turn has the turn's advantage. ``V`` after the last turn is ``bootstrap``.
    """

    type: str = tag("turn_gae", "Its name.")

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        return inputs.turn_per_token(_turn_advantages(inputs, inputs.lam)).astype(np.float32)

    def value_targets(self, inputs: AdvantageInputs, *, monte_carlo: bool) -> np.ndarray:
        """Lambda return of the turn at each of its tokens, float32 ``[A]``; with ``monte_carlo`` lambda is 1."""
        of_turns = _turn_advantages(inputs, 1.0 if monte_carlo else inputs.lam) + _first_values(inputs)
        return inputs.turn_per_token(of_turns).astype(np.float32)


def _first_values(inputs: AdvantageInputs) -> np.ndarray:
    return inputs.values[inputs.turn_offsets[:-1]].astype(np.float64)


def _turn_advantages(inputs: AdvantageInputs, lam: float) -> np.ndarray:
    values, ranges = _first_values(inputs), inputs.turn_ranges
    deltas = inputs.turn_rewards + inputs.gamma * next_values(values, inputs.bootstrap, ranges) - values
    return discounted_sums(deltas, inputs.gamma * lam, ranges)


class BilevelGAE(Estimator):
    """At the last token of a turn GAE from turn end to turn end; before it GAE inside the turn, from token to token
    (RAGEN, arXiv 2504.20073; VAGEN, arXiv 2510.16907).

    At the last token of turn ``u``, ``A_u = delta_u + gamma_turn lambda_turn A_{u+1}`` with ``delta_u = r_u +
    gamma_turn (p_{u+1} + V_{u+1}) - V_u``: reward and value at that token, and the sum ``p`` of the rewards before it,
    which only a KL penalty in the rewards makes. ``V`` after the last turn is ``bootstrap``.
    """

    type: str = tag("bilevel_gae", "Its name.")
    turn_gamma: float | None = option(None, "Discount per turn; null takes `gamma`, which then is both.", ge=0, le=1)
    turn_lambda: float | None = option(None, "Lambda per turn; null takes `lambda`.", ge=0, le=1)

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        turn_lambda = inputs.lam if self.turn_lambda is None else self.turn_lambda
        return self._advantages(inputs, inputs.lam, turn_lambda).astype(np.float32)

    def value_targets(self, inputs: AdvantageInputs, *, monte_carlo: bool) -> np.ndarray:
        """Advantages plus values, float32 ``[A]``; with ``monte_carlo`` both lambdas are 1."""
        if monte_carlo:
            return (self._advantages(inputs, 1.0, 1.0) + inputs.values).astype(np.float32)
        return self(inputs) + inputs.values

    def _advantages(self, inputs: AdvantageInputs, lam: float, turn_lambda: float) -> np.ndarray:
        turn_gamma = inputs.gamma if self.turn_gamma is None else self.turn_gamma
        values, ends, ranges = inputs.values.astype(np.float64), inputs.turn_offsets[1:] - 1, inputs.turn_ranges
        last = inputs.rewards[ends]
        following = next_values(inputs.turn_rewards - last + values[ends], inputs.bootstrap, ranges)
        of_turns = discounted_sums(last + turn_gamma * following - values[ends], turn_gamma * turn_lambda, ranges)
        inside = next_values(values, np.zeros(len(ends)), inputs.turn_offsets)
        deltas = inputs.rewards + inputs.gamma * inside - values
        deltas[ends] = of_turns
        return discounted_sums(deltas, inputs.gamma * lam, inputs.turn_offsets)
