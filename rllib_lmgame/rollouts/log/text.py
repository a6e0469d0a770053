"""A record of the episode log as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def episode_text(record: Mapping[str, Any]) -> str:
    """Observations, replies and rewards in the order of play, and how it ended."""
    lines = []
    for step in record["steps"]:
        for agent, text in step["observations"].items():
            lines += [text, f"{agent}> {step['actions'][agent]!r}   reward {step['rewards'].get(agent, 0.0):+.1f}", ""]
    lines += list(dict.fromkeys(record["final_observations"].values()))
    lines.append(f"ended: {record['stop_reason'].replace('_', ' ')}")
    lines += [f"{seat['agent_id']}: {_result_of(seat)}" for seat in record["trajectories"]]
    return "\n".join(lines)


def _result_of(seat: Mapping[str, Any]) -> str:
    verdict = seat["outcome"] or {True: "success", False: "no success", None: ""}[seat["success"]]
    return f"{verdict}, return {seat['return']:+.2f}".removeprefix(", ")
