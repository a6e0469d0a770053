"""What travels between the driver and whoever plays: games, settings, and what came of the episodes
(their plans: :mod:`.plans`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    from rllib_lmgame.rollouts.trajectory import Turn

TEXT_SPACE = gym.spaces.Text(max_length=1_000_000, charset=gym.spaces.text.alphanumeric)
"""Observation and action space of every policy, as RLlib wants to have one."""


@dataclass(frozen=True)
class GameConfig:
    """One game to be played.

    Attributes:
        env: Id or import path.
        env_config: Its configuration.
        weight: Share of the episodes, relative to the other games.
    """

    env: str
    env_config: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def key(self) -> str:
        """The same for the same game with the same configuration."""
        return f"{self.env}|{sorted(self.env_config.items(), key=lambda item: item[0])!r}"


@dataclass(frozen=True)
class PlaySettings:
    """How a set of plans is played.

    Attributes:
        games: What ``EpisodePlan.game`` points into.
        temperature: Overrides the sampling temperature.
        seeded: A seed for every request.
        expert: Scripted player that writes the replies instead of the engine (supervised data).
        log: File name of the episode log, or ``None``.
        keep: ``episodes`` (RLlib episodes) or ``nothing`` (numbers only).
        members: Weights that are not a policy's present ones -> the engines that hold them just now.
        rollouts, inference: Sections that stand instead of the configuration's, where a schedule changes them.
        language_model: Options of that section which do; a policy's own stay.
    """

    games: tuple[GameConfig, ...]
    temperature: float | None = None
    seeded: bool = False
    expert: str | None = None
    log: str | None = None
    keep: str = "episodes"
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rollouts: TextRolloutOptions | None = None
    inference: InferenceOptions | None = None
    language_model: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Failure:
    """An episode that was dropped."""

    plan: EpisodePlan
    reason: str
    message: str


@dataclass(slots=True)
class SeatSummary:
    """One player's numbers of one episode.

    ``trained`` says whether the seat is the learner's own. ``success`` is the game's own verdict on the player,
    ``None`` where it gives none. ``outcome`` is ``win``, ``draw`` or ``loss`` in a game against others, else ``None``.
    ``measures`` are the numbers of its own that the game reported at the player's end. ``member`` names the weights
    that replied where they were not the policy's present ones. ``illegal_actions`` are invalid ones that were read,
    ``unread`` is the first reply without a readable answer, shortened.
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
    """One turn of a language model: its unscaled reward, the tokens of the reply, and whether any of them could have
    been another.
    """

    reward: float
    tokens: int
    has_choice: bool

    @classmethod
    def of(cls, turn: Turn) -> TurnNumbers:
        """Those of a turn."""
        return cls(turn.reward, len(turn.response_ids), turn.has_choice)


@dataclass(slots=True)
class EpisodeSummary:
    """Numbers of one episode, small enough to send everywhere.

    ``success`` is that of the trained seats (of all, where none is trained): the share of them that won, 0 or 1 for
    one seat. It is ``None`` where they play only against each other, since somebody wins every decided game (see
    the seats' ``outcome``). ``level`` is the digest of the level, which many seeds may draw; ``None`` where the game
    names none. ``continued`` is of an episode that went on from a state of another one: the turns of
    its language models from there on.
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


@dataclass
class PlayResult:
    """What came of a set of plans: everything in the order of ``EpisodePlan.index``.

    ``aborted`` are the ids of episodes that were left behind when enough others had finished.
    """

    episodes: list[MultiAgentEpisode] = field(default_factory=list)
    summaries: list[EpisodeSummary] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    error: Exception | None = None

    def extend(self, other: PlayResult) -> None:
        """Take in another runner's result."""
        self.episodes.extend(other.episodes)
        self.summaries.extend(other.summaries)
        self.failures.extend(other.failures)
        self.aborted.extend(other.aborted)
        self.wall_s = max(self.wall_s, other.wall_s)
        self.error = self.error or other.error
