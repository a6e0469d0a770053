"""Episode logs as data for supervised learning."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from episode_parts import logged

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.datasets.replay import RecordedSession, replay
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episode_log import read_log
from rllib_lmgame.rollouts.records import trajectory_of
from tests.rollouts.session_play import play_games


def log_of(runner: TextGameEnvRunner, directory, expert: str | None = "random"):
    runner.config.episode_log_dir = str(directory)
    result = play_games(runner, 4, expert=expert, log="x")
    assert result.error is None
    return directory / "x-0.jsonl", result.episodes


@pytest.mark.parametrize("game", ["lmgame/Sokoban-v0", "lmgame/TicTacToe-v0", "lmgame/KuhnPoker-v0"])
def test_replayed_episodes_are_the_ones_that_were_logged(make_runner, tmp_path, game) -> None:
    """The same model and format: the very same tokens."""
    runner = make_runner(game)
    path, episodes = log_of(runner, tmp_path)
    for before, after in zip(episodes, logged(path).episodes(0, 4, runner), strict=True):
        after.validate()
        assert (after.is_terminated, after.is_truncated) == (before.is_terminated, before.is_truncated)
        assert len(after) == len(before)
        assert after.agent_ids == before.agent_ids
        for agent in before.agent_ids:
            one, two = trajectory_of(before.agent_episodes[agent]), trajectory_of(after.agent_episodes[agent])
            assert (one.role, one.module_id, one.group) == (two.role, two.module_id, two.group)
            for a, b in zip(one.turns, two.turns, strict=True):
                assert a.prompt_ids.tolist() == b.prompt_ids.tolist()
                assert a.response_ids.tolist() == b.response_ids.tolist()
                assert (a.reward, a.new_row) == (b.reward, b.new_row)
            assert before.agent_episodes[agent].actions.data == after.agent_episodes[agent].actions.data


def test_a_log_of_another_tokenizer_and_format(make_runner, tmp_path) -> None:
    path, episodes = log_of(make_runner(), tmp_path, "solver")
    runner = make_runner(
        model={
            "system_prompt": "Other.",
            "answer_tag": "move",
            "think": "required",
            "history": "window",
            "format_instructions": False,
        }
    )
    records = read_log(path)
    for record in records:
        for trajectory in record["trajectories"]:
            for turn in trajectory["turns"]:
                turn["prompt_ids"] = turn["response_ids"] = [10**9]  # Ids that mean nothing here.
    chat = runner.chat("player")
    for record, before in zip(records, episodes, strict=True):
        trajectory = trajectory_of(replay(RecordedSession(record), runner, "again").agent_episodes["player"])
        assert trajectory.episode_id == "again"
        read = [chat.reply_format.parse(chat.read(turn.response_ids)).action for turn in trajectory.turns]
        assert read == before.agent_episodes["player"].actions.data
        assert all("Other." in chat.tokenizer.decode(turn.prompt_ids) and turn.new_row for turn in trajectory.turns)
        assert "<move>" in chat.decode(trajectory.turns[0].response_ids)


def test_a_models_reasoning_is_logged_and_learned_from(make_runner, tmp_path) -> None:
    """Supervised learning on a model's own episodes sees what it thought, in the format of whoever learns."""
    thinking = {"think": "required", "max_tokens_per_turn": 64}
    runner = make_runner(answer=lambda request: runner.chat("player").reply_ids("Up", "the box is up"), model=thinking)
    path, _ = log_of(runner, tmp_path, None)
    record = read_log(path)[0]
    assert record["steps"][0]["thoughts"] == {"player": "the box is up"}
    for options, reply in (
        (thinking, "<think>the box is up</think><answer>Up</answer>"),
        ({"think": "off"}, "<answer>Up</answer>"),
    ):
        reader = make_runner(model=options)
        chat = reader.chat("player")
        turns = trajectory_of(replay(RecordedSession(record), reader, "again").agent_episodes["player"]).turns
        assert {chat.read(turn.response_ids) for turn in turns} == {reply}


def test_scripted_seats_stay_scripted(make_runner, tmp_path) -> None:
    path, _ = log_of(make_runner("lmgame/TicTacToe-v0"), tmp_path)
    runner = make_runner(
        "lmgame/TicTacToe-v0",
        players={
            "policies": {"player": {}, "rival": {"player": "random"}},
            "policy_mapping_fn": {"X": "player", "O": "rival"},
        },
    )
    (episode,) = logged(path).episodes(0, 1, runner)
    assert {agent: single.module_id for agent, single in episode.agent_episodes.items()} == {
        "X": "player",
        "O": "rival",
    }
    assert not episode.agent_episodes["O"].extra_model_outputs


def test_a_context_too_small_truncates(make_runner, tmp_path) -> None:
    path, episodes = log_of(make_runner(), tmp_path)
    longest = max(range(4), key=lambda i: len(episodes[i]))
    first = len(trajectory_of(episodes[longest].agent_episodes["player"]).turns[0].prompt_ids)
    runner = make_runner(model={"context_length": first + 40, "min_tokens_per_turn": 8})
    episode = logged(path).episodes(longest, 1, runner)[0]
    assert episode.is_truncated and 0 < len(episode) < len(episodes[longest])


MALFORMED: list[tuple[str, Any]] = [
    ("steps", None),
    ("steps", []),
    ("steps", 3),
    ("trajectories", None),
    ("seed", "x"),
    ("final_observations", {}),
    ("steps/0/actions", {}),
    ("steps/0/actions", {"player": 3}),
    ("steps/0/actions", {"nobody": "Up"}),
    ("steps/0/thoughts", {"player": 3}),
    ("steps/0/rewards", {"player": "much"}),
    ("steps/0/rewards", {"nobody": 1.0}),
    ("steps/0/rewards", {"player": math.inf}),
    ("steps/0/rewards", {"player": 10**400}),
    ("steps/0/rewards", {"player": 1e39}),
    ("steps/0/turns_left", {"player": "x"}),
    ("steps/0/infos", {"player": {"success": "yes"}}),
    ("infos/player/result", math.nan),
    ("steps/0/observations", None),
]


def test_malformed_records_are_named_by_line(make_runner, tmp_path) -> None:
    record = read_log(log_of(make_runner(), tmp_path)[0])[0]
    for path, value in MALFORMED:
        broken = copy.deepcopy(record)
        *parents, last = path.split("/")
        target = broken
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        target.pop(last) if value is None else target.update({last: value})
        (tmp_path / "broken.jsonl").write_text("\n".join(["", json.dumps(record), json.dumps(broken)]))
        with pytest.raises(ConfigError, match=r"broken\.jsonl, line 3: not an episode record"):
            logged(tmp_path / "broken.jsonl")


def test_files_without_records(tmp_path) -> None:
    for content in (b"[]\n", b"", b"\n\n"):
        (tmp_path / "log.jsonl").write_bytes(content)
        with pytest.raises(ConfigError, match="no episodes"):
            logged(tmp_path / "log.jsonl")
    with pytest.raises(ConfigError, match="no such file"):
        logged(tmp_path / "none.jsonl")
