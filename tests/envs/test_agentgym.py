"""Tasks on AgentGym's servers, each against a server on loopback that speaks its dialect."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentgym_server import CLOSES, ITEM_IS, WINS, FakeServer, serving

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.step_timer import WaitedTooLong
from rllib_lmgame.cli.main import main
from rllib_lmgame.downloads.table import SETS
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.games.adapted.agentgym.instructions import CALLS, RULES
from rllib_lmgame.envs.games.adapted.agentgym.tasks import TASKS
from rllib_lmgame.envs.registry import game_spec, games, make_game, make_session
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import Sessions, play_many
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import Seat

TYPED = {
    "webshop": "click[buy {item}]",
    "sqlgym": "```sql\nSELECT {item}\n```",
    "webarena": "stop [{item}]",
    "searchqa": WINS["searchqa"],
    **dict.fromkeys(
        ("weather", "movie", "todo", "academia", "sheet"), 'finish with Action Input: {{"answer": "{item}"}}'
    ),
}
"""What a player types to win, where it is not ``win ITEM``: the server is told it in its own form."""


def typed(task: str, item: int) -> str:
    return TYPED.get(task, "win {item}").format(item=item)


def begun(server: FakeServer, seed: int = 0, **options: Any) -> GameSession:
    config = {"url": server.url, "ids": "7-7", "split": "all", "retries": 1, **options}
    session = make_session(f"agentgym:{server.task}", config)
    session.reset(seed)
    return session


def item_of(session: GameSession) -> int:
    """The item as the server's first words name it."""
    match = re.search(r"item (\d+)", session.observe("player").text)
    assert match is not None
    return int(match[1])


@pytest.mark.parametrize("task", list(TASKS))
def test_each_dialect_is_played_from_create_to_close(task: str) -> None:
    with serving(task) as server:
        session = begun(server)
        first = session.observe("player")
        assert "item 7" in first.text and first.turns_left == TASKS[task].turns
        scores: list[float] = []
        if TASKS[task].turns > 1:
            result = session.step({"player": "look"})
            assert not result.done and "heard" in session.observe("player").text
            scores.append(result.rewards["player"])
        result = session.step({"player": typed(task, 7)})
        scores.append(result.rewards["player"])
        assert result.terminated and result.infos["player"]["success"] and session.observe("player").text == "won"
        best = {"maze": -1 / 15, "babyai": 0.7}.get(task, 1.0)
        assert sum(scores) == pytest.approx(best)
        session.reset(1)
        assert server.created == 1, "the session is used again"
        session.close()
        assert len(server.open) == (0 if task in CLOSES else 1)
        resets = [body for path, body in server.bodies if path.endswith("/reset")]
        assert [body[ITEM_IS[task]] for body in resets] == [7, 7]


