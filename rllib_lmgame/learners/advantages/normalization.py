"""Advantages centred and scaled over the batch of all learners."""

from __future__ import annotations

import numpy as np

from rllib_lmgame.learners.advantages.inputs import AllReduce, alone

NORMALIZE_MODES = ("batch", "role", "center_role", "none")


def normalize(
    advantages: np.ndarray,
    mode: str,
    roles: np.ndarray,
    *,
    floor: float = 1e-8,
    num_roles: int | None = None,
    all_reduce: AllReduce = alone,
) -> np.ndarray:
    """Centred and scaled advantages, float32 ``[A]``.

    Args:
        advantages: ``[A]``.
        mode: ``batch`` (zero mean and unit deviation over all tokens), ``role`` (the same within each role),
            ``center_role`` (zero mean within each role, not scaled), ``none``.
        roles: int ``[A]``; index of each token's role.
        floor: Smallest number that advantages are divided by: a deviation below it is not the game's but the value
            function's.
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
    groups = np.zeros(len(values), np.int64) if mode == "batch" else np.asarray(roles, np.int64)
    bins = 1 if mode == "batch" else num_roles if num_roles is not None else int(groups.max(initial=0)) + 1
    sums = np.stack([np.bincount(groups, minlength=bins), np.bincount(groups, weights=values, minlength=bins)]).astype(
        np.float64
    )
    counts, totals = all_reduce(sums)
    counts = np.maximum(counts, 1.0)
    centred = values - (totals / counts)[groups]
    if mode == "center_role":
        return centred.astype(np.float32)
    squares = all_reduce(np.bincount(groups, weights=centred**2, minlength=bins).astype(np.float64))
    return (centred / np.maximum(np.sqrt(squares / counts), floor)[groups]).astype(np.float32)
