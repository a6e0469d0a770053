"""Replays episode logs: logged actions become replies in this run's chat format, for supervised learning."""

from __future__ import annotations

import dataclasses
import operator
import random
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.adapters import MAX_REWARD
from rllib_lmgame.envs.contract.infos import plain_info
from rllib_lmgame.envs.contract.session import GameSession, Observation, StepResult
from rllib_lmgame.policies.options import LANGUAGE_MODEL
from rllib_lmgame.policies.scripted import SolverPlayer
from rllib_lmgame.rollouts.episodes import level_in, to_multi_agent_episode
from rllib_lmgame.rollouts.game_calls import run_to_end
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan
from rllib_lmgame.rollouts.play import play_episode
from rllib_lmgame.rollouts.players import LanguageModel, Player, Scripted, take_seats
from rllib_lmgame.rollouts.seats import ExpertReplies

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner


def recorded_session(record: Mapping[str, Any], where: str) -> RecordedSession:
    """The episode of one record. Raises: ConfigError: it is malformed; names ``where``."""
    try:
        session = RecordedSession(record)
        session.where = where
        return session
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError("data", f"{where}: not an episode record ({type(error).__name__}: {error})") from None


class RecordedSession(GameSession):
    """A game that follows a record of the episode log, whatever is played; its expert plays the recorded actions.

    Unreadable actions are logged and replayed as empty texts. ``success`` is that of all seats, ``None`` if it is not
    known of all. Raises: ValueError, KeyError, TypeError, AttributeError: the record is wrong or incomplete.
    """

    trusted = True
    where = ""
    """File and line of the record."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.game_id = str(record["game"])
        self.name = None if record.get("name") is None else str(record["name"])
        self.instructions = str(record.get("instructions", ""))
        seats = record["trajectories"]
        self.agent_ids = tuple(str(seat["agent_id"]) for seat in seats)
        if len(set(self.agent_ids)) < len(self.agent_ids):
            raise ValueError("two trajectories are of one agent")
        self.roles = {str(seat["agent_id"]): str(seat["role"]) for seat in seats}
        self.seed = int(record["seed"])
        self.group = str(record.get("group", ""))
        self._terminated = bool(record["terminated"])
        self._final = _texts(record["final_observations"], self.agent_ids)
        self._infos = {agent: plain_info(info) for agent, info in record.get("infos", {}).items()}
        self._steps = _folded([_RecordedStep(step, self.agent_ids) for step in record["steps"]])
        self._ends = {
            str(seat["agent_id"]): (int(seat["ended_at"]), bool(seat["terminated"]))
            for seat in seats
            if "ended_at" in seat
        }
        judged = [seat.get("success") for seat in seats]
        self.success = None if None in judged else all(judged)
        self._at = 0
        if not self._steps:
            raise ValueError("it has no steps")
        if set(self._final) != set(self.agent_ids):
            raise ValueError("final_observations must hold every agent")

    @property
    def returns(self) -> dict[str, float]:
        """Return of each seat."""
        return {agent: sum(step.rewards.get(agent, 0.0) for step in self._steps) for agent in self.agent_ids}

    @property
    def mean_return(self) -> float:
        """Mean return of the seats."""
        return sum(self.returns.values()) / len(self.agent_ids)

    @property
    def beginning(self) -> dict[str, str]:
        """Observations of the agents that acted first."""
        return dict(self._steps[0].observations)

    @property
    def level_name(self) -> str:
        """The level's digest if the game gave one, else the seed."""
        return level_in((self._infos, *(step.infos for step in self._steps))) or str(self.seed)

    def reset(self, seed: int) -> None:
        self._at = 0

    def to_act(self) -> tuple[str, ...]:
        return tuple(self._steps[self._at].actions) if self._at < len(self._steps) else ()

    def observe(self, agent_id: str) -> Observation:
        step = self._steps[self._at] if self._at < len(self._steps) else None
        if step is None or agent_id not in step.observations:
            return Observation(self._final[agent_id])
        return Observation(step.observations[agent_id], turns_left=step.turns_left.get(agent_id))

    def step(self, actions: Mapping[str, str]) -> StepResult:
        step = self._steps[self._at]
        self._at += 1
        over = self._at == len(self._steps)
        infos = {**step.infos, **self._infos} if over else step.infos
        played = step.number + 1
        ends = {agent: terminated for agent, (end, terminated) in self._ends.items() if over or end <= played}
        return StepResult(step.rewards, over and self._terminated, over and not self._terminated, infos, ends)

    def pass_action(self, agent_id: str) -> str:
        """The recorded action, so that a seat with less room for tokens here does not end the game of the others."""
        return self._steps[self._at].actions[agent_id]

    def expert_action(self, agent_id: str) -> str:
        return self._steps[self._at].actions[agent_id]

    def expert_thought(self, agent_id: str) -> str | None:
        return self._steps[self._at].thoughts.get(agent_id)