def test_wordle_is_won_by_the_word_alone() -> None:
    """Its server adds 1 to LMRL-Gym's rewards: -1 for a wrong guess or what is no word, 0 for the word."""
    guesses = [0]

    def judged(path: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        if path != "/wordle/step":
            return None
        guesses[0] += 1
        won = body["action"] == "c r a n e"
        said = {"observation": "g g g g g\n" if won else "invalid word", "reward": float(won)}
        return 200, json.dumps({**said, "done": won or guesses[0] == 6}).encode()

    with serving("wordle", fault=judged) as server:
        for words, success in ((["x", "s l a t e", "c r a n e"], True), (["x", "s l a t e"] * 3, False)):
            guesses[0] = 0
            session = begun(server)
            results = [session.step({"player": word}) for word in words]
            assert [result.done for result in results] == [False] * (len(words) - 1) + [True]
            assert sum(result.rewards["player"] for result in results) == float(success)
            assert results[-1].infos["player"]["success"] is success
            session.close()


def test_what_is_special_in_a_dialect() -> None:
    with serving("wordle") as server:
        assert begun(server).observe("player").text == "item 7\nWords: crane slate"
    with serving("alfworld") as server:
        seen = begun(server).observe("player")
        assert seen.text.endswith("AVAILABLE ACTIONS: look,win") and seen.legal_actions == ("look", "win")
    with serving("webshop") as server:
        assert begun(server).observe("player").legal_actions == () and not server.asked["/available_actions"]
        listed = begun(server, show_legal_actions=True).observe("player")
        assert listed.legal_actions == ("click[search]", "click[buy 7]")
    with serving("textcraft") as server:
        session = begun(server)
        session.step({"player": "get 1  *oak* log!"})
        session.step({"player": ""})
        assert [body["action"] for path, body in server.bodies if path == "/step"] == ["get 1 oak log"]
        session.close()


# -- faults -----------------------------------------------------------------------------------------------------------


def at(path: str, status: int, content: bytes, times: int = 1_000) -> Callable[..., tuple[int, bytes] | None]:
    left = [times]

    def fault(asked: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        if asked.endswith(path) and left[0] > 0:
            left[0] -= 1
            return status, content
        return None

    return fault


@pytest.mark.parametrize(
    ("path", "status", "content", "said"),
    [
        ("/create", 500, b"Internal Server Error", "status 500: .*Internal"),
        ("/create", 200, b'{"error": "no more"}', "no more"),
        ("/create", 200, b"<html>", "no JSON"),
        ("/reset", 200, b'{"error": "IndexError"}', "IndexError"),
        ("/step", 200, b'{"observation": "x", "reward": NaN, "done": false}', "not textcraft's"),
        ("/step", 200, b'{"observation": "x", "reward": 1}', "not textcraft's"),
        ("/step", 302, b"", "status 302"),
        ("/step", 422, b'{"detail": "wrong"}', "status 422"),
    ],
)
def test_an_answer_of_another_kind_is_the_servers_fault(path: str, status: int, content: bytes, said: str) -> None:
    with serving("textcraft", fault=at(path, status, content)) as server, pytest.raises(GameError, match=said):
        begun(server).step({"player": "look"})


def test_a_busy_server_is_asked_again_and_a_step_is_taken_once() -> None:
    with serving("webshop", fault=at("/step", 503, b"", times=1)) as server:
        begun(server).step({"player": "look"})
        assert server.asked["/step"] == 2
    with serving("webshop", fault=at("/step", 503, b"")) as server, pytest.raises(WaitedTooLong, match="busy"):
        begun(server).step({"player": "look"})
    with serving("webshop", fault=broken("/step")) as server:
        with pytest.raises(GameError, match="broke off"):
            begun(server).step({"player": "look"})
        assert server.asked["/step"] == 1, "it may have been taken"
    with serving("webshop", fault=broken("/reset", times=1)) as server:
        begun(server)
        assert server.asked["/reset"] == 2


def broken(path: str, times: int = 1_000) -> Callable[..., None]:
    left = [times]

    def fault(asked: str, body: dict[str, Any]) -> None:
        if asked.endswith(path) and left[0] > 0:
            left[0] -= 1
            raise ConnectionResetError

    return fault


def test_an_answer_that_never_comes_takes_no_longer_than_its_limit() -> None:
    ended = threading.Event()
    with serving("webshop", fault=lambda path, body: ended.wait(30) and None if path == "/reset" else None) as server:
        try:
            with pytest.raises(GameError, match=r"gave no whole answer in timeout_s=0.2"):
                begun(server, timeout_s=0.2)
        finally:
            ended.set()


def test_a_server_that_is_gone_is_nobodys_level() -> None:
    with serving("textcraft") as server:
        pass
    with pytest.raises(WaitedTooLong, match="start one with: textcraft --host"):
        begun(server)


# -- many at once -----------------------------------------------------------------------------------------------------


class Winner(Seat):
    """Types what wins the item that it sees."""

    async def act(self, session: Any, observation: Any, call: Any) -> str:
        number = re.search(r"item (\d+)", observation.text)
        assert number is not None
        return typed(session.game_id.partition(":")[2], int(number[1]))


def played(server: FakeServer, plans: int, at_once: int = 64, **options: Any) -> tuple[Any, Sessions]:
    game = GameConfig(
        env=f"agentgym:{server.task}", env_config={"url": server.url, "ids": "0-99", "split": "all", **options}
    )
    sessions = Sessions()
    episodes = [EpisodePlan(f"e{n}", 0, n, f"g{n}", n) for n in range(plans)]

    def seats(session: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
        return {"player": Winner("player", "player", "p")}

    return asyncio.run(play_many(episodes, [game], seats, sessions, TextRolloutOptions(), at_once)), sessions


def test_sixty_four_sessions_wait_for_a_slow_server_side_by_side_and_are_used_again() -> None:
    meet = threading.Barrier(64)

    def fault(path: str, body: dict[str, Any]) -> None:
        if path == "/create":
            meet.wait(60)  # Nobody gets a session before all have asked for one.

    with serving("textcraft", fault=fault) as server:
        result, sessions = played(server, 160)
        assert len(result.episodes) == 160 and not result.failures
        assert server.created == server.most_open == 64
        assert all(one.infos["player"]["success"] for one in result.episodes)
        for pool in sessions.idle.values():
            for session in pool:
                session.close()
        assert not server.open


def test_a_game_that_is_closed_before_its_session_is_open_leaves_none() -> None:
    asked, closed = threading.Event(), threading.Event()

    def fault(path: str, body: dict[str, Any]) -> None:
        if path == "/create":
            asked.set()
            closed.wait(30)

    with serving("textcraft", fault=fault) as server:
        session = make_session("agentgym:textcraft", {"url": server.url, "ids": "0-9"})
        told: list[BaseException] = []

        def reset() -> None:
            try:
                session.reset(0)
            except GameError as error:
                told.append(error)

        thread = threading.Thread(target=reset)
        thread.start()
        assert asked.wait(30)
        session.close()
        closed.set()
        thread.join(30)
        assert "closed before its session was open" in str(told[0])
        assert server.created == 1 and not server.open


def test_a_server_that_gives_out_a_session_twice_gives_it_to_one_game_alone() -> None:
    with serving("sqlgym", most=3) as server:
        games_ = [begun(server, retries=3) for _ in range(3)]
        with pytest.raises(WaitedTooLong, match=r"all 8 sessions .* are taken"):
            begun(server, retries=3)
        games_.pop().close()
        begun(server, retries=3).step({"player": "SELECT 7"})


def test_sessions_of_a_server_that_was_started_anew_are_opened_anew() -> None:
    with serving("textcraft") as server:
        before = [begun(server), begun(server)]
        server.open.clear()
        server.created = 0
        with pytest.raises(GameError, match="KeyError"):
            before[1].step({"player": "look"})
        fresh = begun(server)  # It is called as the first one was.
        fresh.step({"player": "look"})
        for session in before:
            session.reset(1)
        assert len(server.open) == 3 and "heard" in fresh.observe("player").text
        fresh.step({"player": "win 7"})
        before[0].step({"player": "look"})
        for session in (*before, fresh):
            session.close()
        assert not server.open


SCRIPT = """
import sys
from rllib_lmgame.envs.registry import make_session
kept = [make_session("agentgym:textcraft", {"url": sys.argv[1], "ids": "0-9", "split": "all"}) for _ in range(3)]
for session in kept:
    session.reset(0)
raise SystemExit("an error")
"""


def test_an_ended_process_leaves_no_session() -> None:
    with serving("textcraft") as server:
        command = [sys.executable, "-c", SCRIPT, server.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert "an error" in ended.stderr and not server.open and server.created == 3


# -- items ------------------------------------------------------------------------------------------------------------


def items_file(path: Path, *names: Any) -> str:
    path.write_text(json.dumps([{"item_id": name} for name in names]))
    return str(path)


def test_lists_of_items(tmp_path: Path) -> None:
    train = items_file(tmp_path / "train.json", *(f"textcraft_{n}" for n in range(200)))
    test = items_file(tmp_path / "test.json", "textcraft_900", "textcraft_901")
    with serving("textcraft") as server:
        found: dict[str, set[int]] = {}
        for split in ("train", "validation", "test"):
            session = begun(server, ids=train, test_ids=test, split=split)
            for seed in range(60):
                session.reset(seed)
                found.setdefault(split, set()).add(item_of(session))
            session.close()
    assert found["test"] == {900, 901}
    assert found["train"] | found["validation"] <= set(range(200)) and not found["train"] & found["validation"]


def test_an_item_that_both_lists_have_is_tested_alone() -> None:
    with serving("textcraft") as server:
        for split in ("train", "validation"):
            session = begun(server, ids="0-99", test_ids="50-149", split=split)
            for seed in range(50):
                session.reset(seed)
                assert item_of(session) < 50
            session.close()
        session = begun(server, ids="0-99", test_ids="50-149", split="test")
        assert {item_of(session) for seed in range(100) if session.reset(seed) is None} == set(range(50, 150))
        session.close()


def test_published_lists_of_items_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tmp_path / "data" / "agentgym-ids"
    files.mkdir(parents=True)
    items_file(files / "textcraft_train.json", *(f"textcraft_{n}" for n in range(20)))
    items_file(files / "textcraft_test.json", "textcraft_77")
    monkeypatch.setenv("RLLIB_LMGAME_DATA", str(tmp_path / "data"))
    named = {"ids": "data:agentgym-ids:textcraft", "test_ids": "data:agentgym-ids:textcraft-test"}
    with serving("textcraft") as server:
        with pytest.raises(ConfigError, match=r"env_config\.ids: .*rllib data fetch agentgym-ids"):
            begun(server, **named)
        said = {"parts": ["textcraft", "textcraft-test"], "files": {}}
        (files / "SOURCE.json").write_text(json.dumps(said))
        assert item_of(begun(server, **named, split="test")) == 77
        assert item_of(begun(server, **named, split="all")) < 20


def test_ids_of_alfworld_that_are_texts_get_their_numbers_from_its_table(tmp_path: Path) -> None:
    kind, trial = "look_at_obj_in_light-AlarmClock-None-DeskLamp-301", "trial_T20190907_174127_043461"
    ids = items_file(tmp_path / "train.json", f"{kind}_{trial}")
    with serving("alfworld") as server:
        with pytest.raises(ConfigError, match=r"ids: .*train.json, entry 0: .*id_table"):
            begun(server, ids=ids)
        table = tmp_path / "mappings_train.json"
        table.write_text(json.dumps([{"item_id": 41, "task_type": kind, "task_id": trial}]))
        assert item_of(begun(server, ids=ids, id_table=str(table))) == 41
        table.write_text(json.dumps({f"{kind}_{trial}": "41"}))
        with pytest.raises(ConfigError, match=r"id_table: .* must map texts to numbers"):
            begun(server, ids=ids, id_table=str(table))


def test_an_evaluation_plays_the_whole_list_and_has_a_row_for_each_category(tmp_path: Path) -> None:
    folder = tmp_path / "textcraft"
    folder.mkdir()
    items_file(folder / "textcraft_test.json", *(f"textcraft_{n}" for n in range(20)))
    items_file(folder / "shallow.json", *(f"textcraft_{n}" for n in range(12)))
    items_file(folder / "deep.json", *(f"textcraft_{n}" for n in range(12, 20)))
    with serving("textcraft") as server:
        options = {"url": server.url, "test_ids": str(folder / "textcraft_test.json"), "categories": str(folder)}
        game = f"crafts=agentgym:textcraft@{json.dumps(options | {'split': 'test'})}"
        command = [
            "evaluate",
            "agentgym_server:Winner",
            "--games",
            game,
            "--episodes",
            "20",
            "--out",
            str(tmp_path / "out"),
        ]
        assert main(command) == 0
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["evaluated"]
    assert [(row["name"], row["num_episodes"], row["levels"]) for row in rows] == [
        ("crafts", 20, 20),
        ("crafts/deep", 8, 8),
        ("crafts/shallow", 12, 12),
    ]
    assert [row["success_rate"] for row in rows] == pytest.approx([18 / 20, 7 / 8, 11 / 12])


def test_every_task_is_told_its_rules_and_has_its_data() -> None:
    assert set(RULES) == set(TASKS) >= set(CALLS)
    for name in ("agentgym-traj", "agentgym-eval"):
        assert set(SETS[name].parts) == set(TASKS)
    assert set(SETS["agentgym-ids"].parts) == {f"{task}{ending}" for task in TASKS for ending in ("", "-test")}


# -- names ------------------------------------------------------------------------------------------------------------


def test_games_are_found_by_task_and_a_wrong_one_names_the_nearest() -> None:
    assert {f"agentgym:{task}" for task in TASKS} <= games().keys() and len(TASKS) == 15
    with pytest.raises(ConfigError, match="did you mean 'agentgym:textcraft'"):
        game_spec("agentgym:textcrat")
    with pytest.raises(ConfigError, match=r"needs the address of a server .*lmrlgym --host"):
        make_game("agentgym:maze", {"ids": "0-24"})
    nothing = make_game("agentgym:maze", {"url": "http://127.0.0.1:9"})
    for call in (nothing.check_ready, nothing.reset):
        with pytest.raises(ConfigError, match=r"env_config.ids: .* needs its items: .*data:agentgym-ids:maze"):
            call()
    with pytest.raises(ConfigError, match=r"env_config.url: .*no address"):
        make_game("agentgym:maze", {"url": "127.0.0.1:36001", "ids": "0-24"})


def test_the_check_before_a_run_opens_a_session_and_closes_it() -> None:
    with serving("textcraft") as server:
        game = make_game("agentgym:textcraft", {"url": server.url, "ids": "0-9"})
        assert "opens sessions" in game.check_ready() and server.created == 1 and not server.open
        server.fault = at("/create", 200, b'{"error": "no memory"}')
        with pytest.raises(ConfigError, match=r"no session of textcraft can be opened: .*no memory"):
            game.check_ready()
    game = make_game("agentgym:textcraft", {"url": "http://127.0.0.1:9", "ids": "0-9"})
    with pytest.raises(ConfigError, match=r"no server answers at .*start one with: textcraft"):
        game.check_ready()
