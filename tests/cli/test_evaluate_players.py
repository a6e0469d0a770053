"""``rllib evaluate`` with players that need no engine: the table, what is gone on with, and what is refused."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from transformers import AutoTokenizer

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli import main
from rllib_lmgame.cli.game_list import listed, suite
from rllib_lmgame.cli.tables import evaluation_markdown
from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
from rllib_lmgame.rollouts.episode_log import read_log

GAMES = "lmgame/FrozenLake-v0,small=lmgame/Sokoban-v0@{dim_room: [5, 5]},lmgame/KuhnPoker-v0"
COMMAND = ["evaluate", "random", "best=solver", "--games", GAMES, "--episodes", "6", "--samples", "3"]
RPS = "lmgame/RockPaperScissors-v0"
KEPT = "{text_rollouts: {constrained_decoding: true}}"


def table(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["player"], row["name"]): row for row in json.loads((out / "results.json").read_text())["evaluated"]}


def records(out: Path) -> dict[tuple[str, str], dict[int, list[dict[str, Any]]]]:
    """Own numbers of the episodes by player and game, and level."""
    found: dict[Any, Any] = defaultdict(lambda: defaultdict(list))
    for record in read_log(out / "results.jsonl"):
        own = record["evaluated"]
        found[own["player"], own["game"]][own["level"]].append(own["summary"])
    return found


def test_the_table_says_what_the_records_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table"
    assert main([*COMMAND, "--baseline", "random", "--out", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:5] == ["player", "game", "split", "episodes", "levels"] and "avg@3" in printed[0]
    markdown = (out / "results.md").read_text().splitlines()
    assert len(markdown) == 2 + 6 and "| pass@2 | pass@3 |" in markdown[0]
    cells = [dict(zip(*(line.split(" | ") for line in (markdown[0], row)), strict=True)) for row in markdown[2:]]
    assert {(row["tokens"], row["unreadable"]) for row in cells} == {("-", "-")}, "they write none"
    assert {line.split(" | ")[1] for line in markdown[2:]} == {"lmgame/FrozenLake-v0", "small", "lmgame/KuhnPoker-v0"}
    rows, played = table(out), records(out)
    for (player, game), levels in played.items():
        row = rows[player, game]
        assert len(levels) == 6 and all(len(on_level) == 3 for on_level in levels.values())
        assert len({on_level[0]["seed"] for on_level in levels.values()}) == 6
        if game == "lmgame/KuhnPoker-v0":  # Of self-play there is no success.
            assert "success_rate" not in row and "pass_at_k" not in row
            continue
        success = {level: [one["success"] for one in on_level] for level, on_level in levels.items()}
        assert row["success_rate"] == pytest.approx(fmean(itertools.chain(*success.values())))
        for k in (1, 2, 3):
            shares = [fmean(map(max, itertools.combinations(own, k))) for own in success.values()]
            assert row["pass_at_k"][str(k)] == pytest.approx(fmean(shares))
        low, high = row["success_interval"]
        assert 0 <= low <= row["success_rate"] <= high <= 1
        others = played["random", game]
        if player == "best":
            gain, low, high = row["success_gain"]
            assert gain == pytest.approx(
                fmean(fmean(own) for own in success.values()) - rows["random", game]["success_rate"]
            )
            assert low <= gain <= high and low < 1
        assert [one[0]["seed"] for one in levels.values()] == [one[0]["seed"] for one in others.values()]
    assert rows["best", "small"]["pass_at_k"]["3"] == 1.0 > rows["random", "small"]["success_rate"]
    assert "success_gain" not in rows["random", "small"]


def test_the_same_command_goes_on_and_comes_to_the_same_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a kill, which leaves whole records and half of one."""
    whole, out = tmp_path / "whole", tmp_path / "cut"
    assert main([*COMMAND, "--out", str(whole)]) == 0
    written = (whole / "results.jsonl").read_bytes()
    settings = (whole / "evaluation.json").read_bytes()
    for length in (0, len(written) // 3, len(written) - 7, len(written)):
        out.mkdir(exist_ok=True)
        (out / "evaluation.json").write_bytes(settings)
        (out / "results.jsonl").write_bytes(written[:length])
        (out / "results.md").unlink(missing_ok=True)
        capsys.readouterr()
        assert main([*COMMAND, "--out", str(out)]) == 0
        before = written[:length].count(b"\n")
        assert (f"{before} of 108 episodes have been played before" in capsys.readouterr().out) == (before > 0)
        assert (out / "results.jsonl").read_bytes().count(b"\n") == 108
        for name in ("results.json", "results.md"):
            assert (out / name).read_bytes() == (whole / name).read_bytes(), length


SIX_GAMES = (
    "lmgame/FrozenLake-v0,small=lmgame/Sokoban-v0@{dim_room: [5, 5]},"
    "lmgame/KuhnPoker-v0,lmgame/TicTacToe-v0,lmgame/StagHunt-v0,lmgame/IteratedPrisonersDilemma-v0"
)
"""Of three families: on grids, duels and dilemmas."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_evaluation_is_finished_by_the_same_command_with_the_same_table(
    rllib: Callable[[str], Any], checkpoint, tiny_model_dir: str, tmp_path: Path
) -> None:
    """The kill comes in the middle of what the model plays, after the scripted players."""
    model = {"context_length": 2048, "max_tokens_per_turn": 4}
    saved = checkpoint(language_model=model)
    config = {"language_model": model, "inference": {"engine": "transformers", "kv_cache_memory_mb": 32}}
    players = f"random solver saved={saved} raw=hf:{tiny_model_dir}"
    line = f"evaluate {players} --games '{SIX_GAMES}' --episodes 2 --samples 4 --parallel 1 --baseline random"
    line += f" --config '{json.dumps(config)}' --out "
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    rllib(f"{line}{whole}").finish()

    def played() -> int:
        return (killed / "results.jsonl").read_bytes().count(b"\n") if (killed / "results.jsonl").exists() else 0

    first = rllib(f"{line}{killed}")
    while played() < 115 and first.process.poll() is None:
        time.sleep(0.02)
    first.process.kill()
    first.finish(-signal.SIGKILL)
    before = played()
    assert 2 * 48 < before < 3 * 48 and not (killed / "results.md").exists()
    assert f"{before} of 192 episodes have been played before" in rllib(f"{line}{killed}").finish()
    for name in ("results.md", "results.json", "evaluation.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert records(killed) == records(whole)
    rows = table(whole)
    assert len(rows) == 4 * 6 and {row["num_episodes"] for row in rows.values()} == {8}
    assert all({"pass_at_k", "success_interval"} <= rows[player, "small"].keys() for player in ("saved", "raw"))
    assert "success_gain" in rows["raw", "small"] and "return_gain" in rows["saved", "lmgame/StagHunt-v0"]


def test_more_players_games_levels_and_samples_are_played_alone(tmp_path: Path) -> None:
    out = tmp_path / "grows"
    assert main(["evaluate", "random", "--games", "lmgame/FrozenLake-v0", "--episodes", "4", "--out", str(out)]) == 0
    before = (out / "results.jsonl").read_bytes()
    alone = table(out)["random", "lmgame/FrozenLake-v0"]
    more = ["evaluate", "solver", "random", "--games", "lmgame/Maze-v0", "lmgame/FrozenLake-v0", "--out", str(out)]
    assert main([*more, "--episodes", "5", "--samples", "2"]) == 0
    assert (out / "results.jsonl").read_bytes().startswith(before)
    assert len(read_log(out / "results.jsonl")) == 4 * 5 * 2
    assert main([*more, "--episodes", "4"]) == 0
    assert len(read_log(out / "results.jsonl")) == 4 * 5 * 2, "all of it was there"
    assert table(out)["random", "lmgame/FrozenLake-v0"] == alone


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lmgame/FrozenLake-v0": "lmgame/FrozenLake-v0@{max_turns: 3}"}, "games.lmgame/FrozenLake-v0.env_config"),
        ({"random": "solver"}, "players.random was given, now it is not"),
        ({"random": "random=solver"}, "players.random.player was 'random', now it is 'solver'"),
    ],
)
def test_the_directory_of_another_evaluation_is_refused(changed, words, tmp_path, capsys) -> None:
    command = ["evaluate", "random", "--games", "lmgame/FrozenLake-v0", "--episodes", "2", "--out", f"{tmp_path}/out"]
    assert main(command) == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert main([changed.get(word, word) for word in command]) == 2
    said = capsys.readouterr().err
    assert "holds another evaluation" in said and words in said
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("changed", [{"success": "1"}, {"turns": "3"}, {"player": ["random"]}])
def test_a_record_with_other_kinds_of_values_is_named_with_its_line(changed, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    command = ["evaluate", "random", "--games", "lmgame/FrozenLake-v0", "--episodes", "1", "--out", str(out)]
    assert main(command) == 0
    record = json.loads((out / "results.jsonl").read_text())
    own = record["evaluated"]
    changes = own if "player" in changed else own["summary"]["seats"][0] if "turns" in changed else own["summary"]
    changes.update(changed)
    (out / "results.jsonl").write_text(json.dumps(record) + "\n")
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "results.jsonl, line 1: no record of" in said and said.count("\n") == 1


@pytest.mark.parametrize("line", ["{}\n", '{"evaluated": {"player": "random"}}\n', "[1]\n", "no record\n"])
def test_a_file_of_something_else_is_named_with_its_line(line, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    command = ["evaluate", "random", "--games", "lmgame/FrozenLake-v0", "--episodes", "2", "--out", str(out)]
    assert main(command) == 0
    with (out / "results.jsonl").open("a") as file:
        file.write(line)
    assert main(command) == 2
    assert "results.jsonl, line 3" in capsys.readouterr().err
    (out / "evaluation.json").unlink()
    assert main(command) == 2
    assert "holds results.jsonl, but no evaluation.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["random", "random"], "PLAYER: two players are called 'random'; give one another name: NAME=random"),
        (["openai:m@http://localhost:9/v1", "--games", RPS, "--config", KEPT], "cannot be kept to legal moves"),
        (["rnadom", "--games", RPS], "unknown player 'rnadom'; did you mean 'random'?"),
        (["smolm2-135m", "--games", RPS], "no such model: 'smolm2-135m'; did you mean 'smollm2-135m'?"),
        (["some/nowhere", "--games", RPS], "PLAYER: 'some/nowhere' is no directory here, and the hub does not"),
        (["random", "--games", RPS, "--against", "hf:no/where"], "--against: 'no/where' is no directory here"),
        (["random", "--games", "lmgame/Maze-v0,lmgame/Maze-v0"], "two games are called 'lmgame/Maze-v0'"),
        (["random", "--games", "lmgame/Maze-v0@{max_turns: 3"], "with every bracket and quote closed"),
        (["random", "--suite", "grl-quik"], "there is no example 'grl-quik'; did you mean"),
        (["random", "--games", "lmgame/Maze-v0", "--baseline", "best"], "'best' is nobody who plays; players: random"),
        (["random", "--games", RPS, "--against", "random"], "two players are called 'random'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(arguments, words, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    out = tmp_path / "out"
    assert main(["evaluate", *arguments, "--out", str(out)]) == 2
    assert words in capsys.readouterr().err and not out.exists()


def test_entries_of_a_list_are_parted_where_nothing_is_open() -> None:
    assert listed(["a,b@{x: [1, 2], y: 'a, }'}", "n=c"]) == ["a", "b@{x: [1, 2], y: 'a, }'}", "n=c"]
    with pytest.raises(ConfigError, match="expected games"):
        listed(["a,,b"])


def test_a_suite_is_the_evaluation_of_an_example() -> None:
    games, episodes = suite("grl-qwen2.5-0.5b-1gpu")
    assert len(games) > 3 and {game.env_config["split"] for game in games if "split" in game.env_config} == {"test"}
    assert episodes == 256 and suite("frozenlake-tiny")[0][0].env == "lmgame/FrozenLake-v0"


def test_an_endpoint_plays_games_for_one_and_its_tokens_are_counted(endpoint, capsys) -> None:
    endpoint.text = "<answer>Down</answer>"
    command = ["evaluate", f"far={endpoint.player}", "random", "--games", "lmgame/FrozenLake-v0", "--episodes", "3"]
    assert main([*command, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    row = numbers["evaluated"][0]
    assert row["player"] == "far" and row["num_episodes"] == 3 and row["format_error_rate"] == 0.0
    assert numbers["counts"]["far"]["requests"] == len(endpoint.asked) == row["turns_per_episode"] * 3
    assert row["response_tokens"] == 3 * len(endpoint.asked) and row["tokens_per_turn"] == 3
    head, _, far, scripted = (line.split(" | ") for line in evaluation_markdown(numbers).splitlines())
    assert [one[head.index("tokens")] for one in (far, scripted)] == ["3.0", "-"]
    endpoint.text = "no answer"
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluated"][0]["format_error_rate"] == 1.0


SUITE = """
talks:
  run: LMGamePPO
  config:
    games:
      - {env: lmgame/FrozenLake-v0, name: plain, temperature: 0.7}
      - env: lmgame/FrozenLake-v0
        name: other
        language_model: {system_prompt: Be quick., answer_tag: move, max_tokens_per_turn: 9}
"""


def test_an_endpoint_is_talked_to_as_the_entry_of_its_game_says(endpoint, tmp_path: Path, capsys) -> None:
    endpoint.text = "<move>Down</move>"
    file = tmp_path / "talks.yaml"
    file.write_text(SUITE)
    command = ["evaluate", f"far={endpoint.player}", "--suite", str(file), "--episodes", "2", "--json"]
    assert main(command) == 0
    plain, other = json.loads(capsys.readouterr().out)["evaluated"]
    assert plain["format_error_rate"] == 1.0 and other["format_error_rate"] == 0.0
    asked = {body["messages"][0]["content"] == "Be quick.": body for body in endpoint.asked}
    assert asked[False]["temperature"] == 0.7 and asked[True]["temperature"] == 1.0
    assert asked[True]["max_tokens"] == 9 != asked[False]["max_tokens"]
    assert plain["temperature"] == 0.7
    endpoint.asked.clear()
    assert main([*command, "--temperature", "0"]) == 0
    assert {body["temperature"] for body in endpoint.asked} == {0.0}, "it goes before what entries say"
    file.write_text(SUITE.replace("answer_tag: move", "reply_prefill: <answer>"))
    assert main(command) == 2
    assert "games.other.language_model.reply_prefill: player 'far'" in capsys.readouterr().err


TABLES = SUITE.replace("FrozenLake", "TicTacToe").replace("0.7", "0.25")


def test_models_in_this_process_are_talked_to_as_the_entry_of_their_game_says(
    checkpoint, tiny_model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """What a policy has of its own goes before that, and what ``--config`` says for all games behind it."""
    asked: dict[tuple[str, str], list[Any]] = defaultdict(list)
    generate = TransformersEngine.generate

    async def noted(engine: TransformersEngine, request: Any) -> Any:
        who = "rival" if engine._make_core.args[0] == tiny_model_dir else "saved"
        text = tokenizer.decode(request.prompt_ids)
        asked[who, "other" if "Be quick." in text else "plain"].append(request.sampling)
        return await generate(engine, request)

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    monkeypatch.setattr(TransformersEngine, "generate", noted)
    place = checkpoint(
        env="lmgame/TicTacToe-v0", env_config={}, policies={"player": {"language_model": {"max_tokens_per_turn": 5}}}
    )
    file = tmp_path / "tables.yaml"
    file.write_text(TABLES)
    shared = "{language_model: {max_tokens_per_turn: 7}, inference: {top_k: 40}}"
    command = ["evaluate", f"saved={place}:player", "--against", f"rival=hf:{tiny_model_dir}", "--suite", str(file)]
    assert main([*command, "--episodes", "2", "--config", shared, "--out", str(tmp_path / "out")]) == 0
    found = {where: {(one.max_tokens, one.temperature, one.top_k) for one in sent} for where, sent in asked.items()}
    assert found == {
        ("saved", "plain"): {(5, 0.25, 0)},
        ("saved", "other"): {(5, 1.0, 0)},
        ("rival", "plain"): {(7, 0.25, 40)},
        ("rival", "other"): {(9, 1.0, 40)},
    }
    refused = "--config: saved: policies of runs play with the settings of their runs"
    for others, message in (([], refused), (["random"], "--baseline: "), (["--against", "random"], "--baseline: ")):
        assert main(["evaluate", f"saved={place}", *others, "--config", shared, "--baseline", "nobody"]) == 2
        assert message in capsys.readouterr().err


def test_made_up_levels_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "lmgame/GSM8K-v0 plays made-up levels, not GSM8K"
    command = ["evaluate", "solver", "--games", "lmgame/GSM8K-v0,lmgame/FrozenLake-v0", "--episodes", "1"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.count(f"note: {said}") == 1
    assert said in (tmp_path / "out" / "results.md").read_text()
    (told,) = json.loads((tmp_path / "out" / "results.json").read_text())["made_up_levels"]
    assert told.startswith(said)


def test_a_gain_on_a_single_level_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = "lmgame/FrozenLake-v0@{size: 3, frozen_probability: 1.0, max_turns: 1, split: all}"
    command = ["evaluate", "random", "best=solver", "--games", lake, "--episodes", "3", "--baseline", "random"]
    assert main([*command, "--out", str(tmp_path / "one")]) == 0
    row = table(tmp_path / "one")["best", "lmgame/FrozenLake-v0"]
    assert row["levels"] == 1 and len(row["success_gain"]) == len(row["return_gain"]) == 1
    assert "inf" not in capsys.readouterr().out


def test_an_endpoint_that_hangs_costs_an_episode_that_is_played_again(endpoint, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    endpoint.unanswered = {0}
    command = ["evaluate", f"far={endpoint.player}", "--games", RPS, "--against", "wild=random", "--out", str(out)]
    command += ["--episodes", "4", "--time-limit", "0.5", "--config", "{endpoint: {attempts: 1}}", "--parallel", "1"]
    assert main(command) == 1
    printed = capsys.readouterr()
    assert "dropped, engine_error: 1" in printed.out and "no answer" in printed.out
    assert "the same command plays what was dropped again" in printed.err
    row = table(out)["far", RPS]
    assert row["num_episodes"] == 3 and row["dropped"] == {"engine_error": 1}
    (failure,) = read_log(out / "failures.jsonl")
    assert failure["reason"] == "engine_error" and "far" in failure["players"].values()
    assert main(command) == 0
    assert table(out)["far", RPS]["num_episodes"] == 4 and not (out / "failures.jsonl").exists()


def test_an_endpoint_that_is_not_there_is_named_before_anybody_plays(endpoint, tmp_path: Path, capsys) -> None:
    address, out = endpoint.player, tmp_path / "out"
    endpoint.server_close()
    command = ["evaluate", "random", f"gone={address}", "--games", RPS, "--episodes", "2", "--out", str(out)]
    assert main([*command, "--config", "{endpoint: {attempts: 1}}"]) == 2
    assert "player 'gone': no answer from" in capsys.readouterr().err
    assert not (out / "results.jsonl").exists()


def test_who_cannot_play_a_game_drops_its_episodes_and_plays_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    games = "lmgame/MathReasoning-v0,lmgame/FrozenLake-v0"
    assert main(["evaluate", "solver", "random", "--games", games, "--episodes", "2", "--json"]) == 1
    numbers = json.loads(capsys.readouterr().out)
    assert [row["num_episodes"] for row in numbers["evaluated"]] == [2, 0, 2, 2]
    assert numbers["evaluated"][1]["dropped"] == {"misconfigured": 2} and "legal actions" in numbers["dropped"][0]


def test_a_disk_that_is_full_ends_it_and_what_was_played_stays(tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "out"
    command = ["evaluate", "random", "--games", "lmgame/FrozenLake-v0", "--episodes", "4", "--parallel", "1"]
    command += ["--out", str(out)]
    from rllib_lmgame.rollouts.episode_log import EpisodeLog

    before, count = EpisodeLog.write, itertools.count()

    def full(self, records) -> None:
        if next(count) == 2:
            raise OSError(28, "No space left on device")
        before(self, records)

    monkeypatch.setattr(EpisodeLog, "write", full)
    assert main(command) == 1
    assert "[Errno 28]" in capsys.readouterr().err
    assert len(read_log(out / "results.jsonl")) == 2
    assert main(command) == 0
    assert len(read_log(out / "results.jsonl")) == 4


def test_what_a_game_needs_beside_it_is_asked_for_before_anybody_plays(endpoint, tmp_path: Path, capsys) -> None:
    """Where something is left to play."""
    endpoint.text = "Yes."
    game = f"lmgame/TwentyQuestions-v0@{{oracle: '{endpoint.player}', max_turns: 2}}"
    command = ["evaluate", "random", "--games", RPS, game, "--out", str(tmp_path / "out"), "--episodes"]
    assert main([*command, "1"]) == 0
    endpoint.shutdown()
    endpoint.server_close()
    assert main([*command, "1"]) == 0
    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    assert before.count(b"\n") == 2
    capsys.readouterr()
    assert main([*command, "2"]) == 2
    assert "--games: lmgame/TwentyQuestions-v0: env_config.oracle: " in capsys.readouterr().err
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == before, "nobody has played"
