"""Monte Carlo values of states, between play and update, for estimators that need them (``vine``).

From each state in which a trained player acted, the present policies play several rollouts, in one batch. These are not
trained on and count only in their own metrics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.options import OverlongOptions
from rllib_lmgame.rollouts.plans import Beginning, EpisodePlan, Recording
from rllib_lmgame.rollouts.records import (
    TURN,
    EpisodeSummary,
    Failure,
    PlayResult,
    TurnNumbers,
    assignments_of,
    items_of,
    observation_key,
    played_parts,
    trajectory_of,
    turns_of,
)
from rllib_lmgame.rollouts.sources import RolloutError
from rllib_lmgame.telemetry.metrics import VINE_NAMES

logger = logging.getLogger(__name__)

Play = Callable[[Sequence[EpisodePlan]], PlayResult]


@dataclass(frozen=True)
class Wanted:
    """Rollouts per state and discount per turn of a policy's estimator."""

    rollouts: int
    gamma: float


@dataclass(frozen=True)
class State:
    """A state whose value is needed.

    Attributes:
        step: Steps of the game before it.
        turns: Player -> number of its turn.
        rollouts: Number of rollouts from it.
    """

    episode: MultiAgentEpisode
    step: int
    turns: Mapping[str, int]
    rollouts: int


def play_for_values(
    episodes: Sequence[MultiAgentEpisode],
    summaries: Iterable[EpisodeSummary],
    play: Play,
    wanted: Mapping[str, Wanted],
    overlong: OverlongOptions | None,
) -> dict[str, float]:
    """Set the values of the turns of ``episodes``; returns the metrics ``VINE_NAMES``.

    A value is the mean over finished rollouts of the discounted rewards after the state as in training, with penalties
    for format and length. If no rollout finished, the episode's own return is used. Rewards before the first turn with
    a choice are part of that turn's value, as in training.

    Args:
        episodes: Those that are trained on, with penalties for length.
        wanted: By policy.
        overlong: Penalty of long replies.

    Raises: RolloutError: a game cannot be replayed to any state after its first.
    """
    states = list(_states(episodes, wanted))
    plans, owners = _plans(states, summaries)
    result = play(plans) if plans else PlayResult()
    _check_games(result, plans)
    found: list[list[EpisodeSummary]] = [[] for _ in states]
    for summary in result.summaries:
        found[owners[summary.index]].append(summary)
    fallbacks = 0
    values: dict[tuple[str, str], dict[int, float]] = {}
    for state, rollouts in zip(states, found, strict=True):
        for agent, turn in state.turns.items():
            part = state.episode.agent_episodes[agent]
            gamma = wanted[str(part.module_id)].gamma
            returns = [_return(_punished(rollout.continued[agent], overlong), gamma) for rollout in rollouts]
            fallbacks += not returns
            value = float(np.mean(returns)) if returns else _return(_own_turns(part)[turn:], gamma)
            known = values.setdefault((state.episode.id_, agent), {})
            if turn and not known:
                value += sum(earlier.reward for earlier in _own_turns(part)[:turn])
            known[turn] = value
    for episode in episodes:
        for agent, part in episode.agent_episodes.items():
            if of_turns := values.get((episode.id_, agent)):
                turns = [replace(turn, value=of_turns.get(n, math.nan)) for n, turn in enumerate(turns_of(part))]
                part.extra_model_outputs[TURN] = InfiniteLookbackBuffer(turns)
    played = [turn for rollout in result.summaries for turns in rollout.continued.values() for turn in turns]
    numbers = (
        len(states),
        len(result.summaries),
        len(played),
        sum(turn.tokens for turn in played),
        len(result.failures),
        fallbacks,
    )
    return dict(zip(VINE_NAMES, map(float, numbers), strict=True))


def _states(episodes: Iterable[MultiAgentEpisode], wanted: Mapping[str, Wanted]) -> Iterator[State]:
    """States whose value is needed. A turn without a choice is not trained on and needs none."""
    for episode in episodes:
        moves = _moves(episode)
        at: dict[int, dict[str, int]] = {}
        for part in played_parts(episode, wanted):
            agent = str(part.agent_id)
            for number, turn in enumerate(trajectory_of(part).turns):
                if turn.has_choice:
                    at.setdefault(moves[agent][number], {})[agent] = number
        for step, turns in sorted(at.items()):
            asked = (wanted[str(episode.agent_episodes[agent].module_id)].rollouts for agent in turns)
            yield State(episode, step, turns, max(asked))


