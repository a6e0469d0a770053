"""An update in which nothing has a gradient takes no step; one that has any is what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from learner_weights import hf_state
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_lmgame.learners.data.rows import WholeEpisodes
from rllib_lmgame.learners.objectives import PPOObjective
from rllib_lmgame.learners.objectives.policy_losses import PolicyTerms, clip
from rllib_lmgame.learners.ranks import Ranks
from rllib_lmgame.settings.schema import build
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

GROUPED = {"advantage_estimator": "grpo", "weight_decay": 0.1}
SKIPPED = "updates_without_gradient"


def groups(make_episodes: Callable[..., list[Any]], seed: int, *, equal: bool) -> WholeEpisodes:
    """Eight episodes in two groups; in each all return the same, or not."""
    episodes = make_episodes(8, seed=seed)
    for number, episode in enumerate(episodes):
        part = episode.agent_episodes["player"]
        part.custom_data["lmgame"] |= {"group": f"g{number % 2}", "game": "game"}
        if equal:
            part.rewards.data[:] = [0.0] * (len(part.rewards.data) - 1) + [0.1 + number % 2]
    return WholeEpisodes(episodes=episodes)


def update(learner: Any, data: WholeEpisodes) -> dict[str, Any]:
    return dict(MetricsLogger.peek_results(learner.update(training_data=data))["player"])


@pytest.mark.parametrize("stage", [None, 0, 2, 3])
@pytest.mark.parametrize("microbatch", [9999, 48])
def test_an_update_without_a_gradient_changes_nothing_but_the_counters(
    microbatch: int,
    stage: int | None,
    make_learner: Callable[..., Any],
    make_episodes: Callable[..., list[Any]],
    tmp_path: Path,
) -> None:
    """No weight moves, though Adam has momentum and the weights decay; the next update is what it would be without."""
    if stage is not None:
        pytest.importorskip("deepspeed")
    section = {"deepspeed": None if stage is None else {"zero_optimization": {"stage": stage}}}
    ppo = GROUPED | {"max_tokens_per_microbatch": microbatch}
    idle, other = (make_learner(critic=False, token_ppo=ppo, lr=1e-2, entropy_coeff=0.0, **section) for _ in range(2))
    for learner in (idle, other):
        assert update(learner, groups(make_episodes, 0, equal=False))[SKIPPED] == 0.0
    before, version = hf_state(idle), idle._weights_seq_no
    metrics = update(idle, groups(make_episodes, 1, equal=True))
    assert [metrics[name] for name in (SKIPPED, "num_steps", "grad_norm", "policy_loss")] == [1.0, 0.0, 0.0, 0.0]
    assert metrics["advantage_std"] == 0.0 and metrics["logprob_gap"] > 0.0  # It is still measured.
    assert idle._weights_seq_no == version + 1
    for name, tensor in hf_state(idle).items():
        np.testing.assert_array_equal(tensor, before[name], err_msg=name)
    idle.save_shard(tmp_path)
    resumed = make_learner(critic=False, token_ppo=ppo, lr=1e-2, entropy_coeff=0.0, **section)
    resumed.load_shard(tmp_path)
    for learner in (idle, other, resumed):
        assert update(learner, groups(make_episodes, 2, equal=False))["num_steps"] == 1.0
    expected = hf_state(other)
    for learner in (idle, resumed):
        for name, tensor in hf_state(learner).items():
            np.testing.assert_allclose(tensor, expected[name], atol=1e-6, err_msg=name)


def own_loss(terms: PolicyTerms) -> Any:
    """A policy loss of somebody's own, which learns from more than advantages."""
    loss, sums = clip(terms)
    return loss + terms.logprobs, sums


class OwnObjective(PPOObjective):
    """One that adds to the loss."""

    def loss(self, update: Any, pack: Any, out: Any) -> Any:
        loss, sums = super().loss(update, pack, out)
        return loss + out["logprobs"].sum(), sums


@pytest.mark.parametrize(
    "more",
    [
        {"entropy_coeff": 0.01},
        {"use_kl_loss": True},
        {"critic": True},
        {"token_ppo": {"entropy": {"target": 1.0}}},
        {"token_ppo": {"policy_loss": f"{__name__}:own_loss"}},
        {"token_ppo": {"objective": f"{__name__}:OwnObjective"}},
    ],
    ids=str,
)
def test_whatever_else_may_learn_takes_its_step(
    more: dict[str, Any], make_learner: Callable[..., Any], make_episodes: Callable[..., list[Any]]
) -> None:
    plain = {"critic": False, "entropy_coeff": 0.0}
    if more.get("critic"):
        more = {"critic": True, "token_ppo": {"advantage_estimator": "gae"}}
    learner = make_learner(**plain | more | {"token_ppo": GROUPED | more.get("token_ppo", {})})
    metrics = update(learner, groups(make_episodes, 1, equal=True))
    assert (metrics[SKIPPED], metrics["num_steps"]) == (0.0, 1.0)


def test_all_learners_agree_where_one_has_something_to_learn() -> None:
    class Other(Ranks):
        """One of two; the other one's advantages reach .5."""

        def max(self, values: Any) -> np.ndarray:
            return np.maximum(values, 0.5)

    settings = SimpleNamespace(ppo=build(TokenPPOOptions, {"advantage_estimator": "grpo"}))
    for batch in (None, SimpleNamespace(advantages=np.zeros(3, np.float32))):
        here = {"settings": settings, "batch": batch, "entropy_coefficient": 0.0}
        assert PPOObjective().has_gradient(SimpleNamespace(**here, ranks=Other()))
        assert not PPOObjective().has_gradient(SimpleNamespace(**here, ranks=Ranks()))
