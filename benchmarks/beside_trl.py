"""GRPO beside TRL's GRPOTrainer on the same work, and with shared prompts beside without.

Games of one turn in groups of eight, played and learnt from by SmolLM2 in float32 on CPUs: one-step arithmetic behind
three demonstrations, as in ``tuned_examples/smollm2-arithmetic.yaml``. Each iteration of ours is followed by an update
on the same rows without shared prompts, and by an iteration of TRL on the same prompts, in a process of its own with as
many threads. All games are trained on in one optimizer step, and rewards are chance on both sides, so that no group is
left out. Ratios are those of neighbours.

TRL is no dependency of this package; without it the command says how to install it.

    python benchmarks/beside_trl.py [--repeats 3] [--groups 3] [--threads 1] [--model smollm2-135m] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from report import Row, command, medians, table  # noqa: E402

GROUP, REPLY, CONTEXT, LR = 8, 10, 256, 1e-6

SHOWN = ("update_s", "trl_update_s", "unshared_update_s", "iteration_s", "trl_iteration_s")
"""Printed for every repeat."""

ROWS: tuple[Row, ...] = (
    # key, what it is, format, target, whether the target is a lower limit
    ("rollout_s", "rollout, s", ".2f", None, False),
    ("trl_rollout_s", "rollout, TRL, s", ".2f", None, False),
    ("update_s", "update, s", ".2f", None, False),
    ("trl_update_s", "update, TRL, s", ".2f", None, False),
    ("unshared_update_s", "update without shared prompts, s", ".2f", None, False),
    ("push_s", "weight push, s", ".2f", None, False),
    ("trl_push_s", "weight push, TRL, s", ".2f", None, False),
    ("iteration_s", "whole iteration, s", ".2f", None, False),
    ("trl_iteration_s", "whole iteration, TRL, s", ".2f", None, False),
    ("trl_per_update", "update, TRL / ours", ".2f", 2.0, True),
    ("trl_per_iteration", "whole iteration, TRL / ours", ".2f", 1.8, True),
    ("unshared_per_update", "update without shared prompts / with", ".2f", 4.0, True),
    ("tokens", "tokens of prompts and replies", ".0f", None, False),
    ("trl_tokens", "tokens of prompts and replies, TRL", ".0f", None, False),
    ("computed_tokens", "tokens computed with shared prompts", ".0f", None, False),
)


def main() -> None:
    """Measure, print the table, write what was asked for."""
    arguments = parse()
    from machine import describe, machine, own_ray
    from stock_trl import check_installed

    check_installed()
    report: dict[str, Any] = {"command": command(__file__), "machine": machine(), "options": vars(arguments)}
    with own_ray(num_cpus=8, threads=arguments.threads):
        repeats = measure(arguments)
    report |= {"medians": medians(repeats), "repeats": repeats}
    print(f"\n{describe(report['machine'])}\n\n{table(report, ROWS)}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1), encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="measured iterations of each, after one to warm up")
    parser.add_argument("--groups", type=int, default=3, help=f"groups of {GROUP} games in an iteration")
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine and the learner, and of TRL")
    parser.add_argument("--model", default="smollm2-135m", help="`language_model.model`")
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """The figures of every repeat."""
    import torch
    from stock_trl import StockTRL

    algorithm = make_config(arguments).build_algo()
    with contextlib.ExitStack() as stack:
        stack.callback(algorithm.stop)
        torch.set_num_threads(arguments.threads)
        model_dir = algorithm.config.model_files["player"].directory()
        trl = StockTRL(model_dir, arguments.groups, GROUP, REPLY, "</answer>", CONTEXT, LR, arguments.threads)
        stack.callback(trl.close)
        played = with_chance(algorithm)
        repeats = []
        for number in range(arguments.repeats + 1):
            row = one_repeat(algorithm, trl, played)
            if number:
                repeats.append(row)
                print("  ".join(f"{key} {row[key]:.2f}" for key in SHOWN), flush=True)
    return repeats


def one_repeat(algorithm: Any, trl: Any, played: list[Any]) -> dict[str, float]:
    """An iteration of ours, its update without shared prompts, and TRL's iteration."""
    from rllib_lmgame.rollouts.records import trajectory_of

    played.clear()
    began = time.perf_counter()
    results = algorithm.train()
    iteration_s = time.perf_counter() - began
    (result,) = played
    unshared_s = unshared_update_s(algorithm, result)
    turns = [turn for each in result.episodes for turn in trajectory_of(each.agent_episodes["player"]).turns]
    theirs = trl.iteration([turn.prompt_ids.tolist() for turn in turns[::GROUP]])
    timers, learner = results["timers"], results["learners"]["player"]
    ours = {
        "rollout_s": timers["rollout_s"],
        "update_s": timers["update_s"],
        "push_s": timers["weight_sync_s"],
        "iteration_s": iteration_s,
        "unshared_update_s": unshared_s,
        "tokens": sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns),
        "computed_tokens": learner["num_computed_tokens"],
    }
    return figures(ours, theirs)


