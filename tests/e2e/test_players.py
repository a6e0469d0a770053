"""Several players: self-play, several trained policies, frozen and scripted opponents."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from engine_replies import logprobs_by, reply_of
from learner_weights import weights_of
from safetensors.torch import load_file, save_file

from rllib_lmgame.envs import make_session
from rllib_lmgame.policies.chat.corpus import game_corpus
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.rollouts.records import played_parts


def played_by(algorithm):
    """Module of every trajectory that an update would be made of."""
    result = algorithm.play_batch()
    return [
        (episode, part.module_id)
        for episode in result.episodes
        for part in played_parts(episode, algorithm.config.trained_policies())
    ]


def engine_version(algorithm, module_id: str) -> int:
    import ray

    (name,) = algorithm.engine_groups[module_id].names
    return int(ray.get(ray.get_actor(name).status.remote())["version"])


@pytest.fixture
def rival(tiny_model_dir: str, tmp_path: Path) -> Path:
    """A Hugging Face directory of other weights than those that the run begins with."""
    directory = tmp_path / "rival"
    shutil.copytree(tiny_model_dir, directory)
    path = directory / "model.safetensors"
    save_file({name: tensor * 1.1 for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    return directory


@pytest.mark.slow
def test_trained_frozen_and_scripted_players_share_a_run(start, make_config, rival, tiny_model_dir) -> None:
    config = make_config(
        env="lmgame/KuhnPoker-v0",
        env_config={},
        policies={
            "first": {},
            "second": {},
            "frozen": {"trained": False, "language_model": {"model": str(rival)}},
            "scripted": {"player": "random"},
        },
        policy_mapping_fn="faulty_games:pairing",
        text_rollouts={"episodes_per_iteration": 32, "constrained_decoding": True},
    )
    algorithm = start(config)
    first, second = (reply_of(algorithm.engine_groups[name], seed=None)[0] for name in ("first", "second"))
    assert first != second, "engines of equal weights draw different numbers"
    before = {name: weights_of(algorithm, name) for name in ("first", "second")}
    for _ in range(2):
        result = algorithm.train()
        assert set(result["learners"]) >= {"first", "second"}
        assert not {"frozen", "scripted"} & set(result["learners"])
        for name in ("first", "second"):
            learner = result["learners"][name]
            # Both are those among the legal moves: over the whole vocabulary it would be several nats.
            assert learner["logprob_diff"] <= 1e-4
            assert learner["importance_weight"] == pytest.approx(1.0, abs=1e-4)
            # A choice between two moves; what is forced is not trained on.
            assert learner["entropy"] <= np.log(2) + 1e-6
            assert learner["staleness"] == 0
            assert learner["num_steps"] == 2  # As many as the other's, whoever has more rows.
    assert result["env_runners"]["invalid_action_rate"] == 0
    assert set(result["env_runners"]["module_episode_returns_mean"]) == {"first", "second", "frozen", "scripted"}
    for name in before:
        after = weights_of(algorithm, name)
        assert any(not np.array_equal(after[key], before[name][key]) for key in after)
    assert [engine_version(algorithm, name) for name in ("first", "second", "frozen")] == [2, 2, 0]
    assert "scripted" not in algorithm.engine_groups
    ids, logprobs, _ = reply_of(algorithm.engine_groups["frozen"])
    assert np.abs(logprobs_by(rival, ids, len(logprobs)) - logprobs).max() <= 1e-4
    assert np.abs(logprobs_by(Path(tiny_model_dir), ids, len(logprobs)) - logprobs).max() > 1e-3
    modules = [module_id for _, module_id in played_by(algorithm)]
    assert set(modules) == {"first", "second"}


@pytest.mark.slow
def test_policies_of_different_size_and_tokenizer_learn_side_by_side(start, make_config, tmp_path) -> None:
    """Each from an engine of its own, in as many minibatches as the other, from the tokens it wrote."""
    session = make_session("lmgame/KuhnPoker-v0", {})
    shape = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "intermediate_size": 48, "vocab_size": 320}
    small = build_tiny_model(tmp_path, game_corpus(session, episodes=4), shape)
    session.close()
    algorithm = start(
        make_config(
            env="lmgame/KuhnPoker-v0",
            env_config={},
            policies={"large": {}, "small": {"language_model": {"model": str(small)}}},
            policy_mapping_fn="random_seat",
        )
    )
    before = {name: weights_of(algorithm, name) for name in ("large", "small")}
    shapes = [{key: value.shape for key, value in weights.items()} for weights in before.values()]
    assert shapes[0] != shapes[1]
    for _ in range(2):
        learners = algorithm.train()["learners"]
        for name in before:
            assert learners[name]["logprob_diff"] <= 1e-4 and learners[name]["staleness"] == 0
            assert learners[name]["num_steps"] == 2
    for name, weights in before.items():
        after = weights_of(algorithm, name)
        assert after.keys() == weights.keys()
        assert any(not np.array_equal(after[key], weights[key]) for key in after)
