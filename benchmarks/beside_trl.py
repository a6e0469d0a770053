"""GRPO beside TRL's GRPOTrainer on the same work, and with shared prompts beside without.

Games of one turn in groups of eight, played and learnt from by SmolLM2 in float32 on CPUs: the arithmetic of
``tuned_examples/smollm2-arithmetic.yaml`` behind three demonstrations of its solver. Ours and TRL take turns (ours,
TRL, ours, ...), each in a process of its own that ends before the next begins, with as many threads. A turn is an
iteration to warm up and those that are measured, TRL's on the prompts of ours. All games are trained on in one
optimizer step, and rewards are chance on both sides, so that no group is left out. Behind each measured iteration of
ours follows an update on the same rows without shared prompts.

TRL is no dependency of this package; without it the command says how to install it.

    python benchmarks/beside_trl.py [--turns 2] [--repeats 1] [--groups 3] [--threads 1] [--model smollm2-135m]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from report import Row, command, medians, show  # noqa: E402

GROUP, REPLY, CONTEXT, LR = 8, 10, 256, 1e-6
SERVE = "--serve"

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
    if sys.argv[1:2] == [SERVE]:
        model, *numbers = sys.argv[2:]
        return serve(model, *map(int, numbers))
    arguments = parse()
    from machine import machine
    from stock_trl import check_installed

    check_installed()
    report: dict[str, Any] = {"command": command(__file__), "machine": machine(), "options": vars(arguments)}
    repeats = [row for turn in range(arguments.turns) for row in measure(arguments, turn)]
    report |= {"medians": medians(repeats), "repeats": repeats}
    show(report, ROWS, arguments.json)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2, help="of ours, and of TRL")
    parser.add_argument("--repeats", type=int, default=1, help="measured iterations of a turn, after one to warm up")
    parser.add_argument("--groups", type=int, default=3, help=f"groups of {GROUP} games in an iteration")
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine and the learner, and of TRL")
    parser.add_argument("--model", default="smollm2-135m", help="a known name, or a directory")
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file")
    return parser.parse_args()


def measure(arguments: argparse.Namespace, turn: int) -> list[dict[str, float]]:
    """The figures of every repeat of a turn."""
    from stock_trl import StockTRL

    from rllib_lmgame.policies.model.files import model_directory

    model_dir = str(model_directory(arguments.model, "--model"))
    groups, threads = arguments.groups, arguments.threads
    with contextlib.closing(Ours(model_dir, groups, threads, turn)) as ours:
        played = [ours.iteration(measured=number > 0) for number in range(arguments.repeats + 1)]
    with contextlib.closing(StockTRL(model_dir, groups, GROUP, REPLY, "</answer>", CONTEXT, LR, threads)) as trl:
        pairs = [(numbers, trl.iteration(prompts)) for numbers, prompts in played]
    rows = [figures(*pair) for pair in pairs[1:]]
    for row in rows:
        print("  ".join(f"{key} {row[key]:.2f}" for key in SHOWN), flush=True)
    return rows


class Ours:
    """This package's GRPO in a process of its own."""

    def __init__(self, model: str, groups: int, threads: int, seed: int) -> None:
        from asked import AskedProcess

        numbers = map(str, (groups, threads, seed))
        # By default Ray's workers give way to all other processes; TRL does not.
        environment = {"OMP_NUM_THREADS": str(threads), "RAY_worker_niceness": "0"}
        self._process = AskedProcess(__file__, SERVE, model, *numbers, environment=environment)

    def iteration(self, measured: bool) -> tuple[dict[str, float], list[list[int]]]:
        """The figures of an iteration, and the prompt of each group as token ids.

        Only one that is ``measured`` is followed by an update without shared prompts.
        """
        numbers, prompts = self._process.ask(measured)
        return numbers, prompts

    def close(self) -> None:
        """End the process."""
        self._process.close()


def serve(model: str, groups: int, threads: int, seed: int) -> None:
    """Play and learn once each time :class:`Ours` asks."""
    import torch
    from asked import answer, questions, ready
    from machine import own_ray

    with own_ray(num_cpus=8, threads=threads), contextlib.ExitStack() as stack:
        algorithm = make_config(model, groups, threads, seed).build_algo()
        stack.callback(algorithm.stop)
        torch.set_num_threads(threads)
        played = with_chance(algorithm)
        ready()
        for measured in questions():
            answer(one_iteration(algorithm, played, measured))


def one_iteration(algorithm: Any, played: list[Any], measured: bool) -> tuple[dict[str, float], list[list[int]]]:
    """See :meth:`Ours.iteration`."""
    from rllib_lmgame.rollouts.records import trajectory_of

    played.clear()
    began = time.perf_counter()
    results = algorithm.train()
    iteration_s = time.perf_counter() - began
    (result,) = played
    turns = [turn for each in result.episodes for turn in trajectory_of(each.agent_episodes["player"]).turns]
    timers, learner = results["timers"], results["learners"]["player"]
    numbers = {
        "rollout_s": timers["rollout_s"],
        "update_s": timers["update_s"],
        "push_s": timers["weight_sync_s"],
        "iteration_s": iteration_s,
        "tokens": sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns),
        "computed_tokens": learner["num_computed_tokens"],
    }
    if measured:
        numbers["unshared_update_s"] = unshared_update_s(algorithm, result)
    return numbers, [turn.prompt_ids.tolist() for turn in turns[::GROUP]]


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
        settings, ppo=settings.ppo.model_copy(update={"share_prompts": False})
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


def make_config(model: str, groups: int, threads: int, seed: int) -> Any:
    """The configuration, as it would stand in YAML."""
    from rllib_lmgame.algorithms.grpo import LMGameGRPOConfig

    games = groups * GROUP
    config: dict[str, Any] = {
        "seed": seed,
        "env": "lmgame/MathReasoning-v0",
        "env_config": {
            "split": "train",
            "families": ["one_step"],
            "difficulty": [1, 1],
            "max_turns": 1,
            "show_rules": False,
        },
        "language_model": {
            "model": model,
            "dtype": "float32",
            "demonstrations": 3,
            "system_prompt": "",
            "format_instructions": False,
            "turn_suffix": "",
            "reply_prefill": "<answer>",
            "max_tokens_per_turn": REPLY,
            "context_length": CONTEXT,
        },
        "inference": {
            "engine": "vllm",
            "dtype": "float32",
            "max_num_seqs": games,
            "kv_cache_memory_mb": 512,
            "num_threads": threads,
        },
        "text_rollouts": {"episodes_per_iteration": games, "group_size": GROUP},
        "training": {"num_minibatches": 1, "num_threads": threads},
        "num_envs_per_env_runner": games,
        "lr": LR,  # The model stays nearly as it is: replies keep their length.
        "grad_clip": 1.0,
    }
    return LMGameGRPOConfig().update_from_dict(config)


if __name__ == "__main__":
    main()
