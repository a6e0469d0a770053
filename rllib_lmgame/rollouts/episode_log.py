"""The episode log: one JSON object per line and episode, with everything needed to look at it or train on it again."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.rollouts.episodes import SeatSummary, summarize
from rllib_lmgame.rollouts.play import PlayedEpisode
from rllib_lmgame.rollouts.seats import LanguageModelSeat
from rllib_lmgame.rollouts.trajectory import Turn


def episode_record(played: PlayedEpisode) -> dict[str, Any]:
    """A JSON-ready record of ``played``.

    ``trajectories[*].turns[*]`` holds ``prompt_ids`` (a delta unless ``new_row``), ``response_ids``, ``rollout_logprobs``, ``reward``,
    ``policy_version`` and ``stop_reason``; the loss mask is 0 on prompt ids and 1 on response ids. ``trajectories[*]`` says how the player's own
    game ended (``terminated`` or ``truncated``, ``stop_reason``, ``ended_at``: steps played by then) and how it did (``success``, ``outcome``).
    ``final_prompt_ids`` (only where the learner bootstraps) shows its last state. Nine digits keep a float32 exactly. Where decoding was
    constrained, ``allowed_counts`` says for each response id how many ids it was chosen among (with one it was forced, and the loss mask is 0), and
    ``allowed_ids`` lists them end to end.
    """
    summary = summarize(played, ())
    return {
        "episode_id": played.plan.episode_id,
        "game": played.game_id,
        "seed": played.plan.seed,
        "group": played.plan.group,
        "instructions": played.instructions,
        "terminated": played.terminated,
        "stop_reason": played.stop_reason.value,
        "infos": played.infos,
        "steps": [dataclasses.asdict(step) for step in played.steps],
        "final_observations": played.final_observations,
        "trajectories": [_trajectory_record(played, seat) for seat in summary.seats],
    }


def _trajectory_record(played: PlayedEpisode, numbers: SeatSummary) -> dict[str, Any]:
    seat, end = played.seats[numbers.agent_id], played.ends[numbers.agent_id]
    record: dict[str, Any] = {
        "agent_id": seat.agent_id,
        "role": seat.role,
        "module_id": seat.module_id,
        "return": seat.episode_return,
        "terminated": end.terminated,
        "truncated": not end.terminated,
        "stop_reason": end.stop_reason.value,
        "ended_at": end.step,
        "success": numbers.success,
        "outcome": numbers.outcome,
    }
    if isinstance(seat, LanguageModelSeat):
        record["turns"] = [
            {
                "new_row": turn.new_row,
                "prompt_ids": turn.prompt_ids.tolist(),
                "response_ids": turn.response_ids.tolist(),
                "rollout_logprobs": [float(f"{p:.9g}") for p in turn.rollout_logprobs.tolist()],
                "text": seat.chat.decode(turn.response_ids),
                "reward": turn.reward,
                "policy_version": turn.policy_version,
                "stop_reason": turn.stop_reason,
                **_allowed_record(turn),
            }
            for turn in seat.turns
        ]
        if seat.final_prompt is not None:
            record["final_prompt_ids"] = seat.final_prompt.delta.tolist()
            record["final_new_row"] = seat.final_prompt.new_row
    return record


def _allowed_record(turn: Turn) -> dict[str, list[int]]:
    allowed = turn.allowed
    return {} if allowed is None else {"allowed_counts": allowed.counts.tolist(), "allowed_ids": allowed.ids.tolist()}


class EpisodeLog:
    """Appends episode records to a JSONL file; one file per runner and purpose, so that nobody writes to another's file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path

    def write(self, records: Sequence[dict[str, Any]]) -> None:
        """Append ``records``, all of them or none.

        Raises:
            OSError: if they could not be written (full disk); what was written of them is taken back.
            ValueError: if JSON has no form for them (a number of thousands of digits).
        """
        # A lone surrogate, which UTF-8 cannot carry, is escaped: the line is still JSON.
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        content = text.encode("utf-8", "backslashreplace")
        with self.path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                written = 0
                while written < len(content):
                    written += file.write(content[written:]) or 0
            except OSError:
                file.truncate(before)
                raise


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """The records of an episode log.

    Raises:
        ConfigError: if the file is missing or a line is no JSON object (the line is named).
    """
    return [record for _, record in _records(Path(path))]


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and records."""
    if not path.is_file():
        raise ConfigError("data", f"no such episode log: {path}")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise ConfigError("data", f"{path}, line {number}: not an episode record")
            yield number, record


class LoggedEpisodes:
    """Episodes of a log, as data for supervised learning.

    Token ids belong to the tokenizer they were made with; a log is therefore read as texts and written again in the
    learner's own chat format: observations as prompts, actions as replies.

    Args:
        path: JSONL file of :func:`episode_record` lines.

    Raises:
        ConfigError: if the file is missing, empty or malformed (the line is named).
    """

    def __init__(self, path: str | Path) -> None:
        from rllib_lmgame.rollouts.replay import RecordedSession

        self.path = Path(path)
        self.sessions: list[RecordedSession] = []
        for number, record in _records(self.path):
            try:
                self.sessions.append(RecordedSession(record))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError("data", f"{self.path}, line {number}: not an episode record ({type(error).__name__}: {error})") from None
        if not self.sessions:
            raise ConfigError("data", f"{path} holds no episodes")

    def episodes(self, start: int, count: int, algorithm: Any) -> list[Any]:
        """``count`` episodes from position ``start`` on, going round the file, as RLlib episodes."""
        from rllib_lmgame.rollouts.replay import replay

        return [replay(self.sessions[i % len(self.sessions)], algorithm.env_runner, f"log-{i}") for i in range(start, start + count)]
