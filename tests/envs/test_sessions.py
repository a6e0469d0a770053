"""Registry and sessions: names, keys, faults of games, the three kinds of environment."""

from __future__ import annotations

import dataclasses
import importlib
import random
import sys
import types
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from rllib_lmgame.algorithms.trust import is_own_game
from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.envs import GameError, GameSpec, game_spec, make_game, make_session, registry
from rllib_lmgame.envs.contract.adapters import AECSession, ParallelSession
from rllib_lmgame.envs.registry import ENTRY_POINT_GROUP, games, own_games
from tests.envs.begun import begun, each_game


@pytest.mark.parametrize(
    ("game", "key", "said"),
    [
        ("lmgame/Sokobn-v0", "game", "did you mean 'lmgame/Sokoban-v0'"),
        ("kuhnpoker", "game", "did you mean 'lmgame/KuhnPoker-v0'"),
        ("rllib_lmgame.envs.games.grids.sokoban:Sokobn", "game", "did you mean 'Sokoban'"),
        ("rllib_lmgame.envs.games.grids.sokoban:RULES", "game", "must be a class"),
        ("broken_games:Plain", "env_config.falt", "no such argument"),
        ("CartPole-v1", "game", "gym_games.game:GymTextGame with `env_config: {env_id: CartPole-v1}`"),
    ],
)
def test_what_is_wrong_is_named(game: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_session(game, {"falt": 1})
    assert caught.value.path == key and said in str(caught.value)


@each_game
def test_specs_tell_the_truth(game: str) -> None:
    spec = own_games()[game]
    session = begun(make_session(game))
    assert tuple(session.roles.values()) == spec.roles
    first = session.to_act()[0]
    assert session.observe(first).turns_left == spec.horizon
    assert (session.expert_action(first) is not None) == spec.solver


def test_a_session_keeps_the_rules_for_the_system_prompt() -> None:
    session = begun(make_session("lmgame/Sokoban-v0"), seed=1)
    assert "Push every box" in session.instructions
    assert "Push every box" not in session.observe("player").text
    session = begun(make_session("lmgame/Sokoban-v0", {"show_rules": True}), seed=1)
    assert session.observe("player").text.startswith(session.instructions)


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("a_package_nobody_has", r"pip install 'rllib-lmgame\[needy\]'"),
        ("browsergym.core.nothing", "pip install --no-deps browsergym-core browsergym-miniwob"),
    ],
)
def test_a_missing_package_names_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, command: str
) -> None:
    (tmp_path / "needy_game.py").write_text(f"import {package}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "needy_game", raising=False)
    from rllib_lmgame.envs.registry import load_factory

    with pytest.raises(MissingDependencyError, match=command):
        load_factory(GameSpec("test/Needy-v0", "needy_game:Game", extra="needy"))


def test_games_of_other_packages_come_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other_games-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-games\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nother/Counting-v0 = broken_games:Counting\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "other/Counting-v0" in games()
    assert begun(make_session("other/Counting-v0")).to_act() == ("player",)


def test_where_a_class_lives_does_not_say_whose_game_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    look_alike = types.ModuleType("rllib_lmgame.envs.look_alike")
    look_alike.Plain = type("Plain", (make_game("broken_games:Plain").__class__,), {"__module__": look_alike.__name__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, look_alike.__name__, look_alike)
    moved = dataclasses.replace(
        game_spec("lmgame/Sokoban-v0"), game_id="test/Moved-v0", entry_point="broken_games:Plain"
    )
    foreign = GameSpec("test/Foreign-v0", "rllib_lmgame.envs.look_alike:Plain")
    for spec in (moved, foreign):
        monkeypatch.setitem(registry._GAMES, spec.game_id, spec)
    names = (moved.game_id, moved.entry_point, foreign.game_id, foreign.entry_point)
    found = {name: (game_spec(name).own, make_session(name).trusted) for name in names}
    assert found == dict(zip(names, [(True, True), (True, True), (False, False), (False, False)], strict=True))
    assert is_own_game(moved.game_id) and not is_own_game(foreign.game_id)
    assert not is_own_game(moved.entry_point), "from strangers no import path is taken"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("nan", "finite number"),
        ("large", "finite number of at most 1e"),
        ("observation", "must be text"),
        ("endless", "has 10,000,000 characters; at most 262,144"),
        ("info", "must be a dict"),
        ("flag", "True or False"),
        ("short", "must return"),
        ("raise", "ZeroDivisionError: division by zero"),
        ("legal", "sequence of texts"),
        ("turns left is endless", "whole number of at most 1,000,000,000"),
        ("reset", "RuntimeError: no more levels"),
    ],
)
def test_a_game_that_breaks_its_promise_is_a_game_error(fault: str, said: str) -> None:
    session = make_session("broken_games:Plain", {"fault": fault})
    with pytest.raises(GameError, match=said) as caught:
        session.reset(0)
        session.step({"player": "x"})
        session.observe("player")
    assert "broken_games:Plain" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("roles", property(lambda env: 1 / 0), "roles raised ZeroDivisionError"),
        ("roles", ["even", "odd"], "`roles` is a list; it must be a mapping"),
        ("roles", {"even": "a\ud800"}, r"'a\\ud800' is no name of a role"),
        ("possible_agents", ["a", "a"], "two agents are called 'a'"),
        ("possible_agents", ["a", "\udfff"], r"'\\udfff' is no name of an agent"),
        ("possible_agents", [0, "0"], "two agents are called '0'"),
    ],
)
def test_names_that_no_log_or_metric_can_hold_are_refused(name, value, said) -> None:
    kind = type(make_game("broken_games:Matching"))
    env = type("Odd", (kind,), {name: value})() if name == "roles" else kind()
    if name == "possible_agents":
        env.possible_agents = value
        env.spaces = dict.fromkeys(value, env.action_space("even"))
    with pytest.raises(GameError, match=f"a game: {said}"):
        ParallelSession("a game", env)


