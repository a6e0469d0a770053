"""The value loss and the KL penalty: numbers by hand, and their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.learners.losses.policy import k3_estimate, kl_penalty, value_loss


def tensor(*values: float, grad: bool = False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_clipped_value_loss_is_the_worse_of_the_two() -> None:
    """Moved by 1, allowed 0.5: towards the target the clip bites; past the target the error itself is the worse."""
    values = tensor(1.0, 1.0, 0.2).requires_grad_()
    loss, stats = value_loss(values, tensor(0.0, 0.0, 0.0), tensor(2.0, 0.0, 2.0), value_clip=0.5)
    torch.testing.assert_close(loss, tensor(2.25, 1.0, 3.24))
    assert stats["value_clip_fraction"].item() == 1.0
    loss.sum().backward()
    torch.testing.assert_close(values.grad, tensor(0.0, 2.0, -3.6))


LOGPROBS = st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=20)


@given(LOGPROBS)
def test_k3_is_never_negative_and_no_token_has_more_than_ten(pairs: list[tuple[float, float]]) -> None:
    for dtype in (torch.float32, torch.float64):
        policy, reference = torch.tensor(pairs, dtype=dtype).unbind(1)
        kl = k3_estimate(policy, reference)
        assert (kl >= 0).all() and (kl <= 10).all()


@pytest.mark.parametrize("d", [-40.0, -10.1, -9.9, -2.7, -2.6, 0.0, 0.3, 10.9, 11.1, 40.0])
def test_estimates_and_penalties_far_from_the_reference_are_what_their_formulas_say(d: float) -> None:
    """The estimate ends at 10; the penalty ``k3`` goes on, from ``d = -10`` in a straight line."""
    policy, reference = tensor(d, grad=True), tensor(0.0)
    near = max(d, -10.0)
    slopes = {"k2": d, "k3": 1 - math.exp(-near)}
    minimised = {"k2": d**2 / 2, "k3": math.exp(-near) - 1 + near + slopes["k3"] * (d - near)}
    assert k3_estimate(policy, reference).item() == pytest.approx(min(math.exp(-d) - 1 + d, 10.0))
    for gradient, slope in slopes.items():
        penalty = kl_penalty(policy, reference, gradient)
        assert penalty.item() == pytest.approx(minimised[gradient])
        (found,) = torch.autograd.grad(penalty.sum(), policy)
        assert found.item() == pytest.approx(slope)


@pytest.mark.parametrize("gradient", ["k2", "k3"])
@pytest.mark.parametrize("far", [False, True])
def test_in_expectation_the_value_is_the_divergence_and_the_gradient_the_one_of_its_name(
    gradient: str, far: bool
) -> None:
    """Summed over all tokens with the policy's probabilities, which is what sampling from it does. Far away a token's
    ``k3`` is bounded, and the divergence no less than it says.
    """
    generator = torch.Generator().manual_seed(1)
    logits, other = (1.0 if far else 0.5) * torch.randn(2, 9, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    policy, reference = logits.log_softmax(-1), other.log_softmax(-1)
    reverse, forward = (policy.exp() * (policy - reference)).sum(), (reference.exp() * (reference - policy)).sum()
    estimate = (policy.detach().exp() * k3_estimate(policy.detach(), reference)).sum()
    if far:
        assert 0.9 * reverse < estimate < reverse
    else:
        torch.testing.assert_close(estimate, reverse.detach())
    penalty = kl_penalty(policy, reference, gradient)
    (found,) = torch.autograd.grad((policy.detach().exp() * penalty).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad(reverse if gradient == "k2" else forward, logits)
    torch.testing.assert_close(found, expected)
