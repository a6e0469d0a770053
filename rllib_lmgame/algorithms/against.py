"""``evaluation_config.measures: [{type: against, player: random}]``: games against a scripted player."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from rllib_lmgame.algorithms.games import is_contest
from rllib_lmgame.envs.contract.session import StepResult
from rllib_lmgame.envs.contract.verdicts import Outcome, outcomes
from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.measures.game_tree import InformationSet
from rllib_lmgame.policies.scripted import make_scripted_player
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import scripted_move
from rllib_lmgame.schema import limits

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.measures import AskedPolicies

_KEY = "config.evaluation_config.measures"


class Against:
    """Games in which the policies take one seat and a scripted player the others, each seat as often.

    Gives ``win_rate_<name>``, ``draw_rate_<name>`` and ``loss_rate_<name>``, and ``illegal_<name>``, the mean
    probability of anything but a legal reply; what is played is drawn among the legal ones by their probabilities. The
    games are the same levels at every call.

    Args:
        player: The opponent: ``random``, ``solver``, ``minimax`` or ``package.module:Class``.
        games: How many are played.
        name: At the end of the numbers' names; by default the player's.
        env_config: On top of the game's, for the strength of its solver: ``{expert_depth: 2}``.
        greedy: Play what is most likely.
    """

    def __init__(
        self,
        player: str,
        games: Annotated[int, limits(low=1)] = 128,
        name: str | None = None,
        env_config: dict[str, Any] | None = None,
        greedy: bool = False,
    ) -> None:
        make_scripted_player(player, _KEY)
        self.name = player if name is None else name
        if not re.fullmatch(r"\w+", self.name):
            raise ConfigError(_KEY, f"{self.name!r} cannot end the name of a number; set `name` to letters and digits")
        self.player = player
        self.games = games
        self.env_config = dict(env_config or {})
        self.greedy = greedy
        self.columns = tuple(f"{what}_{self.name}" for what in ("win_rate", "draw_rate", "loss_rate", "illegal"))

    def problem(self, game: GameConfig) -> str | None:
        """Why there are no such games of ``game``, or ``None``."""
        if not is_contest(game):
            return f"nobody plays against another in {game.env}"
        session = make_session(game.env, {**game.env_config, **self.env_config})
        try:
            session.reset(0)
            if not all(session.observe(agent).legal_actions for agent in session.to_act()):
                return f"{game.env} does not list its legal actions"
            if self.player in ("solver", "minimax") and session.expert_action(session.to_act()[0]) is None:
                return f"{game.env} has no solver"
        finally:
            session.close()
        return None

    def __call__(self, game: GameConfig, policies: AskedPolicies) -> dict[str, float]:
        env_config = {**game.env_config, **self.env_config}
        tables = [Table(game.env, env_config, self.player, number) for number in range(self.games)]
        illegal: list[float] = []
        try:
            while waiting := [table for table in tables if not table.done]:
                asked = [table.decision() for table in waiting]
                answers = policies.ask_for_samples(asked, 1) if policies.reasoning else policies.ask(asked)
                illegal += [answer.illegal for answer in answers]
                for table, answer in zip(waiting, answers, strict=True):
                    table.reply(table.drawn(answer.odds, self.greedy))
        finally:
            for table in tables:
                table.session.close()
        ended = [table.outcome() for table in tables]
        shares = [ended.count(outcome) / len(ended) for outcome in (Outcome.WIN, Outcome.DRAW, Outcome.LOSS)]
        return dict(zip(self.columns, [*shares, float(np.mean(illegal or [0.0]))], strict=True))


class Table:
    """One game in play: the opponents have moved, and it is the policy's turn, or the end.

    Args:
        env: The game.
        env_config: Its options.
        player: Who takes the other seats.
        number: Of the game, by which its level and the policy's seat are dealt.
    """

    def __init__(self, env: str, env_config: Mapping[str, Any], player: str, number: int) -> None:
        self.session = make_session(env, dict(env_config))
        agents = self.session.agent_ids
        level = stable_seed("against", number // len(agents))
        self.session.reset(level)
        self.own = agents[number % len(agents)]
        self.done = False
        self._seat = number % len(agents)
        self._chance = random.Random(stable_seed("against", number, "replies"))
        self._others = {
            agent: (make_scripted_player(player), random.Random(stable_seed("against", number, agent)))
            for agent in agents
        }
        self._observations: list[str] = []
        self._replies: list[str] = []
        self._returns = dict.fromkeys(agents, 0.0)
        self._infos: dict[str, Mapping[str, Any]] = {}
        self._until_own_turn()

    def decision(self) -> InformationSet:
        """What the policy is to be asked."""
        observation = self.session.observe(self.own)
        return InformationSet(
            self.own,
            self._seat,
            (*self._observations, observation.text),
            tuple(self._replies),
            observation.legal_actions,
            self.session.instructions,
        )

    def drawn(self, odds: Mapping[str, float], greedy: bool) -> str:
        """One of the legal actions."""
        if greedy:
            return max(odds, key=lambda action: odds[action])
        return self._chance.choices(list(odds), list(odds.values()))[0]

    def reply(self, action: str) -> None:
        """The policy acts, then the others, until it is its turn again."""
        self._observations.append(self.session.observe(self.own).text)
        self._replies.append(action)
        self._step({self.own: action})
        self._until_own_turn()

    def outcome(self) -> Outcome:
        """How it ended for the policy."""
        verdicts = {agent: self._infos.get(agent, {}).get("success") for agent in self._returns}
        results = {agent: self._infos.get(agent, {}).get("result") for agent in self._returns}
        named = {agent: float(result) for agent, result in results.items() if isinstance(result, int | float)}
        return outcomes(verdicts, named if named.keys() == self._returns.keys() else self._returns)[self.own]

    def _until_own_turn(self) -> None:
        while not self.done and self.own not in self.session.to_act():
            self._step({})

    def _step(self, own: Mapping[str, str]) -> None:
        others = [agent for agent in self.session.to_act() if agent not in own]
        self._note(self.session.step({agent: self._typed(agent) for agent in others} | dict(own)))

    def _typed(self, agent: str) -> str:
        player, chance = self._others[agent]
        return scripted_move(player, self.session, agent, self.session.observe(agent), chance)[0]

    def _note(self, result: StepResult) -> None:
        for agent, reward in result.rewards.items():
            self._returns[agent] += reward
        self._infos |= result.infos
        self.done = result.done
