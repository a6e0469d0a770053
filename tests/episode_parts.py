"""The RLlib episodes that trajectories travel in; for tests that make their own, or read those of a log."""

from __future__ import annotations

from pathlib import Path

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_lmgame.rollouts.log.replay import RecordedSession
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, Trajectory, trajectory_columns, trajectory_data
from rllib_lmgame.rollouts.taught.source import TaughtEpisodes
from rllib_lmgame.settings.sections.supervised import SupervisedOptions


def logged(path: str | Path) -> TaughtEpisodes:
    """The episodes of a log in its order."""
    return TaughtEpisodes(SupervisedOptions(data=str(path), shuffle_seed=None), {"player": 1024})


def sessions(path: str | Path) -> list[RecordedSession]:
    """Those episodes as games."""
    return [session for _, session in logged(path).training]  # type: ignore[misc]


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
        extra_model_outputs=trajectory_columns(turns),
        multi_agent_episode_id=trajectory.episode_id or None,
        len_lookback_buffer=0,
    )
    part.custom_data[CUSTOM_DATA_KEY] = trajectory_data(trajectory)
    return part


def episode_of(*parts: SingleAgentEpisode) -> MultiAgentEpisode:
    """An episode of one part for each of its players."""
    episode = MultiAgentEpisode()
    episode.agent_episodes = {part.agent_id: part for part in parts}
    return episode
