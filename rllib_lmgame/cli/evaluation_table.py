"""What ``rllib evaluate`` prints: one row per game, with what was played and how."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_lmgame.cli.tournament_table import spent_lines
from rllib_lmgame.measures.statistics import notes_on_levels
from rllib_lmgame.text import columns, printable

HEAD = (
    *("game", "split", "episodes", "levels", "success", "95 % interval", "return", "turns"),
    *("unreadable", "illegal", "truncated"),
)
MAX_REPLY = 100
"""Characters shown of a reply that could not be read."""


def evaluation_table(numbers: Mapping[str, Any]) -> str:
    """Text of the numbers of :func:`~rllib_lmgame.evaluation.evaluate.evaluate_checkpoint`.

    A row per game, then wins by role, the game's measures and what opponents cost. Return and success are the policies'
    own where others have seats; otherwise the return is the sum over all seats.
    """
    rows = [HEAD, *(_row(game) for game in numbers["evaluated"])]
    head, *table = columns(rows, left=2)
    lines = [f"temperature {numbers['temperature']:g}" + " (greedy)" * (numbers["temperature"] == 0), head]
    for line, game in zip(table, numbers["evaluated"], strict=True):
        lines += [line, *_details(game)]
    return printable("\n".join([*lines, *spent_lines(numbers.get("counts", {}))]))


def _row(game: Mapping[str, Any]) -> Sequence[str]:
    def shown(key: str, form: str) -> str:
        return form.format(game[key]) if key in game else "-"

    interval = "{:.3f} - {:.3f}".format(*game["success_interval"]) if "success_interval" in game else "-"
    return (
        game["game"],
        game["split"] or "-",
        str(game["num_episodes"]),
        shown("levels", "{}"),
        shown("success_rate", "{:.3f}"),
        interval,
        shown("own_return_mean" if "own_return_mean" in game else "episode_return_mean", "{:+.3f}"),
        shown("turns_per_episode", "{:.2f}"),
        shown("format_error_rate", "{:.3f}"),
        shown("illegal_action_rate", "{:.3f}"),
        shown("truncated_rate", "{:.3f}"),
    )


def _details(game: Mapping[str, Any]) -> list[str]:
    from rllib_lmgame.telemetry.metrics import MEASURES, OUTCOME_RATES, win_draw_loss

    ended = {(policy, role): shares for policy, role, shares in win_draw_loss(game)}
    lines = []
    for policy, returns in game.get("seat_returns_mean", {}).items():
        for role in sorted(returns) if ended or "own_return_mean" in game else ():
            shares = zip(OUTCOME_RATES.values(), ended.get((policy, role), ()), strict=False)
            shown = [*(f"{outcome} {share:.3f}" for outcome, share in shares), f"return {returns[role]:+.3f}"]
            lines.append(f"  {policy} as {role}: {', '.join(shown)}")
    measures = [f"{name} {number:.3f}" for name, number in game.get(MEASURES, {}).items()]
    lines += [f"  {', '.join(measures)}"] if measures else []
    lines += [f"  {note}" for note in notes_on_levels(game.get("levels"), game.get("success_each_level_once"))]
    lines += [f"  dropped, {reason}: {count:.0f}" for reason, count in game.get("dropped", {}).items()]
    if game.get("unreadable"):
        lines.append("  most replies could not be read, such as")
        # Between quotes, with line ends and all that cannot be shown spelt out.
        cut = [reply[:MAX_REPLY] + " ..." * (len(reply) > MAX_REPLY) for reply in game["unreadable"]]
        lines += [f"    {json.dumps(reply, ensure_ascii=False)}" for reply in cut]
    return lines
