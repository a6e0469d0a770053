"""Games in which two or more players take turns, in text: PettingZoo AEC environments with our common rules.

The guarantees are those of :mod:`rllib_lmgame.envs.contract.base`. After an invalid action the same player acts again;
``max_invalid_actions`` in a row forfeit the game, which ends it for everybody, or for the offender alone where the game
says so. The penalty of an invalid action is the offender's alone and is reported as ``info["penalty"]``: results of a
zero-sum game sum to zero without the penalties. Where a game has a limit of replies, it is cut short (``truncated``)
for everybody as soon as a player is to move that has none left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from pettingzoo import AECEnv

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import GameError, GameOptions, InvalidAction, invalid_rule
from rllib_lmgame.envs.contract.multi_agent import TextMultiAgentGame
from rllib_lmgame.envs.contract.referee import Ruling, reply_text


class TextAECOptions(GameOptions):
    """``env_config`` keys of every turn-based game; a player who writes only what is invalid must not play for ever."""

    max_invalid_actions: int = option(3, "Invalid actions in a row with which a player forfeits the game.", ge=1)
    max_turns: int | None = option(
        None, "Replies per player, invalid ones included, after which the game is cut short; null is no limit.", ge=1
    )


class TextAECGame(TextMultiAgentGame, AECEnv[str, str, str]):
    """A turn-based game for several players.

    A game derives from it, sets ``Options``, ``metadata``, ``seats`` (or :meth:`seat_roles`) and writes the abstract
    methods. ``env_config`` keys are the constructor's keyword arguments.

    Raises: ConfigError: for an unknown key or an impossible value.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "text_game_v0", "is_parallelizable": False, "render_modes": ["ansi"]}
    Options: ClassVar[type[TextAECOptions]] = TextAECOptions
    zero_sum: bool = True
    forfeit_eliminates: ClassVar[bool] = False
    """A forfeit ends the game of who forfeits alone, with its part of :meth:`forfeit_results`, and the others play on:
    then the game writes :meth:`leave`. Otherwise it ends everybody's."""
    turns_are_tries: ClassVar[bool] = False
    """The number of replies is a rule of the game, so that running out of them ends it (``terminated``) with
    :meth:`cut_results` and cuts nothing short.
    """

    @property
    def instructions(self) -> str:
        """All a player is told, for the system prompt or each player's first observation."""
        if not self.rules:
            return ""
        limit = self.turn_limit()
        ends = "ends" if self.turns_are_tries else "is cut short"
        replies = (
            []
            if limit is None
            else [f"The game {ends} when a player has given {limit} {'reply' if limit == 1 else 'replies'}."]
        )
        return "\n".join([self.rules, invalid_rule(self.options), *replies])

    @abstractmethod
    def player_to_move(self) -> str:
        """Agent whose turn it is (at the end of the game: any)."""

    @abstractmethod
    def read_move(self, text: str) -> Hashable:
        """The move that ``text`` says.

        Raises: InvalidAction: if it says none, several, or one that is not allowed now.
        """

    @abstractmethod
    def play_move(self, agent: str, move: Any) -> None:
        """Make a move of the player to move."""

    @abstractmethod
    def results(self) -> Mapping[str, float]:
        """Reward of every agent at the end."""

    @abstractmethod
    def forfeit_results(self, agent: str) -> Mapping[str, float]:
        """Reward of every agent when ``agent`` forfeits."""

    def lost_by(self, agent: str, stake: float = 1.0) -> dict[str, float]:
        """Results of a game of two seats at least in which ``agent`` loses ``stake`` to the others, in equal parts."""
        share = stake / (len(self.possible_agents) - 1)
        return {other: -float(stake) if other == agent else share for other in self.possible_agents}

    def leave(self, agent: str) -> None:
        """Take ``agent``, who forfeits, out of the game: it does not move again, and the game goes on or is
        :attr:`finished` without it.
        """
        raise NotImplementedError(f"of {type(self).__name__} a forfeit eliminates, so it must write leave()")

    def cut_results(self) -> Mapping[str, float]:
        """Reward of every agent still in play when the game is cut short; by default 0."""
        return dict.fromkeys(self.agents, 0.0)

    def eliminated(self) -> Mapping[str, float]:
        """Players whose game is over while others play on, and their rewards; asked after every move, each player is
        let out once.
        """
        return {}

    def pass_action(self, agent: str) -> str | None:
        """What is played for ``agent``, who is to move but can write no more, while the others play on; by default
        nothing: it forfeits.
        """
        return None

    def won(self, agent: str, results: Mapping[str, float]) -> bool:
        """Success of ``agent`` at the end; by default a positive result."""
        return results[agent] > 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start the game of ``seed`` (without one: of a fresh seed)."""
        self._begin(seed)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.start()
        self.agent_selection = self.player_to_move()
        self.infos = {agent: self._info(agent, invalid=False) for agent in self.agents}

    def observe(self, agent: str) -> str:
        """What ``agent`` sees: rules before its first action, what was wrong with its last one, the state."""
        return self._told(agent, over=self._over())

    def step(self, action: str | None) -> None:
        """One reply of the player to move. After the end only ``None`` is taken, once per player."""
        if not self.agents:
            raise GameError("the episode is over; call reset() before step()")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.referee.count(agent)
        ruling = self.referee.rule(agent, self._play(agent, action))
        self._note_infos(agent, ruling)
        self._settle(agent if ruling.forfeit else None)
        self._accumulate_rewards()

    def forfeit(self, agent: str) -> None:
        """``agent``, who is to move but can write no more, gives up."""
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.infos = {a: self._info(a, invalid=False) for a in self.agents}
        self._settle(forfeiter=agent)
        self._accumulate_rewards()

    def render(self) -> str:
        """The state as the player to move sees it."""
        return self.view(self.agent_selection)

    def _play(self, agent: str, action: Any) -> InvalidAction | None:
        try:
            self.play_move(agent, self.read_move(reply_text(action)))
        except InvalidAction as problem:
            return problem
        return None

    def _note_infos(self, agent: str, ruling: Ruling) -> None:
        """What everybody is told of the reply of ``agent``, and what it costs."""
        self.infos = {a: self._info(a, invalid=ruling.invalid and a == agent) for a in self.agents}
        if ruling.invalid:
            self.rewards[agent] += ruling.penalty
            self.infos[agent]["penalty"] = ruling.penalty

    def _settle(self, forfeiter: str | None = None) -> None:
        """After a reply or a forfeit: whose game is over, and who moves next."""
        if forfeiter is not None:
            due = [forfeiter] if self.forfeit_eliminates else self._in_play()
            results = self._rewarded("forfeit_results", self.forfeit_results(forfeiter), due)
            if not self.forfeit_eliminates:
                self._end(results, forfeiter)
                return
            self.leave(forfeiter)
            self._end({forfeiter: results[forfeiter]}, forfeiter)
        if self.finished:
            self._end(self._rewarded("results", self.results(), self._in_play()))
            return
        self._end(self._rewarded("eliminated", self.eliminated(), ()))
        self.agent_selection = self.player_to_move()
        if self.referee.turns_left(self.agent_selection) == 0:
            self._end(self._rewarded("cut_results", self.cut_results(), self._in_play()), cut=not self.turns_are_tries)
        if any(self.terminations.values()) or any(self.truncations.values()):
            self._deads_step_first()

    def _in_play(self) -> list[str]:
        return [agent for agent in self.agents if not self.terminations[agent] and not self.truncations[agent]]

    def _end(self, results: Mapping[str, float], forfeiter: str | None = None, cut: bool = False) -> None:
        """End the game of the players that ``results`` names, if it is not over yet.

        Args:
            results: Their rewards.
            forfeiter: Who has given up.
            cut: The game is cut short, and not over by its own rules.
        """
        ends = self.truncations if cut else self.terminations
        for agent in self._in_play():
            if agent not in results:
                continue
            self.rewards[agent] += float(results[agent])
            ends[agent] = True
            self.infos[agent] |= {
                "success": agent != forfeiter and bool(self.won(agent, results)),
                "forfeit": agent == forfeiter,
                "result": float(results[agent]),
                "legal_actions": (),
                **self._measured(agent),
            }

    def _over(self) -> bool:
        return all(self.terminations[agent] or self.truncations[agent] for agent in self.agents) or self.finished

    def _info(self, agent: str, invalid: bool) -> dict[str, Any]:
        info = {"invalid_action": invalid, "legal_actions": () if self._over() else self.legal_actions(agent)}
        left = self.referee.turns_left(agent)
        if left is not None:
            info["turns_left"] = left
        return info | self._level_info()
