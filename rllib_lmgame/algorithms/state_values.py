"""Between play and update: values of states by play, for advantage estimators that ask for them (``vine``).

From every state in which a trained player acted its game is played on several times by the present policies, in one
batch. These rollouts are no episodes: nothing is trained on them, and they count for no metric but their own.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from rllib_lmgame.algorithms.selection import overlong_loss
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.learners.data.rows import played_parts
from rllib_lmgame.rollouts.plans import Beginning, EpisodePlan, Recording
from rllib_lmgame.rollouts.records import (
    RESPONSE_IDS,
    STATE_VALUE,
    EpisodeSummary,
    Failure,
    PlayResult,
    TurnNumbers,
    items_of,
    line_up_of,
    observation_key,
    trajectory_of,
)
from rllib_lmgame.rollouts.sources import RolloutError
from rllib_lmgame.settings.sections.supervised import DataSelectionOptions
from rllib_lmgame.telemetry.metrics import VINE_NAMES

logger = logging.getLogger(__name__)

Play = Callable[[Sequence[EpisodePlan]], PlayResult]


@dataclass(frozen=True)
class Wanted:
    """What a policy's estimator asks for.

    Attributes:
        rollouts: From every state.
        gamma: Discount of their rewards, per turn.
    """

    rollouts: int
    gamma: float


@dataclass(frozen=True)
class State:
    """A state in which players acted whose policies ask for its value.

    Attributes:
        episode: The episode that was in it.
        step: Steps of the game before it.
        turns: These players -> number of the turn.
        rollouts: From it.
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
    selection: DataSelectionOptions,
) -> dict[str, float]:
    """Give the turns of ``episodes`` the values of their states, and say what it took (``VINE_NAMES``).

    A value is the mean, over the rollouts that were finished, of the rewards that training would see behind the state:
    format penalties and punishments of overlong replies included, discounted per turn. Where none was finished it is
    what the episode itself got from there, one sample of the same. What was earned before the first turn in which
    something could be chosen is part of the value there, as training counts it to that turn's reward.

    Args:
        episodes: That are trained on.
        summaries: Theirs, among others.
        play: Plays plans.
        wanted: Policies whose estimators ask for values.
        selection: How overlong replies are punished; in ``episodes`` they have been.

    Raises:
        RolloutError: if a game cannot be played again from any of the states behind its first.
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
            returns = [_return(_punished(rollout.continued[agent], selection), gamma) for rollout in rollouts]
            fallbacks += not returns
            value = float(np.mean(returns)) if returns else _return(_own_turns(part)[turn:], gamma)
            known = values.setdefault((state.episode.id_, agent), {})
            if turn and not known:
                value += sum(earlier.reward for earlier in _own_turns(part)[:turn])
            known[turn] = value
    for episode in episodes:
        for agent, part in episode.agent_episodes.items():
            if of_turns := values.get((episode.id_, agent)):
                column = [of_turns.get(turn, math.nan) for turn in range(len(part))]
                part.extra_model_outputs[STATE_VALUE] = InfiniteLookbackBuffer(column)
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
    """States whose value is wanted. A turn in which nothing could be chosen is not trained on and needs none."""
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
    """Plans of all rollouts, and of each the number of its state."""
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
        group = f"{name.replace('+', '.')}/{state.step}"  # What follows a plus is the number of an attempt.
        for rollout in range(state.rollouts):
            plans.append(
                EpisodePlan(
                    episode_id=f"{group}/{rollout}",
                    game=known[name].game,
                    seed=known[name].seed,
                    group=group,
                    index=len(plans),
                    line_up=line_up_of(state.episode),
                    beginning=beginning,
                )
            )
            owners.append(number)
    return plans, owners


def _recording(episode: MultiAgentEpisode) -> Recording:
    """What the players saw and replied."""
    seen, actions, replies = {}, {}, {}
    for agent, part in episode.agent_episodes.items():
        seen[agent] = tuple(observation_key(str(text)) for text in items_of(part.observations)[:-1])
        actions[agent] = tuple(map(str, items_of(part.actions)))
        if RESPONSE_IDS in part.extra_model_outputs:
            replies[agent] = tuple(items_of(part.extra_model_outputs[RESPONSE_IDS]))
    return Recording(str(episode.id_), seen, actions, replies)


def _moves(episode: MultiAgentEpisode) -> dict[str, list[int]]:
    """Agent -> steps of the game before each of its turns. The last entry of RLlib's map is what it saw at its end."""
    return {
        agent: [step for step, own in enumerate(items_of(steps)) if own != episode.SKIP_ENV_TS_TAG][:-1]
        for agent, steps in episode.env_t_to_agent_t.items()
        if agent in episode.agent_episodes
    }


def _own_turns(part: SingleAgentEpisode) -> list[TurnNumbers]:
    return [TurnNumbers.of(turn) for turn in trajectory_of(part).turns]


def _punished(turns: Sequence[TurnNumbers], selection: DataSelectionOptions) -> list[TurnNumbers]:
    """The turns with what overlong replies lose."""
    return [dataclasses.replace(turn, reward=turn.reward + overlong_loss(turn.tokens, selection)) for turn in turns]


def _return(turns: Sequence[TurnNumbers], gamma: float) -> float:
    """Discounted rewards. As in training time runs over turns in which something could be chosen: the reward of another
    one counts with the turn before it, or with the first.
    """
    total, chosen = 0.0, 0
    for turn in turns:
        chosen += turn.has_choice
        total += gamma ** max(chosen - 1, 0) * turn.reward
    return total


def _check_games(result: PlayResult, plans: Sequence[EpisodePlan]) -> None:
    """A game that never comes back to a state has none that can be played for; failures of some rollouts are told.

    The state before the first reply says nothing: every game begins again.
    """
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
