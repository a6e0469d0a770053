"""Trains Sokoban with estimators of advantages, and other algorithms, from one warm start, at equal numbers of turns.

For each seed a supervised run (``tuned_examples/sokoban-sft-tiny.yaml``) ends at half of the validation levels; from
its weights every method goes on until ``--turns`` replies were played, with the settings of the quick start
(``tuned_examples/quickstart-sokoban.yaml``) less its curriculum and its averaged weights, which are for a longer run,
with AdamW, one learner and a learning rate of its own: PPO with three kinds of GAE, GRPO, Dr. GRPO, RLOO, REINFORCE++
and GiGPO, those that need groups with eight games on each level. ``gigpo_mean`` does not divide by deviations;
``graph_credit`` (``graph_credit.py``) neither. ``sft`` goes on learning from the solver, from about three quarters as
many replies. ``muon`` is PPO by Muon, ``lora`` with adapters alone, ``async_rollouts`` PPO that plays ahead. GRPO on
half of its groups (``grpo_half``), DPO and AgentEvol have the settings of their own examples; AgentEvol imitates its
own successes alone, from the warm start. ``distillation`` has no reward of the game: a teacher, what
``tuned_examples/sokoban-sft-tiny.yaml`` ends with, judges each token. Turns are those that are learnt from. Success is
measured on the same held-out levels, so differences are paired, and between iterations on validation levels. Each run
is ``rllib train file ...``, printed before it starts; what has its ``report.json`` is not run again. Written are
``OUT.csv`` and ``OUT.png``, success at the end of every run, and ``OUT-curves.csv`` and ``OUT-curves.png``, success
over the turns.

    python benchmarks/estimators.py [--turns 60000] [--seeds 0 1 2] [--only gae grpo] --out docs/results/estimators
    python benchmarks/estimators.py --only gae lora async_rollouts grpo_half dpo agentevol distillation sft \
        --out algorithms
    python benchmarks/estimators.py --redraw --out docs/results/estimators
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from rllib_lmgame.base import registry as plugins  # noqa: E402
from rllib_lmgame.experiments.results.comparison import figure  # noqa: E402
from rllib_lmgame.experiments.results.curves import read_results  # noqa: E402
from rllib_lmgame.measures.statistics import mean_interval, paired_by_level, rate_over_levels  # noqa: E402
from rllib_lmgame.rollouts.episodes import seed_and_level  # noqa: E402

EXAMPLES = HERE.parent / "tuned_examples"
QUICKSTART = EXAMPLES / "quickstart-sokoban.yaml"
SUPERVISED = EXAMPLES / "sokoban-sft-tiny.yaml"
FILES = {
    "sft": SUPERVISED,
    "grpo_half": EXAMPLES / "sokoban-grpo-tiny.yaml",
    "dpo": EXAMPLES / "sokoban-dpo-tiny.yaml",
    "agentevol": EXAMPLES / "sokoban-agentevol-tiny.yaml",
}
"""Experiment of a method; all others are the quick start's."""
GROUP = 8
VARIANTS: dict[str, Any] = {
    **dict.fromkeys(("muon", "lora", "async_rollouts"), "gae"),
    "distillation": "reinforce_pp",
    "gigpo_mean": {"type": "gigpo", "divide_by_std": False},
    "graph_credit": {"type": "graph_credit:GraphCredit", "divide_by_std": False},
}
"""Estimators of methods that have another name."""
ESTIMATORS = ("gae", "turn_gae", "bilevel_gae", "grpo", "rloo", "reinforce_pp", "gigpo")
METHODS = (*ESTIMATORS, "dr_grpo", *VARIANTS, "sft", "grpo_half", "dpo", "agentevol")
TURNS = "env_runners/num_env_steps_sampled_lifetime"
HELD_OUT = "evaluation/env_runners/success_rate"
STEPS = "supervised_steps"
EXPERT_TURNS = 2.0
"""Replies that an episode of the solver counts as: most have one or two of up to five moves, 1.5 in the mean."""
GAME_TURNS = 3.3
"""Replies of one game from the warm start, about."""
FINAL, GREEDY = "after training", "after training, greedy"
"""Milestones of the report that stand for the end of any run."""


