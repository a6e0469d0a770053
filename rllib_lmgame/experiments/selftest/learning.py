"""Whether runs learn here, tried by ``rllib doctor --learning``: one short run of PPO on four games at once.

At random a quarter of the first three games are won. Who always says the same word wins half of the second one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rllib_lmgame.base.schedule import number_at
from rllib_lmgame.experiments.selftest.checks import TINY, Check, Measured

PROBE = "rllib_lmgame.envs.checking.probe:Probe"
DILEMMA = "two-players"
GAMES: Mapping[str, tuple[str, float, Mapping[str, int]]] = {
    "constant-target": (PROBE, 1, {"max_turns": 1}),
    "shown-target": (PROBE, 3, {"max_turns": 1, "shown": 2}),
    "delayed-reward": (PROBE, 1, {"max_turns": 3}),
    DILEMMA: ("lmgame/IteratedPrisonersDilemma-v0", 1, {"rounds": 1}),
}
LEAST, LAST = 0.95, 10
"""Share of replies that pay which must be reached, in the median of the last iterations: single ones may be bad."""


def judged_learning(results: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """How often the reply that pays was given at the end of a run."""
    found = []
    for name in GAMES:
        key = f"env_runners/games/{name}/{'measures/cooperation_rate' if name == DILEMMA else 'success_rate'}"
        rates = [math.nan if (rate := number_at(result, key)) is None else rate for result in results[-LAST:]]
        share = 1 - median(rates) if name == DILEMMA else median(rates)
        found.append(Measured(f"{name}: replies that pay", math.nan if math.isnan(sum(rates)) else share, low=LEAST))
    return found


LEARNING = Check(
    "learning",
    f"PPO on games at once: {', '.join(GAMES)}",
    {
        "games": [
            {"env": env, "name": name, "weight": weight, "env_config": {"split": "all", "show_rules": False, **options}}
            for name, (env, weight, options) in GAMES.items()
        ],
        "language_model": {
            "tiny": TINY,
            "system_prompt": "",
            "format_instructions": False,
            "turn_suffix": "",
            "reply_prefill": "<answer>",
            "history": "window",
            "max_tokens_per_turn": 8,
            "context_length": 128,
        },
        "inference": {"max_num_seqs": 256},
        "text_rollouts": {"episodes_per_iteration": 256, "constrained_decoding": True},
        "num_envs_per_env_runner": 256,
        "lr": [[0, 3e-3], [13_000, 3e-4]],  # Some 450 steps an iteration.
    },
    on_cpu=f"PPO on games at once: {', '.join(GAMES)}",
    trained=30,
    judge=judged_learning,
)
