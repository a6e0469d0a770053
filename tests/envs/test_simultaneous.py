"""Games in which all reply at once: through a session, and before the checker."""

from __future__ import annotations

import pytest

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract.verdicts import Outcome, outcomes
from tests.envs.begun import begun

ONE, TWO = "player_0", "player_1"


def hands(**config: object):
    """Rock, paper, scissors; an invalid reply shows scissors."""
    return begun(make_session("lmgame/RockPaperScissors-v0", config))


def test_an_invalid_reply_costs_its_player_alone_and_the_default_is_played() -> None:
    session = hands(max_invalid_actions=2)
    result = session.step({ONE: "lizard", TWO: "paper"})
    assert result.rewards == {ONE: pytest.approx(0.9), TWO: -1.0}
    one, two = result.infos[ONE], result.infos[TWO]
    assert (one["penalty"], one["invalid_action"], two["invalid_action"]) == (-0.1, True, False)
    assert session.observe(ONE).text.startswith("Invalid action: ")
    result = session.step({ONE: "spock", TWO: "paper"})
    assert result.terminated and result.rewards == {ONE: pytest.approx(-9.1), TWO: 9.0}
    assert (result.infos[ONE]["forfeit"], result.infos[TWO]["forfeit"]) == (True, False)


def test_a_slip_makes_no_loss_of_a_draw() -> None:
    session = hands(rounds=2)
    session.step({ONE: "lizard", TWO: "scissors"})
    infos = session.step({ONE: "rock", TWO: "rock"}).infos
    verdicts, results = ({agent: info[key] for agent, info in infos.items()} for key in ("success", "result"))
    assert set(outcomes(verdicts, results).values()) == {Outcome.DRAW}


def test_a_forfeit_ends_one_seat_and_the_others_play_on() -> None:
    session = begun(make_session("several:PublicGoods", {"max_invalid_actions": 1}))
    result = session.step({"a": "5", "b": "everything", "c": "1"})
    assert (result.done, result.ends) == (False, {"b": True}) and result.infos["b"]["forfeit"]
    assert result.rewards == {"a": 1.0, "b": pytest.approx(-0.1), "c": 5.0}, "the pot is shared by the two who are in"
    assert session.to_act() == ("a", "c")
    result = session.step({"a": "0", "c": "0"})
    assert result.terminated and result.infos["c"]["success"]


def test_a_game_tells_its_measures_at_the_end_of_each_players_game() -> None:
    session = begun(make_session("several:PublicGoods", {"max_invalid_actions": 1}))
    result = session.step({"a": "5", "b": "everything", "c": "1"})
    assert result.infos["b"]["measures"] == {"given": 0.0} and "measures" not in result.infos["a"]
    result = session.step({"a": "3", "c": "0"})
    assert [result.infos[agent]["measures"] for agent in "ac"] == [{"given": 8.0}, {"given": 1.0}]
