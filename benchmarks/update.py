"""Time of one update on the work peers were measured on, and the plain PyTorch lower bound for the same tokens.

64 episodes of 5 turns, replies of up to 16 tokens, about 46 thousand tokens in whole sequences, a Qwen2 of 1 M
parameters in float32, one thread, one epoch of one minibatch.

    python benchmarks/update.py [--iterations 3] [--threads 1] [--max-tokens-per-microbatch 65536] [--minibatches 1]
    python benchmarks/update.py --without-critic --max-tokens-per-microbatch 4096

The second compares, without a critic, an update that records log-probabilities in the passes of its losses with one
that makes a pass of its own for them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

EPISODES, TURNS, VOCABULARY = 64, 5, 320
SHARED_PREFIX, FIRST_PROMPT, DELTA, REPLY = 200, 300, (82, 96), (15, 16)
SHAPE = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 464,
}


def main() -> None:
    """Run the benchmark and print a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-tokens-per-microbatch", type=int, default=65536)
    parser.add_argument("--minibatches", type=int, default=1)
    parser.add_argument("--without-critic", action="store_true")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    import torch

    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as directory:
        make_model(directory)
        if arguments.without_critic:
            report = time_recording(directory, arguments.max_tokens_per_microbatch, arguments.iterations)
            print(json.dumps(report, indent=1))
            return
        learner = make_learner(
            directory,
            max_tokens_per_microbatch=arguments.max_tokens_per_microbatch,
            num_minibatches=arguments.minibatches,
        )
        torch.set_num_threads(arguments.threads)
        episodes = make_episodes(learner)
        update_s, update_cpu_s, metrics = time_updates(learner, episodes, arguments.iterations)
        lower_s = time_plain_pytorch(directory, episodes, arguments.iterations)
    report = {
        "parameters": sum(p.numel() for p in learner.module["player"].language_model.parameters()),
        "row_tokens": int(metrics["num_row_tokens"]),
        "reply_tokens": int(metrics["trained_tokens"]),
        "threads": torch.get_num_threads(),
        "update_s": round(update_s, 2),
        "update_cpu_s": round(update_cpu_s, 2),
        "reply_tokens_per_s": round(metrics["trained_tokens"] / update_s, 1),
        "plain_pytorch_s": round(lower_s, 2),
        "ratio_to_plain_pytorch": round(update_s / lower_s, 3),
        "padding_waste": round(metrics["padding_waste"], 4),
    }
    print(json.dumps(report, indent=1))


def make_model(directory: str) -> None:
    """Save the random model."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=VOCABULARY, tie_word_embeddings=True, max_position_embeddings=2048, **SHAPE)
    Qwen2ForCausalLM(config).save_pretrained(directory)


def make_learner(directory: str, *, critic: bool = True, **training: Any) -> Any:
    """A local learner without an algorithm around it; ``training`` are its options."""
    import gymnasium as gym
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    from rllib_lmgame.config.algorithms import PPO
    from rllib_lmgame.config.run import run_class
    from rllib_lmgame.learners.learner import LMGameLearner
    from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule

    space = gym.spaces.Text(16)
    model_config = {"options": {"context_length": 2048, "dtype": "float32"}, "model_dir": directory, "critic": critic}
    spec = RLModuleSpec(
        module_class=LanguageModelRLModule, observation_space=space, action_space=space, model_config=model_config
    )
    config = PPOConfig().framework("torch").debugging(seed=0)
    config.multi_agent(policies={"player"}, policy_mapping_fn=lambda *a, **k: "player")
    config.learners(num_learners=0, learner_class=LMGameLearner, add_default_connectors_to_learner_pipeline=False)
    config.training(lr=1e-4, grad_clip=1.0, num_epochs=1, use_kl_loss=False)
    config.run = run_class(PPO)().with_values({"training": training})
    module_spec = MultiRLModuleSpec(rl_module_specs={"player": spec})
    learner = LMGameLearner(config=config, module_spec=module_spec)
    learner.build()
    return learner


def make_episodes(learner: Any) -> list[Any]:
    """Episodes of the peers' shape, with log-probabilities of a uniform sampler."""
    import numpy as np

    from rllib_lmgame.rollouts.records import Turn

    rng = np.random.default_rng(0)
    prefix = rng.integers(0, VOCABULARY, SHARED_PREFIX)
    episodes = []
    for _ in range(EPISODES):
        turns = []
        for i in range(TURNS):
            size = FIRST_PROMPT - SHARED_PREFIX if i == 0 else int(rng.integers(*DELTA))
            own = rng.integers(0, VOCABULARY, size)
            reply = rng.integers(0, VOCABULARY, int(rng.integers(REPLY[0], REPLY[1] + 1))).astype(np.int32)
            prompt = (np.concatenate([prefix, own]) if i == 0 else own).astype(np.int32)
            logprobs = np.full(len(reply), -np.log(VOCABULARY), np.float32)
            turns.append(Turn(prompt, reply, logprobs, float(rng.normal()), 0, i == 0))
        episodes.append(episode_of(turns))
    return episodes


