"""What ``rllib evaluate`` prints and writes: one row per game and player, with what was played and how."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rllib_lmgame.base.text import columns, printable
from rllib_lmgame.cli.tournament_table import SHOWN_FAILURES, spent_lines
from rllib_lmgame.measures.statistics import notes_on_levels

MAX_REPLY = 100
"""Characters shown of a reply that could not be read."""


def evaluation_table(numbers: Mapping[str, Any]) -> str:
    """Text of the numbers of ``rllib evaluate``, or of :func:`~rllib_lmgame.evaluation.evaluate.evaluate_checkpoint`.

    A row per game and player, then wins by role, the game's measures and what endpoints cost. Return and success are
    the player's own where others have seats; otherwise the return is the sum over all seats.
    """
    head, *table = columns(_cells(numbers), left=_named(numbers) + 2)
    lines = [*_temperatures(numbers), head]
    for line, game in zip(table, numbers["evaluated"], strict=True):
        lines += [line, *_own_temperature(numbers, game), *_details(game)]
    dropped = Counter(numbers.get("dropped", {}) if "players" in numbers else ())
    lines += [f"note: {line}" for line in numbers.get("made_up_levels", ())]
    lines += [f"dropped {count} times: {message}" for message, count in dropped.most_common(SHOWN_FAILURES)]
    return printable("\n".join([*lines, *spent_lines(numbers.get("counts", {}))]))


def evaluation_markdown(numbers: Mapping[str, Any]) -> str:
    """The same rows as a Markdown table."""
    head, *rows = ([cell.replace("|", "\\|") for cell in row] for row in _cells(numbers))
    left = _named(numbers) + 2
    lines = [head, ["---"] * left + ["--:"] * (len(head) - left), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return printable(table + "".join(f"\n{line}.\n" for line in numbers.get("made_up_levels", ())))


def _named(numbers: Mapping[str, Any]) -> int:
    """Columns that say who played."""
    return int("players" in numbers)


def _temperatures(numbers: Mapping[str, Any]) -> list[str]:
    if "players" not in numbers:
        return [_temperature(numbers["temperature"])]
    of = {name: one["temperature"] for name, one in numbers["players"].items() if one["temperature"] is not None}
    if len(set(of.values())) == 1:
        return [_temperature(next(iter(of.values())))]
    return [f"{name}: {_temperature(temperature)}" for name, temperature in of.items()]


def _own_temperature(numbers: Mapping[str, Any], game: Mapping[str, Any]) -> list[str]:
    """That of a row, where the game's own goes before its player's."""
    everybodys = numbers["players"][game["player"]] if "players" in numbers else numbers
    own = game.get("temperature")
    return [] if own is None or own == everybodys["temperature"] else [f"  {_temperature(own)} in this game"]


def _temperature(value: float) -> str:
    return f"temperature {value:g}" + " (greedy)" * (value == 0)


def _cells(numbers: Mapping[str, Any]) -> list[list[str]]:
    """Rows of a table, the head first."""
    samples, baseline = numbers.get("samples", 1), numbers.get("baseline")
    passed = [k for k in (2**i for i in range(1, samples.bit_length())) if k < samples]
    passed += [samples] if samples > 1 else []
    head = ["player"] * _named(numbers) + ["game", "split", "episodes", "levels"]
    head += [f"avg@{samples}" if samples > 1 else "success", "95 % interval", *(f"pass@{k}" for k in passed), "return"]
    head += ["best return"] * bool(passed) + [f"success over {baseline}", f"return over {baseline}"] * bool(baseline)
    head += ["turns", "tokens", "unreadable", "illegal", "truncated"]
    rows = []
    for game in numbers["evaluated"]:
        own = "own_return_mean" if "own_return_mean" in game else "episode_return_mean"
        row = [game.get("player", "")] * _named(numbers) + [game.get("name", game["game"]), game["split"] or "-"]
        row += [str(game["num_episodes"]), _shown(game, "levels", "{}"), _shown(game, "success_rate", "{:.3f}")]
        row += ["{:.3f} - {:.3f}".format(*game["success_interval"]) if "success_interval" in game else "-"]
        row += [_shown(game.get("pass_at_k", {}), str(k), "{:.3f}") for k in passed] + [_shown(game, own, "{:+.3f}")]
        row += [_shown(game, "best_return_mean", "{:+.3f}")] * bool(passed)
        row += [_gain(game, key) for key in ("success_gain", "return_gain")] * bool(baseline)
        written = {} if game.get("response_tokens") == 0 else game  # Of a player without a model no reply is read.
        row += [_shown(game, "turns_per_episode", "{:.2f}"), _shown(written, "tokens_per_turn", "{:.1f}")]
        row += [_shown(written, "format_error_rate", "{:.3f}")]
        rows.append(row + [_shown(game, rate, "{:.3f}") for rate in ("illegal_action_rate", "truncated_rate")])
    return [head, *rows]


def _shown(numbers: Mapping[str, Any], key: str, form: str) -> str:
    return form.format(numbers[key]) if numbers.get(key) is not None else "-"


def _gain(game: Mapping[str, Any], key: str) -> str:
    mean, *bounds = game.get(key, [None])
    if mean is None:
        return "-"
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
    measures = [f"{name} {number:.3f}" for name, number in game.get(MEASURES, {}).items()]
    lines += [f"  {', '.join(measures)}"] if measures else []
    if "score" in game:
        lines.append(f"  score {game['score']:.1f} (LMRL-Gym's; 50 is what its data earns on average)")
    lines += [f"  {note}" for note in notes_on_levels(game.get("levels"), game.get("success_each_level_once"))]
    lines += [f"  dropped, {reason}: {count:.0f}" for reason, count in game.get("dropped", {}).items()]
    if game.get("unreadable"):
        lines.append("  most replies could not be read, such as")
        # Between quotes, with line ends and all that cannot be shown spelt out.
        cut = [reply[:MAX_REPLY] + " ..." * (len(reply) > MAX_REPLY) for reply in game["unreadable"]]
        lines += [f"    {json.dumps(reply, ensure_ascii=False)}" for reply in cut]
        keys = "language_model.reply_prefill ('<answer>', where replies lack the tag) or max_tokens_per_turn"
        lines.append(f"  set {keys} (where they are cut off): docs/troubleshooting.md")
    return lines
