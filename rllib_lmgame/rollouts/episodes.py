"""From played episodes to RLlib's ``MultiAgentEpisode`` and to the numbers that metrics are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rllib_lmgame.rollouts.play import PlayedEpisode
from rllib_lmgame.rollouts.seats import LanguageModelSeat, Seat
from rllib_lmgame.rollouts.trajectory import CUSTOM_DATA_KEY, Trajectory, trajectory_columns, trajectory_data

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode


@dataclass(slots=True)
class SeatSummary:
    """One player's numbers of one episode."""

    agent_id: str
    role: str
    module_id: str
    episode_return: float
    turns: int
    invalid_actions: int
    format_errors: int
    response_tokens: int
    prompt_tokens: int
    rows: int
    success: bool | None
    min_policy_version: int


@dataclass(slots=True)
class EpisodeSummary:
    """Numbers of one episode, small enough to send everywhere.

    ``success`` is the game's own verdict (any seat that reports one), ``None`` where the game reports none.
    """

    episode_id: str
    index: int
    game: int
    game_id: str
    seed: int
    terminated: bool
    stop_reason: str
    steps: int
    success: bool | None
    seats: list[SeatSummary] = field(default_factory=list)


def trajectory_of_seat(played: PlayedEpisode, seat: LanguageModelSeat) -> Trajectory:
    """The trajectory of one language-model seat; it has at least one turn."""
    final = seat.final_prompt
    return Trajectory(
        turns=seat.turns,
        terminated=played.terminated,
        role=seat.role,
        agent_id=seat.agent_id,
        module_id=seat.module_id,
        episode_id=played.plan.episode_id,
        group=played.plan.group,
        final_prompt_ids=None if final is None else final.delta,
        final_new_row=final is not None and final.new_row,
    )


def summarize(played: PlayedEpisode) -> EpisodeSummary:
    """The numbers of ``played``."""
    verdicts = {agent: info["success"] for agent, info in played.infos.items() if info.get("success") is not None}
    return EpisodeSummary(
        episode_id=played.plan.episode_id,
        index=played.plan.index,
        game=played.plan.game,
        game_id=played.game_id,
        seed=played.plan.seed,
        terminated=played.terminated,
        stop_reason=played.stop_reason.value,
        steps=len(played.steps),
        success=any(verdicts.values()) if verdicts else (False if len(played.seats) == 1 else None),
        seats=[_summarize_seat(seat, verdicts.get(agent)) for agent, seat in played.seats.items()],
    )


def _summarize_seat(seat: Seat, success: bool | None) -> SeatSummary:
    turns = seat.turns if isinstance(seat, LanguageModelSeat) else []
    return SeatSummary(
        agent_id=seat.agent_id,
        role=seat.role,
        module_id=seat.module_id,
        episode_return=seat.episode_return,
        turns=seat.turns_played,
        invalid_actions=seat.invalid_actions,
        format_errors=seat.format_errors if isinstance(seat, LanguageModelSeat) else 0,
        response_tokens=sum(len(turn.response_ids) for turn in turns),
        prompt_tokens=sum(len(turn.prompt_ids) for turn in turns),
        rows=sum(turn.new_row for turn in turns),
        success=None if success is None else bool(success),
        min_policy_version=min((turn.policy_version for turn in turns), default=0),
    )


def to_multi_agent_episode(played: PlayedEpisode) -> MultiAgentEpisode:
    """RLlib's episode: observations and actions are text, the token records stand in ``extra_model_outputs``.

    Rewards of a language-model seat are those of its turns, so the sum over turns is what the learner trains on.
    """
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    modules = {agent: seat.module_id for agent, seat in played.seats.items()}
    episode = MultiAgentEpisode(id_=played.plan.episode_id, agent_module_ids=dict(modules), agent_to_module_mapping_fn=_module_of)
    if not played.steps:
        return episode
    episode.add_env_reset(observations=dict(played.steps[0].observations))
    for position, step in enumerate(played.steps):
        last = position + 1 == len(played.steps)
        following = dict(played.final_observations) if last else dict(played.steps[position + 1].observations)
        if last:
            following = {agent: text for agent, text in following.items() if agent in episode.agent_episodes or agent in step.actions}
        episode.add_env_step(
            observations=following,
            actions=dict(step.actions),
            rewards={agent: reward for agent, reward in step.rewards.items() if agent in episode.agent_episodes},
            infos={agent: step.infos.get(agent, {}) for agent in following},
            terminateds={"__all__": last and played.terminated},
            truncateds={"__all__": last and not played.terminated},
        )
    for agent, single in episode.agent_episodes.items():
        _attach_turns(single, played, played.seats[agent])
    return episode


def _attach_turns(single: Any, played: PlayedEpisode, seat: Seat) -> None:
    single.module_id = seat.module_id
    if not isinstance(seat, LanguageModelSeat) or not seat.turns:
        return
    single.extra_model_outputs = _columns_as_buffers(seat, trajectory_columns(seat.turns))
    single.custom_data[CUSTOM_DATA_KEY] = trajectory_data(trajectory_of_seat(played, seat))
    for position, turn in enumerate(seat.turns):
        single.rewards.data[position] = turn.reward


def _columns_as_buffers(seat: LanguageModelSeat, columns: Mapping[str, list[Any]]) -> dict[str, Any]:
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

    return {name: InfiniteLookbackBuffer(data=values) for name, values in columns.items()}


def _module_of(agent_id: str, episode: MultiAgentEpisode, **kwargs: Any) -> str:
    return str(episode._agent_to_module_mapping[agent_id])
