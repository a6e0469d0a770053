"""Losses of preferences and their gradients against plain loops in float64, on one learner and on two."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import learning
import numpy as np
import pytest
import torch
from episode_parts import rows_in_batch
from learner_weights import hf_state, set_adam_eps

from rllib_lmgame.base.group import build
from rllib_lmgame.base.registry import PREFERENCE_LOSSES
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.metrics import UpdateMeter
from rllib_lmgame.learners.objectives import ModuleUpdate, PreferenceObjective
from rllib_lmgame.learners.objectives.base import LearnerSettings
from rllib_lmgame.learners.options import TrainingOptions
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.rollouts.records import trajectory_of

CASES: dict[str, dict[str, Any]] = {
    "sigmoid": {},
    "smoothed": {"type": "sigmoid", "label_smoothing": 0.2},
    "alone": {"type": "sigmoid", "reference_free": True},
    **{name: {"type": name} for name in ("ipo", "simpo")},
}
BETA, SFT = 0.3, 0.2


def as_pairs(episodes: list[Any]) -> list[Any]:
    """Episodes two by two as pairs, of which the better one stands now first, now second; ids as a log has them."""
    for number, episode in enumerate(episodes):
        part = episode.agent_episodes["player"]
        episode.id_ = part.multi_agent_episode_id = f"pair-{number}"
        part.custom_data["lmgame"].group, part.custom_data["lmgame"].final_prompt_ids = f"pair-{number // 2}", None
        sign = 1.0 if (number // 2 + number) % 2 else -1.0
        part.rewards.data[:] = [0.0] * (len(part.rewards.data) - 1) + [sign]
    return episodes


def objective_of(case: str, **more: Any) -> PreferenceObjective:
    return PreferenceObjective(PREFERENCE_LOSSES.read(CASES[case]), BETA, SFT, **more)


def log_sigmoid(x: Any) -> Any:
    return -torch.log(1 + torch.exp(-x)) if isinstance(x, torch.Tensor) else -math.log(1 + math.exp(-x))


def written_out(case: str, sides: list[tuple[bool, Any, float, int]]) -> Any:
    """The mean loss of sides ``(chosen, log pi, log ref, tokens)``, two by two, as the papers write it."""
    options = CASES[case]
    kind, total = options.get("type", case), 0.0
    for a, b in zip(sides[::2], sides[1::2], strict=True):
        (_, w, ref_w, n_w), (_, l, ref_l, n_l) = (a, b) if a[0] else (b, a)
        if options.get("reference_free"):
            ref_w = ref_l = 0.0
        d = (w - ref_w) - (l - ref_l)
        if kind == "sigmoid":
            e = options.get("label_smoothing", 0.0)
            loss = -(1 - e) * log_sigmoid(BETA * d) - e * log_sigmoid(-BETA * d)
        elif kind == "ipo":
            loss = ((w - ref_w) / n_w - (l - ref_l) / n_l - 1 / (2 * BETA)) ** 2
        else:
            loss = -log_sigmoid(BETA * (w / n_w - l / n_l) - 0.5)
        total = total + loss - SFT * w / n_w
    return total / (len(sides) // 2)


def batch_of(episodes: list[Any]) -> TokenBatch:
    played = [trajectory_of(each.agent_episodes["player"]) for each in episodes]
    return TokenBatch.from_trajectories(played, max_row_tokens=128)


@pytest.fixture
def moved_learner(make_learner: Any) -> Any:
    """Function that makes a float64 learner whose policy is no longer the reference."""

    def make(**ppo: Any) -> Any:
        learner = make_learner(critic=False, grad_clip=None, training=ppo, lr=1e-3)
        learner.module["player"].double()
        learner.reference("player").module.double()
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in learner.module["player"].parameters():
                parameter.add_(0.03 * torch.randn_like(parameter))
        return learner

    return make


@pytest.mark.parametrize("tokens", [48, 9999])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_the_formula_written_out(
    case: str, tokens: int, moved_learner: Any, make_episodes: Any
) -> None:
    """On ragged trajectories of one to four turns; in one pass, and where pairs are torn over many."""
    learner = moved_learner(max_tokens_per_microbatch=tokens)
    episodes = as_pairs(make_episodes(8))
    module, reference, sides = learner.module["player"], learner.reference("player").module, []
    for episode in episodes:
        rows = rows_in_batch(batch_of([episode]))
        chosen = sum(float(row.rewards.sum()) for row in rows) > 0
        policy = sum(learning.row_logprobs(module, row).sum() for row in rows)
        with torch.no_grad():
            ref = float(sum(learning.row_logprobs(reference, row).sum() for row in rows))
        sides.append((chosen, policy, ref, sum(int(row.loss_mask.sum()) for row in rows)))
    expected = written_out(case, sides)
    expected.backward()
    gradients = learning.gradients_of(module)
    module.zero_grad()
    found = learning.step_gradients(learner)
    metrics = learning.update(learner, WholeEpisodes(episodes=episodes), objective=objective_of(case))
    assert metrics["policy_loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert found.keys() == gradients.keys()
    largest = max(float(each.abs().max()) for each in gradients.values())
    assert largest > 1e-3 and learning.difference(found, gradients) < 2e-5 * largest
    if case in ("sigmoid", "ipo", "simpo"):
        pairs = [(a, b) if a[0] else (b, a) for a, b in zip(sides[::2], sides[1::2], strict=True)]
        gains = [
            [
                BETA * (float(policy) - ref * (case != "simpo")) / (1 if case == "sigmoid" else length)
                for _, policy, ref, length in pair
            ]
            for pair in pairs
        ]
        assert metrics["reward_accuracy"] == np.mean([w > l for w, l in gains])
        assert metrics["reward_margin"] == pytest.approx(np.mean([w - l for w, l in gains]), rel=1e-4)
        assert metrics["chosen_logprob"] == pytest.approx(np.mean([float(w[1]) / w[3] for w, _ in pairs]), rel=1e-4)


def test_a_gradient_is_that_of_the_weights_of_its_own_step(moved_learner: Any, make_episodes: Any) -> None:
    """Two minibatches and two epochs, in passes that hold all rows or tear pairs, end with the same weights."""
    small, whole = (moved_learner(max_tokens_per_microbatch=n, num_minibatches=2) for n in (48, 9999))
    for learner in (small, whole):
        learner.config.run = learner.config.run.with_values({"num_epochs": 2})
        learner._settings.clear()
        set_adam_eps(learner, 1e-3)
        metrics = learning.update(
            learner, WholeEpisodes(episodes=as_pairs(make_episodes(12))), objective=objective_of("ipo")
        )
        assert metrics["num_steps"] == 4
    assert learning.difference(learning.weights(small), learning.weights(whole)) < 1e-6


def test_the_reference_is_asked_once(moved_learner: Any, make_episodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all epochs of an update, and for good where ids mean the same for good; another reference is asked anew."""
    learner = moved_learner(max_tokens_per_microbatch=9999)
    reference, passes = learner.references["player"], []
    forward = reference.forward
    monkeypatch.setattr(reference, "forward", lambda batch: passes.append(1) or forward(batch))
    data = WholeEpisodes(episodes=as_pairs(make_episodes(8)))
    learner.config.run = learner.config.run.with_values({"num_epochs": 3})
    learner._settings.clear()
    numbers = [learning.update(learner, data, objective=objective_of("sigmoid"))]
    assert len(passes) == 1
    for _ in range(2):
        numbers.append(learning.update(learner, data, objective=objective_of("sigmoid", of_files=True)))
    assert len(passes) == 2 and numbers[0]["reward_margin"] < numbers[1]["reward_margin"] < numbers[2]["reward_margin"]
    learning.update(learner, data, objective=objective_of("simpo"))
    assert len(passes) == 2
    learner.begin_rl()
    learner.config.run = learner.config.run.with_values({"num_epochs": 1})
    learner._settings.clear()
    assert abs(learning.update(learner, data, objective=objective_of("sigmoid", of_files=True))["reward_margin"]) < 1e-5
    assert learner.references["player"] is not reference


