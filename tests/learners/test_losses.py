"""Losses against hand-computed numbers, finite differences and the vanilla policy gradient."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rllib_lmgame.learners.objectives.policy_losses import (  # noqa: E402  # noqa: E402
    PolicyTerms,
    clip,
    kl_estimate,
    kl_penalty,
    value_loss,
)
from rllib_lmgame.settings.sections.token_ppo import KL_ESTIMATORS, KL_GRADIENTS  # noqa: E402


def tensor(*values: float, grad: bool = False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


LOG = math.log


def policy_loss(new, old, advantages, *clips, dual_clip=None):
    """PPO's loss from log-probabilities."""
    dual_clip = clips[2] if len(clips) > 2 else dual_clip
    count = new.numel()
    terms = PolicyTerms(
        logprobs=new,
        old_logprobs=old,
        rollout_logprobs=old,
        advantages=advantages,
        sequence=torch.arange(count),
        clip_low=clips[0],
        clip_high=clips[1],
        dual_clip=dual_clip,
    )
    return clip(terms)


def test_policy_loss_by_hand() -> None:
    """Ratios 1, 1.5, 0.5 for a good token, then for a bad one; clips at 0.8 and 1.28."""
    old = tensor(*[-1.0] * 6)
    new = old + tensor(0, LOG(1.5), LOG(0.5), 0, LOG(1.5), LOG(0.5))
    advantages = tensor(2, 2, 2, -2, -2, -2)
    loss, stats = policy_loss(new, old, advantages, 0.2, 0.28)
    torch.testing.assert_close(loss, tensor(-2.0, -2.56, -1.0, 2.0, 3.0, 1.6))
    assert stats["clip_fraction"].item() == 2.0
    assert stats["dual_clip_fraction"].item() == 0.0
    assert stats["ratio"].item() == pytest.approx(6.0)
    assert stats["approx_kl"].item() == pytest.approx(2 * (0.5 - LOG(1.5)) + 2 * (-0.5 - LOG(0.5)))


def test_clipped_tokens_have_no_gradient_and_the_others_keep_theirs() -> None:
    new = (tensor(0, LOG(1.5), LOG(0.5), 0, LOG(1.5), LOG(0.5)) - 1.0).requires_grad_()
    loss, _ = policy_loss(new, tensor(*[-1.0] * 6), tensor(2, 2, 2, -2, -2, -2), 0.2, 0.28)
    loss.sum().backward()
    torch.testing.assert_close(new.grad, tensor(-2.0, 0.0, -1.0, 2.0, 3.0, 0.0))


def test_dual_clip_bounds_the_loss_of_bad_tokens_only() -> None:
    new = tensor(LOG(10.0), LOG(10.0), LOG(2.0)).requires_grad_()
    loss, stats = policy_loss(new, tensor(0, 0, 0), tensor(-1, 1, -1), 0.2, 0.28, dual_clip=3.0)
    torch.testing.assert_close(loss, tensor(3.0, -1.28, 2.0))
    assert stats["dual_clip_fraction"].item() == 1.0
    loss.sum().backward()
    torch.testing.assert_close(new.grad, tensor(0.0, 0.0, 2.0))


def test_gradient_at_ratio_one_is_the_vanilla_policy_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 11, generator=generator, dtype=torch.float64).requires_grad_()
    actions = torch.randint(11, (7, 1), generator=generator)
    advantages = torch.randn(7, generator=generator, dtype=torch.float64)
    logprobs = torch.log_softmax(logits, -1).gather(1, actions).squeeze(1)
    (vanilla,) = torch.autograd.grad(-(advantages * logprobs).mean(), logits, retain_graph=True)
    loss, stats = policy_loss(logprobs, logprobs.detach(), advantages, 0.2, 0.28, dual_clip=3.0)
    (clipped,) = torch.autograd.grad(loss.mean(), logits)
    torch.testing.assert_close(clipped, vanilla)
    assert stats["clip_fraction"].item() == 0.0 and stats["ratio"].item() == pytest.approx(7.0)


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_policy_loss_gradient_agrees_with_finite_differences(dual_clip: float | None) -> None:
    old = tensor(-1.0, -0.7, -2.0, -0.3, -1.5, -0.2)
    new = (old + tensor(0.05, 0.6, -0.6, -0.1, 0.7, 1.6)).requires_grad_()
    advantages = tensor(1.0, 2.0, -1.0, -0.5, -1.0, -2.0)
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, old, advantages, 0.2, 0.28, dual_clip)[0], new)


