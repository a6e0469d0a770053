"""What several policies in a game cost: games of two that learn, and of a league, against the same games of one.

Three algorithms stand beside each other on the real stack (RLlib, vLLM, plain torch in the learner) and take turns,
iteration by iteration, in an order that changes, so that a busy machine slows all of them: *one* policy that plays both
seats of TicTacToe, *two* that learn, one in each seat with an engine of its own, and a *league* with as many members as
may stay, met on two opponent engines. All play the same number of games of random legal moves with a random Qwen2; what
is learnt is too little to change them. The ratios are those of neighbouring iterations, their medians the figures.

    python benchmarks/several_policies.py [--repeats 9] [--games 256] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from report import Row, command, medians, show  # noqa: E402

KINDS = ("one", "two", "league")
SHAPE = {"hidden_size": 96, "num_layers": 2, "num_heads": 3, "intermediate_size": 256}

ROWS: tuple[Row, ...] = (
    ("two_per_one", "turns/s of games, two policies that learn / one", ".3f", 0.8, True),
    ("league_iteration_per_one", "turns/s of iterations, league / one", ".3f", 0.7, True),
    ("two_iteration_per_one", "turns/s of iterations, two policies that learn / one", ".3f", None, False),
    ("league_per_one", "turns/s of games, league / one", ".3f", None, False),
    *((f"{kind}_turns_per_s", f"turns/s of games, {kind}", ".0f", None, False) for kind in KINDS),
    *((f"{kind}_iteration_s", f"iteration, {kind}, s", ".2f", None, False) for kind in KINDS),
    *((f"{kind}_update_s", f"update, {kind}, s", ".2f", None, False) for kind in KINDS),
    *((f"{kind}_busy", f"engines busy while games are played, {kind}", ".3f", None, False) for kind in KINDS),
    ("members", "members of the league", ".0f", None, False),
    ("swaps", "members loaded into engines, per iteration", ".2f", None, False),
    ("prepare_s", "wait for snapshots and members, s", ".3f", None, False),
)


def main() -> None:
    """Measure, print the table, write what was asked for."""
    arguments = parse()
    from machine import machine, own_ray

    report: dict[str, Any] = {"command": command(__file__), "machine": machine(), "options": vars(arguments)}
    with own_ray(num_cpus=32, threads=arguments.threads):
        repeats = measure(arguments)
    report |= {"medians": medians(repeats), "repeats": repeats}
    show(report, ROWS, arguments.json)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="measured iterations of each, once the league is full")
    parser.add_argument("--games", type=int, default=256, help="games per iteration")
    parser.add_argument("--members", type=int, default=8, help="members of the league")
    parser.add_argument("--opponent-engines", type=int, default=2)
    parser.add_argument("--snapshot-every", type=int, default=10, help="iterations, once the league is full")
    parser.add_argument("--engine", default="vllm", help="`inference.engine`")
    parser.add_argument("--threads", type=int, default=1, help="threads of each engine and of the learner")
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """The figures of every repeat."""
    import torch

    algorithms: dict[str, Any] = {}
    repeats = []
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            algorithms[kind] = make_config(kind, arguments).build_algo()
            stack.callback(algorithms[kind].stop)
        torch.set_num_threads(arguments.threads)
        for _ in range(arguments.members):
            algorithms["league"].train()
        # A member a turn was for filling it up.
        league = algorithms["league"]._league.league
        league.options = league.options.model_copy(update={"snapshot_every": arguments.snapshot_every})
        for _ in range(2):
            for kind in ("one", "two"):
                algorithms[kind].train()
        for number in range(arguments.repeats):
            order = KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]
            numbers = {kind: one_iteration(algorithms[kind]) for kind in order}
            repeats.append(figures(numbers))
            print("  ".join(f"{key} {repeats[-1][key]:.3f}" for key, *_ in ROWS[:4]), flush=True)
    return repeats


def one_iteration(algorithm: Any) -> dict[str, float]:
    """One iteration of one algorithm: ``turns``, ``rollout_s``, ``iteration_s``, ``update_s``, ``busy``; of a league
    also ``members``, ``swaps`` and ``prepare_s``.
    """
    turns, swaps = _turns(algorithm), _swaps(algorithm)
    began = time.perf_counter()
    results = algorithm.train()
    numbers = {"iteration_s": time.perf_counter() - began, "turns": _turns(algorithm) - turns}
    numbers |= {key: results["timers"][key] for key in ("rollout_s", "update_s")}
    numbers["busy"] = results["env_runners"]["engine_busy_fraction"]
    if "league" in results:
        numbers |= {"swaps": _swaps(algorithm) - swaps, "members": results["league"]["size"]}
        numbers["prepare_s"] = results["league"]["prepare_s"]
    return numbers


def _turns(algorithm: Any) -> float:
    """Replies in all games so far."""
    return float(algorithm.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"), default=0))


def _swaps(algorithm: Any) -> float:
    return float(algorithm._league.numbers()["swaps"]) if algorithm._league is not None else 0.0


def figures(numbers: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What is reported of one iteration of each kind (:func:`one_iteration`)."""
    found: dict[str, float] = {}
    for kind in KINDS:
        own = numbers[kind]
        found[f"{kind}_turns_per_s"] = own["turns"] / own["rollout_s"]
        found[f"{kind}_iteration_turns_per_s"] = own["turns"] / own["iteration_s"]
        found |= {f"{kind}_{key}": own[key] for key in ("iteration_s", "update_s", "busy")}
    for kind in KINDS[1:]:
        found[f"{kind}_per_one"] = found[f"{kind}_turns_per_s"] / found["one_turns_per_s"]
        found[f"{kind}_iteration_per_one"] = found[f"{kind}_iteration_turns_per_s"] / found["one_iteration_turns_per_s"]
    return found | {key: numbers["league"][key] for key in ("members", "swaps", "prepare_s")}


def make_config(kind: str, arguments: argparse.Namespace) -> Any:
    """The configuration, as it would stand in YAML."""
    from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

    config: dict[str, Any] = {
        "env": "lmgame/TicTacToe-v0",
        "language_model": {
            "model": "tiny",
            "tiny": SHAPE,
            "system_prompt": "",
            "format_instructions": False,
            "turn_suffix": "",
            "reply_prefill": "<answer>",
            "history": "window",
            "max_tokens_per_turn": 4,
            "context_length": 64,
            "dtype": "float32",
        },
        "inference": {
            "engine": arguments.engine,
            "max_num_seqs": arguments.games,
            "num_threads": arguments.threads,
            "start_timeout_s": 900.0,
        },
        "text_rollouts": {
            "episodes_per_iteration": arguments.games,
            "constrained_decoding": True,
            "episode_log": "off",
        },
        "training": {"num_minibatches": 4, "critic": {"target": "monte_carlo"}},
        "num_env_runners": 0,
        "num_envs_per_env_runner": arguments.games,
        "lr": 1e-6,
    }
    return LMGamePPOConfig().update_from_dict(config | _assignments(kind, arguments))


def _assignments(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Who plays."""
    if kind == "two":
        return {"policies": ["first", "second"], "policy_mapping_fn": {"X": "first", "O": "second"}}
    if kind == "one":
        return {"policies": ["player"], "policy_mapping_fn": "self_play"}
    league = {
        "snapshot_every": 1,
        "max_members": arguments.members,
        "opponent_engines": arguments.opponent_engines,
    }
    return {"policies": ["player"], "policy_mapping_fn": "league", "league": league}


if __name__ == "__main__":
    main()
