"""Asynchronous rollouts against playing and updating in turns, on the work of ``iteration.py``.

In turns each phase has ``--cores`` threads: G2 and U2 are its rollout and its update in seconds. G1 and U1 are the same
with one thread, as they are beside each other. With no costs of its own, this would make an iteration S = (G2 + U2) /
max(G1, U1) times as fast. Each round measures the three kinds of iteration one after the other.

With ``--tail`` replies differ in length by 16 times: of ``--games`` ``--long`` have replies of up to 256 tokens and
the others of up to 16, in eight turns. Each round measures iterations with one thread in turns, with
``max_staleness: 1``, and with the bound that ``--tail`` gives.

    python benchmarks/async_rollouts.py [--wait-ms 0] [--tail 4 [--games 32] [--long 4]] [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import iteration  # noqa: E402
from report import Row, command, medians, show  # noqa: E402

ROWS: tuple[Row, ...] = (
    # key, what it is, format, target, whether the target is a lower limit
    ("turns_s", "iteration, in turns, all cores, s", ".2f", None, False),
    ("ahead_s", "iteration, async, s", ".2f", None, False),
    ("speedup", "in turns / async", ".2f", None, True),
    ("bound", "S = (G2 + U2) / max(G1, U1)", ".2f", None, False),
    ("share_of_bound", "share of S that is reached", ".2f", 0.85, True),
    ("g2_s", "G2, s", ".2f", None, False),
    ("u2_s", "U2, s", ".2f", None, False),
    ("g1_s", "G1, s", ".2f", None, False),
    ("u1_s", "U1, s", ".2f", None, False),
    ("idle_engine_s", "the engine without a game, async, s", ".2f", None, False),
    ("idle_learner_s", "the learner waits, async, s", ".2f", None, False),
)

SMALL = {"turns": 8, "rules": 32, "first": 20, "later": 10}
"""Options of games whose replies, not prompts, take the time."""

TAIL_ROWS: tuple[Row, ...] = (
    ("turns_s", "iteration, in turns, s", ".2f", None, False),
    ("one_s", "iteration, max_staleness 1, s", ".2f", None, False),
    ("more_s", "iteration, max_staleness of --tail, s", ".2f", None, False),
    ("gain", "max_staleness 1 / more", ".2f", None, True),
    ("rollout_s", "rollout in turns, s", ".2f", None, False),
    ("update_s", "update in turns, s", ".2f", None, False),
    ("staleness", "mean staleness of tokens, max_staleness of --tail", ".2f", None, False),
)


def main() -> None:
    """Measure, print the table, write what was asked for."""
    arguments = parse()
    from machine import machine, own_ray

    report: dict[str, Any] = {"command": command(__file__), "machine": machine(), "options": vars(arguments)}
    with own_ray(num_cpus=16, threads=1):
        rounds = [(tail_round if arguments.tail else one_round)(arguments) for _ in range(arguments.rounds)]
    report |= {"repeats": rounds, "medians": medians(rounds)}
    show(report, TAIL_ROWS if arguments.tail else ROWS, arguments.json)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="each builds all three algorithms")
    parser.add_argument("--repeats", type=int, default=5, help="measured iterations of each, after --warm-up others")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2, help="threads of a phase that has the machine for itself")
    parser.add_argument("--minibatches", type=int, default=4, help="optimizer steps per update")
    parser.add_argument("--wait-ms", type=float, default=0.0, help="how long a step of a game sleeps")
    parser.add_argument("--tail", type=int, default=0, metavar="STALENESS", help="see above")
    parser.add_argument("--games", type=int, default=32, help="games of an iteration, with --tail")
    parser.add_argument("--long", type=int, default=4, help="how many of these games have long replies")
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file")
    return parser.parse_args()


def one_round(arguments: argparse.Namespace) -> dict[str, float]:
    """The figures of one algorithm of each kind."""
    turns = measured(arguments, threads=arguments.cores, max_staleness=0)
    alone = measured(arguments, threads=1, max_staleness=0)
    ahead = measured(arguments, threads=1, max_staleness=1)
    return figures(turns, alone, ahead)


def tail_round(arguments: argparse.Namespace) -> dict[str, float]:
    """The figures of one algorithm for each bound."""
    turns, one, more = (measured(arguments, threads=1, max_staleness=most) for most in (0, 1, arguments.tail))
    return {
        "turns_s": turns["iteration_s"],
        "one_s": one["iteration_s"],
        "more_s": more["iteration_s"],
        "gain": one["iteration_s"] / more["iteration_s"],
        "rollout_s": turns["rollout_s"],
        "update_s": turns["update_s"],
        "staleness": more["staleness"],
    }


def figures(turns: dict[str, float], alone: dict[str, float], ahead: dict[str, float]) -> dict[str, float]:
    """What is reported of iterations in turns, with one thread, and async."""
    bound = (turns["rollout_s"] + turns["update_s"]) / max(alone["rollout_s"], alone["update_s"])
    speedup = turns["iteration_s"] / ahead["iteration_s"]
    return {
        "turns_s": turns["iteration_s"],
        "ahead_s": ahead["iteration_s"],
        "speedup": speedup,
        "bound": bound,
        "share_of_bound": speedup / bound,
        "g2_s": turns["rollout_s"],
        "u2_s": turns["update_s"],
        "g1_s": alone["rollout_s"],
        "u1_s": alone["update_s"],
        "idle_engine_s": ahead["idle_engine_s"],
        "idle_learner_s": ahead["idle_learner_s"],
    }


def measured(arguments: argparse.Namespace, threads: int, max_staleness: int) -> dict[str, float]:
    """Medians over iterations of an algorithm that is built for it, means with ``--tail``."""
    words = ["--threads", str(threads), "--minibatches", str(arguments.minibatches), "--no-deepspeed"]
    config = iteration.make_config(iteration.parse(words))
    own = {"turns": iteration.TURNS, "wait_ms": arguments.wait_ms}
    game: dict[str, Any] = {"env": "recital:Recital", "env_config": own}
    if arguments.tail:
        game["env_config"] |= SMALL
        config.environment(env=None, env_config={})
        long = {**game, "episodes": arguments.long, "name": "long"}
        long["language_model"] = {"max_tokens_per_turn": 16 * iteration.REPLY}
        short = {**game, "episodes": arguments.games - arguments.long}
        config.update_from_dict({"games": [short, long], "language_model": {"context_length": 4096}})
        config.update_from_dict(
            {"text_rollouts": {"episodes_per_iteration": arguments.games}, "num_envs_per_env_runner": 256}
        )
    else:
        config.environment(env_config=game["env_config"])
    config.update_from_dict(
        {
            "num_env_runners": 1,
            "async_rollouts": {"max_staleness": max_staleness},
            "training": {"num_threads": threads, "max_logprob_diff": None},
        }
    )
    algorithm = config.build_algo()
    rows = []
    try:
        for number in range(arguments.warm_up + arguments.repeats):
            began = time.perf_counter()
            result = algorithm.train()
            row = {"iteration_s": time.perf_counter() - began}
            row |= {name: result["timers"][name] for name in ("rollout_s", "update_s")}
            row["staleness"] = result["learners"]["player"]["staleness"]
            row |= {
                name: result.get("async_rollouts", {}).get(name, 0.0) for name in ("idle_engine_s", "idle_learner_s")
            }
            if number >= arguments.warm_up:
                rows.append(row)
                print(threads, max_staleness, {name: round(value, 2) for name, value in row.items()}, flush=True)
    finally:
        algorithm.stop()
    # With long replies an iteration often waits for what the next one then has at once.
    average = statistics.fmean if arguments.tail else statistics.median
    return {name: average(row[name] for row in rows) for name in rows[0]}


if __name__ == "__main__":
    main()
