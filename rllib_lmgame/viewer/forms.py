"""Records of the episode log (of runs, tournaments and evaluations) in the form that is shown."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_lmgame.evaluation.comparison.files import KEY as EVALUATED
from rllib_lmgame.evaluation.tournament.results import payoffs_of
from rllib_lmgame.policies.options import LANGUAGE_MODEL
from rllib_lmgame.rollouts.episode_log import ALWAYS_THERE, TOKEN_COLUMNS
from rllib_lmgame.rollouts.episodes import level_in

COLUMNS = dict(zip(TOKEN_COLUMNS, ("old", "advantages", "entropy", "values", "ref", "weight"), strict=True))
"""Column of the token log -> its name in a turn."""
SEAT = ("agent", "role", "policy", "player", "return", "outcome", "payoff")
"""Fields of each seat in the list."""
_EXACT = 2**53
"""Whole numbers from here on are no numbers of JavaScript."""
_ITERATION = re.compile(r"([a-z][a-z0-9-]*)-(\d+)-\d+(?:\+\d+)?")


def episode_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a record: ``instructions``, ``seats``, ``steps`` (what each agent saw, did and got), ``final``.

    Raises: ValueError, KeyError, TypeError, AttributeError: it is no episode, or damaged.
    """
    steps = [_step(step) for step in record["steps"]]
    evaluated = record.get(EVALUATED) or {}
    payoffs = payoffs_of(record)
    seats = [{**_seat(each, record), "payoff": float(payoffs[each["agent_id"]])} for each in record["trajectories"]]
    found = _ITERATION.fullmatch(str(record["episode_id"]))
    iteration = record.get("iteration")
    if iteration is None and found and found[1].startswith("train"):
        iteration = int(found[2]) + 1
    shown = {
        "id": str(record["episode_id"]),
        "game": str(record.get("name") or record["game"]),
        "seed": record.get("seed"),
        "level": level_in((record.get("infos", {}), *(step.get("infos", {}) for step in record["steps"]))),
        "group": record.get("group", ""),
        "iteration": iteration,
        "player": evaluated.get("player"),
        "success": _number(record, "success"),
        "return": _number(record, "return"),
        "stop": str(record["stop_reason"]),
        "instructions": str(record.get("instructions", "")),
        "seats": seats,
        "steps": steps,
        "final": dict(record.get("final_observations", {})),
        "infos": dict(record.get("infos", {})),
    }
    cleaned: dict[str, Any] = plain(shown)
    return cleaned


def _number(record: Mapping[str, Any], key: str) -> float | None:
    return None if record.get(key) is None else _finite(record[key])


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    known = {"seen": "observations", "did": "actions", "thought": "thoughts", "got": "rewards", "info": "infos"}
    found = {short: dict(step[name]) for short, name in known.items() if step.get(name)}
    left = {agent: turns for agent, turns in step.get("turns_left", {}).items() if turns is not None}
    return {**found, **({"left": left} if left else {})}