@pytest.mark.parametrize("ids", [[0, 1], [("seat", 1), ("seat", 2)]], ids=["numbers", "tuples"])
@pytest.mark.parametrize(("game", "reply"), [("Count", "3"), ("Together", "a")])
def test_agents_may_be_called_by_anything_that_is_a_key(game, reply, ids) -> None:
    kind = getattr(importlib.import_module("author_games"), game)

    class Named(kind):  # type: ignore[misc, valid-type]
        possible_agents = property(lambda self: ids, lambda self, value: None)
        roles = {ids[0]: "one", ids[1]: "two"}

        def expert_action(self, agent) -> str:
            return f"{ids.index(agent)}"

    session = (AECSession if game == "Count" else ParallelSession)("a game", Named())
    one, two = names = tuple(str(name) for name in ids)
    assert session.agent_ids == names and session.roles == {one: "one", two: "two"}
    assert [session.expert_action(name) for name in names] == ["0", "1"]
    assert session.random_action(two, random.Random(0)) in tuple("123ab")
    session.reset(0)
    while agents := session.to_act():
        shown = [session.observe(name) for name in names]
        result = session.step(dict.fromkeys(agents, reply))
    assert shown and result.terminated and set(result.rewards) == set(result.infos) == set(result.ends) == set(names)
    assert result.rewards[two] == 1.0 and session.observe(one).text in ("3", "next")


@pytest.mark.parametrize("name", ["invalid_action", "forfeit"])
def test_what_an_info_says_of_a_move_is_true_or_false(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = make_session("broken_games:Plain", {"fault": "odd"})
    fine_ones = (True, np.False_, 0, np.int64(1), 0.0, np.float32(0), np.longdouble(1), None)
    for value, fine in [(value, True) for value in fine_ones] + [("no", False), (2, False), (0.5, False)]:
        monkeypatch.setitem(importlib.import_module("broken_games").ODD_INFOS, "odd", {name: value})
        session.reset(0)
        with nullcontext() if fine else pytest.raises(GameError, match=rf"info\['{name}'\] is {value!r}; it must be"):
            said = session.step({"player": "x"}).infos["player"][name]
            assert said is (None if value is None else bool(value))


def test_a_plain_gymnasium_game_needs_none_of_our_base_classes() -> None:
    session = begun(make_session("broken_games:Plain"))
    assert (session.agent_ids, session.roles, session.instructions) == (("player",), {"player": "player"}, "")
    result = session.step({"player": "x"})
    assert (result.rewards, result.terminated, session.to_act()) == ({"player": 1.0}, True, ())
    assert session.expert_action("player") is None


def test_parallel_games_ask_all_at_once() -> None:
    session = begun(make_session("broken_games:Matching"))
    assert session.to_act() == ("even", "odd")
    assert session.observe("odd").legal_actions == ("heads", "tails")
    with pytest.raises(GameError, match="needs an action of odd"):
        session.step({"even": "heads"})
    session.step({"even": "heads", "odd": "tails"})
    result = session.step({"even": "heads", "odd": "heads"})
    assert result.rewards == {"even": 1.0, "odd": -1.0}
    assert result.terminated and not result.truncated
    assert session.to_act() == ()
    assert result.infos["even"]["success"]


def test_a_player_whose_game_is_over_is_paid_nothing_more() -> None:
    session = begun(make_session("broken_games:PaidLater", {"rounds": 3}))
    assert session.step({"even": "heads", "odd": "heads"}).rewards["even"] == 1.0
    with pytest.raises(GameError, match="rewards even, whose game was over before"):
        session.step({"odd": "heads"})
