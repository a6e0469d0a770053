"""What ``rllib tournament`` prints."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rllib_lmgame.text import columns, printable

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.tournament.run import Outcome
    from rllib_lmgame.evaluation.tournament.standings import Standing, Standings

WINS = ("player", "seats", "win", "draw", "loss", "win rate", "95 %", "return", "rating", "95 %", "Nash", "score")
PAYOFFS = ("player", "seats", "return", "95 %", "success", "95 %")
SHOWN_FAILURES = 3


def standings_text(table: Standings) -> str:
    head = WINS if table.zero_sum else PAYOFFS
    rows = [head, *((_wins if table.zero_sum else _payoffs)(standing) for standing in table.players)]
    lines = [f"{table.game}: {table.games} games", *columns(rows, left=1)]
    if len(table.players) > 1 and not all(math.isnan(cell) for row in table.matrix.tolist() for cell in row):
        names = [player.player for player in table.players]
        what = "points of the row against the column" if table.zero_sum else "return of the row with the column"
        cells = [["-" if math.isnan(cell) else f"{cell:.3f}" for cell in row] for row in table.matrix.tolist()]
        numbers = [str(i + 1) for i in range(len(names))]
        matrix = [(what, *numbers)] + [
            (f"{number} {name}", *row) for number, name, row in zip(numbers, names, cells, strict=True)
        ]
        lines += ["", *columns(matrix, left=1)]
    return printable("\n".join(lines))


def _wins(standing: Standing) -> tuple[str, ...]:
    rating = standing.rating
    known = rating is not None and math.isfinite(rating.low)
    return (
        standing.player,
        str(standing.seats),
        str(standing.wins),
        str(standing.draws),
        str(standing.losses),
        "-" if standing.win_rate is None else f"{standing.win_rate:.3f}",
        _span(standing.win_interval, ".3f"),
        "-" if standing.payoff is None else f"{standing.payoff[0]:+.3f}",
        f"{rating.rating:+.0f}" if rating is not None and known else "-",
        _span((rating.low, rating.high), "+.0f") if rating is not None and known else "-",
        "-" if standing.nash_weight is None else f"{standing.nash_weight:.3f}",
        "-" if standing.nash_score is None else f"{standing.nash_score:+.3f}",
    )


def _payoffs(standing: Standing) -> tuple[str, ...]:
    mean, success = standing.payoff, standing.success
    return (
        standing.player,
        str(standing.seats),
        "-" if mean is None else f"{mean[0]:+.4g}",
        "-" if mean is None else _span(mean[1:], "+.4g"),
        "-" if success is None else f"{success[0]:.3f}",
        "-" if success is None else _span(success[1:], ".3f"),
    )


def _span(interval: Sequence[float] | None, form: str) -> str:
    if interval is None or not all(map(math.isfinite, interval)):
        return "-"
    return " - ".join(format(bound, form) for bound in interval)


def spent_lines(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"{player}: " + ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in spent.items())
        for player, spent in counts.items()
        if spent
    ]


def failures_text(outcome: Outcome, counts: Mapping[str, Mapping[str, int]]) -> str:
    lines = spent_lines(counts)
    played = sum(map(len, outcome.results))
    lines.append(
        f"{played} of {outcome.planned} games played" + (f", {len(outcome.failures)} failed" * bool(outcome.failures))
    )
    for player, number in sorted(outcome.failed.items()):
        lines.append(f"  {number} for want of a reply of {player}")
    reasons = Counter(failure["message"] for failure in outcome.failures)
    lines += [f"  {number} times: {message}" for message, number in reasons.most_common(SHOWN_FAILURES)]
    return printable("\n".join(lines))


def numbers_json(tables: Sequence[Standings], outcome: Outcome, counts: Mapping[str, Mapping[str, int]]) -> str:
    content = {
        "standings": [table.as_json() for table in tables],
        "counts": {name: dict(spent) for name, spent in counts.items()},
        "played": sum(map(len, outcome.results)),
        "planned": outcome.planned,
        "failed": len(outcome.failures),
        "failed_by": dict(outcome.failed),
    }
    return json.dumps(content, indent=1)
