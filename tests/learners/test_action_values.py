"""Losses of action values and their gradients against plain loops in float64 (4 s), on one learner and on two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from episode_parts import rows_of
from learner_weights import hf_state, set_adam_eps
from learning import difference, gradients_of, restored, same, step_gradients, update, weights

from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.objectives import ActionValueObjective
from rllib_lmgame.learners.options import ExpectileValueOptions, ReturnValueOptions, TargetValueOptions
from rllib_lmgame.policies.model.attention import PackedRows
from rllib_lmgame.rollouts.records import trajectory_of

GAMMA, ALPHA, TAU, BC, RATE = 0.9, 0.3, 0.8, 0.7, 0.25
COMMON = {"gamma": GAMMA, "cql_weight": ALPHA, "policy_weight": BC}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "mc": (ReturnValueOptions(**COMMON), {"heads": 1, "state": False, "targets": False}),
    "cql": (TargetValueOptions(**COMMON, target_rate=RATE), {"heads": 2, "state": False, "targets": True}),
    "ilql": (ExpectileValueOptions(**COMMON, target_rate=RATE, tau=TAU), {"heads": 2, "state": True, "targets": True}),
}


def objective_of(case: str, steps: int = 1, **changes: Any) -> ActionValueObjective:
    options = CASES[case][0]
    return ActionValueObjective(steps, 1e-3, options=options.model_copy(update=changes))


@pytest.fixture
def learner_of(make_learner: Any) -> Any:
    """Function that makes a float64 learner whose heads, and the targets behind them, are random."""

    def make(case: str, value_model: str = "shared", **ppo: Any) -> Any:
        learner = make_learner(
            critic=False,
            action_values={**CASES[case][1], "q_init": 0.0, "beta": 2.0},
            options={"value_model": value_model},
            grad_clip=None,
            training=ppo,
        )
        module = learner.module["player"].double()
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return learner

    return make


def mlp(layers: Any, hidden: torch.Tensor) -> torch.Tensor:
    inner, outer = layers.inner, layers.outer
    return torch.clamp(hidden @ inner.weight.T + inner.bias, min=0) @ outer.weight.T + outer.bias


def states(backbone: Any, row: Any) -> torch.Tensor:
    """All final hidden states of one row, in a pass of its own."""
    ids = torch.as_tensor(row.input_ids).long()[None]
    with PackedRows(torch.tensor([0, ids.shape[1]])):
        where = torch.arange(ids.shape[1])[None]
        return backbone(ids, use_cache=False, position_ids=where).last_hidden_state[0]


def written_out(case: str, module: Any, episodes: list[Any]) -> dict[str, Any]:
    """The means over tokens of every term, token by token, as the papers write it."""
    values, model = module.action_values, module.language_model
    own = module.value_backbone or model.model
    slow = module.target_backbone or own
    terms: dict[str, list[Any]] = {name: [] for name in ("bc", "q", "cql", "v")}
    for episode in episodes:
        rows = rows_of([trajectory_of(episode.agent_episodes["player"])], max_row_tokens=128)
        steps = []
        for row in rows:
            policy, hidden, behind = states(model.model, row), states(own, row), states(slow, row).detach()
            for at in np.flatnonzero(row.loss_mask).tolist():
                steps.append((policy[at - 1], hidden[at - 1], behind[at - 1], int(row.input_ids[at]), row.rewards[at]))
        cut_short = rows[-1].needs_bootstrap
        final = states(own, rows[-1])[-1]
        assert steps
        for t, (policy, hidden, behind, token, _) in enumerate(steps):
            logits = model.lm_head(policy)
            terms["bc"].append(-(logits[token] - torch.logsumexp(logits, 0)))
            heads = [mlp(head, hidden) for head in values.q]
            for q in heads:
                terms["cql"].append(-(q[token] - torch.logsumexp(q, 0)))
            target = goal = None
            if case != "mc":
                target = min(float(mlp(head, behind)[token]) for head in values.targets)
            if case == "mc":
                goal = sum(GAMMA ** (k - t) * steps[k][4] for k in range(t, len(steps)))
            elif case == "ilql":
                last = float(mlp(values.v, final)) if cut_short else 0.0
                after = float(mlp(values.v, steps[t + 1][1])) if t + 1 < len(steps) else last
                goal = steps[t][4] + GAMMA * after
                v = mlp(values.v, hidden)[0]
                u = target - v
                terms["v"].append((TAU if float(u.detach()) >= 0 else 1 - TAU) * u**2 / 2)
            else:
                end = target if cut_short else 0.0
                after = end
                if t + 1 < len(steps):
                    after = min(float(mlp(head, steps[t + 1][2])[steps[t + 1][3]]) for head in values.targets)
                goal = steps[t][4] + GAMMA * after
            for q in heads:
                terms["q"].append((q[token] - goal) ** 2 / 2)
    count = len(terms["bc"])
    means = {name: sum(each) / count for name, each in terms.items()}
    return means | {"total": BC * means["bc"] + means["q"] + means["v"] + ALPHA * means["cql"]}


@pytest.mark.parametrize(("tokens", "value_model"), [(48, "shared"), (9999, "separate")])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_the_formula_written_out(
    case: str, tokens: int, value_model: str, learner_of: Any, make_episodes: Any
) -> None:
    """On ragged trajectories of one to four turns, some cut short; in one pass, and where they are torn over many."""
    learner = learner_of(case, value_model, max_tokens_per_microbatch=tokens)
    module, episodes = learner.module["player"], make_episodes(8)
    expected = written_out(case, module, episodes)
    expected["total"].backward()
    gradients = gradients_of(module)
    module.zero_grad()
    found = step_gradients(learner)
    metrics = update(learner, WholeEpisodes(episodes=episodes), objective=objective_of(case))
    names = {"policy_loss": "bc", "q_loss": "q", "cql_loss": "cql", "total_loss": "total"}
    for name, term in (names | ({"v_loss": "v"} if case == "ilql" else {})).items():
        assert metrics[name] == pytest.approx(float(expected[term]), rel=1e-6), name
    assert found.keys() == gradients.keys()
    assert not any("target" in name for name in found), "slow copies are not trained"
    largest = max(float(each.abs().max()) for each in gradients.values())
    assert largest > 1e-2 and difference(found, gradients) < 1e-6 * largest


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_slow_copies_go_their_share_of_the_way(value_model: str, learner_of: Any, make_episodes: Any) -> None:
    learner = learner_of("ilql", value_model)
    before = weights(learner)
    update(learner, make_episodes(8), objective=objective_of("ilql"))
    after = weights(learner)
    followed = {name: name.replace("action_values.targets", "action_values.q") for name in before}
    followed |= {name: name.replace("target_backbone", "value_backbone") for name in before if "backbone" in name}
    pairs = {slow: fast for slow, fast in followed.items() if slow != fast}
    assert len(pairs) > 4 and any("backbone" in name for name in pairs) == (value_model == "separate")
    for slow, fast in pairs.items():
        expected = (1 - RATE) * before[slow] + RATE * after[fast]
        torch.testing.assert_close(after[slow], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_a_policy_whose_cross_entropy_counts_nothing_stays(
    value_model: str, learner_of: Any, make_episodes: Any
) -> None:
    """Its values learn, on a frozen backbone or on one of their own."""
    learner = learner_of("ilql", value_model)
    before = weights(learner)
    update(learner, make_episodes(8), objective=objective_of("ilql", policy_weight=0.0))
    moved = [name.split(".") for name, each in weights(learner).items() if not torch.equal(each, before[name])]
    changed = {".".join(name[: 1 + (name[0] == "action_values")]) for name in moved}
    own = {"value_backbone", "target_backbone"} if value_model == "separate" else set()
    assert changed == {"action_values.q", "action_values.v", "action_values.targets"} | own


def test_values_and_their_slow_copies_are_in_checkpoints(learner_of: Any, make_episodes: Any, tmp_path: Any) -> None:
    """And a restored learner goes on with the same numbers."""
    learner = learner_of("ilql", "separate")
    update(learner, make_episodes(8), objective=objective_of("ilql"))
    fresh = restored(learner_of("ilql", "separate"), learner, tmp_path / "saved")
    assert difference(weights(fresh), weights(learner)) < 1e-6
    for each in (learner, fresh):
        update(each, make_episodes(8, seed=1), objective=objective_of("ilql"))
    assert difference(weights(fresh), weights(learner)) < 1e-5


@pytest.mark.slow
def test_two_learners_equal_one(make_config: Any, make_learner: Any, make_episodes: Any) -> None:
    """In processes of their own, with many passes each."""
    from ray.rllib.core.learner.learner_group import LearnerGroup

    how = {
        "critic": False,
        "training": {"max_tokens_per_microbatch": 64},
        "action_values": {**CASES["ilql"][1], "q_init": 0.0, "beta": 2.0},
    }
    config = make_config(num_learners=2, **how)
    group, alone = LearnerGroup(config=config, module_spec=config.rl_module_spec), make_learner(**how)
    try:
        [r.get() for r in group.foreach_learner(lambda learner: set_adam_eps(learner, 1e-3))]
        set_adam_eps(alone, 1e-3)
        (state,) = [s for r in group.foreach_learner(lambda learner: learner.get_state()) if (s := r.get())][:1]
        alone.set_state(state)
        begun = hf_state(alone)
        for seed in range(3):
            data = WholeEpisodes(episodes=make_episodes(8, seed=seed))
            for learner in (group, alone):
                learner.update(training_data=data, objective=objective_of("ilql"))
        (state,) = [s for r in group.foreach_learner(hf_state) if (s := r.get()) is not None]
        assert any(name.startswith("action_values.q") for name in state) and not same(state, begun)
        assert difference(state, hf_state(alone)) < 1e-4
    finally:
        group.shutdown()
