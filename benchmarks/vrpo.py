"""An estimator for self-play in small games: advantages from expected values of actions, with all cards seen.

VRPO (arXiv 2605.19235) replaces GAE by multi-step Expected SARSA with a centralized critic of actions, which averages
out which actions are sampled later. In a game that can be walked through these values follow from the policy, and the
policy from a batch with every action that is played. Batches of Kuhn poker have them, so this is VRPO with a critic
that makes no error there; those of Leduc poker lack half of its 936 views.

    PYTHONPATH=benchmarks rllib train file tuned_examples/kuhn-selfplay-tiny.yaml --stop '{training_iteration: 50}' \
        --set config.training.advantage_estimator=vrpo:VRPO
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np

from rllib_lmgame.base.group import option, tag
from rllib_lmgame.envs.contract import GameState, TextTreeGame
from rllib_lmgame.envs.registry import make_game
from rllib_lmgame.learners.advantages import AdvantageInputs
from rllib_lmgame.learners.advantages.base import Estimator
from rllib_lmgame.rollouts.records import observation_key

Line = list[tuple[GameState, str]]
"""States and actions of an episode."""


def seen(state: GameState) -> int:
    """Key of what the player to move sees."""
    return observation_key(state.view(state.seat))


@cache
def tree(game: str) -> dict[tuple[object, ...], Line]:
    """Each line of play, by what either player saw and the first player's payoff."""
    env = make_game(game, {"show_rules": False})
    assert isinstance(env, TextTreeGame)
    lines: dict[tuple[object, ...], Line] = {}

    def walk(state: GameState, line: Line) -> None:
        if state.chance:
            for _, after in state.chance:
                walk(after, line)
        elif state.finished:
            views = (tuple(seen(before) for before, _ in line if before.seat == seat) for seat in (0, 1))
            lines[(*views, state.payoffs[0])] = line
        else:
            for action in state.actions:
                walk(state.after(action), [*line, (state, action)])

    walk(env.first_state(), [])
    return lines


class VRPO(Estimator):
    """``Q(h, a) - sum_a' pi(a' | s) Q(h, a')`` for two that learn, with legal replies of one token, on one learner.

    ``h`` is the state of the game. Probabilities are those of the batch; actions it lacks share what is left to 1.
    """

    type: str = tag("vrpo", "Its name.")
    game: str = option("lmgame/KuhnPoker-v0", "A zero-sum game of two players, a `TextTreeGame`.")
    reward_scale: float = option(0.5, "As in `text_rollouts`.", gt=0)

    needs_critic = False
    own_scale = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        played, chances = self._played(inputs), np.exp(inputs.old_logprobs[inputs.turn_offsets[:-1]])
        policy: dict[int, dict[str, float]] = defaultdict(dict)
        for turn, (state, action) in played.items():
            policy[seen(state)][action] = float(chances[turn])
        values: dict[GameState, float] = {}

        def value(state: GameState) -> float:
            """Expected payoff of the first player."""
            if state not in values:
                if state.chance:
                    values[state] = sum(chance * value(after) for chance, after in state.chance)
                elif state.finished:
                    values[state] = state.payoffs[0] * self.reward_scale
                else:
                    known, actions = policy[seen(state)], state.actions
                    left = max(0.0, 1.0 - sum(known.values())) / max(1, len(actions) - len(known))
                    weights = np.array([known.get(action, left) for action in actions])
                    values[state] = float(weights @ [value(state.after(a)) for a in actions] / weights.sum())
            return values[state]

        gains = np.zeros(len(chances), np.float32)
        for turn, (state, action) in played.items():
            gains[turn] = (value(state.after(action)) - value(state)) * (1 - 2 * state.seat)
        return inputs.turn_per_token(gains)

    def _played(self, inputs: AdvantageInputs) -> dict[int, tuple[GameState, str]]:
        """State and action of each turn."""
        keys, ranges, lines = inputs.turn_observations, inputs.turn_ranges, tree(self.game)
        episodes: dict[str, list[int]] = defaultdict(list)
        for player in sorted(range(len(inputs.roles)), key=lambda n: inputs.role_names[inputs.roles[n]]):
            episodes[inputs.episodes[player]].append(player)
        played = {}
        for players in episodes.values():
            turns = [iter(range(ranges[player], ranges[player + 1])) for player in players]
            views = (tuple(keys[ranges[player] : ranges[player + 1]].tolist()) for player in players)
            line = lines.get((*views, round(float(inputs.returns[players[0]]) / self.reward_scale, 6)))
            if line is None:
                raise ValueError(
                    f"an episode does not fit {self.game}: a reply was invalid or the game cut short, reward_scale "
                    "differs, or a player does not learn"
                )
            for state, action in line:
                played[next(turns[state.seat])] = state, action
        return played
