"""Games in which all reply at once: through a session, and before the checker."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract.verdicts import Outcome, outcomes

ONE, TWO = "player_0", "player_1"


@pytest.fixture(autouse=True)
def several_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_all_reply_at_once_and_hear_what_was_said_since() -> None:
    session = make_session("several:RockPaperScissors", {"show_rules": True})
    session.reset(0)
    assert session.to_act() == (ONE, TWO) and session.observe(ONE).turns_left == 10
    assert all("Two wins" in session.observe(agent).text for agent in (ONE, TWO))
    result = session.step({ONE: "paper", TWO: "rock"})
    assert (result.done, result.rewards) == (False, {ONE: 1.0, TWO: -1.0})
    assert session.observe(ONE).text == "[player_1] rock\nYour wins: 1 of 2."
    assert session.observe(TWO).text == "[player_0] paper\nYour wins: 0 of 2."
    session.step({ONE: "rock", TWO: "rock"})
    assert session.observe(TWO).text == "[player_0] rock\nYour wins: 0 of 2.", (
        "what was said before the last reply is not said again"
    )
    result = session.step({ONE: "scissors", TWO: "paper"})
    assert result.terminated and session.to_act() == ()
    assert (result.infos[ONE]["success"], result.infos[TWO]["success"]) == (True, False)


def test_an_invalid_reply_costs_its_player_alone_and_the_default_is_played() -> None:
    session = make_session("several:RockPaperScissors", {"max_invalid_actions": 2})
    session.reset(0)
    result = session.step({ONE: "lizard", TWO: "scissors"})
    assert result.rewards == {ONE: pytest.approx(0.9), TWO: -1.0}
    assert (result.infos[ONE]["penalty"], result.infos[ONE]["invalid_action"], result.infos[TWO]["invalid_action"]) == (
        -0.1,
        True,
        False,
    )
    assert session.observe(ONE).text.startswith("Invalid action: hand must be one of")
    result = session.step({ONE: "spock", TWO: "paper"})
    assert result.terminated and result.rewards == {ONE: pytest.approx(-1.1), TWO: 1.0}
    assert (result.infos[ONE]["forfeit"], result.infos[TWO]["forfeit"]) == (True, False)


def test_who_is_left_by_a_forfeit_has_won_whatever_it_had_before() -> None:
    session = make_session("several:RockPaperScissors", {"max_invalid_actions": 1})
    session.reset(0)
    session.step({ONE: "paper", TWO: "rock"})
    result = session.step({ONE: "?", TWO: "rock"})
    assert [(result.infos[agent]["success"], result.infos[agent]["result"]) for agent in (ONE, TWO)] == [
        (False, -1.0),
        (True, 1.0),
    ]


def test_a_slip_makes_no_loss_of_a_draw() -> None:
    session = make_session("several:RockPaperScissors", {"max_turns": 2})
    session.reset(0)
    session.step({ONE: "lizard", TWO: "rock"})
    result = session.step({ONE: "rock", TWO: "rock"})
    verdicts = {agent: info["success"] for agent, info in result.infos.items()}
    results = {agent: info["result"] for agent, info in result.infos.items()}
    assert set(outcomes(verdicts, results).values()) == {Outcome.DRAW}


def test_both_may_forfeit_in_one_round() -> None:
    session = make_session("several:RockPaperScissors", {"max_invalid_actions": 1})
    session.reset(0)
    result = session.step({ONE: "?", TWO: "?"})
    assert result.rewards == {ONE: pytest.approx(-1.1), TWO: pytest.approx(-1.1)}
    assert all(info["forfeit"] and not info["success"] for info in result.infos.values())


def test_rounds_run_out() -> None:
    session = make_session("several:RockPaperScissors", {"max_turns": 1})
    session.reset(0)
    result = session.step({ONE: "rock", TWO: "rock"})
    assert (result.terminated, result.truncated, session.to_act()) == (False, True, ())
    assert session.observe(ONE).turns_left == 0 and not result.infos[ONE]["success"]


def test_a_forfeit_ends_one_seat_and_the_others_play_on() -> None:
    session = make_session("several:PublicGoods", {"max_invalid_actions": 1})
    session.reset(0)
    result = session.step({"a": "5", "b": "everything", "c": "1"})
    assert (result.done, result.ends) == (False, {"b": True}) and result.infos["b"]["forfeit"]
    assert result.rewards == {"a": 1.0, "b": pytest.approx(-0.1), "c": 5.0}, "the pot is shared by the two who are in"
    assert session.to_act() == ("a", "c")
    result = session.step({"a": "0", "c": "0"})
    assert result.terminated and result.infos["c"]["success"]


def test_a_game_tells_its_measures_at_the_end_of_each_players_game() -> None:
    session = make_session("several:PublicGoods", {"max_invalid_actions": 1})
    session.reset(0)
    result = session.step({"a": "5", "b": "everything", "c": "1"})
    assert result.infos["b"]["measures"] == {"given": 0.0} and "measures" not in result.infos["a"]
    result = session.step({"a": "3", "c": "0"})
    assert [result.infos[agent]["measures"] for agent in "ac"] == [{"given": 8.0}, {"given": 1.0}]