def settings(method: str, seed: int, turns: int, model: str, teacher: str) -> dict[str, Any]:
    """What a run has that its file has not, by dotted key.

    Args:
        method: One of :data:`METHODS`.
        seed: Of the run.
        turns: Replies to learn from.
        model: Directory of the weights to start from.
        teacher: That of distillation.
    """
    common = {"config.seed": seed, "config.language_model.model": model, "report": {"type": "learning"}}
    common["config.evaluation_duration"] = 256
    if method == "sft":
        steps = max(50, round(turns / (32 * EXPERT_TURNS) / 50) * 50)
        return common | {
            "config.supervised.max_steps": steps,
            "config.supervised.stop_at": None,
            "config.supervised.lr": 3.0e-4,
            "config.evaluation_interval": 1,
            "stop.training_iteration": steps // 50 + 1,
        }
    common |= {"config.evaluation_interval": 5, "stop": {TURNS.rpartition("/")[2]: turns}}
    if method == "agentevol":
        return common | {
            "config.evaluation_interval": 1,
            "config.supervised.lr": 5.0e-4,
            "config.agentevol.iterations": 6,
            "config.agentevol.original_episodes": 0,
            "config.agentevol.levels": max(1, round(turns / (6 * GAME_TURNS * 2))),
            "config.agentevol.epochs": 4,
        }
    common |= {"config.warm_start": None}
    if method == "dpo":
        return common
    lr = [[0, 3.0e-4], [round(0.6 * turns), 3.0e-4], [turns, 1.0e-4]]
    common |= {"config.lr": lr}
    if method == "grpo_half":
        return common
    estimator = VARIANTS.get(method, method)
    kind = plugins.ESTIMATORS.class_of(estimator if isinstance(estimator, str) else estimator["type"])
    common |= {
        "config.env_config.min_distance": 3,
        "config.num_learners": 0,
        "config.training.ema_decay": None,
        "config.training.optimizer": "muon" if method == "muon" else "adamw",
        "config.training.advantage_estimator": estimator,
        "config.text_rollouts.group_size": GROUP if kind.needs_groups else 1,
    }
    if method == "lora":
        faster = [[at, 10 * rate] for at, rate in lr]
        return common | {"config.lr": faster, "config.language_model.lora": {"r": 16, "alpha": 32}}
    if method == "async_rollouts":
        return common | {"config.async_rollouts": {"max_staleness": 1}, "config.num_env_runners": 1}
    if method == "distillation":
        return common | {"config.teacher": {"model": teacher, "game": False}}
    return common


def warm_start_settings(seed: int) -> dict[str, Any]:
    """What the run that all methods of a seed start from has that its file has not."""
    return {"config.seed": seed, "config.supervised.stop_at.success": 0.5, "report": {"type": "learning"}}


def train(file: Path, overrides: Mapping[str, Any], directory: Path) -> Path:
    """Run it unless it is there, or go on with what was interrupted; returns the trial's directory.

    Raises:
        subprocess.CalledProcessError: if the run fails.
    """
    if not list(directory.glob("*/report.json")):
        arguments = [str(Path(sys.executable).with_name("rllib")), "train", "file", str(file)]
        for key, value in overrides.items():
            arguments += ["--set", f"{key}={json.dumps(value)}"]
        arguments += ["--storage-path", str(directory.parent), "-n", directory.name]
        if directory.is_dir():  # Else a run beside it would begin anew, under another name.
            arguments.append("--resume")
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        print(f"\n$ PYTHONPATH={shlex.quote(path)} {shlex.join(arguments)}", flush=True)
        subprocess.run(arguments, check=True, env={**os.environ, "PYTHONPATH": path})
    return max(directory.glob("*/report.json")).parent


def successes(trial: Path, milestone: str = FINAL) -> dict[str, float]:
    """Held-out level -> whether the final weights solve it."""
    report = json.loads((trial / "report.json").read_text(encoding="utf-8"))
    verdicts: dict[str, float] = report["successes"][milestone]
    return verdicts


def exported(trial: Path) -> Path:
    """The newest checkpoint's Hugging Face directory."""
    return max(trial.glob("checkpoint_*/hf"))