def test_a_huge_ratio_stays_finite() -> None:
    new = torch.tensor([0.0, -500.0], requires_grad=True)
    loss, stats = policy_loss(new, torch.tensor([-500.0, 0.0]), torch.tensor([-1.0, -1.0]), 0.2, 0.28)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(new.grad).all()
    assert all(torch.isfinite(value) for value in stats.values())


def test_value_loss_by_hand() -> None:
    loss, stats = value_loss(tensor(1.0, 3.0), tensor(0.0, 0.0), tensor(2.0, 2.5))
    torch.testing.assert_close(loss, tensor(1.0, 0.25))
    assert stats["value_clip_fraction"].item() == 0.0


def test_clipped_value_loss_is_the_worse_of_the_two() -> None:
    """Moved by 1, allowed 0.5: towards the target the clip bites; past the target the error itself is the worse."""
    values = tensor(1.0, 1.0, 0.2).requires_grad_()
    loss, stats = value_loss(values, tensor(0.0, 0.0, 0.0), tensor(2.0, 0.0, 2.0), value_clip=0.5)
    torch.testing.assert_close(loss, tensor(2.25, 1.0, 3.24))
    assert stats["value_clip_fraction"].item() == 1.0
    loss.sum().backward()
    torch.testing.assert_close(values.grad, tensor(0.0, 2.0, -3.6))


@pytest.mark.parametrize("value_clip", [None, 0.5])
def test_value_loss_gradient_agrees_with_finite_differences(value_clip: float | None) -> None:
    values = tensor(1.0, 0.9, 0.2, -0.8, grad=True)
    args = tensor(0.0, 0.1, 0.0, 0.1), tensor(2.0, 0.0, 2.0, 0.3)
    assert torch.autograd.gradcheck(lambda x: value_loss(x, *args, value_clip)[0], values)


LOGPROBS = st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=20)


@given(LOGPROBS)
def test_k3_is_never_negative_and_no_token_has_more_than_ten(pairs: list[tuple[float, float]]) -> None:
    for dtype in (torch.float32, torch.float64):
        policy, reference = torch.tensor(pairs, dtype=dtype).unbind(1)
        kl = kl_estimate(policy, reference, "k3")
        assert (kl >= 0).all() and (kl <= 10).all()
        assert kl_penalty(policy, reference)[1]["kl"].item() == pytest.approx(kl.sum().item())


def test_the_estimates_and_gradients_that_options_name_are_those_that_there_are() -> None:
    policy, reference = tensor(LOG(0.5)), tensor(LOG(0.25))

    def there(compute: Callable[[str], object]) -> tuple[str, ...]:
        found = []
        for name in (f"k{number}" for number in range(9)):
            with contextlib.suppress(KeyError):
                compute(name)
                found.append(name)
        return tuple(found)

    assert there(lambda name: kl_estimate(policy, reference, name)) == KL_ESTIMATORS
    assert there(lambda name: kl_penalty(policy, reference, name, "k2")) == KL_ESTIMATORS
    assert there(lambda name: kl_penalty(policy, reference, "k3", name)) == KL_GRADIENTS


def test_kl_estimates_by_hand() -> None:
    policy, reference = tensor(LOG(0.5), LOG(0.2), LOG(0.3)), tensor(LOG(0.25), LOG(0.4), LOG(0.3))
    values = {estimator: kl_estimate(policy, reference, estimator) for estimator in ("k1", "k2", "k3")}
    torch.testing.assert_close(values["k1"], tensor(LOG(2), -LOG(2), 0.0))
    torch.testing.assert_close(values["k2"], tensor(LOG(2) ** 2 / 2, LOG(2) ** 2 / 2, 0.0))
    torch.testing.assert_close(values["k3"], tensor(0.5 - 1 + LOG(2), 2 - 1 - LOG(2), 0.0))


@pytest.mark.parametrize("d", [-40.0, -10.1, -9.9, -2.7, -2.6, 0.0, 0.3, 10.9, 11.1, 40.0])
def test_estimates_and_penalties_far_from_the_reference_are_what_their_formulas_say(d: float) -> None:
    """The estimate ``k3`` ends at 10; as a penalty it goes on, from ``d = -10`` in a straight line."""
    policy, reference = tensor(d, grad=True), tensor(0.0)
    near = max(d, -10.0)
    values = {"k1": d, "k2": d**2 / 2, "k3": min(math.exp(-d) - 1 + d, 10.0)}
    slopes = {"k2": d, "k3": 1 - math.exp(-near)}
    minimised = {"k2": d**2 / 2, "k3": math.exp(-near) - 1 + near + slopes["k3"] * (d - near)}
    for estimator, value in values.items():
        for gradient, slope in slopes.items():
            penalty, stats = kl_penalty(policy, reference, estimator, gradient)
            assert (penalty.item(), stats["kl"].item()) == pytest.approx((minimised[gradient], value))
            (found,) = torch.autograd.grad(penalty.sum(), policy)
            assert found.item() == pytest.approx(slope)


