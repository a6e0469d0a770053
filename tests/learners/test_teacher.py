"""On-policy distillation: what a teacher's verdict makes of advantages, and that it is learnt from (4 s)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from episode_parts import rows_of
from learning import row_logprobs, update

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.objectives import PPOObjective
from rllib_lmgame.policies.model.files import other_vocabulary
from rllib_lmgame.rollouts.records import trajectory_of

PLAIN = {"advantage_estimator": "reinforce", "normalize_advantages": "none", "importance_sampling": None}


@pytest.fixture
def teacher_dir(make_model: Any) -> str:
    """Another model of the same family, deeper than the policy."""
    return make_model(num_hidden_layers=3, initializer_range=0.4)


def with_teacher(make_learner: Any, teacher: str, ppo: dict[str, Any] | None = None, **options: Any) -> Any:
    learner = make_learner(critic=False, training=PLAIN | (ppo or {}), entropy_coeff=0.0, lr=3e-3)
    learner.config.run = learner.config.run.with_values({"teacher": {"model": teacher, **options}})
    learner._settings.clear()
    return learner


@pytest.mark.parametrize("tokens", [64, 9999])
@pytest.mark.parametrize("game", [True, False])
def test_the_advantage_is_the_reverse_divergence_of_each_token(
    game: bool, tokens: int, make_learner: Any, make_episodes: Any, teacher_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row by row, one pass or many; beside the returns of the game, or in their place."""
    learner = with_teacher(make_learner, teacher_dir, {"max_tokens_per_microbatch": tokens}, coefficient=0.7, game=game)
    episodes = make_episodes(8)
    rows = rows_of([trajectory_of(each.agent_episodes["player"]) for each in episodes], max_row_tokens=128)
    student = np.concatenate([row_logprobs(learner.module["player"], row).detach().numpy() for row in rows])
    found: dict[str, TokenBatch] = {}
    prepare = PPOObjective.prepare

    def prepared(self: PPOObjective, made: Any) -> None:
        prepare(self, made)
        found["batch"] = made.batch

    monkeypatch.setattr(PPOObjective, "prepare", prepared)
    metrics = update(learner, WholeEpisodes(episodes=episodes))
    teacher = learner.teachers["player"].module
    gap = student - np.concatenate([row_logprobs(teacher, row).detach().numpy() for row in rows])
    assert np.abs(gap).max() > 0.5
    returns = np.zeros(len(gap))
    if game:
        monkeypatch.undo()
        plain = with_teacher(make_learner, teacher_dir)
        plain.config.run = plain.config.run.with_values({"teacher": None})
        plain._settings.clear()
        monkeypatch.setattr(PPOObjective, "prepare", prepared)
        batch = found["batch"]
        update(plain, WholeEpisodes(episodes=make_episodes(8)))
        returns = found["batch"].advantages.astype(np.float64)
        found["batch"] = batch
    np.testing.assert_allclose(found["batch"].advantages, returns - 0.7 * gap, atol=1e-4)
    assert metrics["teacher_kl"] == pytest.approx(gap.mean(), abs=1e-4)


def test_the_first_token_that_differs_is_named(tmp_path: Path) -> None:
    """Of local files."""
    names = [tmp_path / "policy", tmp_path / "teacher"]
    for name, words in zip(names, ({"a": 0, "b": 1}, {"a": 0, "c": 1}), strict=True):
        name.mkdir()
        (name / "tokenizer.json").write_text(
            json.dumps({"model": {"type": "WordLevel", "vocab": words, "unk_token": "a"}})
        )
    assert other_vocabulary(*map(str, names)) == f"token 1 is 'b' in {names[0]}, and 'c' in {names[1]}"
    assert other_vocabulary(str(names[0]), str(names[0])) is None
    assert other_vocabulary(str(names[0]), "some/model") is None, "nothing is fetched"
    shutil.copy(names[0] / "tokenizer.json", names[1])
    assert other_vocabulary(*map(str, names)) is None


def test_a_teacher_that_knows_fewer_tokens_is_refused(make_learner: Any, make_episodes: Any, make_model: Any) -> None:
    learner = with_teacher(make_learner, make_model(vocab_size=32))
    with pytest.raises(ConfigError, match="knows 32 tokens, the policy 64"):
        update(learner, make_episodes(4))


def test_a_teacher_has_the_numerics_of_the_policy(make_learner: Any, make_episodes: Any, teacher_dir: str) -> None:
    """As DeepSpeed's half precision or adapters on a GPU make them, whatever ``dtype`` says; positions stay exact."""
    learner = with_teacher(make_learner, teacher_dir)
    learner.module["player"].to(torch.bfloat16)
    update(learner, make_episodes(4))
    teacher = learner.teachers["player"].module
    assert {each.dtype for each in teacher.parameters()} == {torch.bfloat16}
    assert all(each.dtype == torch.float32 for name, each in teacher.named_buffers() if "inv_freq" in name)
