"""The rules that hold in every game: what an invalid reply costs, forfeits, limits of replies; and what games for
several make of them.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.contract.referee import MAX_TEXT, InvalidAction, Referee, reply_text
from tests.envs.begun import begun

REPLIES = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from((None, 0.0, -2.0, "default"))), max_size=30)


@given(REPLIES, st.one_of(st.none(), st.integers(1, 4)), st.one_of(st.none(), st.integers(1, 20)))
def test_a_ruling_follows_from_the_seats_own_replies_alone(replies, most, turns) -> None:
    referee = Referee("ab", -0.5, most, turns)
    told: dict[str, list[object]] = {"a": [], "b": []}
    for seat, cost in replies:
        problem = None if cost is None else InvalidAction("no.", None if cost == "default" else cost)  # type: ignore[arg-type]
        referee.count(seat)
        ruling = referee.rule(seat, problem)
        told[seat].append(cost)
        last = told[seat][-most:] if most else []
        assert ruling.forfeit == (most is not None and len(last) == most and None not in last)
        assert (ruling.invalid, ruling.penalty) == (cost is not None, {None: 0.0, "default": -0.5}.get(cost, cost))  # type: ignore[call-overload]
        assert referee.note(seat) == ruling.note == ("" if cost is None else "Invalid action: no.")
        for agent, own in told.items():
            assert referee.turns_left(agent) == (None if turns is None else turns - len(own))
            assert referee.has_replied(agent) == bool(own)
    referee.begin()
    assert not referee.has_replied("a") and referee.turns_left("b") == turns and not referee.note("a")


@pytest.mark.parametrize("reply", [None, 3, b"x", "x" * (MAX_TEXT + 1)])
def test_what_is_no_readable_text_is_invalid(reply: object) -> None:
    with pytest.raises(InvalidAction):
        reply_text(reply)


def test_a_forfeit_ends_the_seat_and_the_others_play_on() -> None:
    session = begun(make_session("several:Heap", {"max_invalid_actions": 2}))
    session.step({"a": "1"})
    session.step({"b": "all"})
    result = session.step({"b": "none"})
    assert (result.done, dict(result.ends)) == (False, {"b": True})
    assert (result.rewards["b"], result.infos["b"]["forfeit"], result.infos["b"]["success"]) == (
        pytest.approx(-0.1),
        True,
        False,
    )
    assert not result.infos["a"].get("forfeit") and "success" not in result.infos["a"]
    movers = []
    while session.to_act():
        movers += session.to_act()
        result = session.step({movers[-1]: "1"})
    assert movers[:4] == ["c", "a", "c", "a"] and "b" not in movers
    loser, winner = movers[-1], movers[-2]
    assert result.rewards[loser] == -1 and result.rewards[winner] == 1 and result.infos[winner]["success"]
    assert result.infos[loser]["measures"] == {"left": 0, "players": 2}


def test_the_last_one_left_has_won_also_where_a_player_gives_up_between_moves() -> None:
    session = begun(make_session("several:Heap"))
    assert session.forfeit("a").ends == {"a": True}  # type: ignore[union-attr]
    assert session.to_act() == ("b",)
    result = session.forfeit("b")
    assert result is not None and result.terminated and result.infos["c"]["success"]
    assert not result.infos["c"]["forfeit"] and session.to_act() == ()


def test_a_forfeit_ends_the_game_of_all_where_the_game_does_not_say_otherwise() -> None:
    session = begun(make_session("several:HeapForAll", {"max_invalid_actions": 1}))
    result = session.step({"a": "x"})
    assert result.terminated and result.infos["a"]["forfeit"] and not result.infos["b"]["forfeit"]
    assert session.to_act() == ()


def test_a_game_is_cut_short_when_a_player_has_no_reply_left() -> None:
    session = begun(make_session("lmgame/TicTacToe-v0", {"max_turns": 2}))
    assert "when a player has given 2 replies" in session.instructions
    assert [session.observe(agent).turns_left for agent in "XO"] == [2, 2]
    for agent, reply in (("X", "1"), ("O", "zero"), ("O", "2")):
        result = session.step({agent: reply})
        assert not result.done
    assert [session.observe(agent).turns_left for agent in "XO"] == [1, 0]
    result = session.step({"X": "3"})
    assert (result.terminated, result.truncated, result.ends) == (False, True, {"X": False, "O": False})
    assert result.rewards == {"X": 0.0, "O": 0.0}
    assert not any(info["success"] or info["forfeit"] for info in result.infos.values())


@pytest.mark.parametrize(
    ("game", "method", "rewards", "said"),
    [
        ("Heap", "forfeit_results", {"b": 1.0}, r"`forfeit_results` must name .* it leaves out a"),
        ("Heap", "forfeit_results", {"a": -1.0, "d": 1.0}, r"`forfeit_results` names 'd'; the players are a, b, c"),
        ("HeapForAll", "forfeit_results", {"a": -1.0}, r"`forfeit_results` must name .* it leaves out b, c"),
        ("Heap", "eliminated", {"d": 1.0}, r"`eliminated` names 'd'"),
        ("PublicGoods", "forfeit_results", {"b": 1.0}, r"`forfeit_results` must name .* it leaves out a"),
        ("PublicGoods", "play_round", {"b": 1.0, "d": 1.0}, r"`play_round` names 'd'; the players are b, c"),
        ("PublicGoods", "play_round", {"a": 1.0}, r"`play_round` names 'a'; the players are b, c"),
    ],
)
def test_rewards_of_the_wrong_players_are_named(game, method, rewards, said, monkeypatch) -> None:
    session = begun(make_session(f"several:{game}", {"max_invalid_actions": 1}))
    monkeypatch.setattr(f"several.{game}.{method}", lambda *_: rewards)
    with pytest.raises(GameError, match=said):
        session.step({"a": "x"} | dict.fromkeys(session.to_act()[1:], "0"))
