"""The KL penalty as a magnet: where self-play ends in Kuhn poker under the learner's own rows, objective and losses,
for which the fixed points are known. A wrong sign, scale or direction of the penalty ends elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rllib_lmgame.base.group import build
from rllib_lmgame.envs.contract.sequence_form import START
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.objectives import ModuleUpdate, PPOObjective
from rllib_lmgame.learners.objectives.base import LearnerSettings
from rllib_lmgame.learners.options import TrainingOptions
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.measures.exploitability import exploitability
from rllib_lmgame.measures.game_tree import game_tree
from rllib_lmgame.rollouts.records import Trajectory, Turn

SCALE = 0.5
"""Of rewards: an alpha in chips is a coefficient of this times it."""

TREE = game_tree("lmgame/KuhnPoker-v0")
SEATS = np.repeat(TREE.seats, 2)
"""Who makes each of the 24 moves, two at each information set."""


def moves_made() -> torch.Tensor:
    """bool ``[ends, moves]``: the moves on the way to each end of the game."""
    made = np.zeros((len(TREE.chance), len(SEATS)), bool)
    for end, last in enumerate(TREE.last_moves):
        for move in last:
            while move != START:
                made[end, move] = True
                move = TREE.came_from[move // 2]
    return torch.from_numpy(made)


MADE = moves_made()


def reach_and_value(logprobs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How often each move is made in a game, and the chips its player gets on average after it."""
    ends = torch.from_numpy(TREE.chance) * (MADE * logprobs).sum(1).exp()
    reach = (MADE * ends[:, None]).sum(0)
    chips = torch.from_numpy(TREE.payoffs)[:, SEATS]
    return reach, (MADE * chips * ends[:, None]).sum(0) / reach


def loss_of(logprobs: torch.Tensor, settings: LearnerSettings, **update: Any) -> torch.Tensor:
    """The loss of all games there are, each as often as this policy plays it."""
    numbers = logprobs.tolist()
    with torch.no_grad():
        reach, value = reach_and_value(logprobs)
    batch = TokenBatch.from_trajectories(
        [
            Trajectory(
                [Turn(*np.full((2, 1), n, np.int32), np.array([numbers[n]], np.float32), float(value[n]), 0, True)],
                terminated=True,
                module_id="player",
                role=f"player_{SEATS[n]}",
            )
            for n in range(len(SEATS))
        ],
        max_row_tokens=8,
        reward_scale=settings.reward_scale,
    )
    objective, uniform = PPOObjective(), torch.full((batch.num_rows,), float(np.log(0.5)))
    step = ModuleUpdate(
        module_id="player",
        settings=settings,
        batch=batch,
        meter=UpdateMeter(),
        ranks=ProcessGroup(),
        reference_logprobs=lambda inputs: uniform,
        **update,
    )
    (pack,) = batch.microbatches(1000)
    order = torch.from_numpy(pack.target_ids)
    # The same numbers with the gradient of as many tokens as there would be: the loss is a sum over tokens.
    counted = (logprobs.detach() + reach * (logprobs - logprobs.detach()))[order].float()
    nothing = torch.zeros(batch.num_rows)
    out = {"logprobs": counted, "values": nothing, "entropy": nothing, "bootstrap_values": torch.zeros(0)}
    objective.record(step, pack, {name: tensor.detach() for name, tensor in out.items()}, pack.to_torch("cpu"))
    objective.prepare(step)
    return objective.loss(step, pack, out)[0]


def end_of_self_play(gradient: str, alpha: float, steps: int) -> torch.Tensor:
    """Probabilities of the moves, ``[information sets, 2]``, where self-play with exact gradients comes to rest.

    The gradient of an information set is divided by how often it is reached, which changes the way, not its end.
    """
    ppo = build(
        TrainingOptions,
        {
            "kl": {"loss_estimator": gradient},
            "normalize_advantages": "center_role",
            "critic": {"target": "monte_carlo"},
        },
    )
    settings = LearnerSettings(ppo, gamma=1.0, lam=1.0, vf_loss_coeff=0.0, reward_scale=SCALE)
    logits = torch.zeros(len(SEATS) // 2, 2, dtype=torch.float64, requires_grad=True)
    for step in range(steps):
        logprobs = logits.log_softmax(-1).flatten()
        (slope,) = torch.autograd.grad(loss_of(logprobs, settings, kl_coefficient=alpha * SCALE), logits)
        with torch.no_grad():
            reach, _ = reach_and_value(logprobs)
            logits -= (1 - 0.5 * step / steps) * slope / reach.view_as(slope)
    return logits.detach().softmax(-1)


@pytest.mark.parametrize(
    ("gradient", "alpha", "expected", "steps"),
    [("k2", 0.5, 0.11241, 50), ("k2", 0.2, 0.04357, 120), ("k3", 0.2, 0.0708, 70)],
)
def test_self_play_ends_at_the_quantal_response(gradient: str, alpha: float, expected: float, steps: int) -> None:
    """Under KL(policy || uniform), with alpha in chips, at the logit agent quantal response equilibrium; elsewhere
    under the other divergence.
    """
    odds = end_of_self_play(gradient, alpha, steps)
    at = [dict(zip(s.legal_actions, p, strict=True)) for s, p in zip(TREE.information_sets, odds.tolist(), strict=True)]
    assert exploitability(TREE, at) == pytest.approx(expected, abs=3e-4)
    _, value = reach_and_value(odds.flatten().log())
    response = (value.view_as(odds) / alpha).softmax(-1)
    assert (float((odds - response).abs().max()) < 3e-3) == (gradient == "k2")
