"""``evaluation_config.measures: [exploitability, best_response_gap, tic_tac_toe]``: figures worked out without play."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import numpy as np

from rllib_lmgame.base.group import limits
from rllib_lmgame.envs.games.dilemmas.matrix_game import MatrixGame
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe
from rllib_lmgame.envs.registry import make_game
from rllib_lmgame.measures.exploitability import (
    best_response_gaps,
    game_values,
    nash_conv,
    nash_conv_of_moves,
    payoff_arrays,
)
from rllib_lmgame.measures.game_tree import GameTree, InformationSet, game_tree
from rllib_lmgame.measures.tic_tac_toe import chances, decisions, minimax_player, player_of, uniform_player
from rllib_lmgame.rollouts.batch_inference import Answer
from rllib_lmgame.rollouts.game_calls import opened
from rllib_lmgame.rollouts.records import GameConfig

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.measuring.measures import AskedPolicies

MOST_MOVES = 5
"""Moves of a player at TicTacToe, at most."""

MOST_STATES = 400_000
"""States of the largest game that is walked through unless the measure says otherwise. Liar's Dice with 6 sides has
294,883 (``game_tree("lmgame/LiarsDice-v0")``: 12 to 18 s on the two-core CPU of docs/results).
"""

RESAMPLED = 100
"""Bootstrap samples of the interval where replies are sampled."""


class Exploitability:
    """The exploitability of the policies in all seats, at every information set of a game that can be walked through.

    Gives ``exploitability`` (NashConv / seats) with bounds ``exploitability_low`` and ``exploitability_high``,
    ``nash_conv`` and ``first_seat_value`` (expected reward of the first seat). ``illegal_mean`` and ``illegal_max`` are
    probabilities of illegal replies over the information sets; legal replies are measured. For policies that reason,
    ``samples`` replies are drawn per set, and the bounds are the middle 95 % of a bootstrap. That estimate is above the
    true value, since a best response also exploits chance. For others value and bounds are exact.

    Args:
        samples: Replies per information set, of policies that reason.
        max_states: A game with more states is refused.
    """

    columns = (
        "exploitability",
        "exploitability_low",
        "exploitability_high",
        "nash_conv",
        "first_seat_value",
        "illegal_mean",
        "illegal_max",
    )

    def __init__(
        self, samples: Annotated[int, limits(ge=2)] = 64, max_states: Annotated[int, limits(ge=1)] = MOST_STATES
    ) -> None:
        self.samples = samples
        self.max_states = max_states

    def problem(self, game: GameConfig) -> str | None:
        """Why ``game`` has no exploitability, or ``None``."""
        try:
            tree_of(game, self.max_states)
        except ValueError as error:
            return str(error)
        return None

    def __call__(self, game: GameConfig, policies: AskedPolicies) -> dict[str, float]:
        tree = tree_of(game, self.max_states)
        answers = policies.ask(tree.information_sets, self.samples)
        numbers = numbers_of(tree, answers)
        exact = numbers["exploitability"]
        low, high = interval(tree, answers, self.samples) if policies.reasoning else (exact, exact)
        return numbers | {"exploitability_low": low, "exploitability_high": high}


def tree_of(game: GameConfig, max_states: int = MOST_STATES) -> GameTree:
    """The game tree, built once per process; raises as :func:`~rllib_lmgame.measures.game_tree.game_tree`."""
    try:
        env_config = json.dumps(game.env_config, sort_keys=True)
    except TypeError as error:
        raise ValueError(f"{game.env} cannot be walked through: its env_config is not plain ({error})") from error
    found = _kept_tree(game.env, env_config, max_states)
    if isinstance(found, str):
        raise ValueError(found)
    return found


@lru_cache(maxsize=8)
def _kept_tree(env: str, env_config: str, max_states: int) -> GameTree | str:
    """The tree, or why there is none: to find that out may take as long."""
    try:
        return game_tree(env, json.loads(env_config), max_states)
    except ValueError as error:
        return str(error)


def numbers_of(tree: GameTree, answers: Sequence[Answer]) -> dict[str, float]:
    """The measures of a policy that answers so at the information sets of ``tree``."""
    odds = [answer.odds for answer in answers]
    illegal = [answer.illegal for answer in answers]
    gains = nash_conv(tree, odds)
    return {
        "exploitability": gains / len(tree.agents),
        "nash_conv": gains,
        "first_seat_value": game_values(tree, odds)[0],
        "illegal_mean": float(np.mean(illegal)),
        "illegal_max": float(np.max(illegal)),
    }


def interval(tree: GameTree, answers: Sequence[Answer], samples: int, seed: int = 0) -> tuple[float, float]:
    """The middle 95 % of the exploitability, by bootstrap of ``samples`` replies at each information set."""
    chance = np.random.default_rng(seed)
    sizes = np.diff(tree.starts)
    legal = np.arange(sizes.max()) < sizes[:, None]
    counts = np.zeros((len(sizes), sizes.max() + 1))  # The last column counts what is not legal.
    counts[:, :-1][legal] = [
        (answer.counts or {}).get(action, 0)
        for decision, answer in zip(tree.information_sets, answers, strict=True)
        for action in decision.legal_actions
    ]
    counts[:, -1] = samples - counts.sum(1)
    values = [
        nash_conv_of_moves(tree, _drawn_again(counts, samples, chance, legal)) / len(tree.agents)
        for _ in range(RESAMPLED)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _drawn_again(counts: np.ndarray, samples: int, chance: np.random.Generator, legal: np.ndarray) -> np.ndarray:
    """Move probabilities, float64 ``[moves]``, of a bootstrap sample of replies.

    Args:
        counts: float64 ``[sets, most actions + 1]``: replies per action, the last one for none.
        legal: bool ``[sets, most actions]``: which actions there are.
    """
    drawn = chance.multinomial(samples, counts / samples)[:, :-1]
    totals = drawn.sum(1, keepdims=True)
    alike = 1 / legal.sum(1, keepdims=True)
    probabilities: np.ndarray = np.where(totals > 0, drawn / np.maximum(totals, 1), alike)[legal]
    return probabilities


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
        answers = policies.ask(_decisions(game), self.samples)
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


class TicTacToeChances:
    """Chances of the policies at TicTacToe, from what they would reply on every board.

    Gives ``minimax_loss``, the chance to lose to minimax that draws evenly among best moves, and ``random_loss`` and
    ``random_win`` against uniform play: means of both seats; ``minimax_loss_first`` and so on are of one seat.
    ``illegal_mean`` and ``illegal_max`` are probabilities of illegal replies over the boards; legal ones are measured.
    Policies see no earlier moves: the figures are those of ``history: window`` and ``history_window: 1``.

    Args:
        samples: Replies per board, of policies that reason.
    """

    columns = (
        *(
            f"{name}{seat}"
            for name in ("minimax_loss", "random_loss", "random_win")
            for seat in ("", "_first", "_second")
        ),
        *("illegal_mean", "illegal_max"),
    )

    def __init__(self, samples: Annotated[int, limits(ge=1)] = 16) -> None:
        self.samples = samples

    def problem(self, game: GameConfig) -> str | None:
        """Why ``game`` has no such chances, or ``None``."""
        env = make_game(game.env, game.env_config)
        env.close()
        if not isinstance(env, TicTacToe):
            return f"{game.env} is not TicTacToe"
        if env.options.max_turns is not None and env.options.max_turns < MOST_MOVES:
            return f"{game.env} has no exact chances while max_turns below {MOST_MOVES} may cut it short"
        return None

    def __call__(self, game: GameConfig, policies: AskedPolicies) -> Mapping[str, float]:
        asked = decisions(game.env_config)
        answers = policies.ask(asked, self.samples)
        player = player_of([answer.odds for answer in answers])
        numbers: dict[str, float] = {}
        for seat, mark in (("first", "X"), ("second", "O")):
            perfect, random = chances(player, minimax_player, mark), chances(player, uniform_player, mark)
            numbers |= {f"minimax_loss_{seat}": perfect.loss}
            numbers |= {f"random_loss_{seat}": random.loss, f"random_win_{seat}": random.win}
        for name in ("minimax_loss", "random_loss", "random_win"):
            numbers[name] = (numbers[f"{name}_first"] + numbers[f"{name}_second"]) / 2
        illegal = [answer.illegal for answer in answers]
        return numbers | {"illegal_mean": float(np.mean(illegal)), "illegal_max": float(np.max(illegal))}
