"""Policy losses against loops over tokens in plain Python, and their gradients against finite differences of what they
stand for, over random ragged sequences; and how they become one number, however rows are spread and packed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching import Row, batch_of, row_lists

from rllib_lmgame.base.group import build, declared, option, value_at
from rllib_lmgame.base.registry import AGGREGATIONS, POLICY_LOSSES
from rllib_lmgame.learners.data.batching import MinibatchSize
from rllib_lmgame.learners.losses.policy import CISPO, GSPO, Clip, PolicyLoss, PolicyTerms, token_losses
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.objectives import ModuleUpdate, PPOObjective
from rllib_lmgame.learners.objectives.base import LearnerSettings
from rllib_lmgame.learners.objectives.ppo import correct_for_sampler
from rllib_lmgame.learners.options import TrainingOptions
from rllib_lmgame.learners.process import ProcessGroup

LOW, HIGH = 0.15, 0.3
STEP = 1e-7


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


def loss_of(name: str, dual_clip: float | None = None) -> Any:
    """The loss with the bounds of :func:`written_out`, as far as it has such options."""
    bounds = {"clip_low": LOW, "clip_high": HIGH, "dual_clip": dual_clip}
    known = declared(POLICY_LOSSES[name])
    return POLICY_LOSSES.read({"type": name, **{key: value for key, value in bounds.items() if key in known}})


def terms_of(data: dict[str, Any]) -> PolicyTerms:
    return PolicyTerms(
        logprobs=torch.tensor(data["new"], requires_grad=True),
        old_logprobs=torch.tensor(data["old"]),
        rollout_logprobs=torch.tensor(data["rollout"]),
        advantages=torch.tensor(data["advantages"]),
        sequence=torch.tensor(data["sequence"]),
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
    bounded_below = "dual_clip" in declared(POLICY_LOSSES[name])
    dual_clip = dual_clip if bounded_below else None
    data = made_up(lengths, seed)
    terms = terms_of(data)
    loss, stats = loss_of(name, dual_clip)(terms)
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
    if name != "cispo":  # What takes the gradient is counted once.
        assert stats["clip_fraction"] + stats["dual_clip_fraction"] == (gradient == 0).sum()
    if bounded_below:
        unbounded = np.array(written_out(name, data["new"], data, None))
        bounded = np.array(written_out(name, data["new"], data, dual_clip))
        assert stats["dual_clip_fraction"].item() == (bounded < unbounded).sum()
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
    loss, _ = loss_of("gspo")(terms)
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
    loss, stats = loss_of(name)(terms)
    (gradient,) = torch.autograd.grad(loss.sum(), terms.logprobs)
    np.testing.assert_allclose(gradient, -data["advantages"], rtol=1e-12)
    numbers = {key: value.item() for key, value in stats.items()}
    assert numbers == pytest.approx({"clip_fraction": 0, "dual_clip_fraction": 0, "ratio": 8, "approx_kl": 0})


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_learner_without_tokens_has_a_loss_and_the_same_sums(name: str) -> None:
    loss, stats = loss_of(name)(terms_of(made_up([], 0)))
    loss.sum().backward()
    assert loss.shape == (0,) and stats.keys() == loss_of(name)(terms_of(made_up([2], 0)))[1].keys()


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_what_is_clipped_is_counted_and_nothing_overflows(name: str) -> None:
    """A likely token made likelier by far, and a token from nothing to certainty and back."""
    data = made_up([4], 0)
    data["old"] = data["rollout"] = np.array([-2.0, -0.1, -500.0, 0.0])
    data["new"] = np.array([-0.1, -2.0, 0.0, -500.0])
    data["advantages"], data["sequence"] = np.array([1.0, -1.0, 1.0, -1.0]), np.arange(4)
    loss, stats = loss_of(name)(terms := terms_of(data))
    (gradient,) = torch.autograd.grad(loss.sum(), terms.logprobs)
    assert torch.isfinite(loss).all() and torch.isfinite(gradient).all()
    assert stats["clip_fraction"].item() == (2 if name == "cispo" else 4)
    if name != "cispo":
        assert gradient.abs().max() == 0.0


def halved(terms: PolicyTerms) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return -0.5 * terms.advantages * terms.logprobs, {}


class Scaled(PolicyLoss):
    scale: float = option(0.5, "A factor.", gt=0)

    def __call__(self, terms: PolicyTerms, /) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return -self.scale * terms.advantages * terms.logprobs, {}


def chosen(value: Any) -> Any:
    return build(TrainingOptions, {"policy_loss": value}, "config.training").policy_loss


def test_policy_losses_are_found_by_name_and_by_path() -> None:
    """Also one with an option of its own."""
    assert TrainingOptions().policy_loss == chosen({}) == Clip(clip_low=0.2, clip_high=0.28)
    assert chosen("gspo") == GSPO(clip_low=3e-4, clip_high=4e-4) and chosen("cispo") == CISPO(clip_high=4.0)
    terms = terms_of(made_up([3], 0))
    for value in (f"{__name__}:halved", f"{__name__}:Scaled", {"type": f"{__name__}:Scaled", "scale": 0.5}):
        assert torch.equal(token_losses(chosen(value), terms)[0], halved(terms)[0])


@pytest.mark.parametrize(
    "returned", [lambda loss: loss, lambda loss: (loss.mean(), {}), lambda loss: (loss, None)], ids="123"
)
def test_a_policy_loss_that_returns_something_else_is_named(returned: Callable[[torch.Tensor], Any]) -> None:
    terms = terms_of(made_up([5], 0))
    loss: Any = lambda terms: returned(terms.logprobs)  # noqa: E731
    loss.type = "my:loss"
    with pytest.raises(ValueError, match=r"policy_loss `my:loss` must return a pair.* of shape \[5\]"):
        token_losses(loss, terms)


ENTROPY, KL, VALUE, LENGTH, CAP = 0.05, 0.4, 0.3, 7, 1.2


@cache
def number(token: int, column: str) -> float:
    """Something made up for a token; every token of a batch has an id of its own."""
    bound = {"old": (-4, -0.1), "entropy": (0, 2)}.get(column, (-1.5, 1.5))
    drawn = float(np.random.default_rng([token, *column.encode()]).uniform(*bound))
    if column in ("new", "rollout", "ref"):
        return min(number(token, "old") + 0.4 * drawn, -1e-3)
    return drawn


def column(tokens: Sequence[int], name: str) -> np.ndarray:
    return np.array([number(token, name) for token in tokens])


def tokens_of(rows: list[Row]) -> list[tuple[int, int, int, int]]:
    """(row, trajectory, turn, id) of every sampled token."""
    return [
        (n, row.trajectory, int(row.turn[at]), int(row.input_ids[at]))
        for n, row in enumerate(rows)
        for at in np.flatnonzero(row.loss_mask)
    ]


def by_hand(rows: list[Row], ppo: TrainingOptions, moved: dict[tuple[str, int], float]) -> float:
    """The loss of all rows, by the definition of each way of averaging, where columns of tokens have moved."""
    name, how = ppo.policy_loss.type, ppo.aggregation.type
    tokens = tokens_of(rows)
    ids = [token for *_, token in tokens]
    number_of: dict[Any, int] = {}
    data = {
        "new": column(ids, "new"),
        "old": column(ids, "old"),
        "rollout": column(ids, "rollout"),
        "advantages": column(ids, "advantage"),
        "sequence": [
            number_of.setdefault(n if name == "gspo_trajectory" else (n, turn), len(number_of))
            for n, _, turn, _ in tokens
        ],
    }
    weights = np.minimum(np.exp(data["old"] - data["rollout"]), CAP) if name != "dppo" else np.ones(len(ids))
    new = [value + moved.get(("new", token), 0.0) for token, value in zip(ids, data["new"], strict=True)]
    policy = np.multiply(weights, written_out(name, new, data, value_at(ppo, "policy_loss.dual_clip"))).tolist()
    parts: dict[Any, list[float]] = defaultdict(list)
    values = 0.0
    for (_, trajectory, _, token), loss, logprob in zip(tokens, policy, new, strict=True):
        gap = logprob - number(token, "ref")
        loss += KL * (math.exp(-gap) - 1 + gap) - ENTROPY * number(token, "entropy")
        parts["all" if how == "token_mean" else trajectory].append(loss)
        value, before, target = number(token, "value"), number(token, "old value"), number(token, "return")
        value += moved.get(("value", token), 0.0)
        error = (value - target) ** 2
        if ppo.critic.clip is not None:
            clipped = min(max(value, before - ppo.critic.clip), before + ppo.critic.clip)
            error = max(error, (clipped - target) ** 2)
        values += error
    sums = [sum(part) / (LENGTH if how == "constant_length" else len(part)) for part in parts.values()]
    return sum(sums) / len(sums) + VALUE * values / len(tokens)


def of_learners(
    shards: list[list[Row]], ppo: TrainingOptions, budget: int, minibatches: int
) -> list[tuple[list[int], float, dict[tuple[str, int], float]]]:
    """What learners with these rows make of them: of each minibatch the ids, its loss, and the gradient by column and
    id.
    """
    settings_ = LearnerSettings(ppo, gamma=1.0, lam=1.0, vf_loss_coeff=VALUE)
    objective, updates, packs = PPOObjective(), [], []
    for rank, rows in enumerate(shards):
        batch = batch_of(rows)
        ids = batch._ids[batch._action_position]
        names = {"old_logprobs": "old", "rollout_logprobs": "rollout", "advantages": "advantage"}
        for attribute, name in (names | {"ref_logprobs": "ref", "returns": "return", "values": "old value"}).items():
            setattr(batch, attribute, column(ids, name).astype(np.float32))
        batch.sequence = batch.stretches(ppo.policy_loss.sequence)
        batch.loss_weights = ppo.aggregation.weights(batch)
        values = {"entropy_coefficient": ENTROPY, "kl_coefficient": KL, "meter": UpdateMeter(), "ranks": ProcessGroup()}
        updates.append(
            ModuleUpdate(
                module_id="player", settings=settings_, batch=batch, reference_logprobs=lambda inputs: None, **values
            )
        )
        correct_for_sampler(updates[-1])
        packs.append(batch.minibatches(minibatches, np.random.default_rng(rank), budget))
    found = []
    for step in range(minibatches):
        parts = [(update, of_rank[step]) for update, of_rank in zip(updates, packs, strict=True)]
        size = MinibatchSize(*np.sum([update.batch.size_of(part) for update, part in parts], axis=0))
        total, ids, gradient = 0.0, [], {}
        for update, pack in ((update, pack) for update, part in parts for pack in part):
            numbers = pack.target_ids.tolist()
            new, value = (torch.tensor(column(numbers, name), requires_grad=True) for name in ("new", "value"))
            out = {"logprobs": new, "values": value, "entropy": torch.tensor(column(numbers, "entropy"))}
            loss, _ = objective.loss(replace(update, minibatch=size), pack, out)
            loss = loss / max(1.0, size.tokens)
            total += loss.item()
            ids += numbers
            for name, slopes in zip(("new", "value"), torch.autograd.grad(loss, (new, value)), strict=True):
                gradient |= {(name, token): slope for token, slope in zip(numbers, slopes.tolist(), strict=True)}
        found.append((ids, total, gradient))
    return found


@pytest.mark.parametrize("name", POLICY_LOSSES)
@settings(max_examples=12, deadline=None)
@given(
    row_lists(),
    st.sampled_from(list(AGGREGATIONS)),
    st.sampled_from([None, 1.2]),
    st.sampled_from([None, 0.3]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.data(),
)
def test_however_rows_are_spread_and_packed_the_loss_is_the_one_written_out(
    name: str,
    rows: list[Row],
    how: str,
    dual_clip: float | None,
    value_clip: float | None,
    learners: int,
    minibatches: int,
    data: st.DataObject,
) -> None:
    """A minibatch is the mean over what it has on all learners."""
    ppo = build(
        TrainingOptions,
        {
            "policy_loss": {
                "type": name,
                "clip_high": HIGH,
                **({} if name == "cispo" else {"clip_low": LOW}),
                **({"dual_clip": dual_clip} if "dual_clip" in declared(POLICY_LOSSES[name]) else {}),
            },
            "critic": {"clip": value_clip},
            "kl": {"loss_estimator": "k3"},
            "importance_sampling": {"cap": CAP},
            "aggregation": {"type": how, "length": LENGTH} if how == "constant_length" else how,
        },
    )
    trajectories = sorted({row.trajectory for row in rows})
    owner = {number: data.draw(st.integers(0, learners - 1)) for number in trajectories}
    shards = [[row for row in rows if owner[row.trajectory] == rank] for rank in range(learners)]
    seen: list[int] = []
    for ids, loss, gradient in of_learners([s for s in shards if s], ppo, data.draw(st.integers(4, 60)), minibatches):
        members = [row for row in rows if set(row.input_ids[row.loss_mask].tolist()) & set(ids)]
        seen += ids
        if not ids:
            assert loss == 0
            continue
        assert loss == pytest.approx(by_hand(members, ppo, {}), rel=1e-4, abs=1e-5)
        for moved in ((key, token) for key in ("new", "value") for token in ids[:2]):
            slope = (by_hand(members, ppo, {moved: STEP}) - by_hand(members, ppo, {moved: -STEP})) / (2 * STEP)
            assert gradient[moved] == pytest.approx(slope, rel=1e-3, abs=1e-5)
    assert sorted(seen) == sorted(token for *_, token in tokens_of(rows))
