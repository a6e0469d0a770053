"""The episode log: one JSON object per episode and line, with all that is needed to view it or to train on it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from rllib_lmgame.base.json_files import parse
from rllib_lmgame.rollouts.episodes import own_return, summarize
from rllib_lmgame.rollouts.options import EPISODES_OF_SAMPLE
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.play import PlayedEpisode
from rllib_lmgame.rollouts.records import SeatSummary
from rllib_lmgame.rollouts.seats import LanguageModelSeat

TOKENS = ".tokens"
"""Ending of files with token data of updates (``learners/metrics.py``)."""
TOKEN_COLUMNS = ("old_logprobs", "advantages", "entropies", "values", "ref_logprobs", "importance_weights")
ALWAYS_THERE = TOKEN_COLUMNS[:3]
"""Columns that each update has."""


def episode_record(played: PlayedEpisode) -> dict[str, Any]:
    """A JSON-ready record of ``played``.

    ``name`` is that of the game's entry, if it has one. ``success`` and ``return`` are the values in metrics.
    ``assignments`` has for each agent the policy (``module_id``), who played (``player``, ``member``) and whether the
    policy learns from it (``trained``). ``trajectories[*].turns[*]`` holds
    ``prompt_ids`` (a delta unless ``new_row``), ``response_ids``, ``rollout_logprobs``, ``reward``, ``policy_version``
    (of the first token; ``later_versions`` has the number of each token from which another one sampled, and that one)
    and ``stop_reason``; ``text_lengths`` are the characters of ``text`` that each id of the reply adds. The loss mask
    is 0 on prompt ids and 1 on response ids. ``trajectories[*]`` has the end of the player's own game (``terminated``
    or ``truncated``, ``stop_reason``, ``ended_at``: steps until then) and its result (``success``, ``outcome``).
    ``final_prompt_ids`` (only where the learner bootstraps) shows its last state. Nine digits keep a float32 exactly.
    With constrained decoding, ``allowed_counts`` has the number of possible ids for each response id (1: forced, loss
    mask 0), and ``allowed_ids`` lists them end to end.

    A prompt that begins a row omits its first ``shared_prefix`` ids, which are those of the row before (mostly the
    rules); :func:`whole_prompts` restores them. ``prompt`` is the text of ``prompt_ids``. Legal actions follow from
    level and actions and are omitted.
    """
    summary = summarize(played)
    return {
        "episode_id": played.plan.episode_id,
        "game": played.game_id,
        **({"name": played.called} if played.called != played.game_id else {}),
        "seed": played.plan.seed,
        "group": played.plan.group,
        "assignments": {agent: dataclasses.asdict(assignment) for agent, assignment in played.plan.assignments.items()},
        "instructions": played.instructions,
        "terminated": played.terminated,
        "stop_reason": played.stop_reason.value,
        "success": summary.success,
        "return": own_return(summary),
        "infos": _without_legal_actions(played.infos),
        "steps": [
            dataclasses.asdict(dataclasses.replace(step, infos=_without_legal_actions(step.infos)))
            for step in played.steps
        ],
        "final_observations": played.final_observations,
        "trajectories": [_trajectory_record(played, seat) for seat in summary.seats],
    }


def _without_legal_actions(infos: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        agent: {key: value for key, value in info.items() if key != "legal_actions"} for agent, info in infos.items()
    }


def _trajectory_record(played: PlayedEpisode, numbers: SeatSummary) -> dict[str, Any]:
    seat, end = played.seats[numbers.agent_id], played.ends[numbers.agent_id]
    record: dict[str, Any] = {
        "agent_id": seat.agent_id,
        "role": seat.role,
        "module_id": seat.module_id,
        "return": numbers.episode_return,
        "terminated": end.terminated,
        "truncated": not end.terminated,
        "stop_reason": end.stop_reason.value,
        "ended_at": end.step,
        "success": numbers.success,
        "outcome": numbers.outcome,
    }
    if isinstance(seat, LanguageModelSeat):
        prompts = [(turn.new_row, turn.prompt_ids.tolist()) for turn in seat.turns]
        if seat.final_prompt is not None:
            prompts.append((seat.final_prompt.new_row, seat.final_prompt.delta.tolist()))
        written = list(_without_shared_prefixes(prompts))
        record["turns"] = [
            {
                "new_row": turn.new_row,
                **prompt,
                "prompt": seat.chat.tokenizer.decode(prompt["prompt_ids"], clean_up_tokenization_spaces=False),
                "response_ids": turn.response_ids.tolist(),
                "rollout_logprobs": [float(f"{p:.9g}") for p in turn.rollout_logprobs.tolist()],
                "text": seat.chat.decode(turn.response_ids),
                "text_lengths": seat.chat.lengths(turn.response_ids.tolist()),
                "reward": turn.reward,
                "policy_version": turn.policy_version,
                **({"later_versions": turn.later_versions} if turn.later_versions else {}),
                "stop_reason": turn.stop_reason,
                **({"allowed_counts": a.counts.tolist(), "allowed_ids": a.ids.tolist()} if (a := turn.allowed) else {}),
            }
            for turn, prompt in zip(seat.turns, written, strict=False)
        ]
        if seat.final_prompt is not None:
            record |= {f"final_{key}": value for key, value in written[-1].items()}
            record["final_new_row"] = seat.final_prompt.new_row
    return record


def _without_shared_prefixes(prompts: Iterable[tuple[bool, list[int]]]) -> Iterator[dict[str, Any]]:
    before: list[int] = []
    for new_row, ids in prompts:
        if not new_row:
            yield {"prompt_ids": ids}
            continue
        shared = next(
            (i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), min(len(before), len(ids))
        )
        yield {"prompt_ids": ids[shared:], **({"shared_prefix": shared} if shared else {})}
        before = ids


def whole_prompts(trajectory: Mapping[str, Any]) -> list[list[int]]:
    """The prompts of an entry of ``trajectories``: deltas, or all ids where a row begins; the final prompt is last."""
    entries = list(trajectory.get("turns", ()))
    if "final_prompt_ids" in trajectory:
        entries.append(
            {key.removeprefix("final_"): value for key, value in trajectory.items() if key.startswith("final_")}
        )
    prompts: list[list[int]] = []
    before: list[int] = []
    for entry in entries:
        prompts.append([*before[: entry.get("shared_prefix", 0)], *entry["prompt_ids"]])
        before = prompts[-1] if entry["new_row"] else before
    return prompts


class EpisodeLog:
    """Appends episode records to a JSONL file; each runner and purpose has its own file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path

    def write(self, records: Sequence[dict[str, Any]]) -> None:
        """Append all ``records`` or none. Raises: OSError: a full disk; ValueError: JSON cannot hold them."""
        # A lone surrogate, which UTF-8 cannot encode, is escaped: the line is still JSON.
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        content = self._after_a_cut_line() + text.encode("utf-8", "backslashreplace")
        with self.path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                written = 0
                while written < len(content):
                    written += file.write(content[written:]) or 0
            except OSError:
                file.truncate(before)
                raise

    def _after_a_cut_line(self) -> bytes:
        """A line end if the file lacks one, as after a killed process: the next record begins on its own line."""
        if not self.path.is_file() or not self.path.stat().st_size:
            return b""
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """The records of an episode log. Raises: OSError: it cannot be read; ValueError: a line is no JSON."""
    with Path(path).open("rb") as file:
        return [parse(line) for line in file if line.strip()]


