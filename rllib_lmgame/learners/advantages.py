"""Advantages over action tokens.

Time runs over the sampled tokens of a trajectory only: prompt and observation tokens are skipped, and a discount is applied
once per action token. ``offsets`` ``[N + 1]`` says where trajectories begin in the flat arrays; ``bootstrap`` ``[N]`` is the
value of the state after the last token, 0 where the game terminated.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.imports import import_path

AdvantageEstimator = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float, float], np.ndarray]
"""``(rewards [A], values [A], bootstrap [N], offsets [N + 1], gamma, lam) -> advantages float32 [A]``."""

AllReduce = Callable[[np.ndarray], np.ndarray]
"""Element-wise sum of an array over all learners."""

NORMALIZE_MODES = ("batch", "role", "center_role", "none")


def token_gae(rewards: np.ndarray, values: np.ndarray, bootstrap: np.ndarray, offsets: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Generalised advantage estimates, float32 ``[A]``.

    ``delta_t = r_t + gamma V_{t+1} - V_t`` and ``A_t = delta_t + gamma lam A_{t+1}`` (Schulman et al. 2016, eq. 16), where
    ``V_{t+1}`` after the last token of a trajectory is ``bootstrap`` and nothing crosses from one trajectory into another.
    """
    deltas = rewards + gamma * _next_values(values, bootstrap, offsets) - values
    return _discounted_sums(deltas, gamma * lam, offsets).astype(np.float32)


def monte_carlo_returns(rewards: np.ndarray, bootstrap: np.ndarray, offsets: np.ndarray, gamma: float) -> np.ndarray:
    """``G_t = r_t + gamma G_{t+1}``, float32 ``[A]``, with ``bootstrap`` after the last token of a trajectory."""
    last = _next_values(np.zeros(len(rewards)), bootstrap, offsets)
    return _discounted_sums(rewards + gamma * last, gamma, offsets).astype(np.float32)


ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator] = {"gae": token_gae}
"""Estimators by name; a plug-in adds its own."""


def resolve_estimator(name: str) -> AdvantageEstimator:
    """The estimator registered under ``name``, or the function at ``package.module:function``.

    Raises:
        ConfigError: No such estimator; the message names the nearest one.
    """
    key = "token_ppo.advantage_estimator"
    if name in ADVANTAGE_ESTIMATORS:
        return ADVANTAGE_ESTIMATORS[name]
    if ":" not in name:
        close = nearest(name, ADVANTAGE_ESTIMATORS)
        hint = f"did you mean `{close}`?" if close else f"known are {', '.join(sorted(ADVANTAGE_ESTIMATORS))}"
        raise ConfigError(key, f"no advantage estimator `{name}`; {hint}, or give `package.module:function`")
    estimator = import_path(name, key)
    if not callable(estimator):
        raise ConfigError(key, f"`{name}` is a {type(estimator).__name__}, not a function")
    return estimator  # type: ignore[no-any-return]


def normalize(
    advantages: np.ndarray,
    mode: str,
    roles: np.ndarray,
    *,
    floor: float = 1e-8,
    num_roles: int | None = None,
    all_reduce: AllReduce | None = None,
) -> np.ndarray:
    """Centred and scaled advantages, float32 ``[A]``.

    Args:
        advantages: ``[A]``.
        mode: ``batch`` (zero mean and unit deviation over all tokens), ``role`` (the same within each role), ``center_role``
            (zero mean within each role, not scaled), ``none``.
        roles: int ``[A]``; index of each token's role.
        floor: Smallest number that advantages are divided by: a deviation below it is not the game's but the value function's.
        num_roles: Number of roles; learners that reduce together must give the same. By default those seen here.
        all_reduce: With several learners, the sum over all of them; every learner must call, also one without tokens.

    Raises:
        ValueError: Unknown mode.
    """
    if mode not in NORMALIZE_MODES:
        raise ValueError(f"normalize_advantages must be one of {', '.join(NORMALIZE_MODES)}, not `{mode}`")
    values = np.asarray(advantages, np.float64)
    if mode == "none":
        return values.astype(np.float32)
    reduce = all_reduce or (lambda array: array)
    groups = np.zeros(len(values), np.int64) if mode == "batch" else np.asarray(roles, np.int64)
    bins = 1 if mode == "batch" else num_roles if num_roles is not None else int(groups.max(initial=0)) + 1
    sums = np.stack([np.bincount(groups, minlength=bins), np.bincount(groups, weights=values, minlength=bins)]).astype(np.float64)
    counts, totals = reduce(sums)
    counts = np.maximum(counts, 1.0)
    centred = values - (totals / counts)[groups]
    if mode == "center_role":
        return centred.astype(np.float32)
    squares = reduce(np.bincount(groups, weights=centred**2, minlength=bins).astype(np.float64))
    return (centred / np.maximum(np.sqrt(squares / counts), floor)[groups]).astype(np.float32)


def _next_values(values: np.ndarray, bootstrap: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Value after each token, float64 ``[A]``."""
    following = np.empty(len(values), np.float64)
    following[:-1] = values[1:]
    played = offsets[1:] > offsets[:-1]
    following[offsets[1:][played] - 1] = np.asarray(bootstrap)[played]
    return following


def _discounted_sums(terms: np.ndarray, factor: float, offsets: np.ndarray) -> np.ndarray:
    """``S_t = terms_t + factor S_{t+1}`` within each trajectory, float64 ``[A]``.

    A scan by doubling: after the pass with step ``k`` each entry holds the sum over the next ``2k`` terms. The cost is
    ``A log2(longest trajectory)`` array operations, whatever the shape of the batch, and there is no division that could overflow.
    """
    sums = np.array(terms, np.float64)
    weights = np.full(len(sums), float(factor))
    lengths = np.diff(offsets)
    weights[offsets[1:][lengths > 0] - 1] = 0.0
    step, longest = 1, int(lengths.max(initial=0))
    while step < longest:
        sums[:-step] += weights[:-step] * sums[step:]
        weights[:-step] *= weights[step:]
        step *= 2
    return sums
