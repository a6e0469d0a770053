"""``evaluation_config.measures: [{type: against, player: random}]``: games against a scripted player."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from rllib_lmgame.algorithms.games import is_for_one, roles_of
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import limits
from rllib_lmgame.envs.contract.verdicts import Outcome
from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS, make_scripted_player
from rllib_lmgame.rollouts.game_calls import call_game, opened
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, stable_seed
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.measuring.measures import AskedPolicies

_problems: dict[tuple[str, str, str], str | None] = {}
"""Game, the game that is played, and player -> why there are no such games."""


class Against:
    """Games in which the policies take one seat and a scripted player the others, each seat as often.

    Gives ``win_rate_<name>``, ``draw_rate_<name>``, ``loss_rate_<name>`` and ``failed_<name>``, which sum to 1, and
    ``illegal_<name>``, the share of the policies' replies that were no legal action. The policies reply as in other
    evaluations, on levels that are the same at every call.

    Args:
        player: The opponent: a scripted player by name, or ``package.module:Class``.
        games: How many are played.
        name: At the end of the numbers' names; by default the player's.
        env_config: On top of the game's, for its solver's strength: ``{expert_depth: 2}``. Games that refuse it are
            left out.
    """

    def __init__(
        self,
        player: str,
        games: Annotated[int, limits(ge=1, le=1_000_000)] = 128,
        name: str | None = None,
        env_config: dict[str, Any] | None = None,
    ) -> None:
        make_scripted_player(player, "player")
        name = player if name is None else name
        if not re.fullmatch(r"\w+", name):
            raise ConfigError("name", f"{name!r} cannot end the name of a number; set `name` to letters and digits")
        self.player = player
        self.games = games
        self.env_config = dict(env_config or {})
        self.columns = tuple(f"{what}_{name}" for what in ("win_rate", "draw_rate", "loss_rate", "failed", "illegal"))

    def problem(self, game: GameConfig) -> str | None:
        """Why there are no such games of ``game``, or ``None``: found out once per process."""
        changed = self._changed(game)
        asked = (game.key, changed.key, self.player)
        if asked not in _problems:
            _problems[asked] = self._look_at(changed)
        return _problems[asked]

    def _look_at(self, game: GameConfig) -> str | None:
        if is_for_one(game):
            return f"nobody plays against another in {game.env}"
        try:
            with opened(game.env, game.env_config) as session:
                if len(session.agent_ids) == 1 or session.cooperative:
                    return f"nobody plays against another in {game.env}"
                call_game(session, "reset", session.reset, 0)
                acting = call_game(session, "to_act", session.to_act)
                if not acting:
                    return f"nobody is to act at the beginning of {game.env}"
                seen = call_game(session, "observe", session.observe, acting[0])
                if self.player in SCRIPTED_PLAYERS:
                    player = make_scripted_player(self.player)
                    call_game(session, "the player", player.act, session, acting[0], seen, random.Random(0))
        except (ConfigError, EpisodeFailed) as error:
            return f"{game.env} with the measure's env_config {self.env_config}: {error}"
        return None

    def __call__(self, game: GameConfig, policies: AskedPolicies) -> dict[str, float]:
        game = self._changed(game)
        agents = list(roles_of(game))
        plans = [self._plan(number, agents, policies.seats) for number in range(self.games)]
        own = [seat for each in policies.play(plans, game).summaries for seat in each.seats if seat.trained]
        ended = Counter(seat.outcome for seat in own)
        counts = [ended[what] for what in (Outcome.WIN, Outcome.DRAW, Outcome.LOSS)]
        shares = [count / self.games for count in (*counts, self.games - sum(counts))]
        illegal = sum(seat.invalid_actions for seat in own) / max(1, sum(seat.turns for seat in own))
        return dict(zip(self.columns, [*shares, illegal], strict=True))

    def _changed(self, game: GameConfig) -> GameConfig:
        return game.model_copy(update={"env_config": {**game.env_config, **self.env_config}})

    def _plan(self, number: int, agents: Sequence[str], policies: Mapping[str, str]) -> EpisodePlan:
        level = stable_seed("against", number // len(agents))
        own = agents[number % len(agents)]
        assignments = {agent: AgentAssignment(self.player, self.player) for agent in agents}
        assignments[own] = AgentAssignment(policies[own], trained=True)
        return EpisodePlan(f"against-{number}", 0, level, f"against-{level}", number, assignments=assignments)
