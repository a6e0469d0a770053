"""Records that the driver, the env runners and the learner exchange (plans: :mod:`.plans`).

Turns are the column ``turn`` of ``extra_model_outputs`` in RLlib's ``SingleAgentEpisode``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import AllowedTokens, Versions
from rllib_lmgame.rollouts.options import GameConfig as GameConfig
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignments, EpisodePlan

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer


TEXT_SPACE = gym.spaces.Text(max_length=1_000_000, charset=gym.spaces.text.alphanumeric)
"""Observation and action space of every policy, which RLlib asks for."""


@dataclass(frozen=True)
class PlaySettings:
    """How a set of plans is played.

    Attributes:
        games: ``EpisodePlan.game`` is an index into them.
        temperature: Overrides the sampling temperature.
        seeded: A seed for every request.
        expert: Scripted player that writes the replies in place of the engine (supervised data).
        log: File name of the episode log.
        log_most: Episodes that are logged, over all env runners; ``None``: all.
        keep: ``episodes`` (RLlib episodes) or ``nothing`` (numbers only).
        members: League member -> the engines that hold its weights now.
        rollouts, inference: Replace the configuration's sections where a schedule changes them.
        language_model: Options of that section that a schedule changes; a policy's own options take precedence.
        oldest_version: Oldest weights that may sample a reply of a trained seat; ``None``: any.
    """

    games: tuple[GameConfig, ...]
    temperature: float | None = None
    seeded: bool = False
    expert: str | None = None
    log: str | None = None
    log_most: int | None = None
    keep: str = "episodes"
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rollouts: TextRolloutOptions | None = None
    inference: InferenceOptions | None = None
    language_model: Mapping[str, Any] = field(default_factory=dict)
    oldest_version: int | None = None


@dataclass
class Failure:
    """An episode that was dropped."""

    plan: EpisodePlan
    reason: str
    message: str


@dataclass(slots=True)
class SeatSummary:
    """Numbers of one player in one episode.

    ``episode_return`` is the sum of all rewards, unscaled. ``format_errors`` are replies without a readable answer.
    ``trained``: the policy learns from this seat. ``success`` is the game's verdict on the player, if it gives one;
    ``outcome`` is ``win``, ``draw`` or ``loss`` against others. ``measures`` are the game's own numbers. ``member``
    names the league member that played, if one did. ``illegal_actions`` are invalid actions that could be read;
    ``unread`` is the first reply without a readable answer, shortened.
    """

    agent_id: str
    role: str
    module_id: str
    episode_return: float = 0.0
    turns: int = 0
    invalid_actions: int = 0
    format_errors: int = 0
    response_tokens: int = 0
    prompt_tokens: int = 0
    rows: int = 0
    success: bool | None = None
    min_policy_version: int = 0
    outcome: str | None = None
    trained: bool = True
    member: str | None = None
    measures: dict[str, float] = field(default_factory=dict)
    illegal_actions: int = 0
    unread: str | None = None


@dataclass(slots=True)
class EpisodeSummary:
    """Numbers of one episode, small enough to send everywhere.

    ``success`` is the share of trained seats that won (of all seats if none is trained); ``None`` in self-play, where
    one seat wins every decided game. ``level`` is the digest of the level, which many seeds may draw; ``category`` is
    the kind of level, if the game names one. ``num_levels`` is the number of levels of a game that lists them, else 0.
    """

    episode_id: str
    index: int
    game: int
    game_id: str
    seed: int
    terminated: bool
    stop_reason: str
    steps: int
    success: float | None
    level: str | None = None
    seats: list[SeatSummary] = field(default_factory=list)
    category: str | None = None
    num_levels: int = 0


@dataclass
class PlayResult:
    """Results of plans in the order of ``EpisodePlan.index``.

    ``aborted`` are ids of episodes that were stopped once enough had finished; ``wall_s`` is the time of the slowest
    runner. ``metrics`` is what callbacks logged, per runner.
    """

    episodes: list[MultiAgentEpisode] = field(default_factory=list)
    summaries: list[EpisodeSummary] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    error: Exception | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def extend(self, other: PlayResult) -> None:
        self.episodes.extend(other.episodes)
        self.summaries.extend(other.summaries)
        self.failures.extend(other.failures)
        self.aborted.extend(other.aborted)
        self.metrics.extend(other.metrics)
        self.wall_s = max(self.wall_s, other.wall_s)
        self.error = self.error or other.error

    def choose(self, places: Sequence[int]) -> None:
        """Keep the episodes at these places, in this order."""
        self.summaries = [self.summaries[i] for i in places]
        if self.episodes:
            self.episodes = [self.episodes[i] for i in places]


TURN = "turn"
"""Column of RLlib's episode: a :class:`Turn` per agent step."""

CUSTOM_DATA_KEY = "lmgame"
"""Key in ``custom_data``: a player's :class:`Trajectory` without turns, or the assignments of the whole episode."""


