"""``evaluation_config.measures: [best_response_gap]``: exact distance from best responses in one-round matrix games."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from rllib_lmgame.base.group import limits
from rllib_lmgame.envs.games.dilemmas.matrix_game import MatrixGame
from rllib_lmgame.envs.registry import make_game
from rllib_lmgame.measures.exploitability import best_response_gaps, payoff_arrays
from rllib_lmgame.measures.game_tree import InformationSet
from rllib_lmgame.rollouts.game_calls import opened
from rllib_lmgame.rollouts.records import GameConfig

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.measuring.measures import AskedPolicies


class BestResponseGap:
    """What a player gains by a best response in a game of one round in which both decide at once: 0 in an equilibrium.

    Gives ``best_response_gap``, the mean of both seats (the exploitability); ``best_response_gap_first`` and
    ``best_response_gap_second`` per seat; and ``illegal_max``, the largest probability of illegal replies. Games of
    several rounds report their gap to what was played themselves.

    Args:
        samples: Replies per seat, of policies that reason.
    """

    columns = ("best_response_gap", "best_response_gap_first", "best_response_gap_second", "illegal_max")

    def __init__(self, samples: Annotated[int, limits(ge=1)] = 1024) -> None:
        self.samples = samples

    def problem(self, game: GameConfig) -> str | None:
        """Why ``game`` has no such gap, or ``None``."""
        env = make_game(game.env, game.env_config)
        env.close()
        if not isinstance(env, MatrixGame):
            return f"{game.env} is no matrix game"
        if env.options.rounds != 1 or env.options.chat_turns:
            return f"{game.env} is not decided by one reply of each; set env_config.rounds: 1 and chat_turns: 0"
        return None

    def __call__(self, game: GameConfig, policies: AskedPolicies) -> Mapping[str, float]:
        env = make_game(game.env, game.env_config)
        env.close()
        assert isinstance(env, MatrixGame)
        asked = _decisions(game)
        answers = policies.ask(asked, self.samples)
        strategies = [[answer.odds.get(action, 0.0) for action in env.actions] for answer in answers]
        first, second = best_response_gaps(payoff_arrays(env.matrix, env.actions), strategies)
        illegal = max(float(answer.illegal) for answer in answers)
        return dict(zip(self.columns, ((first + second) / 2, first, second, illegal), strict=True))


def _decisions(game: GameConfig) -> list[InformationSet]:
    """What both are asked."""
    with opened(game.env, game.env_config) as session:
        session.reset(0)
        shown = [session.observe(agent) for agent in session.agent_ids]
        return [
            InformationSet(
                agent,
                seat,
                (seen.text,),
                (),
                seen.legal_actions,
                session.instructions,
                session.functions,
                session.roles[agent],
            )
            for seat, (agent, seen) in enumerate(zip(session.agent_ids, shown, strict=True))
        ]
