"""A whole training iteration against what its parts must cost, on the work other systems were measured on.

The real stack (RLlib, vLLM, DeepSpeed unless ``--no-deepspeed``) plays 64 games of 5 turns at once with a random Qwen2
of 1 M parameters in float32, replies up to 16 tokens, and trains on the 46 thousand tokens of the whole conversations.
In the same run, in turn with every iteration, two lower bounds are measured: the same engine given the same requests by
one client without games, and plain PyTorch's forward and backward passes over the same rows; and what vLLM's own
offline interface takes for the same requests, turn by turn, as other trainers call it.

    python benchmarks/iteration.py [--repeats 7] [--json FILE] [--write docs/results/benchmarks.md]
    python benchmarks/iteration.py --model smollm2-135m --games 16 --dtype auto --threads 2 --minibatches 1 --no-stock

The second is an iteration of SmolLM2 on games with shorter texts, and plain PyTorch in the same numerics.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from report import Row, command, medians, show, table  # noqa: E402

TURNS, REPLY, CONTEXT = 5, 16, 1024
SHORT = {"rules": 60, "first": 40, "later": 40}
"""Digits of the game's texts for another model than the tiny one."""
SHAPE = {"hidden_size": 128, "num_layers": 4, "num_heads": 4, "intermediate_size": 464}

SHOWN = ("rollout_s", "rollout_bound_s", "update_s", "update_bound_s", "iteration_ratio")
"""Printed for every repeat."""

ROWS: tuple[Row, ...] = (
    # key, what it is, format, target, whether the target is a lower limit
    ("rollout_s", "rollout, s", ".2f", 2.6, False),
    ("rollout_engine_cpu_s", "rollout, CPU seconds of the engine's process", ".2f", None, False),
    ("rollout_bound_s", "the engine alone, same requests, s", ".2f", None, False),
    ("stock_vllm_s", "vLLM's own `LLM.generate`, same requests, s", ".2f", None, False),
    ("rollout_per_stock", "rollout / vLLM's own `LLM.generate`", ".3f", None, False),
    ("rollout_utilisation", "rollout utilisation (engine alone / rollout)", ".3f", 0.8, True),
    ("update_s", "update, s", ".2f", 6.5, False),
    ("update_cpu_s", "update, CPU seconds", ".2f", None, False),
    ("update_bound_s", "plain PyTorch, same rows, s", ".2f", None, False),
    ("weight_sync_s", "weight transfer, s", ".3f", 0.2, False),
    ("update_ratio", "update / plain PyTorch", ".3f", None, False),
    ("iteration_s", "whole iteration, s", ".2f", None, False),
    ("iteration_ratio", "whole iteration / (engine alone + plain PyTorch)", ".3f", 1.3, False),
    ("padding_waste", "padding waste", ".4f", 0.02, False),
    ("prompt_computed_per_unique", "prompt tokens computed / unique", ".3f", 1.2, False),
    ("prompt_computed_per_unique_blocks", "the same, whole cache blocks only", ".3f", None, False),
    ("overhead_us_per_turn", "rollout wall without engine steps, per turn, µs", ".0f", None, False),
    ("engine_busy_fraction", "engine busy during the rollout", ".3f", None, False),
    ("framework_us_per_turn", "driver CPU per turn, engine that answers at once, µs", ".0f", None, False),
    ("framework_watched_us_per_turn", "the same for a game that is watched (third-party), µs", ".0f", None, False),
    ("generated_tokens_per_s", "generated tokens/s", ".0f", None, False),
    ("trained_tokens_per_s", "reply tokens trained/s", ".0f", None, False),
    ("row_tokens", "tokens of whole rows per update", ".0f", None, False),
    ("reply_tokens", "reply tokens per update", ".0f", None, False),
    ("logprob_diff", "largest difference of log-probabilities, learner and engine", ".1e", 1e-4, False),
    ("logprob_diff_mean", "mean difference", ".1e", None, False),
)


