"""What an update knows of the tokens of logged episodes, written beside their log for whoever looks at them.

A record has, per learned token of a trajectory (forced ones and prompts are none), in the order they were sampled:
``old_logprobs``, ``advantages``, ``entropies``, and where there are any ``values``, ``ref_logprobs`` and
``importance_weights``. What was not computed is ``None``. ``version`` is of the weights before the update; with
``rollout_sum``, the sum of the sampler's log-probabilities, a record finds its episode where an iteration was played
again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.rollouts.episode_log import ALWAYS_THERE, TOKEN_COLUMNS, TOKENS, EpisodeLog, thin
from rllib_lmgame.rollouts.records import Trajectory

logger = logging.getLogger(__name__)


def mark_logged(batch: TokenBatch, trajectories: Sequence[Trajectory]) -> None:
    """Let the update keep the entropies of what is logged."""
    logged = np.array([trajectories[number].logged for number in batch.trajectory_ids.tolist()], bool)
    if logged.any():
        batch.shown = logged[batch.trajectory]


def token_records(batch: TokenBatch, trajectories: Sequence[Trajectory], version: int) -> Iterator[dict[str, Any]]:
    """Records of the logged trajectories of an update, which is over."""
    for place, number in enumerate(batch.trajectory_ids.tolist()):
        trajectory = trajectories[number]
        if not trajectory.logged:
            continue
        tokens = slice(*batch.trajectory_offsets[place : place + 2].tolist())
        columns = {name: getattr(batch, name)[tokens] for name in TOKEN_COLUMNS}
        yield {
            "episode_id": trajectory.episode_id,
            "agent_id": trajectory.agent_id,
            "module_id": trajectory.module_id,
            "version": version,
            "rollout_sum": round(float(batch.rollout_logprobs[tokens].sum(dtype=np.float64)), 4),
            **{
                name: _plain(values)
                for name, values in columns.items()
                if name in ALWAYS_THERE or np.isfinite(values).any()
            },
        }


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def write_tokens(
    directory: str,
    rank: int,
    batch: TokenBatch,
    trajectories: Sequence[Trajectory],
    version: int,
    most: int | None = None,
) -> None:
    """Append the records of an update to this learner's file, thinned out where it has more than ``most`` bytes.

    What cannot be written is told and costs no update.
    """
    records = list(token_records(batch, trajectories, version))
    if not records:
        return
    try:
        log = EpisodeLog(Path(directory) / f"learner-{rank}{TOKENS}")
        log.write(records)
    except OSError as error:
        logger.error("The tokens of an update could not be written to %s: %s", directory, error)
        return
    if most is not None:
        thin(log.path, most)