def episode_text(record: Mapping[str, Any]) -> str:
    """A record as text: observations, replies and rewards in the order of play, and the end."""
    lines = []
    for step in record["steps"]:
        for agent, text in step["observations"].items():
            lines += [text, f"{agent}> {step['actions'][agent]!r}   reward {step['rewards'].get(agent, 0.0):+.1f}", ""]
    lines += list(dict.fromkeys(record["final_observations"].values()))
    lines.append(f"ended: {record['stop_reason'].replace('_', ' ')}")
    for seat in record["trajectories"]:
        verdict = seat["outcome"] or {True: "success", False: "no success", None: ""}[seat["success"]]
        lines.append(f"{seat['agent_id']}: {verdict}{', ' * bool(verdict)}return {seat['return']:+.2f}")
    return "\n".join(lines)


SAMPLE_BYTES = 500_000_000
"""Most bytes of a trial's sample of episodes, and of the token data of its updates."""
_OF_ITERATION = re.compile(rb'\{"episode_id": "[a-z0-9-]*?(\d+)-\d+(?:\+\d+)?"')


def log_of_training(episode_log: str) -> dict[str, Any]:
    """``text_rollouts.episode_log`` as fields of :class:`~rllib_lmgame.rollouts.records.PlaySettings`."""
    return {
        "log": None if episode_log == "off" else "train",
        "log_most": EPISODES_OF_SAMPLE if episode_log == "sample" else None,
    }


def chosen(played: Sequence[PlayedEpisode], most: int) -> list[PlayedEpisode]:
    """At most ``most`` episodes, in their order: the same number of each game, the best and the worst in turn.

    Ties are broken at random, by id.
    """
    games: dict[str, list[int]] = {}
    for place, one in enumerate(played):
        games.setdefault(one.called, []).append(place)
    summaries = [summarize(one) for one in played]
    keys = [(s.success or 0.0, own_return(s), stable_seed(s.episode_id)) for s in summaries]
    ranked = [_by_turns(sorted(places, key=lambda place: keys[place])) for _, places in sorted(games.items())]
    order = [place for place in chain.from_iterable(zip_longest(*ranked)) if place is not None]
    return [played[place] for place in sorted(order[:most])]


def _by_turns(ranked: list[int]) -> list[int]:
    """The last, the first, the last but one, the second, ..."""
    return [ranked.pop(-1 if number % 2 == 0 else 0) for number in range(len(ranked))]


def shorten(path: Path, most: float) -> None:
    """Keep the newer half of a log of more than ``most`` bytes. A file that cannot be rewritten stays as it is."""
    with suppress(OSError):
        if path.stat().st_size > most:
            with path.open("rb") as file:
                file.seek(-int(most // 2), os.SEEK_END)
                file.readline()
                _rewrite(path, file)


def end_before(directory: str | None, iteration: int) -> None:
    """Remove ``iteration`` and later ones, which are played again, from the logs of training.

    A file that cannot be rewritten stays as it is.
    """
    endings = [] if directory is None else ["train-*.jsonl", f"*{TOKENS}"]
    for path in (path for ending in endings for path in Path(str(directory)).glob(ending)):
        with suppress(OSError), path.open("rb") as file:
            if any(_iteration(line) >= iteration for line in file):
                file.seek(0)
                _rewrite(path, (line for line in file if _iteration(line) < iteration))


def _rewrite(path: Path, lines: Iterable[bytes]) -> None:
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as kept:
        kept.writelines(lines)
    os.replace(new, path)


def _iteration(line: bytes) -> int:
    found = _OF_ITERATION.match(line)
    return -1 if found is None else int(found[1])