def main() -> None:
    """Measure, print the table, write what was asked for."""
    arguments = parse()
    from machine import describe, machine, own_ray

    report: dict[str, Any] = {"command": command(__file__), "machine": machine()}
    with own_ray(num_cpus=8, threads=arguments.threads):
        report |= measure(arguments)
    rows = ROWS
    if arguments.model != "tiny":  # The targets are of the tiny one.
        rows = tuple((*row[:3], None, False) for row in ROWS)
    show(report, rows, arguments.json)
    if arguments.write:
        write(Path(arguments.write), report, describe(report["machine"]))


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line, or other ``words``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="measured iterations, after --warm-up others")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--minibatches", type=int, default=4, help="optimizer steps per update")
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine and of the learner")
    parser.add_argument(
        "--compile", action="store_true", help="let vLLM compile the engine's model (inference.enforce_eager: false)"
    )
    parser.add_argument("--model", default="tiny", help="a known name, or a directory")
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "auto"), default="float32", help="of the engine and the learner")
    parser.add_argument("--no-stock", action="store_true", help="without vLLM's own interface")
    parser.add_argument("--no-deepspeed", action="store_true", help="plain torch in the learner")
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file")
    parser.add_argument("--write", metavar="FILE", help="also write the table to this Markdown file")
    return parser.parse_args(words)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures: the median of each, and every repeat."""
    import torch
    from bounds import PlainUpdate
    from stock_vllm import StockVLLM

    from rllib_lmgame.base.numerics import computed_in
    from rllib_lmgame.inference.engines.vllm_engine import CPU_BLOCK_SIZE
    from rllib_lmgame.policies.model.files import parameter_count

    algorithm = make_config(arguments).build_algo()
    with contextlib.ExitStack() as stack:
        stack.callback(algorithm.stop)
        torch.set_num_threads(arguments.threads)
        model_dir = algorithm.config.model_files["player"].directory()
        numerics = computed_in(arguments.dtype, lambda: parameter_count(model_dir))
        plain = PlainUpdate(model_dir, numerics)
        stock = None if arguments.no_stock else StockVLLM(model_dir, CONTEXT, numerics)
        if stock is not None:
            stack.callback(stock.close)
        played = _keep_rollouts(algorithm)
        algorithm.update = updates = Timed(algorithm.update)
        repeats = []
        for number in range(arguments.warm_up + arguments.repeats):
            row = one_repeat(algorithm, plain, stock, played, updates, CPU_BLOCK_SIZE, before=arguments.minibatches > 1)
            if number >= arguments.warm_up:
                repeats.append(row)
                print("  ".join(f"{key} {row[key]:.3f}" for key in SHOWN), flush=True)
        parameters = sum(p.numel() for p in plain.model.parameters())
    return {"parameters": parameters, "medians": medians(repeats), "repeats": repeats, "options": vars(arguments)}


def one_repeat(
    algorithm: Any, plain: Any, stock: Any, played: list[Any], updates: Timed, block: int, before: bool
) -> dict[str, float]:
    """One iteration and its lower bounds, one right after the other so that a busy machine slows all of them."""
    from bounds import count_prompt_tokens, framework_us, replay_s

    from rllib_lmgame.rollouts.records import trajectory_of

    played.clear()
    began = time.perf_counter()
    results = algorithm.train()
    iteration_s = time.perf_counter() - began
    (rollout,) = played
    trajectories = [trajectory_of(episode.agent_episodes["player"]) for episode in rollout.result.episodes]
    algorithm.push_weights()  # As in an iteration, the engine begins with an empty cache.
    bound_s = replay_s(algorithm.config.engine_names["player"], trajectories)
    stock_s = math.nan if stock is None else stock.seconds(trajectories)
    plain_s = plain.seconds(trajectories, before)
    turns = sum(len(trajectory.turns) for trajectory in trajectories)
    prompts = count_prompt_tokens(trajectories, block)
    replies = [turn for trajectory in trajectories for turn in trajectory.turns]
    runner = algorithm.env_runner
    watched, in_place = (
        framework_us(runner, rollout.plans, rollout.settings, replies, direct) for direct in (False, True)
    )
    timers, learner = results["timers"], results["learners"]["player"]
    rollout_s, update_s = timers["rollout_s"], timers["update_s"]
    reply_tokens = sum(len(turn.response_ids) for turn in replies)
    return {
        "rollout_s": rollout_s,
        "rollout_engine_cpu_s": rollout.engine_cpu_s,
        "rollout_bound_s": bound_s,
        "stock_vllm_s": stock_s,
        "rollout_per_stock": rollout_s / stock_s,
        "rollout_utilisation": bound_s / rollout_s,
        "update_s": update_s,
        "update_cpu_s": updates.cpu_s,
        "update_bound_s": plain_s,
        "weight_sync_s": timers["weight_sync_s"],
        "update_ratio": update_s / plain_s,
        "iteration_s": iteration_s,
        "iteration_ratio": iteration_s / (bound_s + plain_s),
        "padding_waste": learner["padding_waste"],
        "prompt_computed_per_unique": rollout.prompt_tokens_computed / prompts.unique,
        "prompt_computed_per_unique_blocks": rollout.prompt_tokens_computed / prompts.unique_blocks,
        "overhead_us_per_turn": 1e6 * (rollout_s - rollout.busy_s) / turns,
        "engine_busy_fraction": rollout.busy_s / rollout_s,
        "framework_us_per_turn": in_place,
        "framework_watched_us_per_turn": watched,
        "generated_tokens_per_s": reply_tokens / rollout_s,
        "trained_tokens_per_s": reply_tokens / update_s,
        "row_tokens": learner["num_row_tokens"],
        "reply_tokens": reply_tokens,
        "turns": turns,
        "prompt_tokens": prompts.sent,
        "logprob_diff": learner["logprob_diff"],
        "logprob_diff_mean": learner["logprob_diff_mean"],
    }


class Timed:
    """A function and the CPU seconds this process took for its last call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.cpu_s = 0.0

    def __call__(self, *args: Any) -> Any:
        began = time.process_time()
        result = self.function(*args)
        self.cpu_s = time.process_time() - began
        return result


