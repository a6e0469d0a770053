"""The checker finds nothing wrong with our games, and the fault of each broken one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from rllib_lmgame.envs.checking import apart, checker
from rllib_lmgame.envs.checking.checker import Report, check_game, inspect_game
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.registry import make_session
from tests.envs.begun import each_game

VARIANTS = [
    ("lmgame/Sokoban-v0", {"split": "test", "show_legal_actions": True, "show_coordinates": True}),
    ("lmgame/Sokoban-v0", {"max_actions": None, "max_turns": 5, "invalid_action_penalty": -1.0}),
    ("lmgame/Blocksworld-v0", {"observation": "1d", "max_invalid_actions": None}),
    ("lmgame/KuhnPoker-v0", {"players": 3, "show_legal_actions": True}),
    ("lmgame/TicTacToe-v0", {"max_invalid_actions": 1, "invalid_action_penalty": 0.0}),
    ("lmgame/IteratedPrisonersDilemma-v0", {"rounds": 3, "chat_turns": 2}),
    ("lmgame/PublicGoods-v0", {"rounds": 3, "chat_turns": 2}),
    ("lmgame/Werewolf-v0", {"players": 5, "doctor": False, "seer": False, "talk_rounds": 2}),
    ("lmgame/TextArenaMatch-v0", {"env_id": "LiarsDice-v0", "players": 3}),
    ("lmgame/OpenSpiel-v0", {"game": "goofspiel(num_cards=3)"}),
    ("lmgame/OpenSpiel-v0", {"game": "catch"}),
    ("several:PublicGoods", {}),
    ("several:Heap", {"max_turns": 5}),
    ("several:HeapForAll", {}),
]
LONG = [
    ("lmgame/Blocksworld-v0", {"num_blocks": 5, "observation": "2d", "min_distance": 4}),
    ("lmgame/FrozenLake-v0", {"size": 8, "max_actions": 40}),
    ("lmgame/TextArena-v0", {"env_id": "GuessTheNumber-v0-hardcore"}),
    ("lmgame/TextArena-v0", {"env_id": "2048-v0", "history": True}),
    ("lmgame/TextArenaMatch-v0", {"env_id": "SecretMafia-v0"}),
]

BROKEN = {
    "NoRules": "instructions",
    "Unseeded": "made in reset(seed)",
    "SaltedHash": "hash()",
    "NotANumber": "finite number",
    "RaisesOnGarbage": "raised KeyError",
    "ListsIllegal": "list only what is accepted",
    "Endless": "max_turns",
    "NoSuccess": "info['success']",
    "BothFlags": "both true",
    "SharedLevels": "share",
    "OneLevel": "every seed gives the same level",
    "WrongSolver": "return what the game accepts",
    "LazySolver": "does not solve",
    "UnmarkedGarbage": "info['invalid_action']",
    "NotZeroSum": "zero_sum",
    "Talking": "with `quoted`",
    "NumberSpace": "gymnasium.spaces.Text",
    "WrongMeasures": "names 'right letters'",
    "FractionMeasures": "no finite number",
}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Callable[[str, dict], str]]:
    """``checker._digest_elsewhere`` by one process for all games; each in its own takes a second to start."""
    code = (
        "import json, os, sys; out = open(os.dup(1), 'w'); os.dup2(2, 1)\n"
        "from rllib_lmgame.envs.checking.checker import transcript_digest\n"
        "for line in sys.stdin: print(transcript_digest(*json.loads(line)), file=out, flush=True)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def digest(name: str, config: dict) -> str:
            print(json.dumps([name, config]), file=process.stdin, flush=True)
            return process.stdout.readline().strip()  # type: ignore[union-attr]

        yield digest


@pytest.fixture(autouse=True)
def elsewhere_is_one_process(request: pytest.FixtureRequest, elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    if "SaltedHash" not in request.node.name:
        monkeypatch.setattr(checker, "_digest_elsewhere", elsewhere)


@each_game
def test_every_game_keeps_the_contract(game: str) -> None:
    assert check_game(game) == []


@pytest.mark.parametrize(
    ("game", "config"), [*VARIANTS, *(pytest.param(*variant, marks=pytest.mark.slow) for variant in LONG)]
)
def test_variants_keep_the_contract(game: str, config: dict) -> None:
    report = inspect_game(game, config)
    assert (report.problems, report.warnings) == ((), ())


@pytest.mark.parametrize("game", ["Counting", "Matching", "Quoting", "NumpyMeasures"])
def test_a_sound_game_by_import_path_passes(game: str) -> None:
    assert check_game(f"broken_games:{game}") == []


@pytest.mark.parametrize(("name", "said"), BROKEN.items())
def test_the_fault_of_a_broken_game_is_named(name: str, said: str) -> None:
    problems = check_game(f"broken_games:{name}")
    assert any(said in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("MarksNoEnd", {}, [r"as reply 3, which ended the game, is not marked; set .*, also in the infos at the end"]),
        (
            "MarksNothing",
            {},
            [
                r"16 of the 16 invalid replies tried .* \(for example ''\); end or truncate it",
                "as reply 1 is not marked",
            ],
        ),
        ("Endless", {"max_invalid_actions": None}, [r" of the 16 .*; end it after max_invalid_actions"]),
    ],
)
def test_what_is_wrong_with_invalid_replies_is_said_once(name: str, config: dict, said: list[str], monkeypatch) -> None:
    monkeypatch.setattr(checker, "MAX_REPLIES", 50)
    problems = checker._garbage(name, {}, make_session(f"broken_games:{name}", config))
    assert len(problems) == len(said)
    assert all(re.search(*pair) for pair in zip(said, problems, strict=True)), problems


def test_the_line_where_a_game_raises_is_named() -> None:
    session = make_session("broken_games:ReadsNumbers")
    raising = '        return json.loads("1", parse_int=lambda _: int(action))'
    lines = (Path(__file__).parent / "broken_games.py").read_text().splitlines()
    place = rf"ValueError: invalid literal .* \(broken_games\.py:{1 + lines.index(raising)}\)"
    with pytest.raises(GameError, match=rf"step\(\) raised {place}$"):
        checker._garbage("broken_games:ReadsNumbers", {}, session)
    (problem,) = checker._standard("broken_games:ReadsNumbers", {}, session)
    assert re.search(place, problem)


@pytest.mark.parametrize("game", ["Letters", "Count", "Together"])
def test_a_valid_game_that_knows_nothing_of_this_package_gets_warnings_alone(game: str) -> None:
    report = inspect_game(f"author_games:{game}")
    assert report.problems == ()
    assert ["instructions" in report.warnings[0], "info['success']" in report.warnings[1]] == [True, True]
    assert len(report.warnings) == 2


@pytest.mark.parametrize(
    ("where", "how", "said"),
    [
        ("the constructor", "sleep", "the constructor did not come back within 0.5 s (at author_games.py, line"),
        ("step()", "regular expression", "step() did not come back within 0.5 s (at author_games.py, line"),
        ("step()", "exit", "exit status 0 during step()"),
        ("reset()", "system exit", "exit status 0"),
    ],
)
def test_a_game_that_hangs_is_ended_and_the_call_is_named(where: str, how: str, said: str) -> None:
    started = []
    real = apart.subprocess.Popen

    def start(*args, **kwargs):
        started.append(real(*args, **kwargs))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apart.subprocess, "Popen", start)
        (problem,) = apart.check_apart("author_games:Hanging", {"where": where, "how": how}, call_limit_s=0.5).problems
    assert problem.startswith("author_games:Hanging: ") and said in problem, problem
    assert started[0].poll() is not None


def test_checks_that_do_not_end_are_ended() -> None:
    (problem,) = apart.check_apart("author_games:Hanging", {"where": "step()"}, limit_s=0.0).problems
    assert "the checks did not end within 0 s" in problem


def test_a_check_apart_finds_what_a_check_finds() -> None:
    assert apart.check_apart("broken_games:NoRules") == Report(tuple(check_game("broken_games:NoRules")))
