"""Scripted players, seat mappings and where model files come from."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.mapping import make_mapping
from rllib_lmgame.policies.model import files as model_files
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.policies.scripted import make_scripted_player


def named_mapping(agent_id: str, episode=None, **kwargs) -> str:
    return "p"


class Mute:
    def act(self, *args) -> str:
        return "nothing"


def test_random_player_is_legal_and_repeatable() -> None:
    session = make_session("lmgame/TicTacToe-v0", {})
    session.reset(0)
    view = session.observe("X")
    player = make_scripted_player("random")
    picks = [player.act(session, "X", view, random.Random(3)) for _ in range(2)]
    assert picks[0] == picks[1] and picks[0] in view.legal_actions
    with pytest.raises(ConfigError, match="legal actions"):
        player.act(session, "X", Observation("?"), random.Random(0))


def test_minimax_never_loses_to_random() -> None:
    session = make_session("lmgame/TicTacToe-v0", {})
    best, rng = make_scripted_player("minimax"), random.Random(0)
    for seed in range(5):
        session.reset(seed)
        total = 0.0
        while session.to_act():
            (agent,) = session.to_act()
            view = session.observe(agent)
            action = best.act(session, agent, view, rng) if agent == "X" else rng.choice(view.legal_actions)
            total += session.step({agent: action}).rewards.get("X", 0.0)
        assert total >= 0


def test_players_by_name_and_path() -> None:
    assert make_scripted_player(f"{__name__}:Mute").act(None, "", Observation(""), random.Random()) == "nothing"  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'solver'"):
        make_scripted_player("solvr")
    with pytest.raises(ConfigError, match=r"config\.policies"):
        make_scripted_player("no_such_module:Player")


@pytest.mark.parametrize(
    ("player", "words"),
    [("openai:m@http://h/v1", "rllib evaluate --against"), ("hf:some/model", "in a run a model is a policy")],
)
def test_a_player_of_the_command_line_is_none_of_a_run(player: str, words: str) -> None:
    policies = {"player": {}, "foe": {"player": player}}
    with pytest.raises(ConfigError, match=rf"config.policies.foe.player: '{player}' plays in .*{words}"):
        LMGamePPOConfig().environment("lmgame/KuhnPoker-v0").players(policies, "versus").validate()


def test_seats_by_agent_role_and_rest() -> None:
    mapping = make_mapping({"X": "a", "second": "b", "*": "c"}, ["a", "b", "c"])
    assert [mapping("X", role="first"), mapping("O", role="second"), mapping("Z", role="third")] == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="no policy for agent 'O'"):
        make_mapping({"X": "a"}, ["a"])("O", role="second")
    with pytest.raises(ConfigError, match="did you mean 'player'"):
        make_mapping({"X": "plaer"}, ["player"])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
def test_random_seats_deal_every_policy_the_seats_allow(policies: int, trained: int, seats: int, seed: int) -> None:
    names = [f"p{i}" for i in range(policies)]
    agents = [f"a{i}" for i in range(seats)]
    trained = min(trained, policies)
    mapping = make_mapping("random_seat", names, trained)
    dealt = [mapping(agent, agent_ids=agents, seed=seed) for agent in agents]
    if seats >= policies:
        assert sorted(dealt) == sorted(names[min(i, policies - 1)] for i in range(seats))
    else:
        assert len(set(dealt)) == seats and set(dealt) & set(names[:trained])


@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 2**16))
def test_versus_gives_every_seat_to_every_trained_policy_alike(seats: int, trained: int, start: int) -> None:
    """Over as many episodes as there are seats and trained policies together."""
    agents, names = [f"a{i}" for i in range(seats)], [f"p{i}" for i in range(trained)]
    mapping = make_mapping("versus", [*names, "chance"], trained)
    numbers = range(start * seats, (start + trained) * seats)
    own = Counter(
        (policy, agent)
        for number in numbers
        for agent in agents
        if (policy := mapping(agent, agent_ids=agents, number=number)) != "chance"
    )
    assert own == {(name, agent): 1 for name in names for agent in agents}


def test_versus_meets_its_opponents_by_weight_in_both_seats() -> None:
    spec = {"type": "versus", "opponents": {"minimax": 3, "frozen": 1}}
    mapping = make_mapping(spec, ["learner", "minimax", "frozen", "other"])
    tables = [[mapping(agent, agent_ids=("X", "O"), number=i) for agent in "XO"] for i in range(400)]
    for name, share in (("minimax", 150), ("frozen", 50)):
        assert [sum(table[place] == name for table in tables) for place in (0, 1)] == [pytest.approx(share, abs=2)] * 2
    assert all((tables[i][1], tables[i + 1][0]) == (tables[i][1],) * 2 for i in range(0, 400, 2))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("versus", "versus needs opponents"),
        (
            {"type": "versus", "opponents": {"random": 1}},
            r"unknown policy 'random'; name one of a, b, minimax, other, or add random: {player: random} to policies",
        ),
        ({"type": "versus", "opponents": ["a"]}, "'a' is trained"),
        ({"type": "versus", "opponents": {"minimax": 0}}, "opponents.minimax: expected a share greater than 0, got 0"),
        ({"X": ["a"]}, r"X: expected the name of a policy \(a, b, minimax, other\), got the list"),
        ({"type": "versus", "opponents": [["minimax"]]}, "opponents: expected the name of a policy"),
    ],
)
def test_what_is_wrong_with_a_mapping_is_named(spec, message: str) -> None:
    policies = ["a", "b"] if spec == "versus" else ["a", "b", "minimax", "other"]
    with pytest.raises(ConfigError, match=rf"config\.policy_mapping_fn.*{message}"):
        make_mapping(spec, policies, 2)


def test_a_policy_per_role() -> None:
    roles = {"seller": "seller", "buyer": "buyer"}
    by_name = make_mapping("per_role", ["buyer", "seller", "other"], 2)
    in_order = make_mapping("per_role", ["one", "two"], 2)
    assert [by_name(agent, role=agent, roles=roles) for agent in roles] == ["seller", "buyer"]
    assert [in_order(agent, role=agent, roles=roles) for agent in roles] == ["one", "two"]
    werewolf = {"p0": "wolf", "p1": "villager", "p2": "villager"}
    assert [in_order(agent, role=role, roles=werewolf) for agent, role in werewolf.items()] == ["one", "two", "two"]
    with pytest.raises(ConfigError, match="per_role finds no policy for every role: the game has seller, buyer"):
        make_mapping("per_role", ["seller", "b"], 2)("seller", role="seller", roles=roles)


def test_trained_policies_take_turns_at_playing_themselves() -> None:
    mapping = make_mapping("self_play", ["a", "b", "frozen"], 2)
    assert [[mapping(agent, number=number, seed=9) for agent in "XO"] for number in (4, 5)] == [["a"] * 2, ["b"] * 2]


def test_mapping_by_callable_path_and_nonsense() -> None:
    assert make_mapping(named_mapping, ["p"])("X") == "p"
    assert make_mapping(f"{__name__}:named_mapping", ["p"])("X") == "p"
    with pytest.raises(ConfigError, match="policy_mapping_fn"):
        make_mapping("shred", ["p"])


# -- model files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(model_files.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "model").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_carried_files_are_unpacked_once_and_repaired(scratch: Path) -> None:
    files = ModelFiles.ship(scratch / "model")
    directory = Path(files.directory())
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == {
        "config.json": b"{}",
        "model.safetensors": b"weights",
    }
    stamp = (directory / "config.json").stat().st_mtime_ns
    assert files.directory() == str(directory) and (directory / "config.json").stat().st_mtime_ns == stamp
    (directory / "model.safetensors").write_bytes(b"wei")
    (directory / "config.json").unlink()
    assert files.directory() == str(directory)
    assert (directory / "model.safetensors").read_bytes() == b"weights"
    assert [p.name for p in directory.parent.iterdir()] == [directory.name]


def test_files_that_nobody_has_used_for_long_are_removed(scratch: Path) -> None:
    first = Path(ModelFiles.ship(scratch / "model").directory())
    (scratch / "model" / "config.json").write_text("{ }")
    second = Path(ModelFiles.ship(scratch / "model").directory())
    assert first.is_dir() and second != first
    os.utime(first, (0, 0))
    assert ModelFiles.ship(scratch / "model").directory() == str(second) and second.is_dir() and not first.exists()


def test_a_directory_of_somebody_else_is_not_trusted(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.getuid()
    (scratch / "tmp" / f"rllib_lmgame-{real + 1}").mkdir()
    monkeypatch.setattr(model_files.os, "getuid", lambda: real + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        ModelFiles.ship(scratch / "model").directory()


def test_models_too_large_to_carry(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "MAX_SHIPPED_BYTES", 4)
    with pytest.raises(ConfigError, match="every node"):
        ModelFiles.ship(scratch / "model")
