"""Episodes of files: every form, files that grow, files that are damaged, and what is said of them."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from episode_parts import collected

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli import main
from rllib_lmgame.rollouts.episode_log import EpisodeLog, episode_record
from rllib_lmgame.rollouts.episodes import own_return, summarize
from rllib_lmgame.telemetry.trial_names import directory_names
from rllib_lmgame.viewer.forms import episode_of
from rllib_lmgame.viewer.library import Library, sources_of


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return [
        episode_record(played)
        for game in ("lmgame/FrozenLake-v0", "lmgame/TicTacToe-v0")
        for played in collected(game, player="random", episodes=4)
    ]


def _library(*paths: Path) -> Library:
    library = Library(sources_of([str(path) for path in paths]))
    list(library.refresh())
    return library


def _turns(episode: dict[str, Any]) -> list[dict[str, Any]]:
    return [turn for seat in episode["seats"] for turn in seat["turns"]]


def _rows(library: Library) -> list[dict[str, Any]]:
    return [json.loads(row) for row in library.rows]


def test_an_episode_is_shown_as_it_was_played(records, tmp_path):
    EpisodeLog(tmp_path / "games.jsonl").write(records)
    library = _library(tmp_path)
    assert len(library.rows) == len(records) and not library.problems
    for number, (record, row) in enumerate(zip(records, _rows(library), strict=True)):
        shown = library.episode(number)
        assert (shown["game"], shown["id"], shown["line"]) == (record["game"], record["episode_id"], number + 1)
        assert [step["did"] for step in shown["steps"]] == [step["actions"] for step in record["steps"]]
        assert [step["seen"] for step in shown["steps"]] == [step["observations"] for step in record["steps"]]
        assert [seat["return"] for seat in shown["seats"]] == [seat["return"] for seat in record["trajectories"]]
        assert row["t"] == len(record["steps"])
    assert {row["ok"] for row in _rows(library)[:4]} <= {0.0, 1.0}
    assert {row["ok"] for row in _rows(library)[4:]} == {None}, "one player's success is another's loss"


def test_success_and_return_are_those_of_metrics(tmp_path):
    """Also where a game says nothing of success, and where others have seats."""
    played = [
        each
        for game in ("lmgame/FrozenLake-v0", "lmgame/TicTacToe-v0", "lmgame/PublicGoods-v0")
        for each in collected(game, player="random", episodes=3)
    ]
    played[0].infos["player"].pop("success")
    for one in played[4:]:
        agent, seat = next(iter(one.plan.assignments.items()))
        one.plan.assignments[agent] = dataclasses.replace(seat, trained=not seat.trained)
    EpisodeLog(tmp_path / "games.jsonl").write(map(episode_record, played))
    rows = _rows(_library(tmp_path))
    summaries = [summarize(one) for one in played]
    assert [row["ok"] for row in rows] == [summary.success for summary in summaries]
    assert [row["r"] for row in rows] == [own_return(summary) for summary in summaries]
    assert summaries[0].success == 0.0 and summaries[3].success is None


def test_damaged_lines_cost_no_other_episode(records, tmp_path):
    path = tmp_path / "train-0.jsonl"
    whole = [json.dumps(record) for record in records]
    bad = ["{", "7", '{"a": 1}', '{"trajectories": 3}', "[" * 200_000, '{"steps": "x"}']
    bad += [json.dumps({**records[0], "trajectories": [{}]}), json.dumps({**records[0], "steps": [[]]})]
    path.write_text("\n".join([whole[0], *bad, "", *whole[1:]]) + "\n" + whole[0][:99])
    library = _library(path)
    assert [row["id"] for row in _rows(library)] == [record["episode_id"] for record in records]
    told = {problem.split(":")[0] for problem in library.problems}
    assert told == {f"train-0.jsonl, line {number}" for number in range(2, 2 + len(bad))}
    assert library.unfinished == ["train-0.jsonl ends in 99 bytes that are no whole line"]
    assert library.episode(3)["id"] == records[3]["episode_id"]
    with path.open("a") as file:  # It was being written.
        file.write(whole[0][99:] + "\n")
    list(library.refresh())
    assert len(library.rows) == len(records) + 1 and not library.unfinished
    path.write_text(whole[0] + "\n")  # Written anew.
    before = library.generation
    list(library.refresh())
    assert len(library.rows) == 1 and library.generation > before and not library.problems


@pytest.mark.parametrize(
    ("turn", "note", "problem"),
    [
        ({}, {"advantages": None}, "episodes/learner-0.tokens, line 1: no tokens"),
        ({}, {"advantages": [10**400, 0, 0]}, "episodes/learner-0.tokens, line 1: no tokens"),
        ({}, {"advantages": [math.inf, 0, 0]}, "episodes/learner-0.tokens, line 1: no tokens"),
        ({}, {"entropies": [0]}, None),
        ({"allowed_counts": [1]}, {}, "episodes/train-0.jsonl, line 1: no episode"),
    ],
)
def test_damaged_tokens_cost_no_episode(turn, note, problem, records, tmp_path):
    whole = {"new_row": True, "prompt_ids": [1], "response_ids": [7, 8, 9], "rollout_logprobs": [-0.5, 0.0, -1.0]}
    whole |= {"text": "né!", "reward": 1.0, "policy_version": 3, "stop_reason": "eos", **turn}
    first = {**records[0], "trajectories": [{**records[0]["trajectories"][0], "turns": [whole]}]}
    EpisodeLog(tmp_path / "episodes" / "train-0.jsonl").write([first, records[1]])
    own = {"episode_id": first["episode_id"], "agent_id": "player", "rollout_sum": -1.5}
    columns = {name: [0.0, 0.0, 0.0] for name in ("old_logprobs", "advantages", "entropies")}
    EpisodeLog(tmp_path / "episodes" / "learner-0.tokens").write([{**own, **columns, **note}])
    library = _library(tmp_path)
    assert len(library.rows) == (1 if turn else 2)
    assert all("old" not in turn for n in range(len(library.rows)) for turn in _turns(library.episode(n)))
    assert [said.partition(" is read")[0].partition(" are read")[0] for said in library.problems] == [problem] * bool(
        problem
    )


def test_a_file_of_conversations_is_told_once(tmp_path, capsys):
    path = tmp_path / "talks.jsonl"
    path.write_text('{"messages": []}\n{"prompt": "a", "completion": "b"}\n')
    assert main(["view", str(path), "--export", str(tmp_path / "x.html")]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert "talks.jsonl: conversations are not shown; `rllib collect --format log`" in warning
    assert "there are no episodes" in error


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**40, "\ud800", "\x00\x1b[2J</script>"])
def test_odd_values_become_json_that_browsers_read(value, records, tmp_path):
    record = {**records[0], "seed": value, "instructions": value}
    (tmp_path / "x.jsonl").write_text(json.dumps(record) + "\n")
    library = _library(tmp_path / "x.jsonl")
    shown = library.episode(0)
    assert shown["seed"] == (value if isinstance(value, str) else str(value))
    assert "NaN" not in library.rows[0].decode() and "Infinity" not in library.rows[0].decode()


def test_tokens_of_a_reply_are_told_apart(records):
    turn = {"new_row": True, "prompt_ids": [1], "response_ids": [7, 8, 9], "rollout_logprobs": [-0.5, 0.0, -1.0]}
    turn |= {"text": "né!", "text_lengths": [1, 2, 0], "reward": 1.0, "policy_version": 3, "stop_reason": "eos"}
    record = {**records[0], "trajectories": [{**records[0]["trajectories"][0], "turns": [turn]}]}
    assert episode_of(record)["seats"][0]["turns"][0]["pieces"] == ["n", "é!", ""]
    turn["text_lengths"] = [1, 1, 0]
    assert episode_of(record)["seats"][0]["turns"][0]["pieces"] == [], "of another version: shown whole"
    turn["rollout_logprobs"] = [0.0]
    with pytest.raises(ValueError, match="3 tokens and 1 log-prob"):
        episode_of(record)


def test_texts_are_searched(records, tmp_path):
    EpisodeLog(tmp_path / "x.jsonl").write([*records, {**records[0], "final_observations": {"player": "ÉTÉ nowhere"}}])
    library = _library(tmp_path / "x.jsonl")
    assert library.search("été NOWHERE") == [len(records)]
    assert library.search("tictactoe") == [number for number, r in enumerate(records) if "TicTacToe" in r["game"]]
    assert library.search("") == list(range(len(records) + 1)) and library.search("no such text") == []
    assert Library([]).search("x") == []


def test_what_is_too_long_is_passed_over(records, tmp_path, monkeypatch):
    monkeypatch.setattr("rllib_lmgame.viewer.library.LONGEST_LINE", 40_000)
    path = tmp_path / "x.jsonl"
    EpisodeLog(path).write([records[0], {"filling": "x" * 100_000}, records[1]])
    library = _library(tmp_path)
    assert len(library.rows) == 2 and library.episode(1)["id"] == records[1]["episode_id"]
    assert library.problems == ["x.jsonl, line 2: passed over, it has more than 40,000 bytes"]


def test_a_page_is_exported(records, tmp_path, capsys):
    EpisodeLog(tmp_path / "x.jsonl").write(records)
    assert main(["view", str(tmp_path / "x.jsonl"), "--export", str(tmp_path / "x.html")]) == 0
    assert "x.html: 8 episodes, " in capsys.readouterr().out
    assert main(["view", str(tmp_path / "x.jsonl"), "--export", str(tmp_path / "x.html")]) == 2
    assert capsys.readouterr().err.startswith("error: --export: ")


def test_what_cannot_be_shown_is_said(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text("mine: {run: LMGamePPO}")
    for name, words in (("none", "no such run"), ("x.yaml", "x.yaml is no episode log; name one, or the directory")):
        with pytest.raises(ConfigError, match=words):
            sources_of([str(tmp_path / name)])
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert main(["view", str(empty), "--export", str(tmp_path / "x.html")]) == 2
    assert "there are no episodes (read: empty.jsonl)" in capsys.readouterr().err


def test_episodes_of_a_sweep_say_their_trial(records, tmp_path, capsys):
    """A line that is being written is no problem, and nothing in its name steers the terminal."""
    names = ("grpo_seed_0_1a2b3_00000", "grpo_seed_1_1a2b3_00001")
    for name in names:
        EpisodeLog(tmp_path / name / "episodes" / "train-0.jsonl").write(records[-1:])
        (tmp_path / name / "result.json").write_text(json.dumps({"env_runners": {"success_rate": 0.5}}) + "\n")
    with (tmp_path / names[1] / "episodes" / "train-0.jsonl").open("a") as file:
        file.write("{")
    library = _library(tmp_path)
    _, head = library.news(0, 0)
    assert head["trials"] == ["grpo seed 0", "grpo seed 1"] and not head["problems"] and len(head["unfinished"]) == 1
    (tmp_path / names[1]).rename(tmp_path / "\x1b[31m")
    assert main(["view", str(tmp_path), "--export", str(tmp_path / "x.html")]) == 0
    assert "note: \\x1b[31m/episodes/train-0.jsonl ends in 1 bytes" in capsys.readouterr().err
    assert directory_names(["LMGamePPO_game_1a2b3_00000", "LMGamePPO_game_1a2b3_00001"]) == {
        name: name for name in ("LMGamePPO_game_1a2b3_00000", "LMGamePPO_game_1a2b3_00001")
    }


def test_directories_name_their_logs(records, tmp_path, monkeypatch):
    for name in ("one/trial_0/episodes/train-0.jsonl", "one/trial_0/episodes/report-0.jsonl", "two/games.jsonl"):
        EpisodeLog(tmp_path / name).write(records[:1])
    (tmp_path / "one/trial_0/result.jsonl").touch()
    EpisodeLog(tmp_path / "two/failures.jsonl").write([{}])
    checkpoint = tmp_path / "one/trial_0/checkpoint_000000"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").touch()

    def labels(*names: str) -> list[str]:
        return [source.label for source in sources_of([str(tmp_path / name) for name in names])]

    assert labels("one") == ["trial_0/episodes/report-0.jsonl", "trial_0/episodes/train-0.jsonl"]
    assert labels("one/trial_0/checkpoint_000000") == ["episodes/report-0.jsonl", "episodes/train-0.jsonl"]
    assert labels("one/trial_0", "two")[-1] == "two/games.jsonl"
    monkeypatch.chdir(tmp_path / "two")
    assert sources_of(["games.jsonl", "failures.jsonl"])[0].label == "games.jsonl"
