"""How token losses become one number: the same, with the same gradient, however rows are spread and packed, and equal
to what is written out in plain Python over the tokens of all rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching import row_lists
from test_policy_losses import HIGH, LOW, STEP, written_out

from rllib_lmgame.learners.data.batching import MinibatchSize, TokenBatch
from rllib_lmgame.learners.data.rows import Row
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.objectives import ModuleUpdate, PPOObjective
from rllib_lmgame.learners.objectives.ppo import weigh_tokens
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.settings.plugins import POLICY_LOSSES
from rllib_lmgame.settings.schema import build
from rllib_lmgame.settings.sections.token_ppo import AGGREGATIONS, TokenPPOOptions

ENTROPY, KL, VALUE, LENGTH, CAP = 0.05, 0.4, 0.3, 7, 1.2
VERSION = 3


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


def is_kept(token: int, ppo: TokenPPOOptions) -> bool:
    """Whether it is learned from. Tokens of one turn are of several versions here."""
    return ppo.staleness_limit is None or VERSION - token % (VERSION + 1) <= ppo.staleness_limit


def by_hand(rows: list[Row], ppo: TokenPPOOptions, moved: dict[tuple[str, int], float]) -> float:
    """The loss of all rows, by the definition of each way of averaging, where columns of tokens have moved."""
    name, how = ppo.policy_loss.type, ppo.aggregation.type
    tokens = [each for each in tokens_of(rows) if is_kept(each[3], ppo)]
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
    policy = np.multiply(weights, written_out(name, new, data, ppo.policy_loss.dual)).tolist()
    parts: dict[Any, list[float]] = defaultdict(list)
    values = 0.0
    for (_, trajectory, turn, token), loss, logprob in zip(tokens, policy, new, strict=True):
        gap = logprob - number(token, "ref")
        loss += KL * (math.exp(-gap) - 1 + gap) - ENTROPY * number(token, "entropy")
        unit = (trajectory, turn) if how == "turn_mean" else trajectory
        parts["all" if how == "token_mean" else unit].append(loss)
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
    shards: list[list[Row]], ppo: TokenPPOOptions, budget: int, minibatches: int
) -> list[tuple[list[int], float, dict[tuple[str, int], float]]]:
    """What learners with these rows make of them: of each minibatch the ids, its loss, and the gradient by column and
    id.
    """
    settings_ = LearnerSettings(ppo, gamma=1.0, lam=1.0, vf_loss_coeff=VALUE)
    objective, updates, packs = PPOObjective(), [], []
    for rank, rows in enumerate(shards):
        batch = TokenBatch.from_rows(rows)
        ids = batch.action_ids
        names = {"old_logprobs": "old", "rollout_logprobs": "rollout", "advantages": "advantage"}
        for attribute, name in (names | {"ref_logprobs": "ref", "returns": "return", "values": "old value"}).items():
            setattr(batch, attribute, column(ids, name).astype(np.float32))
        batch.policy_version = ids % (VERSION + 1)
        batch.leave_out_stale(VERSION, ppo.staleness_limit)
        values = {"entropy_coefficient": ENTROPY, "kl_coefficient": KL, "meter": UpdateMeter(), "ranks": Ranks()}
        updates.append(
            ModuleUpdate(
                module_id="player", settings=settings_, batch=batch, reference_logprobs=lambda inputs: None, **values
            )
        )
        weigh_tokens(updates[-1])
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
@settings(max_examples=20, deadline=None)
@given(
    row_lists(),
    st.sampled_from(AGGREGATIONS),
    st.sampled_from([None, 1.2]),
    st.sampled_from([None, 0.3]),
    st.sampled_from([None, 0, 2]),
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
    limit: int | None,
    learners: int,
    minibatches: int,
    data: st.DataObject,
) -> None:
    """A minibatch is the mean over what it has on all learners that is not too old."""
    ppo = build(
        TokenPPOOptions,
        {
            "policy_loss": {
                "type": name,
                "high": HIGH,
                **({} if name == "cispo" else {"low": LOW}),
                **({"dual": dual_clip} if POLICY_LOSSES[name].dual_clip else {}),
            },
            "critic": {"clip": value_clip},
            "kl": {"gradient": "k3"},
            "importance": {"cap": CAP},
            "staleness_limit": limit,
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
        kept = [token for token in ids if is_kept(token, ppo)]
        assert all(gradient[key, token] == 0 for key in ("new", "value") for token in set(ids) - set(kept))
        if not kept:
            assert loss == 0
            continue
        assert loss == pytest.approx(by_hand(members, ppo, {}), rel=1e-4, abs=1e-5)
        for moved in ((key, token) for key in ("new", "value") for token in kept[:2]):
            slope = (by_hand(members, ppo, {moved: STEP}) - by_hand(members, ppo, {moved: -STEP})) / (2 * STEP)
            assert gradient[moved] == pytest.approx(slope, rel=1e-3, abs=1e-5)
    assert sorted(seen) == sorted(token for *_, token in tokens_of(rows))