def episode_of(turns: list[Any], group: str = "") -> Any:
    """An episode of one player, which ended after these turns."""
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    from rllib_lmgame.rollouts.records import Trajectory, store

    part = SingleAgentEpisode(
        agent_id="player",
        module_id="player",
        observations=["o"] * (len(turns) + 1),
        actions=["a"] * len(turns),
        rewards=[turn.reward for turn in turns],
        infos=[{}] * (len(turns) + 1),
        terminated=True,
        len_lookback_buffer=0,
    )
    store(Trajectory(turns, terminated=True, group=group), part)
    episode = MultiAgentEpisode()
    episode.agent_episodes = {"player": part}
    return episode


def time_updates(learner: Any, episodes: list[Any], iterations: int) -> tuple[float, float, dict[str, float]]:
    """Median wall and CPU seconds of whole updates after one to warm up, and the last metrics."""
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

    from rllib_lmgame.learners.data.sharding import WholeEpisodes

    wall, cpu, results = [], [], {}
    for _ in range(iterations + 1):
        started, started_cpu = time.perf_counter(), time.process_time()
        results = learner.update(training_data=WholeEpisodes(episodes=episodes))
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - started_cpu)
    return statistics.median(wall[1:]), statistics.median(cpu[1:]), MetricsLogger.peek_results(results)["player"]


def time_recording(directory: str, microbatch: int, iterations: int) -> dict[str, float]:
    """CPU seconds of updates without a critic: as they are, and with a pass without gradient before them."""
    from rllib_lmgame.learners.objectives.ppo import PPOObjective

    options = {"advantage_estimator": "reinforce", "max_tokens_per_microbatch": microbatch}
    learner = make_learner(directory, critic=False, **options)
    episodes = make_episodes(learner)
    _, streamed, metrics = time_updates(learner, episodes, iterations)
    PPOObjective.prepares_first = lambda self, settings: False  # type: ignore[method-assign]
    _, apart, _ = time_updates(learner, episodes, iterations)
    return {
        "row_tokens": int(metrics["num_row_tokens"]),
        "update_cpu_s": round(streamed, 2),
        "with_a_pass_of_its_own_cpu_s": round(apart, 2),
        "ratio": round(apart / streamed, 3),
    }


def time_plain_pytorch(directory: str, episodes: list[Any], iterations: int) -> float:
    """Median seconds of :class:`bounds.PlainUpdate` on these rows, after one to warm up."""
    from bounds import PlainUpdate

    from rllib_lmgame.rollouts.records import trajectory_of

    plain = PlainUpdate(directory)
    trajectories = [trajectory_of(episode.agent_episodes["player"]) for episode in episodes]
    times = [plain.seconds(trajectories) for _ in range(iterations + 1)]
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
