"""The RLlib episodes that trajectories travel in, and the rows they become; for tests that make or read their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.datasets.options import SupervisedOptions
from rllib_lmgame.datasets.replay import RecordedSession
from rllib_lmgame.datasets.sft import SFTDataset
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.rollouts.collect import collect_games
from rllib_lmgame.rollouts.play import PlayedEpisode
from rllib_lmgame.rollouts.players import Scripted
from rllib_lmgame.rollouts.records import GameConfig, Trajectory, store


def logged(path: str | Path) -> SFTDataset:
    """The episodes of a log in its order."""
    return SFTDataset(SupervisedOptions(data=str(path), shuffle_seed=None), {"player": 1024})


def sessions(path: str | Path) -> list[RecordedSession]:
    """Those episodes as games."""
    return logged(path).training  # type: ignore[return-value]


def collected(
    game: str, env_config: dict[str, Any] | None = None, *, player: str = "solver", episodes: int = 1, seed: int = 0
) -> list[PlayedEpisode]:
    """Games of a scripted player in every seat."""
    config = GameConfig(env=game, env_config=env_config or {})
    made = collect_games(config, Scripted(player), episodes=episodes, seed=seed)
    return [played for some in made for played in some.episodes]


def part_of(trajectory: Trajectory) -> SingleAgentEpisode:
    """One player's part; what was seen before turn ``i`` reads ``turn i of`` its group."""
    turns = trajectory.turns
    part = SingleAgentEpisode(
        agent_id=trajectory.agent_id,
        module_id=trajectory.module_id,
        observations=[f"turn {i} of {trajectory.group}" for i in range(len(turns) + 1)],
        actions=["a"] * len(turns),
        rewards=[turn.reward for turn in turns],
        infos=[{}] * (len(turns) + 1),
        terminated=trajectory.terminated,
        truncated=not trajectory.terminated,
        multi_agent_episode_id=trajectory.episode_id or None,
        len_lookback_buffer=0,
    )
    store(trajectory, part)
    return part


def episode_of(*parts: SingleAgentEpisode) -> MultiAgentEpisode:
    """An episode of one part for each of its players."""
    episode = MultiAgentEpisode()
    episode.agent_episodes = {part.agent_id: part for part in parts}
    return episode


@dataclass
class Row:
    """One row of a batch, its arrays over all ``L`` tokens: 0 (``turn`` and ``policy_version``: -1) where no action is.

    ``turn`` counts the replies of the trajectory.
    """

    input_ids: np.ndarray
    loss_mask: np.ndarray
    rollout_logprobs: np.ndarray
    rewards: np.ndarray
    policy_version: np.ndarray
    turn: np.ndarray
    weights: np.ndarray
    observed: np.ndarray
    trajectory: int
    needs_bootstrap: bool
    role: str
    game: str
    episode: str

    def __len__(self) -> int:
        return len(self.input_ids)


def rows_of(trajectories: Sequence[Trajectory], *, max_row_tokens: int = 128, **options: Any) -> list[Row]:
    """The rows that trajectories become."""
    options = {"observations": True} | options
    return rows_in_batch(TokenBatch.from_trajectories(trajectories, max_row_tokens=max_row_tokens, **options))


def rows_in_batch(batch: TokenBatch) -> list[Row]:
    bounds = [*batch._row_starts.tolist(), batch.num_tokens]
    first_turn = np.searchsorted(batch.turn_offsets, batch.trajectory_offsets)
    found = []
    for number, (a, b) in enumerate(pairwise(bounds)):
        slots, owner = slice(*batch._row_actions[number : number + 2].tolist()), int(batch.row_trajectory[number])
        at = batch._action_position[slots] - a

        def spread(values: np.ndarray, rest: Any, at: np.ndarray = at, size: int = b - a) -> np.ndarray:
            whole = np.full(size, rest, values.dtype)
            whole[at] = values
            return whole

        marked = batch._observed_position[(batch._observed_position >= a) & (batch._observed_position < b)] - a
        found.append(
            Row(
                input_ids=batch._ids[a:b],
                loss_mask=spread(np.ones(len(at), bool), False),
                rollout_logprobs=spread(batch.rollout_logprobs[slots], 0),
                rewards=spread(batch.rewards[slots], 0),
                policy_version=spread(batch.policy_version[slots], -1),
                turn=spread(batch.turn[slots] - first_turn[owner], -1),
                weights=spread(batch.action_weights[slots], 0),
                observed=np.isin(np.arange(b - a), marked),
                trajectory=int(batch.trajectory_ids[owner]),
                needs_bootstrap=bool(batch._row_bootstrap[number]),
                role=batch.roles[batch.role[owner]],
                game=batch.games[batch.game[owner]],
                episode=batch.episodes[owner],
            )
        )
    return found
