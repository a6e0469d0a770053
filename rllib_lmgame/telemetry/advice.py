"""What is said of a run that has nothing to learn from, or loses episodes, and what to try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_lmgame.base.schedule import number_at
from rllib_lmgame.telemetry.metrics import MOSTLY
from rllib_lmgame.telemetry.phases import WHY_DROPPED, phase_of

UNREAD, EQUAL, GAP, DROPPED = "unread", "equal", "gap", "dropped"
LARGE_GAP = 0.1
"""Difference above which a note is printed; bfloat16 alone explains about a tenth of it."""
PAGE = "docs/troubleshooting.md"
ROWS = (1, 10, 100, 1000)
"""Iterations in a row after which it is said, each time once."""


def advice(result: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Why there is little to learn in an iteration, and how many episodes were lost, by kind.

    Options that the ``config`` of the run has are not advised.
    """
    found, config = {}, config or {}
    warm = [] if config.get("warm_start") else ["warm_start"]
    prefilled = (config.get("language_model") or {}).get("reply_prefill")
    untried = ", or ".join([*warm, *([] if prefilled else ["language_model.reply_prefill: '<answer>'"])])
    unread = number_at(result, "env_runners/format_error_rate")
    if unread is not None and unread > MOSTLY:
        found[UNREAD] = (
            f"{unread:.0%} of the replies could not be read (`rllib evaluate` shows some), so rewards say nothing of "
            f"moves. Set {untried or 'language_model.max_tokens_per_turn higher'}: {PAGE}"
        )
    equal = [policy for policy, numbers in (result.get("learners") or {}).items() if _has_equal_returns(numbers)]
    if equal:
        found[EQUAL] = (
            f"{', '.join(equal)}: every advantage is 0, since the games of each group earned the same; rewards teach "
            "nothing, and an update without another gradient is left out. Play levels of which some are won; raise "
            f"text_rollouts.group_size{', or set warm_start' * bool(warm)}: {PAGE}"
        )
    gap, policy = max(_gaps(result), default=(0.0, ""))
    if gap > LARGE_GAP:
        found[GAP] = (
            f"{policy}: sampler and learner differ by up to {gap:.2g} in the log-probability of a token "
            "(logprob_diff); importance weights make up for a part of it. With dtype: bfloat16 try "
            f"language_model.dtype: float32, or token_ppo.importance_sampling: {PAGE}"
        )
    reasons = (result.get("env_runners") or {}).get("dropped") or {}
    lost = {reason: count for reason in reasons if (count := number_at(reasons, reason))}
    if lost:
        told = ", ".join(f"{reason} {count:.0f}" for reason, count in lost.items())
        found[DROPPED] = f"{sum(lost.values()):.0f} episodes were dropped, and played anew as often as allowed ({told})"
    return found


def _gaps(result: Mapping[str, Any]) -> list[tuple[float, str]]:
    learners = result.get("learners") or {}
    each = {str(policy): numbers for policy, numbers in learners.items() if isinstance(numbers, Mapping)}
    gaps = [(number_at(numbers, "logprob_diff"), policy) for policy, numbers in each.items()]
    return [(gap, policy) for gap, policy in gaps if gap is not None]


def _has_equal_returns(numbers: Any) -> bool:
    known = isinstance(numbers, Mapping)
    return known and [number_at(numbers, f"advantage_{end}") for end in ("min", "max")] == [0.0, 0.0]


class Adviser:
    """Says once each what :func:`advice` finds for 1, 10, 100 ... iterations of a trial in a row."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], int] = {}
        self._said: set[tuple[str, str, int]] = set()

    def lines(self, trial_id: str, result: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> list[str]:
        found = advice(result, config)
        if DROPPED in found and (why := phase_of(f"{trial_id}{WHY_DROPPED}")):
            found[DROPPED] += f": {why}"
        lines = []
        for kind in (UNREAD, EQUAL, GAP, DROPPED):
            row = self._rows[trial_id, kind] = self._rows.get((trial_id, kind), 0) + 1 if kind in found else 0
            if row in ROWS and (trial_id, kind, row) not in self._said:
                self._said.add((trial_id, kind, row))
                lines.append(found[kind] + (f" ({row} iterations in a row)" if row > 1 else ""))
        return lines
