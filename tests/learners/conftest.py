"""Tiny models, made-up episodes and learner configurations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rllib_lmgame.inference.protocol import AllowedTokens
from rllib_lmgame.rollouts.records import Trajectory, Turn

sys.path.insert(0, str(Path(__file__).parent))

VOCABULARY = 64


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Function that saves a random two-layer model and returns its directory; keyword arguments change its shape."""

    def make(model_type: str = "qwen2", **overrides: Any) -> str:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        directory = tmp_path_factory.mktemp("model")
        shape = {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "tie_word_embeddings": True,
            "max_position_embeddings": 256,
            "initializer_range": 0.2,
        }
        torch.manual_seed(3)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **(shape | overrides))).save_pretrained(
            directory
        )
        return str(directory)

    return make


@pytest.fixture(scope="session")
def qwen_dir(make_model: Callable[..., str]) -> str:
    """A tiny Qwen2 with grouped key-value heads and a tied head."""
    return make_model()


@pytest.fixture(scope="session")
def make_module(qwen_dir: str) -> Callable[..., Any]:
    """Function that builds a LanguageModelRLModule; keyword arguments are language-model options."""

    def make(model_dir: str | None = None, **options: Any) -> Any:
        import gymnasium as gym

        from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule

        space = gym.spaces.Text(16)
        config = {"options": options, "model_dir": model_dir or qwen_dir}
        return LanguageModelRLModule(
            observation_space=space, action_space=space, model_config=config, inference_only=False
        )

    return make


def random_trajectory(
    rng: np.random.Generator, *, turns: int, version: int = 0, module: str = "player", truncated: bool = False
) -> Trajectory:
    """A trajectory with random ids, lengths and rewards."""
    played = [
        Turn(
            prompt_ids=rng.integers(0, VOCABULARY, rng.integers(3, 14)).astype(np.int32),
            response_ids=rng.integers(0, VOCABULARY, rng.integers(1, 7)).astype(np.int32),
            rollout_logprobs=np.zeros(0, np.float32),
            reward=float(rng.normal()),
            policy_version=version,
            new_row=i == 0,
        )
        for i in range(turns)
    ]
    for turn in played:
        turn.rollout_logprobs = rng.normal(-3.0, 0.3, len(turn.response_ids)).astype(np.float32)
    final = rng.integers(0, VOCABULARY, 5).astype(np.int32) if truncated else None
    return Trajectory(played, terminated=not truncated, module_id=module, final_prompt_ids=final)


def single(trajectory: Trajectory) -> Any:
    """The single-player RLlib episode a trajectory travels in."""
    from episode_parts import episode_of, part_of

    return episode_of(part_of(trajectory))


def random_allowed(rng: np.random.Generator, ids: np.ndarray) -> AllowedTokens:
    """One to four ids per token, itself among them."""
    sets = [np.unique([token, *rng.integers(0, VOCABULARY, rng.integers(0, 4))]) for token in ids]
    return AllowedTokens(np.array(list(map(len, sets)), np.int32), np.concatenate(sets).astype(np.int32))


@pytest.fixture(scope="session")
def as_episode() -> Callable[[Trajectory], Any]:
    """:func:`single`."""
    return single


@pytest.fixture(scope="session")
def make_episodes() -> Callable[..., list[Any]]:
    """Function ``(count, seed, module) -> episodes`` of different lengths, every fourth one truncated; ``constrained``:
    of few allowed ids.
    """

    def make(
        count: int, seed: int = 0, module: str = "player", version: int = 0, constrained: bool = False
    ) -> list[Any]:
        rng = np.random.default_rng(seed)
        played = [
            random_trajectory(rng, turns=1 + i % 4, version=version, module=module, truncated=i % 4 == 3)
            for i in range(count)
        ]
        for turn in (turn for trajectory in played for turn in trajectory.turns if constrained):
            turn.allowed = random_allowed(rng, turn.response_ids)
        return [single(trajectory) for trajectory in played]

    return make


@pytest.fixture(scope="session")
def one_turn_episode() -> Callable[[int, int], Any]:
    """Function ``(prompt_tokens, reply_tokens) -> episode`` of one turn."""

    def make(prompt: int, reply: int) -> Any:
        rng = np.random.default_rng(prompt)
        ids = rng.integers(0, VOCABULARY, prompt + reply).astype(np.int32)
        turn = Turn(
            ids[:prompt], ids[prompt:], np.full(reply, -3.0, np.float32), reward=float(rng.normal()), new_row=True
        )
        return single(Trajectory([turn], terminated=True, module_id="player"))

    return make


@pytest.fixture(scope="session")
def make_config(qwen_dir: str) -> Callable[..., Any]:
    """Function that builds an RLlib configuration with our sections and the module specification."""

    def make(
        *,
        num_learners: int = 0,
        model_dir: str | None = None,
        modules: tuple[str, ...] = ("player",),
        options: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        deepspeed: dict[str, Any] | None = None,
        learner_class: Any = None,
        critic: bool = True,
        action_values: dict[str, Any] | None = None,
        **rllib: Any,
    ) -> Any:
        import gymnasium as gym
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec

        from rllib_lmgame.config.algorithms import PPO
        from rllib_lmgame.config.rllib import RLlibOptions
        from rllib_lmgame.config.run import run_class
        from rllib_lmgame.learners.learner import LMGameLearner
        from rllib_lmgame.learners.options import divides_weights
        from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule

        space = gym.spaces.Text(16)
        model_config = {
            "options": {"context_length": 128, **(options or {})},
            "model_dir": model_dir or qwen_dir,
            "critic": critic,
            "reference": True,
            "action_values": action_values,
            "empty": divides_weights(deepspeed),
        }
        spec = RLModuleSpec(
            module_class=LanguageModelRLModule, observation_space=space, action_space=space, model_config=model_config
        )
        config = PPOConfig().framework("torch").debugging(seed=7)
        config.multi_agent(policies=set(modules), policy_mapping_fn=lambda *a, **k: modules[0])
        config.learners(num_learners=num_learners, num_cpus_per_learner=1)
        if rllib.pop("use_kl_loss", False):
            training = {"kl": {}, **(training or {})}
        common = {"lr": 1e-3, "grad_clip": 1.0, "num_epochs": 1, "entropy_coeff": 0.01, "lambda_": 0.95}
        common |= {"gamma": config.gamma, "vf_loss_coeff": config.vf_loss_coeff, **rllib}
        numbers = {key: value for key, value in common.items() if key in RLlibOptions.model_fields}
        sections = {"training": training or {}, "deepspeed": deepspeed}
        config.run = run_class(PPO)().with_values({**numbers, "seed": 7, **sections})
        config.training(
            **common,
            use_kl_loss=config.run.training.kl is not None,
            learner_class=learner_class or LMGameLearner,
            add_default_connectors_to_learner_pipeline=False,
        )
        config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=dict.fromkeys(modules, spec)))
        return config

    return make


@pytest.fixture(scope="session")
def make_learner(make_config: Callable[..., Any]) -> Callable[..., Any]:
    """Function that builds a local learner in this process."""

    def make(**kwargs: Any) -> Any:
        config = make_config(**kwargs)
        learner = config.learner_class(config=config, module_spec=config.rl_module_spec)
        learner.build()
        return learner

    return make