def _seat(trajectory: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    agent = str(trajectory["agent_id"])
    assignment = record.get("assignments", {}).get(agent) or {}
    player = assignment.get("player", LANGUAGE_MODEL)
    return {
        "agent": agent,
        "role": str(trajectory["role"]),
        "policy": str(trajectory["module_id"]),
        "player": assignment.get("member") or ("" if player == LANGUAGE_MODEL else player),
        "trained": bool(assignment.get("trained", True)),
        "return": float(trajectory["return"]),
        "success": trajectory.get("success"),
        "outcome": trajectory.get("outcome"),
        "stop": str(trajectory.get("stop_reason", record["stop_reason"])),
        "turns": [_turn(turn) for turn in trajectory.get("turns", ())],
    }


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    ids, logprobs = list(turn["response_ids"]), list(turn["rollout_logprobs"])
    if not all(isinstance(each, int) and 0 <= each < _EXACT for each in ids):
        raise ValueError("the ids of a reply are no whole numbers from 0 on")
    if len(ids) != len(logprobs):
        raise ValueError(f"a reply has {len(ids)} tokens and {len(logprobs)} log-probabilities")
    counts = list(turn.get("allowed_counts", ()))
    if counts and len(counts) != len(ids):
        raise ValueError(f"a reply has {len(ids)} tokens and {len(counts)} numbers of legal ones")
    text = str(turn["text"])
    return {
        "prompt": str(turn.get("prompt", "")),
        "shared": int(turn.get("shared_prefix", 0)),
        "new_row": bool(turn["new_row"]),
        "prompt_tokens": len(turn["prompt_ids"]),
        "text": text,
        "pieces": _pieces(text, turn.get("text_lengths", ()), len(ids)),
        "ids": ids,
        "logprobs": [round(float(each), 6) for each in logprobs],
        "counts": counts,
        "got": float(turn["reward"]),
        "version": turn["policy_version"],
        "stop": str(turn["stop_reason"]),
    }


def _pieces(text: str, lengths: Sequence[int], tokens: int) -> list[str]:
    """The text of each token, or nothing where it is not known."""
    ends = list(itertools.accumulate(lengths))
    if len(ends) != tokens or not ends or ends[-1] != len(text) or min(lengths) < 0:
        return []
    return [text[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def join_tokens(episode: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Give the turns of an episode what an update knew of their learned tokens, if the record is of this episode.

    Raises: KeyError, TypeError, ValueError: it is no such record.
    """
    seat = next((seat for seat in episode["seats"] if seat["agent"] == record["agent_id"]), None)
    if seat is None:
        return
    places = [(turn, k) for turn in seat["turns"] for k in range(len(turn["ids"])) if not is_forced(turn, k)]
    total = sum(turn["logprobs"][k] for turn, k in places)
    if abs(total - record["rollout_sum"]) > 1e-4 + 1e-6 * len(places):
        return
    columns = {
        short: [None if value is None else _finite(value) for value in record[name]]
        for name, short in COLUMNS.items()
        if name in ALWAYS_THERE or record.get(name) is not None
    }
    if any(len(values) != len(places) for values in columns.values()):
        return
    for short, values in columns.items():
        for turn in seat["turns"]:
            turn[short] = [None] * len(turn["ids"])
        for (turn, k), value in zip(places, values, strict=True):
            turn[short][k] = value


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{value} is no finite number")
    return number


def is_forced(turn: Mapping[str, Any], k: int) -> bool:
    """Whether the ``k``-th token was the only legal one: such are not learnt."""
    return bool(turn["counts"]) and turn["counts"][k] == 1


def row_of(episode: Mapping[str, Any], source: int, line: int) -> dict[str, Any]:
    """What the list shows of an episode, and goes by where it filters and sorts; keys are short, there are many."""
    seats = episode["seats"]
    versions = [turn["version"] for seat in seats for turn in seat["turns"]]
    return {
        "f": source,
        "n": line,
        "id": episode["id"],
        "it": episode["iteration"],
        "g": episode["game"],
        "lv": episode["level"] or episode["seed"],
        "ok": episode["success"],
        "r": episode["return"],
        "st": episode["stop"],
        "t": len(episode["steps"]),
        "k": sum(len(turn["ids"]) for seat in seats for turn in seat["turns"]),
        "v": max(versions, default=None),
        "p": episode["player"],
        "s": [[each[key] for key in SEAT] for each in seats],
    }


def words_of(episode: Mapping[str, Any]) -> str:
    """All that was seen and said in an episode, to be searched."""
    parts = [episode["id"], episode["game"], str(episode["level"]), *episode["final"].values()]
    parts += (
        text for step in episode["steps"] for key in ("seen", "thought", "did") for text in step.get(key, {}).values()
    )
    parts += (turn["text"] for seat in episode["seats"] for turn in seat["turns"])
    return "\n".join(map(str, parts))


def plain(value: Any) -> Any:
    """``value`` with numbers that JSON or JavaScript does not have as texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < _EXACT else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else str(value)
