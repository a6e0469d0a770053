"""Where self-play must end under a constant KL penalty to uniform play: exploitability and value, computed on the tree.

The fixed point is the logit agent quantal response equilibrium (R. McKelvey and T. Palfrey, Quantal Response Equilibria
for Extensive Form Games, Experimental Economics 1, 1998): at every information set the policy is the softmax of the
moves' expected payoffs over the penalty.

    python benchmarks/fixed_points.py lmgame/LeducPoker-v0 --penalty 0.5
"""

from __future__ import annotations

import argparse

import numpy as np
import yaml

from rllib_lmgame.envs.contract.sequence_form import GameTree, backed_up, sequence_probabilities
from rllib_lmgame.measures.exploitability import exploitability, game_values
from rllib_lmgame.measures.game_tree import game_tree

CLOSE = 1e-6
"""Largest distance of a probability from that of the quantal response."""


def quantal_response(tree: GameTree, penalty: float, step: float = 0.03, steps: int = 10_000) -> np.ndarray:
    """float64 ``[moves]``: probabilities of the moves in equilibrium.

    Args:
        tree: The game.
        penalty: Coefficient of the KL divergence from uniform play, in the unit of the payoffs.
        step: Part of the way that the logits go to the response at once; too long a step goes round in circles.
        steps: Give up after so many.

    Raises:
        RuntimeError: if it has not come to rest by then.
    """
    logits = np.zeros(int(tree.starts[-1]))
    for _ in range(steps):
        policy = softmax(tree, logits)
        response = move_values(tree, policy) / penalty
        if np.abs(softmax(tree, response) - policy).max() < CLOSE:
            return policy
        logits += step * (response - logits)
    raise RuntimeError(f"no equilibrium after {steps} steps; take a shorter step than {step}")


def move_values(tree: GameTree, policy: np.ndarray) -> np.ndarray:
    """float64 ``[moves]``: what the player of each move gets on average after it, when all play ``policy``."""
    values = np.empty(len(policy))
    own_of_move = np.repeat(tree.seats, np.diff(tree.starts))
    reach = sequence_probabilities(tree, policy)[tree.last_moves]
    for seat in range(len(tree.agents)):
        others = tree.chance * np.delete(reach, seat, axis=1).prod(1)
        paid, reached = (
            backed_up(tree, seat, weight, lambda value: np.add.reduceat(policy * value, tree.starts[:-1]))[1:]
            for weight in (others * tree.payoffs[:, seat], others)
        )
        own = own_of_move == seat
        values[own] = paid[own] / reached[own]
    return values


def softmax(tree: GameTree, logits: np.ndarray) -> np.ndarray:
    """float64 ``[moves]``: over the moves of each information set."""
    sizes, starts = np.diff(tree.starts), tree.starts[:-1]
    odds = np.exp(logits - np.repeat(np.maximum.reduceat(logits, starts), sizes))
    return odds / np.repeat(np.add.reduceat(odds, starts), sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", help="id of a game that can be walked through")
    parser.add_argument("--penalty", type=float, required=True, help="KL coefficient in the unit of the payoffs")
    parser.add_argument("--env-config", type=yaml.safe_load, default={}, help="options of the game: '{sides: 4}'")
    parser.add_argument("--step", type=float, default=0.03, help="shorter where it goes round in circles")
    options = parser.parse_args()
    tree = game_tree(options.game, options.env_config)
    policy = np.split(quantal_response(tree, options.penalty, options.step), tree.starts[1:-1])
    odds = [
        dict(zip(s.legal_actions, p.tolist(), strict=True)) for s, p in zip(tree.information_sets, policy, strict=True)
    ]
    value = game_values(tree, odds)[0]
    print(f"exploitability {exploitability(tree, odds):.5f}, value for the first player {value:.5f}")


if __name__ == "__main__":
    main()
