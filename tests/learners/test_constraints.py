"""Constrained decoding in training: what the learner computes is about the distribution that was sampled from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning import step_gradients, update

from rllib_lmgame.inference.protocol import allowed_tokens
from rllib_lmgame.policies.model.attention import PackedRows
from rllib_lmgame.policies.model.heads import Allowed, token_logprobs
from rllib_lmgame.rollouts.records import Trajectory, Turn

STOP = 1
STATES = {
    (7, 8, 9, 10): ((20, 21, 30, STOP), (20, 22, 30, STOP), (20, 23, 24, STOP), (25, STOP)),
    (11, 12): ((20, 21, 30, STOP), (20, 40, 30, STOP)),
}
"""Prompts of a game with two states, and the replies that are legal there. Most tokens are forced: the tag before a
move, what ends it.
"""
REWARDS = {(7, 8, 9, 10): (1.0, -0.5, 0.25, 0.0), (11, 12): (0.7, 0.7)}
"""Of each reply; in the second state the move does not matter."""


def token_terms(
    model: Any, prompt: Sequence[int], reply: Sequence[int], choices: Sequence[Sequence[int]]
) -> tuple[list[Any], list[Any]]:
    """Log-probability of each token of ``reply`` among those that continue a choice, and the entropy there, by one
    plain forward pass.
    """
    ids = torch.tensor([[*prompt, *reply]])
    with PackedRows(torch.tensor([0, ids.shape[1]])):
        logits = model(ids, position_ids=torch.arange(ids.shape[1])[None]).logits[0]
    logprobs, entropies = [], []
    for at, token in enumerate(reply):
        legal = sorted({c[at] for c in choices if tuple(c[:at]) == tuple(reply[:at])})
        among = logits[len(prompt) + at - 1, legal].log_softmax(-1)
        logprobs.append(among[legal.index(token)])
        entropies.append(-(among.exp() * among).sum())
    return logprobs, entropies


def played_turn(model: Any, prompt: tuple[int, ...], reply: tuple[int, ...], reward: float) -> Turn:
    choices = STATES[prompt]
    with torch.no_grad():
        logprobs = torch.stack(token_terms(model, prompt, reply, choices)[0]).numpy()
    return Turn(
        np.array(prompt, np.int32),
        np.array(reply, np.int32),
        logprobs,
        reward,
        new_row=True,
        allowed=allowed_tokens(choices, reply),
    )


def every_outcome(model: Any, as_episode: Any) -> list[Any]:
    """An episode per state and legal reply whose reward is the outcome's share of the expected return: probability
    times reward.
    """
    episodes = []
    for prompt, choices in STATES.items():
        for reply, reward in zip(choices, REWARDS[prompt], strict=True):
            turn = played_turn(model, prompt, reply, 0.0)
            turn.reward = float(np.exp(turn.rollout_logprobs.sum())) * reward
            episodes.append(as_episode(Trajectory([turn], terminated=True)))
    return episodes


PACKING = {
    "packed": {"max_tokens_per_microbatch": 999},
    "unpacked": {"max_tokens_per_microbatch": 16},
    "in chunks": {"max_tokens_per_microbatch": 16, "head_chunk_tokens": 1},
}


@pytest.mark.parametrize("packing", list(PACKING))
def test_the_expected_gradient_is_that_of_the_expected_return(packing: str, make_learner: Any, as_episode: Any) -> None:
    """Every outcome of a game with two states, enumerated; where all moves earn the same, nothing pulls."""
    ppo = {"normalize_advantages": "none", **PACKING[packing]}
    learner = make_learner(training=ppo, lambda_=1.0, gamma=1.0, vf_loss_coeff=0.0, entropy_coeff=0.0, grad_clip=None)
    model = learner.module["player"].language_model
    episodes, gradients = every_outcome(model, as_episode), step_gradients(learner)
    outcomes = [
        torch.stack(token_terms(model, prompt, reply, choices)[0]).sum().exp() * reward
        for prompt, choices in STATES.items()
        for reply, reward in zip(choices, REWARDS[prompt], strict=True)
    ]
    turns = [episode.agent_episodes["player"].extra_model_outputs["turn"].data[0] for episode in episodes]
    decisions = sum(int((turn.allowed.counts > 1).sum()) for turn in turns)
    names = [name for name, p in learner.module["player"].named_parameters() if name.startswith("language_model")]
    parameters = dict(learner.module["player"].named_parameters())
    expected = torch.autograd.grad(-torch.stack(outcomes).sum() / decisions, [parameters[name] for name in names])
    metrics = update(learner, episodes)
    assert metrics["trained_tokens"] == decisions == 9
    assert metrics["logprob_diff"] < 1e-5
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-3)


def test_entropy_and_kl_are_those_among_the_allowed(make_learner: Any, as_episode: Any) -> None:
    learner = make_learner(
        training={"normalize_advantages": "none", **PACKING["in chunks"]},
        vf_loss_coeff=0.0,
        entropy_coeff=0.3,
        use_kl_loss=True,
        kl_coeff=0.5,
        grad_clip=None,
        lr=1e-9,
    )
    module = learner.module["player"]
    learner.reference("player")  # The present weights.
    with torch.no_grad():
        for p in module.language_model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)) * 0.05)
    reference, gradients = learner.reference("player").module.language_model, step_gradients(learner)
    entropy, penalty, divergence, decisions, episodes = torch.zeros(()), torch.zeros(()), 0.0, 0, []
    for prompt, choices in STATES.items():
        for reply in choices:
            episodes.append(
                as_episode(Trajectory([played_turn(module.language_model, prompt, reply, 0.0)], terminated=True))
            )
            ours, entropies = token_terms(module.language_model, prompt, reply, choices)
            with torch.no_grad():
                theirs = token_terms(reference, prompt, reply, choices)[0]
            free = [i for i, e in enumerate(entropies) if float(e.detach()) > 0]
            decisions += len(free)
            entropy = entropy + sum(entropies[i] for i in free)
            gaps = [ours[i] - theirs[i] for i in free]
            penalty = penalty + sum(gap**2 / 2 for gap in gaps)
            divergence += sum(float(torch.exp(-gap) - 1 + gap) for gap in gaps)
    names = [name for name, p in module.named_parameters() if name.startswith("language_model")]
    loss = (0.5 * penalty - 0.3 * entropy) / decisions
    expected = torch.autograd.grad(loss, [dict(module.named_parameters())[name] for name in names])
    metrics = update(learner, episodes)
    assert metrics["entropy"] == pytest.approx(float(entropy.detach()) / decisions, rel=1e-4)
    assert metrics["mean_kl_loss"] == pytest.approx(divergence / decisions, rel=1e-3)
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-3)


@st.composite
def constrained_positions(draw: st.DrawFn) -> tuple[list[list[int] | None], list[int], int]:
    """Per position the allowed ids or ``None``, the targets, and a number of chunks."""
    sets = draw(
        st.lists(st.none() | st.lists(st.integers(0, 10), min_size=1, max_size=6, unique=True), min_size=1, max_size=9)
    )
    targets = [draw(st.integers(0, 10) if ids is None else st.sampled_from(ids)) for ids in sets]
    return sets, targets, draw(st.integers(1, 12))


def allowed_of(sets: Sequence[Sequence[int] | None]) -> Allowed:
    few = [(i, ids) for i, ids in enumerate(sets) if ids is not None]
    owner = [place for place, (_, ids) in enumerate(few) for _ in ids]
    columns = [i for i, _ in few], owner, [token for _, ids in few for token in ids]
    return Allowed(*(torch.tensor(column, dtype=torch.long) for column in columns))


@given(constrained_positions(), st.booleans())
def test_log_probabilities_and_entropies_equal_those_of_masked_logits(case: Any, entropy_gradient: bool) -> None:
    """Values and gradients, whatever mixture of free and constrained positions and whatever chunks."""
    sets, targets, chunks = case
    generator = torch.Generator().manual_seed(len(targets))
    hidden = torch.randn(len(targets), 5, generator=generator, dtype=torch.float64)
    head = torch.randn(5, 11, generator=generator, dtype=torch.float64)
    factors = torch.randn(2, len(targets), generator=generator, dtype=torch.float64)
    target_ids = torch.tensor(targets)
    mask = torch.tensor([[ids is not None and token not in ids for token in range(11)] for ids in sets])
    results = []
    for constrained in (False, True):
        x = hidden.clone().requires_grad_()
        if constrained:
            logprobs, entropy = token_logprobs(
                lambda h: h @ head,
                x,
                target_ids,
                chunks=chunks,
                temperature=0.7,
                entropy_gradient=entropy_gradient,
                allowed=allowed_of(sets),
            )
        else:
            among = (x @ head / 0.7).masked_fill(mask, -1e9).log_softmax(-1)
            logprobs, entropy = among.gather(1, target_ids[:, None])[:, 0], -(among.exp() * among).sum(-1)
        (
            logprobs @ factors[0].to(logprobs) + (entropy @ factors[1].to(entropy) if entropy_gradient else 0.0)
        ).backward()
        results.append((logprobs.detach().double(), entropy.detach().double(), x.grad))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)
