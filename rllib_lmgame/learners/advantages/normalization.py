"""Advantages centred and scaled over the batch of all learners, or within the parts of it that are compared."""

from __future__ import annotations

import numpy as np

from rllib_lmgame.learners.advantages.inputs import AdvantageInputs, AllReduce, alone
from rllib_lmgame.settings.sections.token_ppo import GROUP, NORMALIZE_MODES

ROUNDING = 1e-9
"""A deviation below this multiple of the mean is what rounding left of equal numbers."""


def normalize_compared(advantages: np.ndarray, mode: str, inputs: AdvantageInputs, *, floor: float) -> np.ndarray:
    """:func:`normalize` by the groups, games or roles of ``inputs``; all learners take part. A group is on one learner
    as a whole.
    """
    if mode == GROUP:
        groups = inputs.per_token(inputs.groups)
        return normalize(advantages, mode, groups, floor=floor)
    names, numbers = (inputs.game_names, inputs.games) if mode == "game" else (inputs.role_names, inputs.roles)
    return normalize(
        advantages,
        mode,
        inputs.per_token(numbers),
        floor=floor,
        num_classes=max(1, len(names)),
        all_reduce=inputs.all_reduce,
    )


def normalize(
    advantages: np.ndarray,
    mode: str,
    classes: np.ndarray,
    *,
    floor: float = 1e-12,
    num_classes: int | None = None,
    all_reduce: AllReduce = alone,
) -> np.ndarray:
    """Centred and scaled advantages, float32 ``[A]``.

    Args:
        advantages: ``[A]``.
        mode: ``batch`` (zero mean and unit deviation over all tokens), ``group``, ``game`` or ``role`` (the same within
            each of them), ``center_role`` (zero mean within each role, not scaled), ``none``.
        classes: int ``[A]``; index of each token's group, game or role.
        floor: Smallest number that advantages are divided by: a deviation below it is not the game's but the value
            function's. Where it is below :data:`ROUNDING` times the mean they are divided by that.
        num_classes: Number of these; learners that reduce together must give the same. By default those seen here.
        all_reduce: With several learners, the sum over all of them; every learner must call, also one without tokens.

    Raises:
        ValueError: Unknown mode.
    """
    if mode not in NORMALIZE_MODES:
        raise ValueError(f"normalize_advantages must be one of {', '.join(NORMALIZE_MODES)}, not `{mode}`")
    values = np.asarray(advantages, np.float64)
    if mode == "none":
        return values.astype(np.float32)
    part = np.zeros(len(values), np.int64) if mode == "batch" else np.asarray(classes, np.int64)
    bins = 1 if mode == "batch" else num_classes if num_classes is not None else int(part.max(initial=0)) + 1
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
