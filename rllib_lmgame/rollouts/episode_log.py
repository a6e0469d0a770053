"""The episode log: one JSON object per line and episode, with everything needed to look at it or train on it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.rollouts.play import PlayedEpisode
from rllib_lmgame.rollouts.seats import LanguageModelSeat, Seat


def episode_record(played: PlayedEpisode) -> dict[str, Any]:
    """A JSON-ready record of ``played``.

    ``trajectories[*].turns[*]`` holds ``prompt_ids`` (a delta unless ``new_row``), ``response_ids``, ``rollout_logprobs``, ``reward``,
    ``policy_version`` and ``stop_reason``; the loss mask is 0 on prompt ids and 1 on response ids.
    """
    return {
        "episode_id": played.plan.episode_id,
        "game": played.game_id,
        "seed": played.plan.seed,
        "group": played.plan.group,
        "terminated": played.terminated,
        "stop_reason": played.stop_reason.value,
        "infos": {agent: dict(info) for agent, info in played.infos.items()},
        "steps": [{"observations": s.observations, "actions": s.actions, "rewards": s.rewards, "infos": s.infos} for s in played.steps],
        "final_observations": played.final_observations,
        "trajectories": [_trajectory_record(seat) for seat in played.seats.values()],
    }


def _trajectory_record(seat: Seat) -> dict[str, Any]:
    record: dict[str, Any] = {
        "agent_id": seat.agent_id,
        "role": seat.role,
        "module_id": seat.module_id,
        "return": seat.episode_return,
    }
    if isinstance(seat, LanguageModelSeat):
        record["turns"] = [
            {
                "new_row": turn.new_row,
                "prompt_ids": [int(i) for i in turn.prompt_ids],
                "response_ids": [int(i) for i in turn.response_ids],
                "rollout_logprobs": [round(float(p), 7) for p in turn.rollout_logprobs],
                "text": seat.chat.decode(turn.response_ids),
                "reward": turn.reward,
                "policy_version": turn.policy_version,
                "stop_reason": turn.stop_reason,
            }
            for turn in seat.turns
        ]
    return record


class EpisodeLog:
    """Appends episode records to a JSONL file; one file per runner and purpose, so that nobody writes to another's file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path

    def write(self, records: list[dict[str, Any]]) -> None:
        """Append ``records``; a record is written whole or (on a full disk) reported as an ``OSError``."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records))


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
        self.path = Path(path)
        if not self.path.is_file():
            raise ConfigError("data", f"no such episode log: {path}")
        self.records = [self._parse(number, line) for number, line in enumerate(self.path.open(encoding="utf-8"), 1) if line.strip()]
        if not self.records:
            raise ConfigError("data", f"{path} holds no episodes")

    def _parse(self, number: int, line: str) -> dict[str, Any]:
        try:
            record = json.loads(line)
            assert record["steps"] and record["trajectories"]
        except (ValueError, KeyError, TypeError, AssertionError):
            raise ConfigError("data", f"{self.path}, line {number}: not an episode record") from None
        return dict(record)

    def episodes(self, start: int, count: int, algorithm: Any) -> list[Any]:
        """``count`` episodes from position ``start`` on, going round the file, as RLlib episodes."""
        from rllib_lmgame.rollouts.replay import replay_episode

        chosen = (self.records[(start + i) % len(self.records)] for i in range(count))
        return [replay_episode(record, algorithm.env_runner, f"log-{start + i}") for i, record in enumerate(chosen)]