def turns_played(trial: Path) -> tuple[float, float]:
    """Replies that were learnt from, and all that were played; NaN where only the solver's were."""
    rows = [row for row in read_results(trial) if row.get(TURNS, 0) > 0]
    if not rows:
        return float("nan"), float("nan")
    learnt = max(row[TURNS] for row in rows)
    return learnt, learnt


def verdicts(trials: Mapping[tuple[str, int], Path], starts: Mapping[int, Path]) -> list[dict[str, Any]]:
    """One row per run: turns learnt from and played, success and the paired gain over the warm start with their 95 %
    intervals.
    """
    rows = []
    for (method, seed), trial in trials.items():
        after = successes(trial)
        rate = rate_over_levels(list(after.values()), list(map(_level, after)))
        low, high = rate.interval or (float("nan"), float("nan"))
        learnt, played = turns_played(trial)
        _, gain, gain_low, gain_high = paired_by_level(after, successes(starts[seed]), _level)
        greedy = fmean(successes(trial, GREEDY).values())
        rows.append(
            {
                "method": method,
                "seed": seed,
                "turns": learnt,
                "turns_played": played,
                "levels": rate.levels,
                "success": fmean(after.values()),
                "low": low,
                "high": high,
                "gain": gain,
                "gain_low": gain_low,
                "gain_high": gain_high,
                "greedy": greedy,
                "greedy_gain": greedy - fmean(successes(starts[seed], GREEDY).values()),
            }
        )
    return rows


def _level(name: str) -> str:
    return seed_and_level(name)[1]


def table(rows: Sequence[Mapping[str, Any]], starts: Mapping[int, Path]) -> str:
    """Markdown: the methods by their mean success; with one seed the interval is that of its levels."""
    seeds = sorted({row["seed"] for row in rows})
    names = " | ".join(f"seed {seed}" for seed in seeds)
    lines = [
        f"| method | {names} | mean | gain over the warm start (95 %) | greedy | gain |",
        "|---" * (len(seeds) + 5) + "|",
    ]
    begun = [fmean(successes(starts[seed]).values()) for seed in seeds]
    greedy = fmean(fmean(successes(starts[seed], GREEDY).values()) for seed in seeds)
    each = " | ".join(f"{value:.3f}" for value in begun)
    lines.append(f"| warm start | {each} | {fmean(begun):.3f} | | {greedy:.3f} | |")
    methods = sorted(
        {row["method"] for row in rows}, key=lambda m: -fmean(r["success"] for r in rows if r["method"] == m)
    )
    for method in methods:
        own = {row["seed"]: row for row in rows if row["method"] == method}
        each = " | ".join(f"{own[seed]['success']:.3f}" if seed in own else "" for seed in seeds)
        gain = _over_seeds(list(own.values()), "gain")
        rate, played = (fmean(row[key] for row in own.values()) for key in ("success", "greedy"))
        more = _over_seeds(list(own.values()), "greedy_gain")
        lines.append(f"| {method} | {each} | {rate:.3f} | {gain} | {played:.3f} | {more} |")
    return "\n".join(lines)