@dataclass(slots=True)
class Turn:
    """One reply of a model and what the game did with it (one RLlib agent step); its ids are those that were sampled.

    Attributes:
        prompt_ids: int32; the ids between the previous reply and this one (a delta), or all if ``new_row``.
        response_ids: int32 ``[n]``; the sampled ids, stop token included.
        rollout_logprobs: float32 ``[n]``.
        reward: Unscaled reward of the reply, known once the player acts again or the episode ends.
        policy_version: Version of the weights that sampled the reply's first token.
        later_versions: Where the weights changed in flight: number of a token, and the version from it on.
        new_row: The prompt does not continue the previous row (first turn, window history, stripped reasoning).
        stop_reason: Value of :class:`~rllib_lmgame.inference.protocol.StopReason`.
        allowed: With constrained decoding, the ids each token was chosen among; log-probabilities are among them.
        observation: :func:`observation_key` of the text the player saw; 0 if unknown.
        weight: Weight of the reply's tokens in the supervised loss; above 0.
        observed: bool over ``prompt_ids``: text of the game since the last reply. ``None``: not needed.
        routed_experts: uint8 or uint16 ``[prompt_ids + response_ids, layers, k]``: the experts of each token, the
            largest number where they are not known. ``None``: the engine has not told, or there are none.
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
    weight: float = 1.0
    observed: np.ndarray | None = None
    routed_experts: np.ndarray | None = None
    later_versions: Versions = ()

    @property
    def has_choice(self) -> bool:
        """Whether a token of the reply could have been another."""
        return len(self.response_ids) > 0 and (self.allowed is None or bool((self.allowed.counts != 1).any()))


@dataclass(slots=True)
class Trajectory:
    """One player's view of one episode.

    Attributes:
        turns: In order; at least one.
        terminated: The game ended, or its turn limit was reached and is part of the task; else it was truncated.
        role: Kind of seat, for per-role normalisation.
        module_id: Weights that played.
        episode_id: RLlib's id of the episode.
        group: Episodes of a group share game and seed; empty: no group.
        temperature, reward_scale: Options of the game's entry, if it has them.
        final_prompt_ids: If truncated, the ids that show the last state (a delta, or all if ``final_new_row``); the
            value at the last of them is the bootstrap value.
        final_observed: ``observed`` over ``final_prompt_ids``.
        logged: The episode is in the episode log.
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
    temperature: float | None = None
    reward_scale: float | None = None
    logged: bool = False
    final_observed: np.ndarray | None = None


def store(trajectory: Trajectory, part: SingleAgentEpisode) -> None:
    """Put a trajectory into RLlib's episode of its player."""
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

    part.extra_model_outputs[TURN] = InfiniteLookbackBuffer([*trajectory.turns])
    part.custom_data[CUSTOM_DATA_KEY] = replace(trajectory, turns=[])


def assignments_of(episode: MultiAgentEpisode) -> AgentAssignments:
    assignments: AgentAssignments = episode.custom_data.get(CUSTOM_DATA_KEY, {})
    return assignments


def played_parts(episode: MultiAgentEpisode, modules: Collection[str] | None = None) -> Iterator[SingleAgentEpisode]:
    """Parts of agents that acted and are trained (all, without assignments), of ``modules`` or of all modules."""
    assignments = assignments_of(episode)
    for agent, part in episode.agent_episodes.items():
        trained = agent not in assignments or assignments[agent].trained
        if len(part) and trained and (modules is None or part.module_id in modules):
            yield part


def turns_of(part: SingleAgentEpisode) -> list[Turn]:
    """The turns as they were stored; rewards and observations of the episode may have changed since."""
    return items_of(part.extra_model_outputs[TURN])


def trajectory_of(part: SingleAgentEpisode) -> Trajectory:
    """The trajectory in RLlib's episode of a player, with the rewards and observations of the episode."""
    about: Trajectory = part.custom_data[CUSTOM_DATA_KEY]
    steps = zip(turns_of(part), items_of(part.rewards), items_of(part.observations), strict=False)
    return replace(
        about,
        turns=[
            replace(turn, reward=float(reward), observation=observation_key(str(seen))) for turn, reward, seen in steps
        ],
        terminated=bool(part.is_terminated) or about.final_prompt_ids is None,
        agent_id=str(part.agent_id),
        module_id=str(part.module_id),
        episode_id=str(part.multi_agent_episode_id),
    )


def observation_key(text: str) -> int:
    """A 64-bit key of an observation, the same in every process; any text works, also with half a surrogate pair."""
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True
    )


def items_of(buffer: InfiniteLookbackBuffer) -> list[Any]:
    """The items of ``buffer``, read directly: the buffer's own indexing costs 30 microseconds an item."""
    return buffer.data[buffer.lookback :]