@pytest.mark.parametrize("learners", [2, 3])
def test_several_learners_prepare_what_one_would(learners: int, make_episodes: Any) -> None:
    """The last of three has no rows."""
    settings = LearnerSettings(build(TrainingOptions, {}), gamma=1.0, lam=1.0, vf_loss_coeff=0.0)
    episodes = as_pairs(make_episodes(8))

    def prepared(objective: PreferenceObjective, batch: TokenBatch | None, **values: Any) -> ModuleUpdate:
        made = ModuleUpdate(
            module_id="player",
            batch=batch,
            settings=settings,
            meter=UpdateMeter(),
            reference_logprobs=lambda inputs: inputs["target_ids"],
            **values,
        )
        for pack in batch.microbatches(64) if batch else []:
            ids = torch.from_numpy(pack.target_ids).float()
            batch.put(pack, ref_logprobs=(-2.0 - 0.01 * ids).numpy())
            objective.record(made, pack, {"logprobs": -2.0 + 0.01 * torch.sin(ids)}, {})
        objective.prepare(made)
        return made

    def counts(made: ModuleUpdate) -> dict[str, np.ndarray]:
        batch = made.batch
        assert batch is not None
        spans = pairwise(batch.trajectory_offsets)
        return {name: batch.loss_weights[a:b] for name, (a, b) in zip(batch.episodes, spans, strict=True)}

    alone = prepared(objective_of("sigmoid"), batch_of(episodes), ranks=ProcessGroup())
    shards = [shard.episodes for shard, _ in WholeEpisodes(episodes=episodes, needs_groups=True).shard(2)]
    batches = [batch_of(shard) for shard in shards] + [TokenBatch.empty()] * (learners - 2)

    def run(ranks: learning.ThreadGroup) -> ModuleUpdate:
        return prepared(objective_of("sigmoid"), batches[ranks.rank], ranks=ranks)

    found = learning.together(learners, run)
    expected = counts(alone)
    assert expected.keys() == {f"pair-{n}" for n in range(8)}
    for name, each in (counts(found[0]) | counts(found[1])).items():
        np.testing.assert_allclose(each, expected[name], rtol=1e-6)
    names = alone.meter._sums.keys()
    for name in names:
        total = sum(float(each.meter._sums[name]) for each in found)
        assert total == pytest.approx(float(alone.meter._sums[name])), name


