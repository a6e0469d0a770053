"""Turn records: what the sampler hands to the learner.

A *turn* is one reply of a model and what the game did with it (one RLlib agent step). It holds the ids that were
sampled, never text that would have to be tokenised again. A *trajectory* is one player's view of one episode.
Turns travel inside RLlib's ``SingleAgentEpisode`` as ``extra_model_outputs`` (one column per field below).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_lmgame.inference.choices import AllowedTokens
from rllib_lmgame.rollouts.plans import LineUp

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

PROMPT_IDS = "prompt_ids"
RESPONSE_IDS = "response_ids"
ROLLOUT_LOGPROBS = "rollout_logprobs"
POLICY_VERSION = "policy_version"
NEW_ROW = "new_row"
STOP_REASON = "stop_reason"
COLUMNS = (PROMPT_IDS, RESPONSE_IDS, ROLLOUT_LOGPROBS, POLICY_VERSION, NEW_ROW, STOP_REASON)
ALLOWED = "allowed"
"""Column of an episode in which some reply had to be one of a few."""

STATE_VALUE = "state_value"
"""Column of an episode from whose states rollouts were played; NaN where none was wanted."""

CUSTOM_DATA_KEY = "lmgame"
"""Key in ``custom_data`` of RLlib's episodes: a player's own holds what of its trajectory is not per turn, the whole
one the line-up.
"""


@dataclass(slots=True)
class Turn:
    """One reply.

    Attributes:
        prompt_ids: int32; the ids between the previous reply and this one (a delta), or the whole prompt if
            ``new_row``.
        response_ids: int32 ``[n]``; the sampled ids, stop token included.
        rollout_logprobs: float32 ``[n]``.
        reward: What the reply earned (unscaled), known once the player acts again or the episode ends.
        policy_version: Version of the weights that sampled the reply.
        new_row: The prompt does not continue the previous row (first turn, window history, stripped reasoning).
        stop_reason: Value of :class:`~rllib_lmgame.inference.protocol.StopReason`.
        allowed: What each token was chosen among, where decoding was constrained; its log-probability is that among
            them.
        observation: Key of the text the player saw, equal for equal texts (:func:`observation_key`); 0
            where it is not known.
        value: Of the state before the turn, unscaled, as rollouts from it gave; NaN where there were none.
    """

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    rollout_logprobs: np.ndarray
    reward: float = 0.0
    policy_version: int = 0
    new_row: bool = False
    stop_reason: str = "eos"
    allowed: AllowedTokens | None = None
    observation: int = 0
    value: float = math.nan

    @property
    def has_choice(self) -> bool:
        """Whether a token of the reply could have been another."""
        return len(self.response_ids) > 0 and (self.allowed is None or bool((self.allowed.counts != 1).any()))


@dataclass(slots=True)
class Trajectory:
    """One player's view of one episode.

    Attributes:
        turns: In the order they were played; at least one.
        terminated: Nothing of value follows: the game ended, or its turn limit did and the limit is part of the task.
            If false the trajectory was truncated and ``final_prompt_ids`` is set.
        role: Kind of seat, for per-role normalisation.
        agent_id: Seat.
        module_id: Weights that played.
        episode_id: RLlib's id of the episode.
        group: Episodes with the same group were started from the same seed of the same game; empty where an episode
            stands alone.
        game: Name of the game.
        final_prompt_ids: Truncated only: the ids that show the last state (a delta, or a whole prompt if
            ``final_new_row``); the value at their last token is the bootstrap value.
        final_new_row: See above.
    """

    turns: list[Turn]
    terminated: bool
    role: str = "player"
    agent_id: str = "player"
    module_id: str = "player"
    episode_id: str = ""
    group: str = ""
    game: str = ""
    final_prompt_ids: np.ndarray | None = None
    final_new_row: bool = False


def trajectory_columns(turns: Sequence[Turn]) -> dict[str, list[Any]]:
    """``extra_model_outputs`` of an episode with these turns."""
    columns: dict[str, list[Any]] = {
        PROMPT_IDS: [t.prompt_ids for t in turns],
        RESPONSE_IDS: [t.response_ids for t in turns],
        ROLLOUT_LOGPROBS: [t.rollout_logprobs for t in turns],
        POLICY_VERSION: [t.policy_version for t in turns],
        NEW_ROW: [t.new_row for t in turns],
        STOP_REASON: [t.stop_reason for t in turns],
    }
    if any(t.allowed is not None for t in turns):
        columns[ALLOWED] = [t.allowed for t in turns]
    return columns


def trajectory_data(trajectory: Trajectory) -> dict[str, Any]:
    """``custom_data[CUSTOM_DATA_KEY]`` of the episode of ``trajectory``."""
    return {
        "role": trajectory.role,
        "group": trajectory.group,
        "game": trajectory.game,
        "final_prompt_ids": trajectory.final_prompt_ids,
        "final_new_row": trajectory.final_new_row,
    }


def line_up_of(episode: MultiAgentEpisode) -> LineUp:
    """Who sat where in ``episode``; empty if nobody said so."""
    line_up: LineUp = episode.custom_data.get(CUSTOM_DATA_KEY, {})
    return line_up


def trajectory_of(episode: SingleAgentEpisode) -> Trajectory:
    """The trajectory that travels in ``episode`` (shapes as stored; nothing is copied)."""
    outputs = {column: items_of(episode.extra_model_outputs[column]) for column in COLUMNS}
    rewards = items_of(episode.rewards)
    seen = items_of(episode.observations)
    allowed = (
        items_of(episode.extra_model_outputs[ALLOWED])
        if ALLOWED in episode.extra_model_outputs
        else [None] * len(rewards)
    )
    values = (
        items_of(episode.extra_model_outputs[STATE_VALUE])
        if STATE_VALUE in episode.extra_model_outputs
        else [math.nan] * len(rewards)
    )
    turns = [
        Turn(
            prompt_ids=outputs[PROMPT_IDS][i],
            response_ids=outputs[RESPONSE_IDS][i],
            rollout_logprobs=outputs[ROLLOUT_LOGPROBS][i],
            reward=float(rewards[i]),
            policy_version=int(outputs[POLICY_VERSION][i]),
            new_row=bool(outputs[NEW_ROW][i]),
            stop_reason=str(outputs[STOP_REASON][i]),
            allowed=allowed[i],
            observation=observation_key(str(seen[i])),
            value=float(values[i]),
        )
        for i in range(len(rewards))
    ]
    data = episode.custom_data[CUSTOM_DATA_KEY]
    return Trajectory(
        turns=turns,
        terminated=bool(episode.is_terminated) or data["final_prompt_ids"] is None,
        role=data["role"],
        agent_id=str(episode.agent_id),
        module_id=str(episode.module_id),
        episode_id=str(episode.multi_agent_episode_id),
        group=data["group"],
        game=data["game"],
        final_prompt_ids=data["final_prompt_ids"],
        final_new_row=data["final_new_row"],
    )


def observation_key(text: str) -> int:
    """A 64-bit key of an observation, the same in every process. Any text has one, also one with half a surrogate pair
    (a program's output, say).
    """
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True
    )


def items_of(buffer: InfiniteLookbackBuffer) -> list[Any]:
    """What the episode holds in ``buffer``. Its list is read directly: the buffer's own indexing costs 30 microseconds
    an item.
    """
    return buffer.data[buffer.lookback :]
