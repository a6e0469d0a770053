"""What ``rllib tournament`` prints."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rllib_lmgame.base.text import columns, printable

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.tournament.run import Outcome
    from rllib_lmgame.evaluation.tournament.standings import Standing, Standings

WINS = ("player", "seats", "win", "draw", "loss", "win rate", "95 %", "return", "rating", "95 %", "Nash", "score")
STAKES = ("player", "seats", "return", "95 %", "win", "draw", "loss", "win rate", "95 %", "Nash", "score")
PAYOFFS = ("player", "seats", "return", "95 %", "success", "95 %")
SHOWN_FAILURES = 3


def standings_text(table: Standings) -> str:
    head, row_of = (WINS, _wins) if table.by == "wins" else (STAKES, _stakes) if table.zero_sum else (PAYOFFS, _payoffs)
    rows = [head, *map(row_of, table.players)]
    lines = [f"{table.game}: {table.games} games", *columns(rows, left=1)]
    if len(table.players) > 1 and not all(math.isnan(cell) for row in table.matrix.tolist() for cell in row):
        names = [player.player for player in table.players]
        what = "points of the row against the column" if table.by == "wins" else "return of the row with the column"
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
        *_counted(standing),
        "-" if standing.payoff is None else f"{standing.payoff[0]:+.3f}",
        f"{rating.rating:+.0f}" if rating is not None and known else "-",
        _span((rating.low, rating.high), "+.0f") if rating is not None and known else "-",
        *_nash(standing),
    )


def _stakes(standing: Standing) -> tuple[str, ...]:
    return (*_got(standing), *_counted(standing), *_nash(standing))


def _counted(standing: Standing) -> tuple[str, ...]:
    rate = "-" if standing.win_rate is None else f"{standing.win_rate:.3f}"
    counts = (standing.wins, standing.draws, standing.losses)
    return (*map(str, counts), rate, _span(standing.win_interval, ".3f"))


def _nash(standing: Standing) -> tuple[str, str]:
    weight, score = standing.nash_weight, standing.nash_score
    return "-" if weight is None else f"{weight:.3f}", "-" if score is None else f"{score:+.3f}"


def _got(standing: Standing) -> tuple[str, ...]:
    mean = standing.payoff
    got = ("-", "-") if mean is None else (f"{mean[0]:+.4g}", _span(mean[1:], "+.4g"))
    return (standing.player, str(standing.seats), *got)


def _payoffs(standing: Standing) -> tuple[str, ...]:
    success = standing.success
    return (
        *_got(standing),
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
