"""An episode as text, for a terminal; nothing of it can steer the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rllib_lmgame.base.text import one_line, printable


def told(episode: Mapping[str, Any]) -> Iterator[str]:
    """The episode turn by turn, in lines."""
    facts = {
        "iteration": episode["iteration"],
        "player": episode["player"],
        "success": episode["success"],
        "return": episode["return"],
        "stop": episode["stop"],
        "level": episode["level"] or episode["seed"],
    }
    known = ", ".join(f"{name} {_number(value)}" for name, value in facts.items() if value not in (None, ""))
    yield from _lines(f"{episode['game']}  {episode['id']}: {known}")
    for seat in episode["seats"]:
        who = f" ({seat['player']})" if seat["player"] else ""
        outcome = f", {seat['outcome']}" if seat["outcome"] else ""
        yield from _lines(f"{seat['agent']}: {seat['policy']}{who}, return {_number(seat['return'])}{outcome}")
    if episode["instructions"]:
        yield ""
        yield from _lines(episode["instructions"], "  ")
    taken = dict.fromkeys((seat["agent"] for seat in episode["seats"]), 0)
    turns = {seat["agent"]: seat["turns"] for seat in episode["seats"]}
    for number, step in enumerate(episode["steps"], 1):
        yield ""
        yield f"--- turn {number}"
        for agent in taken:
            if agent in step.get("seen", {}):
                yield from _lines(f"{agent} sees:")
                yield from _lines(step["seen"][agent], "    ")
            if agent in step.get("thought", {}):
                yield from _lines(f"{agent} thinks: {step['thought'][agent]}")
            if agent in step.get("did", {}):
                own, place = turns[agent], taken[agent]
                taken[agent] += 1
                action = str(step["did"][agent])
                said = own[place]["text"] if place < len(own) else action
                yield from _lines(f"{agent} replies: {said}")
                if said.strip() != action.strip():
                    yield from _lines(f"{agent} plays: {action or '(nothing could be read)'}")
        rewards = [f"{agent} {_number(reward)}" for agent, reward in step.get("got", {}).items() if reward]
        if rewards:
            yield from _lines("rewards: " + ", ".join(rewards))
    if episode["final"]:
        yield ""
        yield "--- at the end"
        for agent, text in episode["final"].items():
            yield from _lines(f"{agent} sees:")
            yield from _lines(text, "    ")


def listed(rows: list[Mapping[str, Any]], trials: Sequence[str]) -> list[list[str]]:
    """Lines of a table of episodes, with a heading; ``trials`` are those of their files. Of several seats it says what
    each got.
    """
    several = len(set(trials)) > 1
    table = [["episode", *["trial"] * several, "iteration", "game", "who", "success", "return", "stop", "turns"]]
    for number, row in enumerate(rows, 1):
        many = len(row["s"]) > 1
        seats = [f"{policy} {_number(got)}" if many else policy for _, _, policy, *_, got in row["s"]]
        known = (row["it"], row["g"], row["p"] or ", ".join(seats), row["ok"], row["r"], row["st"], row["t"])
        cells = [number, *[trials[row["f"]]] * several, *known]
        table.append([one_line(printable(_number(cell))) for cell in cells])
    return table


def _lines(text: str, margin: str = "") -> Iterator[str]:
    """Lines with a margin, without one all but the first: no text of a model passes for a turn or a reward."""
    for number, line in enumerate(printable(str(text)).split("\n")):
        yield f"{margin or '    ' * (number > 0)}{line}"


def _number(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
