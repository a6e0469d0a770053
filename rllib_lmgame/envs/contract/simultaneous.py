"""Games in which all players reply at once, in text: PettingZoo parallel environments with our common rules.

The guarantees are those of :mod:`rllib_lmgame.envs.contract.base`. Every player in play replies in every round, and a
round is played once all replies are read, so that none depends on another's. For an invalid reply the game's
:meth:`TextParallelGame.default_move` is played; the penalty is the offender's alone (``info["penalty"]``).
``max_invalid_actions`` in a row are a forfeit: of the game for everybody, or of the offender's seat alone where the
game says so. ``max_turns`` rounds cut a game short that is not over (``truncated``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from pettingzoo import ParallelEnv

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import GameError, GameOptions, InvalidAction, invalid_rule
from rllib_lmgame.envs.contract.multi_agent import TextMultiAgentGame
from rllib_lmgame.envs.contract.referee import Ruling, reply_text

Step = tuple[dict[str, str], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class TextParallelOptions(GameOptions):
    """``env_config`` keys of every game in which all reply at once."""

    max_invalid_actions: int = option(3, "Invalid actions in a row with which a player forfeits the game.", ge=1)
    max_turns: int | None = option(10, "Rounds, after which a game that is not over is cut short.", ge=1)


class TextParallelGame(TextMultiAgentGame, ParallelEnv[str, str, str]):
    """A game for several players who reply at once.

    A game derives from it, sets ``Options``, ``metadata`` and ``seats`` and writes the abstract methods. ``env_config``
    keys are the constructor's keyword arguments.

    Raises: ConfigError: for an unknown key or an impossible value.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "text_parallel_game_v0", "render_modes": ["ansi"]}
    Options: ClassVar[type[TextParallelOptions]] = TextParallelOptions
    zero_sum: ClassVar[bool] = False
    """Rewards without penalties sum to 0, those of :meth:`forfeit_results` included."""
    forfeit_eliminates: ClassVar[bool] = False
    """A forfeit ends the game of who forfeits alone, with its part of :meth:`forfeit_results`; the others play
    on among ``self.agents``.
    """
    forfeit_adds: ClassVar[bool] = False
    """Where a forfeit ends everybody's game, :meth:`forfeit_results` come on top of what the rounds before it have
    paid; otherwise they alone are what everybody has got in the game. That is ``info["result"]``; rewards are the same.
    """

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        self._heard: dict[str, list[str]] = {agent: [] for agent in self.possible_agents}
        self._totals = dict.fromkeys(self.possible_agents, 0.0)
        """What each has got so far, without penalties."""

    @property
    def instructions(self) -> str:
        """All a player is told, for the system prompt or each player's first observation."""
        return f"{self.rules}\n{invalid_rule(self.options)}" if self.rules else ""

    @abstractmethod
    def read_move(self, agent: str, text: str) -> Hashable:
        """The move that ``text`` says.

        Raises: InvalidAction: if it says none, several, or one that is not allowed now.
        """

    @abstractmethod
    def default_move(self, agent: str) -> Any:
        """What is played for ``agent`` in a round in which its reply is invalid."""

    @abstractmethod
    def play_round(self, moves: Mapping[str, Any]) -> Mapping[str, float]:
        """Play one move of everybody in play; returns the rewards of the round (missing is 0). :meth:`tell` says what
        the players hear of it.
        """

    @abstractmethod
    def won(self, agent: str) -> bool:
        """Success of ``agent`` at its end; where a forfeit has ended everybody's game, those have won who are rewarded
        for it.
        """

    @abstractmethod
    def forfeit_results(self, agent: str) -> Mapping[str, float]:
        """Reward of every agent when ``agent`` forfeits, in place of the round's. Where it ends everybody's game, it is
        also what they have got in it (``info["result"]``), unless :attr:`forfeit_adds`.
        """

    def pass_action(self, agent: str) -> str | None:
        """What is handed in for ``agent``, who can write no more; by default nothing: an invalid reply."""
        return None

    def tell(self, agent: str, line: str) -> None:
        """Add a line to what ``agent`` hears before its next reply. Other players' own words
        go through :func:`~rllib_lmgame.envs.contract.base.quoted`.
        """
        self._heard[agent].append(line)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Start the game of ``seed`` (without one: of a fresh seed)."""
        self._begin(seed)
        self._totals = dict.fromkeys(self.agents, 0.0)
        self._heard = {agent: [] for agent in self.agents}
        self.start()
        texts = {agent: self._told(agent, over=False, heard=self._heard[agent]) for agent in self.agents}
        return texts, {agent: self._info(agent, over=False) for agent in self.agents}

    def step(self, actions: dict[str, str]) -> Step:
        """One reply of everybody in play."""
        if not self.agents:
            raise GameError("the episode is over; call reset() before step()")
        playing = list(self.agents)
        self._heard = {agent: [] for agent in self.possible_agents}
        moves, rulings = self._read(playing, actions)
        rewards = dict.fromkeys(playing, 0.0)
        ends: dict[str, bool] = {}
        forfeiters = [agent for agent in playing if rulings[agent].forfeit]
        if forfeiters:
            self._forfeit(forfeiters, rewards, ends)
        self.agents = [agent for agent in playing if agent not in ends]
        if self.agents:
            self._play(moves, rewards, ends)
        return self._outcome(playing, rulings, rewards, ends, forfeiters)

    def render(self) -> str:
        """All views, one below the other."""
        return self.state()

    def _read(self, playing: list[str], actions: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Ruling]]:
        """Everybody's move, and what the referee says of the reply."""
        moves, rulings = {}, {}
        for agent in playing:
            problem = None
            try:
                moves[agent] = self.read_move(agent, reply_text(actions.get(agent)))
            except InvalidAction as found:
                problem = found
                moves[agent] = self.default_move(agent)
            self.referee.count(agent)
            rulings[agent] = self.referee.rule(agent, problem)
        return moves, rulings

    def _forfeit(self, forfeiters: list[str], rewards: dict[str, float], ends: dict[str, bool]) -> None:
        """End the game of those who forfeit in this round, or of everybody. Where several do, each gets what its own
        forfeit gives it, and the others what the first one's gives; in a zero-sum game all get the mean, so that their
        rewards still sum to 0.
        """
        due = {agent: [agent] if self.forfeit_eliminates else list(rewards) for agent in forfeiters}
        results = {
            agent: self._rewarded("forfeit_results", self.forfeit_results(agent), due[agent]) for agent in forfeiters
        }
        for agent in dict.fromkeys(other for others in due.values() for other in others):
            if self.zero_sum and not self.forfeit_eliminates:
                rewards[agent] = math.fsum(result[agent] for result in results.values()) / len(results)
            else:
                rewards[agent] = float(results.get(agent, results[forfeiters[0]])[agent])
            ends[agent] = True

    def _play(self, moves: Mapping[str, Any], rewards: dict[str, float], ends: dict[str, bool]) -> None:
        """Play the round of those who are in play, and see whose game it ends."""
        found = self.play_round({agent: moves[agent] for agent in self.agents})
        for agent, reward in self._rewarded("play_round", found, (), among=self.agents).items():
            rewards[agent] += float(reward)
        over = self.finished
        if over or self.referee.turns_left(self.agents[0]) == 0:
            ends |= dict.fromkeys(self.agents, over)

    def _outcome(
        self,
        playing: list[str],
        rulings: Mapping[str, Ruling],
        rewards: dict[str, float],
        ends: Mapping[str, bool],
        forfeiters: list[str],
    ) -> Step:
        """The step as PettingZoo wants it; players whose game is over leave."""
        infos = {
            agent: self._info(agent, agent in ends) | {"invalid_action": rulings[agent].invalid} for agent in playing
        }
        given_up = bool(forfeiters) and not self.forfeit_eliminates
        for agent in playing:
            alone = given_up and not self.forfeit_adds
            self._totals[agent] = rewards[agent] + (0.0 if alone else self._totals[agent])
            if agent in ends:
                forfeit = agent in forfeiters
                won = not forfeit and (rewards[agent] > 0 if given_up else bool(self.won(agent)))
                infos[agent] |= {"success": won, "forfeit": forfeit, "result": self._totals[agent]}
                infos[agent] |= self._measured(agent)
            if rulings[agent].invalid:
                rewards[agent] += rulings[agent].penalty
                infos[agent]["penalty"] = rulings[agent].penalty
        self.agents = [agent for agent in playing if agent not in ends]
        texts = {agent: self._told(agent, agent in ends, self._heard[agent]) for agent in playing}
        terminations = {agent: ends.get(agent, False) for agent in playing}
        truncations = {agent: agent in ends and not ends[agent] for agent in playing}
        return texts, rewards, terminations, truncations, infos

    def _info(self, agent: str, over: bool) -> dict[str, Any]:
        legal = () if over else self.legal_actions(agent)
        info: dict[str, Any] = {
            "invalid_action": False,
            "legal_actions": legal,
            "turns_left": self.referee.turns_left(agent),
        }
        return info | self._level_info()