def _plans(states: Sequence[State], summaries: Iterable[EpisodeSummary]) -> tuple[list[EpisodePlan], list[int]]:
    """Plans of all rollouts, and the number of each one's state."""
    known = {summary.episode_id: summary for summary in summaries}
    recordings: dict[str, tuple[Recording, dict[str, list[int]]]] = {}
    plans: list[EpisodePlan] = []
    owners: list[int] = []
    for number, state in enumerate(states):
        name = str(state.episode.id_)
        if name not in recordings:
            recordings[name] = _recording(state.episode), _moves(state.episode)
        recording, moves = recordings[name]
        beginning = Beginning(
            recording,
            {agent: sum(step < state.step for step in steps) for agent, steps in moves.items()},
            frozenset(agent for agent, steps in moves.items() if state.step in steps),
        )
        group = f"{name.replace('+', '.')}/{state.step}"  # The text after a plus is the number of an attempt.
        for rollout in range(state.rollouts):
            plans.append(
                EpisodePlan(
                    episode_id=f"{group}/{rollout}",
                    game=known[name].game,
                    seed=known[name].seed,
                    group=group,
                    index=len(plans),
                    assignments=assignments_of(state.episode),
                    beginning=beginning,
                )
            )
            owners.append(number)
    return plans, owners


def _recording(episode: MultiAgentEpisode) -> Recording:
    """Observations and replies of the players."""
    seen, actions, replies = {}, {}, {}
    for agent, part in episode.agent_episodes.items():
        seen[agent] = tuple(observation_key(str(text)) for text in items_of(part.observations)[:-1])
        actions[agent] = tuple(map(str, items_of(part.actions)))
        if TURN in part.extra_model_outputs:
            replies[agent] = tuple(turn.response_ids for turn in turns_of(part))
    return Recording(str(episode.id_), seen, actions, replies)


def _moves(episode: MultiAgentEpisode) -> dict[str, list[int]]:
    """Agent -> step of the game of each of its turns. The last entry of RLlib's map is the agent's end."""
    return {
        agent: [step for step, own in enumerate(items_of(steps)) if own != episode.SKIP_ENV_TS_TAG][:-1]
        for agent, steps in episode.env_t_to_agent_t.items()
        if agent in episode.agent_episodes
    }


def _own_turns(part: SingleAgentEpisode) -> list[TurnNumbers]:
    return [TurnNumbers.of(turn) for turn in trajectory_of(part).turns]


def _punished(turns: Sequence[TurnNumbers], overlong: OverlongOptions | None) -> list[TurnNumbers]:
    """The turns with penalties of long replies."""
    return [replace(turn, reward=turn.reward + _overlong_loss(turn.tokens, overlong)) for turn in turns]


def _return(turns: Sequence[TurnNumbers], gamma: float) -> float:
    """Discounted rewards over turns with a choice; other rewards belong to the turn before, or the first."""
    total, chosen = 0.0, 0
    for turn in turns:
        chosen += turn.has_choice
        total += gamma ** max(chosen - 1, 0) * turn.reward
    return total


def _check_games(result: PlayResult, plans: Sequence[EpisodePlan]) -> None:
    """Raise for a game that never returns to a state (the first state proves nothing); other failures are logged."""
    if not result.failures:
        return
    again = (plans[summary.index] for summary in result.summaries)
    finished = {plan.game for plan in again if plan.beginning is not None and any(plan.beginning.turns.values())}
    for failure in result.failures:
        if failure.reason == StopReason.RESTART_MISMATCH.value and failure.plan.game not in finished:
            raise RolloutError(failure.message)
    logger.warning("%d rollouts from states failed, e.g.: %s", len(result.failures), _first(result.failures))


def _first(failures: Sequence[Failure]) -> str:
    return min(failures, key=lambda failure: failure.plan.index).message


def _overlong_loss(tokens: int, options: OverlongOptions | None) -> float:
    from rllib_lmgame.algorithms.ppo import overlong_loss

    return overlong_loss(tokens, options)
