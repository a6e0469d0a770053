"""What an update reports: sums over its tokens, and the tokens of logged episodes, written beside their log.

A record has, per learned token of a trajectory (forced ones and prompts are none), in the order they were sampled:
``old_logprobs``, ``advantages``, ``entropies``, and where there are any ``values``, ``ref_logprobs`` and
``importance_weights``. What was not computed is ``None``. ``version`` is of the weights before the update; with
``rollout_sum``, the sum of the sampler's log-probabilities, a record finds its episode where an iteration was played
again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.rollouts.episode_log import ALWAYS_THERE, TOKEN_COLUMNS, EpisodeLog, shorten
from rllib_lmgame.rollouts.records import Trajectory

logger = logging.getLogger(__name__)

WITHOUT_GRADIENT = "zero_grad_updates"
"""1 for an update that was left out since nothing had a gradient, else 0."""

SINGLE_PRECISION = float(np.finfo(np.float32).eps)


class UpdateMeter:
    """Collects figures of one module's update without waiting for the device after each micro-batch.

    Sums and maxima are this learner's until :meth:`means` combines them; all must have added the same names.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._maxima: dict[str, float] = {}
        self.before: dict[str, float] = {}
        self.first_minibatch = True

    def add(self, sums: Mapping[str, torch.Tensor | float]) -> None:
        for name, value in sums.items():
            value = value.detach() if isinstance(value, torch.Tensor) else value
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def max(self, name: str, values: torch.Tensor | np.ndarray) -> None:
        """Raise the maximum ``name`` to the largest of ``values``, which may be empty."""
        largest = float(values.max()) if len(values) else 0.0
        self._maxima[name] = max(self._maxima.get(name, 0.0), largest)

    def take(self, names: Iterable[str]) -> dict[str, float]:
        """Remove and return sums of this learner; 0 for a name never added."""
        return {name: float(self._sums.pop(name, 0.0)) for name in names}

    def means(self, ranks: ProcessGroup) -> dict[str, float]:
        """Sums of all learners over the sum ``"count"``, and maxima over learners."""
        names = sorted(self._sums)
        totals = dict(zip(names, ranks.sum([float(self._sums[name]) for name in names]).tolist(), strict=True))
        tokens = max(totals.pop("count", 0.0), 1.0)
        largest = sorted(self._maxima)
        maxima = ranks.max([self._maxima[name] for name in largest]).tolist()
        return {name: total / tokens for name, total in totals.items()} | dict(zip(largest, maxima, strict=True))


def moments(values: np.ndarray, ranks: ProcessGroup) -> dict[str, float]:
    """``mean``, ``std``, ``min``, ``max`` of arrays over all learners, each of which must call."""
    array = np.asarray(values, np.float64)
    count, total = ranks.sum([array.size, array.sum()]).tolist()
    count = max(count, 1.0)
    mean = total / count
    # Of what is centred: between sums of squares and a squared mean a small deviation would be lost in rounding.
    squares = float(ranks.sum(((array - mean) ** 2).sum()))
    low, high = ranks.max([-array.min(initial=np.inf), array.max(initial=-np.inf)]).tolist()
    return {"mean": mean, "std": float(np.sqrt(squares / count)), "min": -low, "max": high}


def explained_variance(values: np.ndarray, returns: np.ndarray, ranks: ProcessGroup) -> float:
    """``1 - Var[returns - values] / Var[returns]`` over all learners' tokens; NaN if the returns do not vary in
    float32.
    """
    of_returns, of_values = moments(returns, ranks), moments(values, ranks)
    largest = max(abs(each[bound]) for each in (of_returns, of_values) for bound in ("min", "max"))
    error = moments(np.asarray(returns, np.float64) - values, ranks)["std"]
    varies = of_returns["std"] > SINGLE_PRECISION * largest
    return 1.0 - (error / of_returns["std"]) ** 2 if varies else float("nan")


def update_metrics(
    meter: UpdateMeter, b: TokenBatch, ranks: ProcessGroup, *, version: int, tokens: int, seconds: float
) -> dict[str, float]:
    """The metrics of one module's update, the same on all learners, which must call: ``tokens`` are those of all."""
    gap = np.abs(b.old_logprobs - b.rollout_logprobs)
    meter.max("logprob_diff", gap[np.isfinite(gap)])
    meter.max("staleness_max", version - b.policy_version)
    # The means are over tokens of all epochs; the sums that are not over tokens are taken out first.
    plain = meter.take(("steps", "nan_steps", "grad_norm", "computed_tokens", "row_tokens", "given_tokens"))
    observed = meter.take(("observation_loss", "observation_tokens"))
    means = meter.means(ranks)
    own = (float((version - b.policy_version).sum()), len(b.policy_version), b.num_rows, b.truncated_sequences)
    computed, used, given, stale, sampled, num_rows, cuts = ranks.sum(
        [plain["computed_tokens"], plain["row_tokens"], plain["given_tokens"], *own]
    ).tolist()
    row_tokens, read_tokens = ranks.sum([float(b.num_tokens), float(b.row_lengths.sum())]).tolist()
    nats, tokens_observed = ranks.sum(list(observed.values())).tolist()
    if tokens_observed:
        means["observation_loss"], means["observation_tokens"] = nats / tokens_observed, tokens_observed
    applied = max(plain["steps"] - plain["nan_steps"], 1.0)
    return (
        means
        | meter.before
        | {
            "staleness": stale / sampled,
            "padding_waste": 1.0 - used / max(computed, 1.0),
            "trained_tokens": tokens,
            "trained_tokens_per_s": tokens / max(seconds, 1e-9),
            "update_s": seconds,
            "grad_norm": plain["grad_norm"] / applied,
            "nan_steps": plain["nan_steps"],
            "num_steps": plain["steps"],
            "num_rows": num_rows,
            "truncated_sequences": cuts,
            "num_row_tokens": row_tokens,
            "num_computed_tokens": read_tokens * used / max(given, 1.0),
        }
    )


def write_tokens(
    path: Path, batch: TokenBatch, trajectories: Sequence[Trajectory], version: int, most: float = math.inf
) -> None:
    """Append the records of an update to a learner's file, of which the newest ``most`` bytes are kept.

    What cannot be written is logged and costs no update.
    """
    records = []
    for place, number in enumerate(batch.trajectory_ids.tolist()):
        trajectory = trajectories[number]
        if not trajectory.logged:
            continue
        tokens = slice(*batch.trajectory_offsets[place : place + 2].tolist())
        columns = {name: getattr(batch, name)[tokens] for name in TOKEN_COLUMNS}
        record = {
            "episode_id": trajectory.episode_id,
            "agent_id": trajectory.agent_id,
            "module_id": trajectory.module_id,
            "version": version,
            "rollout_sum": round(float(batch.rollout_logprobs[tokens].sum(dtype=np.float64)), 4),
        }
        for name, values in columns.items():
            if name in ALWAYS_THERE or np.isfinite(values).any():
                record[name] = [float(f"{v:.6g}") if math.isfinite(v) else None for v in values.tolist()]
        records.append(record)
    try:
        EpisodeLog(path).write(records)
        shorten(path, most)
    except OSError as error:
        logger.error("The tokens of an update could not be written to %s: %s", path, error)