def figures(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    """All of them, and the ratios."""
    ratios = {
        "trl_per_update": theirs["update_s"] / ours["update_s"],
        "trl_per_iteration": theirs["iteration_s"] / ours["iteration_s"],
        "unshared_per_update": ours["unshared_update_s"] / ours["update_s"],
    }
    return ours | {f"trl_{key}": value for key, value in theirs.items()} | ratios


def unshared_update_s(algorithm: Any, result: Any) -> float:
    """Seconds of one more update on what was played, each row with its prompt; engines follow behind the clock."""
    learner = algorithm.learner_group._learner
    settings = learner.settings("player")
    learner._settings["player"] = dataclasses.replace(
        settings, ppo=dataclasses.replace(settings.ppo, share_prompts=False)
    )
    began = time.perf_counter()
    algorithm.update(result)
    seconds = time.perf_counter() - began
    learner._settings["player"] = settings
    algorithm.push_weights()
    return seconds


def with_chance(algorithm: Any) -> list[Any]:
    """Rewards by chance in all that ``algorithm`` plays from now on, and a list to which every rollout is added."""
    played: list[Any] = []
    play, rng = algorithm.play, random.Random(0)

    def kept(*args: Any, **kwargs: Any) -> Any:
        result = play(*args, **kwargs)
        for episode in result.episodes:
            rewards = episode.agent_episodes["player"].rewards
            rewards.data[rewards.lookback] = rng.random()
        played.append(result)
        return result

    algorithm.play = kept
    return played


def make_config(arguments: argparse.Namespace) -> Any:
    """The configuration, as it would stand in YAML."""
    from rllib_lmgame.algorithms.grpo import LMGameGRPOConfig

    games = arguments.groups * GROUP
    config: dict[str, Any] = {
        "env": "lmgame/MathReasoning-v0",
        "env_config": {
            "split": "train",
            "families": ["one_step"],
            "difficulty": [1, 1],
            "max_turns": 1,
            "show_rules": False,
        },
        "language_model": {
            "model": arguments.model,
            "dtype": "float32",
            "demonstrations": 3,
            "system_prompt": "",
            "format_reminder": False,
            "turn_note": "",
            "reply_prefill": "<answer>",
            "max_tokens_per_turn": REPLY,
            "context_length": CONTEXT,
        },
        "inference": {
            "engine": "vllm",
            "dtype": "float32",
            "max_num_seqs": games,
            "kv_cache_memory_mb": 512,
            "num_threads": arguments.threads,
        },
        "text_rollouts": {"episodes_per_iteration": games, "group_size": GROUP},
        "token_ppo": {"num_minibatches": 1, "num_threads": arguments.threads},
        "num_envs_per_env_runner": games,
        "lr": LR,  # The model stays nearly as it is: replies keep their length.
        "grad_clip": 1.0,
    }
    return LMGameGRPOConfig().update_from_dict(config)


if __name__ == "__main__":
    main()
