"""Policy losses against loops over tokens in plain Python, and their gradients against finite differences of what they
stand for, over random ragged sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.learners.objectives.policy_losses import (
    PolicyLoss,
    PolicyTerms,
    resolve_policy_loss,
    token_losses,
)
from rllib_lmgame.settings.plugins import POLICY_LOSSES

LOW, HIGH = 0.15, 0.3
STEP = 1e-6


def made_up(lengths: list[int], seed: int, equal_advantages: bool = False) -> dict[str, Any]:
    """Tokens of sequences of these lengths, float64; probabilities from small to nearly 1."""
    rng, count = np.random.default_rng(seed), sum(lengths)
    old = np.log(rng.uniform(0.02, 0.98, count))
    sequence = np.repeat(rng.permutation(len(lengths)), np.array(lengths, np.int64))
    advantages = rng.normal(size=count)
    return {
        "new": np.minimum(old + rng.normal(0.0, 0.4, count), -1e-3),
        "old": old,
        "rollout": np.minimum(old + rng.normal(0.0, 0.1, count), -1e-3),
        "advantages": rng.normal(size=len(lengths))[sequence] if equal_advantages else advantages,
        "sequence": sequence,
    }


def terms_of(data: dict[str, Any], dual_clip: float | None = None) -> PolicyTerms:
    return PolicyTerms(
        logprobs=torch.tensor(data["new"], requires_grad=True),
        old_logprobs=torch.tensor(data["old"]),
        rollout_logprobs=torch.tensor(data["rollout"]),
        advantages=torch.tensor(data["advantages"]),
        sequence=torch.tensor(data["sequence"]),
        clip_low=LOW,
        clip_high=HIGH,
        dual_clip=dual_clip,
    )


def clipped(ratio: float, advantage: float, dual_clip: float | None) -> float:
    gain = min(ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage)
    return -max(gain, dual_clip * advantage) if dual_clip is not None and advantage < 0 else -gain


def written_out(name: str, new: Any, data: dict[str, Any], dual_clip: float | None) -> list[float]:
    """The losses of all tokens at ``new``; what is held fixed in a gradient stands at ``data["new"]``."""
    found = []
    for t, advantage in enumerate(data["advantages"]):
        fixed = data["new"][t]
        ratio = math.exp(new[t] - data["old"][t])
        fixed_ratio = math.exp(fixed - data["old"][t])
        if name == "clip":
            loss = clipped(ratio, advantage, dual_clip)
        elif name == "cispo":
            loss = -min(fixed_ratio, 1 + HIGH) * advantage * new[t]
        elif name == "cispo_two_sided":
            loss = -min(max(fixed_ratio, 1 - LOW), 1 + HIGH) * advantage * new[t]
        elif name.startswith("gspo"):
            members = [u for u, other in enumerate(data["sequence"]) if other == data["sequence"][t]]
            mean = sum(data["new"][u] - data["old"][u] for u in members) / len(members)
            loss = clipped(math.exp(mean) * math.exp(new[t]) / math.exp(fixed), advantage, dual_clip)
        else:
            moved = math.exp(fixed) - math.exp(data["rollout"][t])
            out = moved > HIGH if advantage > 0 else moved < -LOW
            loss = 0.0 if out else -math.exp(new[t] - data["rollout"][t]) * advantage
        found.append(loss)
    return found


LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@pytest.mark.parametrize("dual_clip", [None, 1.5])
@pytest.mark.parametrize("name", POLICY_LOSSES)
@settings(max_examples=25, deadline=None)
@given(LENGTHS, st.integers(0, 2**31))
def test_a_policy_loss_and_its_gradient_are_those_written_out(
    name: str, dual_clip: float | None, lengths: list[int], seed: int
) -> None:
    entry = POLICY_LOSSES[name]
    if dual_clip is not None and not entry.dual_clip:
        dual_clip = None
    data = made_up(lengths, seed)
    terms = terms_of(data, dual_clip)
    loss, stats = entry.function(terms)
    np.testing.assert_allclose(loss.detach(), written_out(name, data["new"], data, dual_clip), rtol=1e-9, atol=1e-12)
    (gradient,) = torch.autograd.grad(loss.sum(), terms.logprobs)
    for t in range(sum(lengths)):
        either = []
        for step in (STEP, -STEP):
            moved = data["new"].copy()
            moved[t] += step
            either.append(sum(written_out(name, moved, data, dual_clip)))
        assert gradient[t].item() == pytest.approx((either[0] - either[1]) / (2 * STEP), rel=1e-4, abs=1e-6)
    assert all(not value.requires_grad and value.ndim == 0 for value in stats.values())
    gaps = data["new"] - data["old"]  # Also of a loss whose ratio is to the sampler.
    assert stats["approx_kl"].item() == pytest.approx(float(np.sum(np.exp(gaps) - 1 - gaps)), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(LENGTHS, st.integers(0, 2**31))
def test_gspo_has_the_gradient_of_the_sequences_own_loss(lengths: list[int], seed: int) -> None:
    """Where a sequence has one advantage: that of its clipped ratio, which is differentiated through the mean."""
    data = made_up(lengths, seed, equal_advantages=True)

    def of_sequences(new: np.ndarray) -> float:
        total = 0.0
        for number in set(data["sequence"].tolist()):
            members = data["sequence"] == number
            ratio = math.exp(float(np.mean((new - data["old"])[members])))
            total += members.sum() * clipped(ratio, data["advantages"][members][0], None)
        return total

    terms = terms_of(data)
    loss, _ = POLICY_LOSSES["gspo"].function(terms)
    (gradient,) = torch.autograd.grad(loss.sum(), terms.logprobs)
    assert loss.sum().item() == pytest.approx(of_sequences(data["new"]))
    for t in range(sum(lengths)):
        step = np.zeros(sum(lengths))
        step[t] = STEP
        slope = (of_sequences(data["new"] + step) - of_sequences(data["new"] - step)) / (2 * STEP)
        assert gradient[t].item() == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_where_nothing_has_moved_every_policy_loss_has_the_vanilla_gradient(name: str) -> None:
    data = made_up([3, 1, 4], 5)
    data["new"] = data["rollout"] = data["old"]
    terms = terms_of(data)
    loss, stats = POLICY_LOSSES[name].function(terms)
    (gradient,) = torch.autograd.grad(loss.sum(), terms.logprobs)
    np.testing.assert_allclose(gradient, -data["advantages"], rtol=1e-12)
    numbers = {key: value.item() for key, value in stats.items()}
    assert numbers == pytest.approx({"clip_fraction": 0, "dual_clip_fraction": 0, "ratio": 8, "approx_kl": 0})


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_learner_without_tokens_has_a_loss_and_the_same_sums(name: str) -> None:
    terms = terms_of(made_up([], 0))
    loss, stats = POLICY_LOSSES[name].function(terms)
    loss.sum().backward()
    assert loss.shape == (0,) and stats.keys() == POLICY_LOSSES[name].function(terms_of(made_up([2], 0)))[1].keys()


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_what_is_clipped_is_counted_and_nothing_overflows(name: str) -> None:
    """A likely token made likelier by far, and a token from nothing to certainty and back."""
    data = made_up([4], 0)
    data["old"] = data["rollout"] = np.array([-2.0, -0.1, -500.0, 0.0])
    data["new"] = np.array([-0.1, -2.0, 0.0, -500.0])
    data["advantages"], data["sequence"] = np.array([1.0, -1.0, 1.0, -1.0]), np.arange(4)
    loss, stats = POLICY_LOSSES[name].function(terms := terms_of(data))
    (gradient,) = torch.autograd.grad(loss.sum(), terms.logprobs)
    assert torch.isfinite(loss).all() and torch.isfinite(gradient).all()
    assert stats["clip_fraction"].item() == (2 if name == "cispo" else 4)
    if not name.startswith("cispo"):
        assert gradient.abs().max() == 0.0


def halved(terms: PolicyTerms) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = -0.5 * terms.advantages * terms.logprobs
    return loss, {}


def of_two(terms: PolicyTerms, more: int) -> None:
    """Takes too much."""


BOUNDED = PolicyLoss(halved, clip_high=None)


def test_policy_losses_are_found_by_name_and_by_path() -> None:
    assert resolve_policy_loss("gspo").bounds(None, None) == (3e-4, 4e-4)
    assert resolve_policy_loss("clip").bounds(0.1, None) == (0.1, 0.28)
    assert resolve_policy_loss("cispo").bounds(None, None) == (math.inf, 4.0)
    assert resolve_policy_loss(f"{__name__}:halved").function is halved
    assert resolve_policy_loss(f"{__name__}:BOUNDED") is BOUNDED


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda loss: loss, r"a tensor of shape \[5\]"),
        (lambda loss: (loss.mean(), {}), r"\(a tensor of shape \[\], dict\)"),
        (lambda loss: (loss, None), r"\(a tensor of shape \[5\], NoneType\)"),
    ],
)
def test_a_policy_loss_that_returns_something_else_is_named(returned: Callable[[torch.Tensor], Any], said: str) -> None:
    terms = PolicyTerms(
        **dict.fromkeys(("logprobs", "old_logprobs", "rollout_logprobs", "advantages"), torch.ones(5)),
        sequence=torch.zeros(5, dtype=torch.long),
        clip_low=0.2,
        clip_high=0.2,
    )
    assert token_losses("my:loss", PolicyLoss(halved), terms)[1] == {}
    with pytest.raises(ValueError, match=rf"policy_loss `my:loss` must return a pair.*it gave {said}"):
        token_losses("my:loss", PolicyLoss(lambda terms: returned(terms.logprobs)), terms)


@pytest.mark.parametrize(
    ("options", "key", "said"),
    [
        ({"policy_loss": f"{__name__}:of_two"}, "policy_loss", "takes one argument, PolicyTerms"),
        ({"policy_loss": f"{__name__}:LOW"}, "policy_loss", "is a float, not a function"),
    ],
)
def test_options_that_a_policy_loss_has_no_use_for_are_refused(options: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        resolve_policy_loss(options["policy_loss"])
    assert caught.value.path == f"token_ppo.{key}"