@pytest.mark.slow
@pytest.mark.parametrize("stage", [None, 3])
def test_two_learners_equal_one(stage: int | None, make_config: Any, make_learner: Any, make_episodes: Any) -> None:
    """In processes of their own, with many passes each; also where weights and gradients are spread."""
    pytest.importorskip("deepspeed")
    from ray.rllib.core.learner.learner_group import LearnerGroup

    how = {"critic": False, "training": {"max_tokens_per_microbatch": 64}, "grad_clip": 1.0}
    config = make_config(num_learners=2, deepspeed=learning.zero(stage), **how)
    group, alone = LearnerGroup(config=config, module_spec=config.rl_module_spec), make_learner(**how)
    try:
        [r.get() for r in group.foreach_learner(lambda learner: set_adam_eps(learner, 1e-3))]
        set_adam_eps(alone, 1e-3)
        for seed in range(3):
            data = WholeEpisodes(episodes=as_pairs(make_episodes(8, seed=seed)), needs_groups=True)
            for learner in (group, alone):
                learner.update(training_data=data, objective=objective_of("sigmoid", of_files=True))
        (state,) = [s for r in group.foreach_learner(hf_state) if (s := r.get()) is not None]
        assert not learning.same(state, hf_state(make_learner(**how)))
        assert learning.difference(state, hf_state(alone)) < 1e-4
    finally:
        group.shutdown()
