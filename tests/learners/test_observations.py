"""Learning what the game says: which tokens count, and the loss and its gradient against plain loops (5 s)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from episode_parts import rows_of
from learning import in_groups, marked, row_logprobs, same, step_gradients, together, update, weights

from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.objectives import SupervisedObjective
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.rollouts.records import Trajectory, Turn, trajectory_of

WEIGHT = 0.7


def written_out(module: Any, episodes: list[Any]) -> torch.Tensor:
    """The mean cross-entropy of the game's text, token by token and row by row."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row in rows_of([trajectory_of(each.agent_episodes["player"]) for each in episodes]):
        for place in np.flatnonzero(row.observed).tolist():
            one = np.zeros(len(row), bool)
            one[place] = True
            total, count = total - row_logprobs(module, row, one).sum(), count + 1
    return total / count


@pytest.fixture
def make_double(make_learner: Any) -> Any:
    """Function that makes a float64 learner."""

    def make(critic: bool = True, **ppo: Any) -> Any:
        if not critic:
            ppo |= {"advantage_estimator": "grpo"}
        learner = make_learner(critic=critic, grad_clip=None, training=ppo, lr=1e-3, vf_loss_coeff=0.3)
        learner.module["player"].double()
        return learner

    return make


HOW: dict[str, dict[str, Any]] = {"supervised": {}, "grpo": {"critic": False}}


@pytest.mark.parametrize("learners", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("tokens", [48, pytest.param(9999, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", HOW)
def test_loss_and_gradient_are_the_formula_written_out(
    case: str, tokens: int, learners: int, make_double: Any, make_episodes: Any
) -> None:
    """What the weight adds is so many times the gradient of the mean over the game's tokens of all learners: on ragged
    trajectories in several rows with prompts in common, in one pass or many, beside constrained replies.
    """
    ppo = {"max_tokens_per_microbatch": tokens, "head_chunk_tokens": 7 if tokens == 48 else 4096}
    shares = [in_groups(marked(make_episodes(8 - 3 * n, seed=n, constrained=n == 1), n), 2).episodes for n in range(2)]
    shares = shares if learners == 2 else [shares[0] + shares[1]]

    def gradients(weight: float) -> tuple[dict[str, Any], dict[str, Any]]:
        own = HOW[case] | ({"env_token_loss_weight": weight} if case != "supervised" else {})
        made = [make_double(**own, **ppo) for _ in shares]

        def run(ranks: Any, rank: int = 0) -> Any:
            made[rank].ranks = ranks
            objective = SupervisedObjective(1, 1e-3, 0, weight) if case == "supervised" else None
            found = step_gradients(made[rank])
            return found, update(made[rank], copy.deepcopy(shares[rank]), objective=objective)

        found = [run(ProcessGroup())] if learners == 1 else together(learners, lambda ranks: run(ranks, ranks.rank))
        (first, numbers), *others = found
        name = "observation_loss" if weight else "policy_loss"
        assert all(told[name] == numbers[name] for _, told in others)
        return {name: first[name] + sum(other[name] for other, _ in others) for name in first}, numbers

    (with_it, numbers), (without, plain) = gradients(WEIGHT), gradients(0.0)
    module = make_double(**HOW[case]).module["player"]
    expected = written_out(module, [episode for share in shares for episode in share])
    expected.backward()
    assert numbers["observation_loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert "observation_loss" not in plain and numbers["policy_loss"] == pytest.approx(plain["policy_loss"], abs=1e-6)
    largest = max(float(p.grad.abs().max()) for p in module.parameters() if p.grad is not None)
    assert largest > 1e-3
    for name, parameter in module.named_parameters():
        added = with_it[name] - without[name] if name in with_it else torch.zeros(())
        wanted = torch.zeros_like(added) if parameter.grad is None else WEIGHT * parameter.grad
        assert float((added - wanted).abs().max()) < 2e-5 * largest, name


def test_the_games_text_is_marked_once_where_something_predicts_it() -> None:
    """Not in the context that a row without room repeats, nor at a row's beginning; the last state counts too."""
    ids = np.arange(100, 112, dtype=np.int32)
    said = np.array([False, True, True])

    def turn(first: int, observed: Any, new_row: bool) -> Turn:
        reply = np.array([first // 10], np.int32)
        return Turn(ids[:3] + first, reply, np.zeros(1, np.float32), new_row=new_row, observed=observed)

    turns = [turn(0, None, True), turn(10, said, False), turn(20, said, False), turn(30, ~said, True)]
    trajectory = Trajectory(turns, False, final_prompt_ids=ids[:3] + 40, final_observed=said)
    rows = rows_of([trajectory], max_row_tokens=10)
    found = [row.input_ids[row.observed].tolist() for row in rows]
    assert found == [[111, 112], [121, 122], [141, 142]] and not any(row.observed[0] for row in rows)
    assert not any(row.observed.any() for row in rows_of([Trajectory(turns[:1], True)], max_row_tokens=10))
    lengths = [
        TokenBatch.from_trajectories([trajectory], max_row_tokens=10, observations=on).row_lengths.tolist()
        for on in (False, True)
    ]
    assert lengths[0] == lengths[1]  # Behind every mark a reply follows, or the state whose value is read.
    turns[3].new_row, turns[3].response_ids = False, np.zeros(0, np.int32)
    turns[3].rollout_logprobs = np.zeros(0, np.float32)
    trajectory = Trajectory(turns[1:], True)
    lengths = [
        int(TokenBatch.from_trajectories([trajectory], max_row_tokens=100, observations=on).row_lengths[0])
        for on in (False, True)
    ]
    assert lengths == [7, 8]  # With the token that predicts the first of the last prompt, which is the game's.


@pytest.mark.parametrize("said", [True, False])
def test_where_rewards_teach_nothing_the_games_text_does(said: bool, make_learner: Any, make_episodes: Any) -> None:
    """Groups without a difference have no gradient of their own; without text of the game there is no step."""
    ppo = {"advantage_estimator": "grpo", "env_token_loss_weight": 0.5}
    learner = make_learner(critic=False, entropy_coeff=0.0, training=ppo)
    episodes = make_episodes(8)
    data = in_groups(marked(episodes) if said else episodes, 4, equal=True)
    before = weights(learner)
    numbers = update(learner, data)
    assert numbers["zero_grad_updates"] == float(not said) and same(before, weights(learner)) is not said
    assert ("observation_loss" in numbers) is said


def test_a_critic_that_warms_up_leaves_it_out(make_learner: Any, make_episodes: Any) -> None:
    learner = make_learner(training={"env_token_loss_weight": 0.5, "critic": {"warmup": {"iterations": 1}}})
    before = weights(learner)
    assert "observation_loss" not in update(learner, marked(make_episodes(8)))
    assert all(torch.equal(before[name], now) for name, now in weights(learner).items() if "value" not in name)
    first = update(learner, marked(make_episodes(8)))["observation_loss"]
    for _ in range(4):
        last = update(learner, marked(make_episodes(8)))
    assert last["observation_loss"] < first and last["observation_tokens"] > 20
