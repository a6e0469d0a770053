"""What travels between the driver, the players and the learner (plans: :mod:`.plans`).

Turns travel inside RLlib's ``SingleAgentEpisode`` as ``extra_model_outputs``, one column per field.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rllib_lmgame.inference.protocol import AllowedTokens
from rllib_lmgame.rollouts.plans import EpisodePlan, LineUp
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

OBSERVED = "observed"
"""Column of an episode that tells which tokens of its prompts are the game's text."""

WEIGHT = "loss_weight"
"""Column of an episode in which some reply counts otherwise than 1."""

CUSTOM_DATA_KEY = "lmgame"
"""Key in ``custom_data`` of RLlib's episodes: what is not per turn; in the whole episode, the line-up."""


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


def trajectory_columns(turns: Sequence[Turn]) -> dict[str, list[Any]]:
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
    if any(t.weight != 1.0 for t in turns):
        columns[WEIGHT] = [t.weight for t in turns]
    if any(t.observed is not None for t in turns):
        columns[OBSERVED] = [t.observed for t in turns]
    return columns


def trajectory_data(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "role": trajectory.role,
        "group": trajectory.group,
        "game": trajectory.game,
        "final_prompt_ids": trajectory.final_prompt_ids,
        "final_new_row": trajectory.final_new_row,
        "temperature": trajectory.temperature,
        "reward_scale": trajectory.reward_scale,
        "logged": trajectory.logged,
        "final_observed": trajectory.final_observed,
    }


def line_up_of(episode: MultiAgentEpisode) -> LineUp:
    """Who sat where in ``episode``; empty if nobody said so."""
    line_up: LineUp = episode.custom_data.get(CUSTOM_DATA_KEY, {})
    return line_up


def played_parts(episode: MultiAgentEpisode, modules: Collection[str] | None = None) -> Iterator[SingleAgentEpisode]:
    """In order, the parts of agents that acted and are trained (without a line-up: all), of ``modules`` or of all."""
    line_up = line_up_of(episode)
    for agent, part in episode.agent_episodes.items():
        trained = agent not in line_up or line_up[agent].trained
        if len(part) and trained and (modules is None or part.module_id in modules):
            yield part


def trajectory_of(episode: SingleAgentEpisode) -> Trajectory:
    """The trajectory that travels in ``episode`` (shapes as stored; nothing is copied)."""
    outputs = {column: items_of(episode.extra_model_outputs[column]) for column in COLUMNS}
    rewards = items_of(episode.rewards)
    seen = items_of(episode.observations)
    given = episode.extra_model_outputs
    allowed = items_of(given[ALLOWED]) if ALLOWED in given else [None] * len(rewards)
    values = items_of(given[STATE_VALUE]) if STATE_VALUE in given else [math.nan] * len(rewards)
    weights = items_of(given[WEIGHT]) if WEIGHT in given else [1.0] * len(rewards)
    observed = items_of(given[OBSERVED]) if OBSERVED in given else [None] * len(rewards)
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
            weight=float(weights[i]),
            observed=observed[i],
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
        temperature=data.get("temperature"),
        reward_scale=data.get("reward_scale"),
        logged=data.get("logged", False),
        final_observed=data.get("final_observed"),
    )


def observation_key(text: str) -> int:
    """A 64-bit key of an observation, the same in every process; any text works, also with half a surrogate pair."""
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True
    )


def items_of(buffer: InfiniteLookbackBuffer) -> list[Any]:
    """What the episode holds in ``buffer``, read directly: the buffer's own indexing costs 30 microseconds an item."""
    return buffer.data[buffer.lookback :]
