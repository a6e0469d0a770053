"""What travels between the driver, the players and the learner (plans: :mod:`.plans`).

Turns travel in RLlib's ``SingleAgentEpisode`` as the column ``turn`` of ``extra_model_outputs``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rllib_lmgame.inference.protocol import AllowedTokens
from rllib_lmgame.rollouts.plans import AgentAssignments, EpisodePlan
from rllib_lmgame.settings.sections.games import GameConfig as GameConfig
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer


TEXT_SPACE = gym.spaces.Text(max_length=1_000_000, charset=gym.spaces.text.alphanumeric)
"""Observation and action space of every policy, as RLlib wants to have one."""


@dataclass(frozen=True)
class PlaySettings:
    """How a set of plans is played.

    Attributes:
        games: ``EpisodePlan.game`` is an index into them.
        temperature: Overrides the sampling temperature.
        seeded: A seed for every request.
        expert: Scripted player that writes the replies instead of the engine (supervised data).
        log: File name of the episode log.
        log_most: Episodes that are written, over all env runners; ``None``: all.
        keep: ``episodes`` (RLlib episodes) or ``nothing`` (numbers only).
        members: Weights that are not a policy's current ones -> the engines that hold them now.
        rollouts, inference: In place of the configuration's sections where a schedule changes them.
        language_model: Changed options of that section; a policy's own stay.
        oldest_version: Of the weights that may have sampled a reply of a trained seat; ``None``: any.
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
    """One player's numbers of one episode.

    ``trained``: the seat is the learner's own. ``success`` is the game's verdict on the player, if it gives one,
    ``outcome`` ``win``, ``draw`` or ``loss`` against others. ``measures`` are the game's own numbers. ``member`` names
    weights that were not the policy's current ones. ``illegal_actions`` are invalid ones that could be read; ``unread``
    is the first reply without a readable answer, shortened.
    """

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
    outcome: str | None = None
    trained: bool = True
    member: str | None = None
    measures: dict[str, float] = field(default_factory=dict)
    illegal_actions: int = 0
    unread: str | None = None


@dataclass(slots=True)
class TurnNumbers:
    """One turn of a language model: its unscaled reward, the reply's tokens, and whether a token was a free choice."""

    reward: float
    tokens: int
    has_choice: bool

    @classmethod
    def of(cls, turn: Turn) -> TurnNumbers:
        return cls(turn.reward, len(turn.response_ids), turn.has_choice)


@dataclass(slots=True)
class EpisodeSummary:
    """Numbers of one episode, small enough to send everywhere.

    ``success`` is the share of trained seats that won (of all seats if none is trained); ``None`` where trained seats
    play only each other, since somebody wins every decided game. ``level`` is the digest of the level, which many seeds
    may draw; ``category`` is the kind of level, where the game tells one. ``continued`` has the turns after the state
    that an episode went on from. ``num_levels`` is the number of levels of a game that is a list of them, else 0.
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
    continued: dict[str, list[TurnNumbers]] = field(default_factory=dict)
    category: str | None = None
    num_levels: int = 0


@dataclass
class PlayResult:
    """Results of plans in the order of ``EpisodePlan.index``.

    ``aborted`` are ids left behind when enough had finished; ``wall_s`` is how long it took, of several runners the
    longest. ``metrics`` is what callbacks logged, of each runner.
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
"""Key in ``custom_data`` of RLlib's episodes: a player's :class:`Trajectory` without its turns; in the whole episode,
the assignment.
"""


@dataclass(slots=True)
class Turn:
    """One reply of a model and what the game did with it (one RLlib agent step).

    It holds the ids that were sampled, never text that would have to be tokenised again.

    Attributes:
        prompt_ids: int32; the ids between the previous reply and this one (a delta), or all if ``new_row``.
        response_ids: int32 ``[n]``; the sampled ids, stop token included.
        rollout_logprobs: float32 ``[n]``.
        reward: What the reply earned (unscaled), known once the player acts again or the episode ends.
        policy_version: Version of the weights that sampled the reply.
        new_row: The prompt does not continue the previous row (first turn, window history, stripped reasoning).
        stop_reason: Value of :class:`~rllib_lmgame.inference.protocol.StopReason`.
        allowed: With constrained decoding, the ids each token was chosen among; log-probabilities are among them.
        observation: :func:`observation_key` of the text the player saw; 0 if unknown.
        value: Of the state before the turn, unscaled, from rollouts that began there; NaN without any.
        weight: What the supervised loss of the reply's tokens counts; above 0.
        moves: With constrained decoding, the legal moves that the reply was one of; they do not travel.
        choice_logprobs: Of all that ``allowed`` lists, where the engine gives them; they do not travel.
        observed: bool, over ``prompt_ids``: what the game has said since the last reply. ``None``: nobody asked.
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
    weight: float = 1.0
    moves: tuple[str, ...] = ()
    choice_logprobs: np.ndarray | None = None
    observed: np.ndarray | None = None

    @property
    def has_choice(self) -> bool:
        """Whether a token of the reply could have been another."""
        return len(self.response_ids) > 0 and (self.allowed is None or bool((self.allowed.counts != 1).any()))


@dataclass(slots=True)
class Trajectory:
    """One player's view of one episode.

    Attributes:
        turns: In order; at least one.
        terminated: The game ended, or its turn limit did and the limit is part of the task; else it was truncated.
        role: Kind of seat, for per-role normalisation.
        module_id: Weights that played.
        episode_id: RLlib's id of the episode.
        group: Same group: same seed of the same game. Empty if the episode stands alone.
        temperature, reward_scale: What the game's entry says in place of everybody's; ``None``: nothing.
        final_prompt_ids: Truncated only: the ids that show the last state (a delta, or all if ``final_new_row``); the
            value at their last token is the bootstrap value.
        final_observed: As a turn's ``observed``, over ``final_prompt_ids``.
        logged: The episode stands in a log.
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
    """Put a trajectory into RLlib's episode of its player, without the legal moves."""
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

    turns = [replace(turn, moves=(), choice_logprobs=None) if turn.moves else turn for turn in trajectory.turns]
    part.extra_model_outputs[TURN] = InfiniteLookbackBuffer(turns)
    part.custom_data[CUSTOM_DATA_KEY] = replace(trajectory, turns=[])


def assignments_of(episode: MultiAgentEpisode) -> AgentAssignments:
    """Who sat where in ``episode``; empty if nobody said so."""
    assignments: AgentAssignments = episode.custom_data.get(CUSTOM_DATA_KEY, {})
    return assignments


def played_parts(episode: MultiAgentEpisode, modules: Collection[str] | None = None) -> Iterator[SingleAgentEpisode]:
    """In order, the parts of agents that acted and are trained (without assignments: all), of ``modules`` or of all."""
    assignments = assignments_of(episode)
    for agent, part in episode.agent_episodes.items():
        trained = agent not in assignments or assignments[agent].trained
        if len(part) and trained and (modules is None or part.module_id in modules):
            yield part


def turns_of(part: SingleAgentEpisode) -> list[Turn]:
    """The turns as they were stored: rewards and observations may have changed since in the episode."""
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
    """What the episode holds in ``buffer``, read directly: the buffer's own indexing costs 30 microseconds an item."""
    return buffer.data[buffer.lookback :]