def test_one_token_of_hundreds_does_not_make_the_divergence() -> None:
    """After a large step away from the policy that drew the tokens, here the reference, next to the exact divergence
    over the vocabulary, in float64.
    """
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(616, 32, generator=generator, dtype=torch.float64)
    reference = logits.log_softmax(-1)
    drawn = torch.multinomial(reference.exp(), 1, generator=generator)
    logits[7].scatter_(0, drawn[7], -12.0)
    policy = (logits + 0.3 * torch.randn(logits.shape, generator=generator, dtype=torch.float64)).log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum(-1).mean().item()
    ours, theirs = (logprobs.gather(1, drawn).squeeze(1) for logprobs in (policy, reference))
    unbounded = torch.exp(theirs - ours) - 1 + ours - theirs
    assert unbounded.max() > 1000 and unbounded.mean() > 20 * exact
    reported = kl_penalty(ours, theirs)[1]["kl"].item() / 616
    assert exact == pytest.approx(reported, rel=0.5)


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
    for estimator in ("k1", "k3"):
        kl, stats = kl_penalty(policy, reference, estimator, gradient)
        estimate = (policy.detach().exp() * kl_estimate(policy.detach(), reference, estimator)).sum()
        if far and estimator == "k3":
            assert 0.9 * reverse < estimate < reverse
        else:
            torch.testing.assert_close(estimate, reverse.detach())
        assert not stats["kl"].requires_grad
        (found,) = torch.autograd.grad((policy.detach().exp() * kl).sum(), logits, retain_graph=True)
        (expected,) = torch.autograd.grad(reverse if gradient == "k2" else forward, logits, retain_graph=True)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("gradient", ["k2", "k3"])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_what_the_penalty_says_is_what_its_gradient_minimises(estimator: str, gradient: str) -> None:
    policy, reference = tensor(-1.0, -3.0, -0.5, -12.0, grad=True), tensor(-2.0, -1.0, -0.6, -0.1)
    assert torch.autograd.gradcheck(lambda x: kl_penalty(x, reference, estimator, gradient)[0], policy)


@pytest.mark.parametrize("gradient", ["k2", "k3"])
def test_a_policy_far_from_the_reference_is_still_pulled_back(gradient: str) -> None:
    policy, reference = tensor(-0.01, -40.0, grad=True), tensor(-60.0, -1.0)
    kl_penalty(policy, reference, "k3", gradient)[0].sum().backward()
    assert torch.isfinite(policy.grad).all() and policy.grad[0] > 0.9 and policy.grad[1] < -0.9


@pytest.mark.parametrize(("gradient", "end"), [("k2", (0.88080, 0.11920)), ("k3", (0.80902, 0.19098))])
def test_where_two_arms_end_under_a_penalty(gradient: str, end: tuple[float, float]) -> None:
    """Rewards 1 and 0, weight 0.5, a uniform reference: KL(policy || reference) ends at softmax(reward / weight), the
    other way round elsewhere.
    """
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    reference, rewards = tensor(LOG(0.5), LOG(0.5)), tensor(1.0, 0.0)
    optimizer = torch.optim.SGD([logits], lr=2.0)
    for _ in range(400):
        logprobs = logits.log_softmax(-1)
        sampled = logprobs.detach().exp()
        loss, _ = policy_loss(logprobs, logprobs.detach(), rewards, 0.2, 0.28)
        optimizer.zero_grad()
        (sampled * (loss + 0.5 * kl_penalty(logprobs, reference, "k3", gradient)[0])).sum().backward()
        optimizer.step()
    assert logits.detach().softmax(-1).tolist() == pytest.approx(end, abs=1e-5)


def test_statistics_carry_no_gradient_and_add_up_over_micro_batches() -> None:
    new = tensor(-0.5, -1.5, -1.0, -0.1, grad=True)
    old, advantages = tensor(-1.0, -1.0, -1.0, -1.0), tensor(1.0, -1.0, 2.0, -2.0)
    _, whole = policy_loss(new, old, advantages, 0.2, 0.28, 3.0)
    halves = [policy_loss(new[s], old[s], advantages[s], 0.2, 0.28, 3.0)[1] for s in (slice(0, 1), slice(1, 4))]
    for name, value in whole.items():
        assert not value.requires_grad and value.ndim == 0
        assert value.item() == pytest.approx(sum(half[name].item() for half in halves))
