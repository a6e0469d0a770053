"""Tokens of a micro-batch where none are set: what the dry run says is what a learner takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.experiments.checks.footprint import microbatch_tokens
from rllib_lmgame.experiments.checks.memory import ModelShape, learner_mib, model_shape
from rllib_lmgame.learners import microbatch
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.data.rows import WholeEpisodes
from rllib_lmgame.learners.microbatch import MOST_TOKENS, default_tokens, kept_per_token

SMOLLM2 = ModelShape(134_515_008, 30, 576, 192, 49_152, 1536)


@pytest.mark.parametrize(
    ("shape", "on_gpu", "tokens"),
    [
        (SMOLLM2, False, 1024),
        (SMOLLM2, True, 8192),
        (ModelShape(370_000, 3, 96, 96, 320, 256), False, 8192),  # The tiny model.
        (ModelShape(494_000_000, 24, 896, 128, 151_936, 4864), False, 512),
        (ModelShape(10), False, 8192),  # Nothing is known but its size.
        (ModelShape(10**12, 10**4, 10**5, 1, 1, 10**6), False, 16),
    ],
)
def test_activations_on_a_cpu_are_bounded(shape: ModelShape, on_gpu: bool, tokens: int) -> None:
    kept = kept_per_token(shape.layers, shape.hidden_size, shape.intermediate_size, 4)
    assert default_tokens(kept, on_gpu) == tokens


def test_a_learner_of_135_m_parameters_takes_less_than_4_gib() -> None:
    assert sum(learner_mib(SMOLLM2, microbatch_tokens=1024).values()) < 4096
    assert sum(learner_mib(SMOLLM2, microbatch_tokens=MOST_TOKENS).values()) > 13 * 1024


@pytest.mark.parametrize(
    ("options", "ppo", "tokens"),
    [
        ({}, {}, 64),
        ({"gradient_checkpointing": True}, {}, 64),
        ({"value_model": "separate"}, {}, 32),
        ({}, {"max_tokens_per_microbatch": 100}, 100),
    ],
)
def test_the_learner_takes_what_the_dry_run_says(
    options: dict[str, Any],
    ppo: dict[str, Any],
    tokens: int,
    make_learner: Callable[..., Any],
    make_episodes: Callable[..., list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = make_learner(options=options, token_ppo=ppo)
    assert plain.settings("player").microbatch_tokens == ppo.get("max_tokens_per_microbatch", MOST_TOKENS)
    shape = model_shape(plain.module["player"].language_model.config)
    checkpointing = options.get("gradient_checkpointing", False)
    kept = kept_per_token(shape.layers, shape.hidden_size, shape.intermediate_size, 4, checkpointing)
    monkeypatch.setattr(microbatch, "CPU_ACTIVATIONS", 100 * kept)
    taken: list[int] = []
    cut = TokenBatch.microbatches
    monkeypatch.setattr(TokenBatch, "microbatches", lambda batch, limit: taken.append(limit) or cut(batch, limit))
    learner = make_learner(options=options, token_ppo={**ppo, "num_minibatches": 2})
    learner.update(training_data=WholeEpisodes(episodes=make_episodes(4)))
    assert set(taken) == {learner.settings("player").microbatch_tokens} == {tokens}
    config = LMGamePPOConfig().environment("lmgame/Sokoban-v0").language_model(**options).token_ppo(**ppo)
    assert microbatch_tokens(config, "player", shape) == tokens
