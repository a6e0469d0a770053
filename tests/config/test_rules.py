"""Every rule of :mod:`rllib_lmgame.config.rules` is broken by an example, on the whole way (7 s), and by no default."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly
from rllib_lmgame.experiments.spec import Source, make_spec

EXAMPLES = """
batch_mode | batch_mode: truncate_episodes
games | {env: lmgame/FrozenLake-v0, games: [lmgame/Maze-v0]}
on_collapse.type | {on_collapse: restore, evaluation_interval: 2}
language_model.max_tokens_per_turn | language_model: {max_tokens_per_turn: 2048}
language_model.min_tokens_per_turn | language_model: {min_tokens_per_turn: 129}
language_model.reply_format | language_model: {reply_format: boxd}
language_model.answer_tag | language_model: {answer_tag: think}
language_model.dtype | language_model: {dtype: bfloat16}
supervised.stop_at | {run: LMGameSFT, env: null, supervised: {data: 'data:agentgym-traj', stop_at: {}}}
supervised.test_episodes | {run: LMGameSFT, env: null, supervised: {data: 'data:agentgym-traj', test_episodes: 9}}
lr | {run: LMGameSFT, lr: 1.0e-5}
training.num_minibatches | {run: LMGameILQL, training: {num_minibatches: 4}}
supervised.lr_scheduler_type | {run: LMGameAgentEvol, supervised: {lr_scheduler_type: cosine}}
supervised.max_steps | {run: LMGameAgentEvol, supervised: {max_steps: 9}}
supervised.stop_at | {run: LMGameAgentEvol, supervised: {stop_at: {success: 0.5}}}
evaluation_interval | {run: LMGameSFT, env: null, supervised: {data: 'data:agentgym-traj'}, evaluation_interval: 1}
inference.temperature | {teacher: {model: 'openai:big@http://127.0.0.1:8000/v1'}, inference: {temperature: 0.7}}
games[0].temperature | {teacher: {model: 'openai:big@http://127.0.0.1:8000/v1'}, games: [{env: lmgame/Maze-v0, temperature: 0.7}]}
text_rollouts.constrained_decoding | {teacher: {model: 'openai:big@http://127.0.0.1:8000/v1'}, text_rollouts: {constrained_decoding: true}}
language_model.think | {language_model: {think: required}, text_rollouts: {constrained_decoding: true}}
deepspeed.zero_optimization.offload_param | deepspeed: {zero_optimization: {stage: 2, offload_param: {device: cpu}}}
training.torch_compile | {training: {torch_compile: true}, deepspeed: {zero_optimization: {stage: 3}}}
training.max_row_tokens | training: {max_row_tokens: 128}
grad_clip_by | grad_clip_by: value
deepspeed.zero_optimization.stage | deepspeed: {bf16: {enabled: true}, zero_optimization: {stage: 0}}
training.advantage_estimator | training: {advantage_estimator: gaee}
training.policy_loss | training: {policy_loss: gsop}
text_rollouts.reward_scale | {training: {advantage_estimator: rae}, text_rollouts: {reward_scale: {points: [[0, 1], [9, 2]]}}}
evaluation_config.games[0].reward_scale | evaluation_config: {games: [{env: lmgame/Maze-v0, reward_scale: 2}]}
games[0].weight | games: [{env: lmgame/Maze-v0, episodes: 64, weight: 2}]
games[1].episodes | games: [lmgame/Maze-v0, {env: lmgame/FrozenLake-v0, episodes: 15, group_size: 2}]
games[1].group_size | games: [lmgame/Maze-v0, {env: lmgame/FrozenLake-v0, group_size: 2}]
text_rollouts.episodes_per_iteration | games: [{env: lmgame/Maze-v0, episodes: 32}, {env: lmgame/FrozenLake-v0, episodes: 16}]
text_rollouts.episodes_per_iteration | text_rollouts: {episodes_per_iteration: 64, group_size: 3}
text_rollouts.episodes_per_iteration | {num_learners: 2, text_rollouts: {episodes_per_iteration: 1}}
text_rollouts.group_size | training: {advantage_estimator: grpo}
text_rollouts.episodes_per_iteration | {num_learners: 3, training: {advantage_estimator: grpo}, text_rollouts: {episodes_per_iteration: 16, group_size: 8}}
data_selection.reward_variance_filter | data_selection: {reward_variance_filter: 0.5}
data_selection.zero_variance_groups | data_selection: {zero_variance_groups: drop}
data_selection.normalize_rewards | data_selection: {normalize_rewards: group}
data_selection.reward_variance_filter | {text_rollouts: {episodes_per_iteration: 8, group_size: 4}, data_selection: {reward_variance_filter: 0.2}}
data_selection.overlong.buffer | data_selection: {overlong: {tokens: 64, buffer: 64}}
data_selection.oversample | {text_rollouts: {deterministic: true}, data_selection: {oversample: 2}}
data_selection.oversample | {env: lmgame/TicTacToe-v0, league: {}, data_selection: {oversample: 2}}
data_selection.oversample | {num_env_runners: 3, text_rollouts: {episodes_per_iteration: 2}, data_selection: {oversample: 4}}
data_selection.oversample | {num_env_runners: 2, text_rollouts: {episodes_per_iteration: 4}, data_selection: {oversample: 1.25}}
async_rollouts.max_staleness | {num_env_runners: 1, text_rollouts: {deterministic: true}, async_rollouts: {max_staleness: 1}}
async_rollouts.max_staleness | {num_env_runners: 1, training: {importance_sampling: null}, async_rollouts: {max_staleness: 1}}
async_rollouts.max_staleness | {num_env_runners: 1, inference: {sleep_during_update: true, num_gpus_per_engine: 1}, async_rollouts: {max_staleness: 1}}
async_rollouts.max_staleness | async_rollouts: {max_staleness: 1}
policy_mapping_fn | {env: lmgame/TicTacToe-v0, policy_mapping_fn: self_play, league: {}}
league.matchmaking | {env: lmgame/TicTacToe-v0, league: {matchmaking: pfsp_hrad}}
league.averaged_snapshots | {env: lmgame/TicTacToe-v0, league: {averaged_snapshots: true}}
league.opponent_engines | {env: lmgame/TicTacToe-v0, policies: [a, b], league: {}}
league.max_members | {env: lmgame/TicTacToe-v0, policies: [a, b], league: {opponent_engines: 2, max_members: 1}}
policies.a-1 | {env: lmgame/TicTacToe-v0, policies: [a, a-1], league: {opponent_engines: 2}}
policies.b.language_model | {env: lmgame/TicTacToe-v0, league: {opponent_engines: 2}, policies: {a: {}, b: {language_model: {max_tokens_per_turn: 16}}}}
inference.num_gpus_per_engine | inference: {tensor_parallel_size: 2}
inference.num_gpus_per_engine | inference: {pipeline_parallel_size: 2, num_gpus_per_engine: 1}
inference.pipeline_parallel_size | inference: {engine: transformers, pipeline_parallel_size: 2, num_gpus_per_engine: 2}
inference.pipeline_parallel_size | {language_model: {lora: {}}, inference: {adapters: true, pipeline_parallel_size: 2, num_gpus_per_engine: 2}}
inference.engine | inference: {engine: vlm}
inference.quantization | inference: {engine: transformers, quantization: fp8_per_tensor}
inference.speculative | {text_rollouts: {constrained_decoding: true}, inference: {speculative: {}, num_gpus_per_engine: 1}}
inference.async_scheduling | {text_rollouts: {constrained_decoding: true}, inference: {async_scheduling: true}}
inference.batch_invariant | inference: {batch_invariant: true}
inference.engine_kwargs | inference: {engine_kwargs: {quantization: awq}}
inference.engine | {env: lmgame/TicTacToe-v0, policies: [a, b], num_gpus_per_learner: 1, inference: {engine: {type: server, url: 'http://h:1'}, weight_transport: nccl}}
inference.weight_transport | inference: {engine: {type: server, url: 'http://h:1'}, tensor_parallel_size: 2}
inference.engine.url | inference: {engine: {type: server, url: 'localhost:8000', weights_dir: /tmp}}
text_rollouts.constrained_decoding | {text_rollouts: {constrained_decoding: true}, inference: {engine: {type: server, url: 'http://h:1', weights_dir: /tmp}}}
inference.async_scheduling | inference: {engine: transformers, async_scheduling: true}
inference.engine_kwargs | inference: {engine_kwargs: {async_scheduling: true}}
inference.engine_kwargs | inference: {engine_kwargs: {gpu_memory_utilization: 0.5}}
inference.engine_kwargs | inference: {num_gpus_per_engine: 2, engine_kwargs: {pipeline_parallel_size: 2}}
inference.weight_transport | inference: {weight_transport: nccl}
num_gpus_per_learner | inference: {weight_transport: nccl, num_gpus_per_engine: 1}
inference.weight_transport | {num_gpus_per_learner: 1, inference: {engine: transformers, weight_transport: nccl, num_gpus_per_engine: 1}}
inference.weight_transport | {num_gpus_per_learner: 0.5, inference: {weight_transport: nccl, num_gpus_per_engine: 0.5}}
inference.weight_transport | {num_gpus_per_learner: 1, inference: {weight_transport: ipc, num_gpus_per_engine: 1}}
inference.num_engines | {num_gpus_per_learner: 0.5, inference: {weight_transport: ipc, num_gpus_per_engine: 0.2, num_engines: 2}}
num_gpus_per_learner | {num_gpus_per_learner: 0.5, num_learners: 2, inference: {weight_transport: ipc, num_gpus_per_engine: 0.2}}
inference.engine | {run: LMGameILQL, language_model: {value_model: separate}, inference: {engine: vllm}}
inference.weight_transport | {run: LMGameILQL, num_gpus_per_learner: 1, inference: {engine: vllm, weight_transport: nccl, num_gpus_per_engine: 1}}
language_model.lora | {run: LMGameILQL, language_model: {lora: {}}}
deepspeed | {run: LMGameILQL, deepspeed: {zero_optimization: {stage: 2}}}
inference.adapters | {language_model: {lora: {}}, inference: {engine: transformers, adapters: true}}
inference.adapters | inference: {adapters: true}
inference.adapters | {env: lmgame/TicTacToe-v0, language_model: {lora: {}}, inference: {adapters: true}, policies: {a: {}, b: {language_model: {tiny: {seed: 1}}}}}
inference.weight_transport | {num_gpus_per_learner: 1, language_model: {lora: {}}, inference: {adapters: true, weight_transport: nccl, num_gpus_per_engine: 1}}
inference.sleep_during_update | {language_model: {lora: {}}, inference: {adapters: true, sleep_during_update: true, num_gpus_per_engine: 1}}
training.offload_during_rollout | {num_learners: 1, num_gpus_per_learner: 0.6, inference: {num_gpus_per_engine: 0.4}, training: {offload_during_rollout: true}}
training.offload_during_rollout | {num_learners: 1, num_gpus_per_learner: 1, inference: {sleep_during_update: true}, training: {offload_during_rollout: true}}
"""  # noqa: E501
"""The key that is refused, and the smallest settings that break the rule, as YAML below ``config``."""


def notices_of(config: dict[str, Any]) -> list[str]:
    """What the whole way from a file says of settings that it takes."""
    run = config.pop("run", "LMGamePPO")
    if "games" not in config:
        config.setdefault("env", "lmgame/FrozenLake-v0")
    spec = make_spec("a", {"run": run, "config": config, "stop": {"training_iteration": 1}}, Source("x.yaml"))
    check_quickly([spec])
    check_experiments([spec])
    return spec.notices


@pytest.mark.parametrize(("key", "example"), [line.split(" | ") for line in EXAMPLES.split("\n")[1:-1]])
def test_the_example_of_a_rule_is_refused_at_its_key(key: str, example: str) -> None:
    with pytest.raises(ConfigError) as caught:
        notices_of(yaml.safe_load(example))
    assert caught.value.path == f"config.{key}"
    assert caught.value.message and "{" not in caught.value.message.replace("{stage: 0}", "")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"run": "LMGameGRPO"},
        {"run": "LMGameSFT"},
        {"env": "lmgame/TicTacToe-v0", "league": {}},
        {"env": "lmgame/TicTacToe-v0", "league": {"opponent_engines": 2}, "policies": ["a", "b"]},
        {"training": {"policy_loss": "dppo", "importance_sampling": {"cap": 2}}},
        {"language_model": {"history_window": 2}, "kl_target": 0.1},
    ],
    ids=str,
)
def test_no_rule_refuses_what_is_so_by_default_or_has_no_effect(config: dict[str, Any]) -> None:
    assert not notices_of(config)
