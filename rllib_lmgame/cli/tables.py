"""Tables of results: cells with their heads, as aligned columns or as Markdown; and that of ``rllib evaluate``."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_lmgame.base.text import columns, printable

Row = Sequence[tuple[str, str]]
"""Cells of a row, each with the head of its column."""

MAX_REPLY = 100
"""Characters shown of a reply that could not be read."""
SHOWN_FAILURES = 3
LEFT = 3
"""Columns of text: player, game and split."""


def number(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


def interval(bounds: Sequence[float] | None, form: str) -> str:
    if not bounds or not all(map(math.isfinite, bounds)):
        return "-"
    return " - ".join(format(bound, form) for bound in bounds)


def lines_of(rows: Sequence[Row], left: int) -> list[str]:
    """The head and a line for each row; the first ``left`` columns are aligned to the left, the others to the right."""
    return columns(_with_head(rows), left)


def markdown(rows: Sequence[Row], left: int) -> str:
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in _with_head(rows))
    marks = ["---"] * left + ["--:"] * (len(head) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, marks, *body))


def _with_head(rows: Sequence[Row]) -> list[list[str]]:
    return [[head for head, _ in rows[0]], *([cell for _, cell in row] for row in rows)] if rows else []


def spent_lines(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Requests and tokens of each player, where there are some."""
    return [
        f"{player}: " + ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in spent.items())
        for player, spent in counts.items()
        if spent
    ]


def evaluation_table(numbers: Mapping[str, Any]) -> str:
    """The numbers of ``rllib evaluate`` as text.

    A row per game and player, then wins by role, the game's measures and what endpoints cost. Return and success are
    the player's own where others have seats; otherwise the return is the sum over all seats.
    """
    evaluated = numbers["evaluated"]
    head, *table = lines_of([_cells(numbers, game) for game in evaluated], LEFT)
    lines = [head]
    for line, game in zip(table, evaluated, strict=True):
        lines += [line, *_details(game)]
    lines += [f"note: {line}" for line in numbers.get("made_up_levels", ())]
    dropped = Counter(numbers.get("dropped", ())).most_common(SHOWN_FAILURES)
    lines += [f"dropped {count} times: {message}" for message, count in dropped]
    return printable("\n".join([*lines, *spent_lines(numbers.get("counts", {}))]))


def evaluation_markdown(numbers: Mapping[str, Any]) -> str:
    """The same rows as a Markdown table."""
    table = markdown([_cells(numbers, game) for game in numbers["evaluated"]], LEFT)
    return printable(table + "".join(f"\n{line}.\n" for line in numbers.get("made_up_levels", ())))


def _cells(numbers: Mapping[str, Any], game: Mapping[str, Any]) -> Row:
    samples, baseline = numbers.get("samples", 1), numbers.get("baseline")
    several = samples > 1
    passed = [k for k in (2**i for i in range(1, samples.bit_length())) if k < samples] + [samples] * several
    row = [("player", game["player"]), ("game", game["name"]), ("split", game["split"] or "-")]
    row += [("episodes", str(game["num_episodes"])), ("levels", str(game.get("levels", "-")))]
    row += [(f"avg@{samples}" if several else "success", number(game.get("success_rate"), ".3f"))]
    row += [("95 % interval", interval(game.get("success_interval"), ".3f"))]
    row += [(f"pass@{k}", number(game.get("pass_at_k", {}).get(str(k)), ".3f")) for k in passed]
    row += [("return", number(game.get("own_return_mean", game.get("episode_return_mean")), "+.3f"))]
    if baseline:
        row += [(f"{what} over {baseline}", _gain(game.get(f"{what}_gain"))) for what in ("success", "return")]
    written = {} if game.get("response_tokens") == 0 else game  # Of a player without a model no reply is read.
    row += [("T", number(game.get("temperature"), "g")), ("turns", number(game.get("turns_per_episode"), ".2f"))]
    row += [("tokens", number(written.get("tokens_per_turn"), ".1f"))]
    row += [("unreadable", number(written.get("format_error_rate"), ".3f"))]
    return row + [(what, number(game.get(f"{key}_rate"), ".3f")) for what, key in _RATES.items()]


_RATES = {"illegal": "illegal_action", "truncated": "truncated"}


def _gain(gain: list[float] | None) -> str:
    if not gain:
        return "-"
    mean, *bounds = gain
    return f"{mean:+.3f}" + (f" ({bounds[0]:+.3f} to {bounds[1]:+.3f})" if bounds else "")


def _details(game: Mapping[str, Any]) -> list[str]:
    from rllib_lmgame.telemetry.metrics import MEASURES, OUTCOME_RATES, win_draw_loss

    ended = {(policy, role): shares for policy, role, shares in win_draw_loss(game)}
    lines = []
    for policy, returns in game.get("seat_returns_mean", {}).items():
        for role in sorted(returns) if ended or "own_return_mean" in game else ():
            shares = zip(OUTCOME_RATES.values(), ended.get((policy, role), ()), strict=False)
            shown = [*(f"{outcome} {share:.3f}" for outcome, share in shares), f"return {returns[role]:+.3f}"]
            lines.append(f"  {policy} as {role}: {', '.join(shown)}")
    measures = [f"{name} {value:.3f}" for name, value in game.get(MEASURES, {}).items()]
    lines += [f"  {', '.join(measures)}"] if measures else []
    if "score" in game:
        lines.append(f"  score {game['score']:.1f} (LMRL-Gym's; 50 is what its data earns on average)")
    lines += [f"  dropped, {reason}: {count:.0f}" for reason, count in game.get("dropped", {}).items()]
    if game.get("unreadable"):
        lines.append("  most replies could not be read, such as")
        # Between quotes, with line ends and all that cannot be shown spelt out.
        cut = [reply[:MAX_REPLY] + " ..." * (len(reply) > MAX_REPLY) for reply in game["unreadable"]]
        lines += [f"    {json.dumps(reply, ensure_ascii=False)}" for reply in cut]
        keys = "language_model.reply_prefill ('<answer>', where replies lack the tag) or max_tokens_per_turn"
        lines.append(f"  set {keys} (where they are cut off): docs/troubleshooting.md")
    return lines