def _over_seeds(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """Mean and interval; of one seed the interval of its levels, if there is one."""
    mean, *ends = mean_interval([row[key] for row in rows])
    if len(rows) == 1:
        ends = [rows[0][name] for name in (f"{key}_low", f"{key}_high") if name in rows[0]]
    return f"{mean:+.3f}" + (" ({:+.3f} to {:+.3f})".format(*ends) if ends else "")


def draw(rows: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """Success on held-out levels at the end of every run, the methods by their mean; the warm start's as a line."""
    path = out.with_name(out.name + ".png")
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row["success"])
    means = {method: fmean(found[method]) for method in sorted(found, key=lambda method: fmean(found[method]))}
    begun = fmean({row["seed"]: row["success"] - row["gain"] for row in rows}.values())
    with figure(path) as axes:
        for place, method in enumerate(means):
            label = {"label": "one seed"} if place == 0 else {}
            axes.plot([place] * len(found[method]), found[method], "o", color="tab:blue", alpha=0.5, **label)
        axes.plot(range(len(means)), list(means.values()), "_", color="tab:blue", markersize=22, label="mean")
        axes.axhline(begun, color="tab:gray", linestyle="--", label="warm start, mean")
        axes.set_xticks(range(len(means)), list(means), rotation=20)
        axes.set_ylabel("success on held-out levels")
    return path


def curves(trials: Mapping[tuple[str, int], Path]) -> list[dict[str, Any]]:
    """Success on validation levels over the turns learnt from, where it was measured between iterations; an episode of
    the solver counts as :data:`EXPERT_TURNS`.
    """
    points = []
    for (method, seed), trial in trials.items():
        for row in read_results(trial):
            if HELD_OUT in row:
                turns = row[STEPS] * 32 * EXPERT_TURNS if method == "sft" else row[TURNS]
                points.append({"method": method, "seed": seed, "turns": turns, "success": row[HELD_OUT]})
    return points


def draw_curves(points: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """The mean of the seeds of each method over the turns that all of them have."""
    import numpy as np

    path = out.with_name(out.name + ".png")
    with figure(path) as axes:
        for method in dict.fromkeys(point["method"] for point in points):
            own = [point for point in points if point["method"] == method]
            of_seeds = [[p for p in own if p["seed"] == seed] for seed in {p["seed"]: None for p in own}]
            turns = [[point["turns"] for point in points] for points in of_seeds]
            grid = np.linspace(max(each[0] for each in turns), min(each[-1] for each in turns), 50)
            rates = [
                np.interp(grid, at, [p["success"] for p in of_seed])
                for at, of_seed in zip(turns, of_seeds, strict=True)
            ]
            axes.plot(grid, np.mean(rates, axis=0), label=method)
        axes.set_xlabel("turns learnt from")
        axes.set_ylabel("success on validation levels")
    return path


def read_rows(out: Path) -> list[dict[str, Any]]:
    """What :func:`write_rows` wrote."""
    path = out.with_name(out.name + ".csv")
    if not path.is_file():
        raise SystemExit(f"there is no {path}: run without --redraw first, or name another --out")
    with path.open(encoding="utf-8", newline="") as file:
        return [{k: v if k == "method" else float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def write_rows(rows: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """The rows as CSV."""
    path = out.with_name(out.name + ".csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    return path


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60_000, help="replies each method learns from")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=METHODS, default=[*ESTIMATORS, "sft"], metavar="METHOD")
    parser.add_argument("--storage", type=Path, default=Path("~/ray_results/estimators"), help="where the runs go")
    parser.add_argument("--out", type=Path, default=Path("estimators"), help="path of the files, without ending")
    parser.add_argument("--redraw", action="store_true", help="run nothing: draw OUT.png again, from OUT.csv")
    return parser.parse_args(argv)


def main() -> None:
    """Run what is missing, print the table, write the figure and the rows."""
    from machine import describe, machine

    arguments = parse()
    if arguments.redraw:
        print(draw(read_rows(arguments.out), arguments.out))
        return
    storage = arguments.storage.expanduser().resolve()
    before, teacher = machine(), ""
    if "distillation" in arguments.only:
        teacher = str(
            exported(train(SUPERVISED, {"config.seed": 0, "report": {"type": "learning"}}, storage / "teacher"))
        )
    starts: dict[int, Path] = {}
    trials: dict[tuple[str, int], Path] = {}
    for seed in arguments.seeds:
        start = train(SUPERVISED, warm_start_settings(seed), storage / f"warm-start-{seed}")
        starts[seed] = start
        for method in arguments.only:
            overrides = settings(method, seed, arguments.turns, str(exported(start)), teacher)
            trials[method, seed] = train(
                FILES.get(method, QUICKSTART), overrides, storage / f"{method}-{seed}-{arguments.turns}"
            )
    rows = verdicts(trials, starts)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    files = [write_rows(rows, arguments.out), draw(rows, arguments.out)]
    points, over_turns = curves(trials), arguments.out.with_name(arguments.out.name + "-curves")
    if points:  # Runs of before this was measured have none.
        files += [write_rows(points, over_turns), draw_curves(points, over_turns)]
    print("", describe(before), table(rows, starts), *map(str, files), sep="\n\n")


if __name__ == "__main__":
    main()