class _RecordedStep:
    number = 0
    """Position among all steps of the record."""

    def __init__(self, step: Mapping[str, Any], agents: tuple[str, ...]) -> None:
        self.observations = _texts(step["observations"], agents)
        self.actions = _texts(step["actions"], agents)
        self.thoughts = _texts(step.get("thoughts", {}), agents)
        self.rewards = {str(agent): float(reward) for agent, reward in step["rewards"].items()}
        self.infos = {str(agent): plain_info(info) for agent, info in step.get("infos", {}).items()}
        left = step.get("turns_left", {})
        self.turns_left = {agent: None if turns is None else operator.index(turns) for agent, turns in left.items()}
        if not (self.actions or step.get("passes")) or set(self.actions) != set(self.observations):
            raise ValueError("a step needs an observation and an action of the same agents")
        if not set(self.rewards) <= set(agents):
            raise ValueError(f"a reward belongs to none of {', '.join(agents)}")
        if not all(abs(reward) <= MAX_REWARD for reward in self.rewards.values()):
            raise ValueError(f"a reward of {self.rewards} is not a finite number of at most {MAX_REWARD:g}")


def _folded(steps: list[_RecordedStep]) -> list[_RecordedStep]:
    """Steps with actions; results of a step without actions are added to the step before."""
    acted: list[_RecordedStep] = []
    for number, step in enumerate(steps):
        if step.actions:
            acted.append(step)
        elif acted:
            for agent, reward in step.rewards.items():
                acted[-1].rewards[agent] = acted[-1].rewards.get(agent, 0.0) + reward
            acted[-1].infos |= step.infos
        if acted:
            acted[-1].number = number
    return acted


def _texts(values: Mapping[str, Any], agents: tuple[str, ...]) -> dict[str, str]:
    for agent, text in values.items():
        if agent not in agents or not isinstance(text, str):
            raise ValueError(f"{agent!r}: {text!r} is not a text of one of {', '.join(agents)}")
    return dict(values)


def replay(session: RecordedSession, runner: TextGameEnvRunner, episode_id: str) -> MultiAgentEpisode:
    """Replay a recorded episode with the runner's policies, chat format and budgets, as an RLlib episode.

    Raises: ConfigError: the first prompt does not fit, or a seat is mapped to no policy.
    """
    plan = plan_of(session, episode_id)
    plan = dataclasses.replace(plan, assignments=runner.agent_mapper.assignments(plan, session.roles))
    options = TextRolloutOptions(bootstrap_turn_limit=True)
    game = runner.entry(session.game_id, session.name)

    def player_of(assignment: AgentAssignment) -> Player:
        name = assignment.module_id
        if assignment.player != LANGUAGE_MODEL:
            return Scripted(name, assignment.player, make=SolverPlayer)
        chat = runner.chat(name, game=game)
        return LanguageModel(name, None, chat, lambda *_: ExpertReplies(SolverPlayer(), random.Random(0)), options)

    seats = partial(take_seats, player_of=player_of)
    return to_multi_agent_episode(run_to_end(play_episode(session, plan, seats, 0.0, game)))


def plan_of(session: RecordedSession, episode_id: str) -> EpisodePlan:
    return EpisodePlan(episode_id, 0, session.seed, session.group, 0)