class Rollout:
    """What one iteration played, and what the engine did meanwhile."""

    def __init__(
        self, plans: list[Any], settings: Any, result: Any, before: dict[str, float], after: dict[str, float]
    ) -> None:
        self.plans, self.settings, self.result = plans, settings, result
        self.busy_s = after["busy_s"] - before["busy_s"]
        self.engine_cpu_s = after["cpu_s"] - before["cpu_s"]
        self.prompt_tokens_computed = after["prompt_tokens_computed"] - before["prompt_tokens_computed"]


def _keep_rollouts(algorithm: Any) -> list[Rollout]:
    """A list to which every rollout of ``algorithm`` is added."""
    import ray
    from machine import cpu_seconds

    from rllib_lmgame.algorithms.cluster.workers import engine_stats

    played: list[Rollout] = []
    play: Callable[..., Any] = algorithm.play
    names = algorithm.config.engine_names["player"]
    pids = [status["pid"] for status in ray.get([ray.get_actor(name).status.remote() for name in names])]

    def numbers() -> dict[str, float]:
        return engine_stats(algorithm.engine_groups) | {"cpu_s": sum(cpu_seconds(pid) for pid in pids)}

    def kept(plans: list[Any], settings: Any) -> Any:
        before = numbers()
        result = play(plans, settings)
        seated, _ = algorithm.agent_mapper.assigned(plans, settings.games)
        played.append(Rollout(seated, settings, result, before, numbers()))
        return result

    algorithm.play = kept
    return played


def make_config(arguments: argparse.Namespace) -> Any:
    """The configuration, as it would stand in YAML."""
    from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

    tiny, games = arguments.model == "tiny", arguments.games
    config: dict[str, Any] = {
        "env": "recital:Recital",
        "env_config": {"turns": TURNS, **({} if tiny else SHORT)},
        "language_model": {
            "model": arguments.model,
            "tiny": SHAPE if tiny else {},
            "format_instructions": False,
            "turn_suffix": "",
            "reply_prefill": "<answer>",
            "history": "keep",
            "max_tokens_per_turn": REPLY,
            "context_length": CONTEXT,
            "dtype": arguments.dtype,
        },
        "inference": {
            "engine": "vllm",
            "dtype": arguments.dtype,
            "max_num_seqs": 2 * games,
            "num_threads": arguments.threads,
            "kv_cache_memory_mb": None if tiny else 512,
        },
        "text_rollouts": {"episodes_per_iteration": games, "reward_scale": 0.1},
        "training": {"num_minibatches": arguments.minibatches},
        "num_envs_per_env_runner": games,
        "lr": 1e-5,  # The model stays as random as it is: replies keep their length.
    }
    if arguments.compile:
        config["inference"]["enforce_eager"] = False
    if not arguments.no_deepspeed:
        config["deepspeed"] = {"zero_optimization": {"stage": 0}}
    return LMGamePPOConfig().update_from_dict(config)


def write(path: Path, report: dict[str, Any], where: str) -> None:
    """The table with what is needed to measure it again; text behind the end mark of an existing file stays."""
    begin, end = "<!-- iteration.py: begin -->", "<!-- iteration.py: end -->"
    lines = [
        begin,
        "# Benchmarks",
        "",
        f"    {report['command']}",
        "",
        where,
        "",
        *_explanation(report),
        "",
        table(report, ROWS),
        end,
    ]
    text = "\n".join(lines) + "\n"
    rest = ""
    with contextlib.suppress(FileNotFoundError):
        rest = path.read_text(encoding="utf-8").partition(end)[2].lstrip("\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + (f"\n{rest}" if rest else ""), encoding="utf-8")


def _explanation(report: dict[str, Any]) -> list[str]:
    options = report["options"]
    learner = "plain torch" if options["no_deepspeed"] else "a DeepSpeed engine (ZeRO 0)"
    several = options["minibatches"] > 1
    return [
        f"{options['games']} games at once, {TURNS} turns each, replies of up to {REPLY} tokens, whole conversations "
        f"as rows. A random Qwen2 of {report['parameters']:,} parameters in",
        f"float32. vLLM in an engine of its own, {learner} in the learner, {options['threads']} thread(s) each, one "
        f"epoch of {options['minibatches']} minibatch(es). Medians of",
        f"{len(report['repeats'])} iterations after {options['warm_up']} others; ratios are taken within an iteration.",
        "",
        "- *The engine alone* is the same engine given the same requests by one client without games, turn by turn.",
        (
            "- *vLLM's own `LLM.generate`* is vLLM with its defaults in a process of its own, called once per turn "
            "of all games, without games."
        ),
        f"- *Plain PyTorch* is {'a pass without gradient, ' if several else ''}a forward and a backward pass of "
        "Transformers' own model over single rows, and an AdamW step.",
        "  The learner may be faster: it computes the last layer only at the positions it needs.",
        "- *Unique* prompt tokens are those that a cache of single tokens which forgets nothing would compute.",
        "- Rollout and update of TRL 1.16 on this work (two idle x86 cores, one thread): 2.65 s and 13.1 s with vLLM "
        "on the CPU, 10.5 s and 10.0 s with Hugging Face's generate.",
    ]


if __name__ == "__main__":
    main()
