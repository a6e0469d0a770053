"""Measures of an evaluation: which there are, who takes the seats, and where the numbers stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rllib_lmgame.algorithms import measures
from rllib_lmgame.algorithms.exploitability import Exploitability
from rllib_lmgame.algorithms.measures import load_measure, measure_policies, measured_columns, profiles
from rllib_lmgame.algorithms.trust import check_config
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.rollouts.asking import Answer
from rllib_lmgame.rollouts.line_ups import LineUps
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.trust import Gate

KUHN = {"env": "lmgame/KuhnPoker-v0", "env_config": {}}


class Seats:
    """A measure of one's own: which policies were measured."""

    columns = ("first", "last")

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def problem(self, game: GameConfig) -> str | None:
        return "a game for one" if "Sokoban" in game.env else None

    def __call__(self, game: GameConfig, policies: Any) -> Mapping[str, float]:
        return {"first": self.scale * len(policies), "last": self.scale * len(game.env)}


class Gains(Seats):
    """Numbers that cannot be told from those of the last iterate."""

    columns = ("gain", "gain_last")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (["exploitabilty"], r"measures\[0\]: .*did you mean `exploitability`"),
        (["exploitability", 3], r"measures\[1\]: expected a measure's name"),
        ([{"type": "exploitability", "samples": 1}], "samples"),
        ([{"type": "exploitability", "sampels": 8}], "sampels"),
        (["json:dumps"], "dumps"),
        ("exploitability", "expected a list"),
    ],
)
def test_what_is_no_measure_is_refused(make_config: Callable[..., Any], setting: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_config(**KUHN, evaluation_config={"measures": setting})


def test_a_measure_that_no_game_has_is_refused(make_config: Callable[..., Any]) -> None:
    every = {"evaluation_interval": 1}
    config = make_config(**every, evaluation_config={"measures": ["exploitability"]})
    with pytest.raises(ConfigError, match="Sokoban-v0 cannot be walked through"):
        config.validate()
    make_config(**KUHN, **every, evaluation_config={"measures": ["exploitability"]}).validate()
    small = [{"type": "exploitability", "max_states": 1000}]
    with pytest.raises(ConfigError, match="more than 1,000 states"):
        leduc = {**KUHN, "env": "lmgame/LeducPoker-v0"}
        make_config(**leduc, **every, evaluation_config={"measures": small}).validate()
    cut = make_config(
        **{**KUHN, "env_config": {"max_turns": 2}}, **every, evaluation_config={"measures": ["exploitability"]}
    )
    with pytest.raises(ConfigError, match="max_turns"):
        cut.validate()


def test_a_saved_configuration_names_its_measures(make_config: Callable[..., Any]) -> None:
    config = make_config(**KUHN, evaluation_config={"measures": [{"type": "exploitability", "samples": 9}]})
    assert config.as_yaml()["evaluation_config"]["measures"] == [{"type": "exploitability", "samples": 9}]
    again = type(config)().update_from_dict(config.to_dict())
    assert again.evaluation_measures == config.evaluation_measures
    assert load_measure(config.evaluation_measures[0], "x").samples == 9  # type: ignore[attr-defined]


TWO = {"policies": ["one", "two"]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {(): ["player", "player"]}),
        ({**TWO, "policy_mapping_fn": {"player_0": "one", "player_1": "two"}}, {(): ["one", "two"]}),
        (
            {**TWO, "policy_mapping_fn": "random_seat"},
            {("one",): ["one", "one"], ("two",): ["two", "two"]},
        ),
        (
            {
                "policies": {"one": {}, "foe": {"player": "random"}},
                "policy_mapping_fn": {"player_0": "one", "player_1": "foe"},
            },
            {(): ["one", "one"]},
        ),
    ],
)
def test_who_takes_the_seats(make_config: Callable[..., Any], settings: dict, expected: dict) -> None:
    config = make_config(**KUHN, **settings)
    found = profiles(config, LineUps(config), GameConfig(KUHN["env"]))
    assert {name: list(seats.values()) for name, seats in found.items()} == expected


def test_where_the_numbers_stand(make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_with_engines", lambda config, seats, use, heal: use(seats))
    own = {"type": "seats", "scale": 2}
    monkeypatch.setitem(measures.OWN_MEASURES, "seats", "x")
    monkeypatch.setattr(measures, "import_path", lambda path, key: Seats)
    config = make_config(**KUHN)
    two, three = GameConfig(KUHN["env"]), GameConfig(KUHN["env"], {"players": 3})
    sokoban = GameConfig("lmgame/Sokoban-v0")
    assert measure_policies(config, [own], [two, sokoban]) == {"first": 4.0, "last": 38.0}
    several = measure_policies(config, ["seats"], [two, three, sokoban])
    assert several == {
        "games": {
            "lmgame_KuhnPoker-v0": {"first": 2.0, "last": 19.0},
            "lmgame_KuhnPoker-v0_2": {"first": 3.0, "last": 19.0},
        }
    }
    assert measured_columns(config, ["seats"], [two, three]) == tuple(
        ("games", game, name) for game in several["games"] for name in ("first", "last")
    )
    once = measure_policies(config, ["seats"], [two], suffix="_last")
    twice = {"first": 2.0, "last": 19.0, "first_last": 2.0, "last_last": 19.0}
    assert measure_policies(config, ["seats"], [two], result=once) == twice
    assert {path for (path,) in measured_columns(config, ["seats"], [two], averaged=True)} == set(once)
    both = make_config(**KUHN, **TWO, policy_mapping_fn="random_seat")
    assert measure_policies(both, ["seats"], [two]) == {name: {"first": 2.0, "last": 19.0} for name in TWO["policies"]}


def test_numbers_of_one_name_are_refused_and_games_keep_theirs_apart(
    make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = ["exploitability", {"type": "exploitability", "samples": 8}]
    every = {"evaluation_interval": 1}
    with pytest.raises(ConfigError, match=r"measures\[1\].* names already: exploitability"):
        make_config(**KUHN, **every, evaluation_config={"measures": twice}).validate()
    averages = {"token_ppo": {"ema_decay": 0.9}}
    gains = {**KUHN, **every, "evaluation_config": {"measures": [f"{__name__}:Gains"]}}
    for averaged in (averages, {"algorithm_config_overrides_per_module": {"player": averages}}):
        with pytest.raises(ConfigError, match=r"measures\[0\].* names already: gain_last"):
            make_config(**gains, **averaged).validate()
    make_config(**gains).validate()
    monkeypatch.setattr(measures, "_with_engines", lambda config, seats, use, heal: {"illegal_mean": len(seats)})
    games = [GameConfig("lmgame/TicTacToe-v0"), GameConfig(KUHN["env"])]
    found = measure_policies(make_config(**KUHN), ["exploitability", "tic_tac_toe"], games)
    assert set(found["games"]) == {"lmgame_TicTacToe-v0", "lmgame_KuhnPoker-v0"} and len(found) == 1


def test_no_game_is_walked_where_nothing_evaluates(
    make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[str] = []
    monkeypatch.setattr(Exploitability, "problem", lambda self, game: walks.append(game.env))
    for interval in (None, 1):
        make_config(**KUHN, evaluation_interval=interval, evaluation_config={"measures": ["exploitability"]}).validate()
        assert bool(walks) is bool(interval)


def test_the_gap_of_a_matrix_game_is_what_a_best_response_gains(make_config: Callable[..., Any]) -> None:
    """Worked out by hand: paper gains 1 a game against who always shows rock, and 1/3 against (2/3, 0, 1/3)."""
    measure = load_measure("best_response_gap", "key")
    shown = {"player_0": {"rock": 1.0}, "player_1": {"rock": 2 / 3, "scissors": 1 / 3}}

    class Asked:
        reasoning = False

        def ask(self, decisions: Any) -> list[Answer]:
            assert all(set(decision.legal_actions) == {"rock", "paper", "scissors"} for decision in decisions)
            return [Answer(shown[decision.agent_id], 0.1 * decision.seat) for decision in decisions]

    game = GameConfig("lmgame/RockPaperScissors-v0", {"rounds": 1})
    numbers = measure(game, Asked())
    assert set(numbers) == set(measure.columns) and numbers["illegal_max"] == pytest.approx(0.1)
    # The first has 1/3 from rock against it, and 1/3 from the best answers, rock and paper; the second has -1/3.
    assert numbers["best_response_gap_first"] == pytest.approx(0.0)
    assert numbers["best_response_gap_second"] == pytest.approx(1 + 1 / 3)
    assert numbers["best_response_gap"] == pytest.approx(2 / 3)
    for other, says in (({"rounds": 2}, "rounds: 1"), ({"rounds": 1, "chat_turns": 1}, "chat_turns: 0")):
        assert says in str(measure.problem(GameConfig(game.env, other)))
    assert "no matrix game" in str(measure.problem(GameConfig("lmgame/PublicGoods-v0", {})))


def test_why_a_game_cannot_be_walked_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from rllib_lmgame.algorithms import exploitability

    walks: list[str] = []

    def refuse(env: str, env_config: Any, max_states: int) -> Any:
        walks.append(env)
        raise ValueError("too large")

    monkeypatch.setattr(exploitability, "game_tree", refuse)
    measure, game = exploitability.Exploitability(max_states=77), GameConfig(KUHN["env"])
    assert [measure.problem(game) for _ in range(3)] == ["too large"] * 3 and len(walks) == 1
    assert "not plain" in str(measure.problem(GameConfig(KUHN["env"], {"players": {2}})))


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (["exploitability", {"type": "exploitability", "samples": 8}], True),
        (["somewhere.else:Measure"], False),
        ([{"type": "somewhere.else:Measure"}], False),
        ("somewhere.else:Measure", False),
    ],
)
def test_a_strangers_file_names_only_measures_of_this_package(value: Any, taken: bool) -> None:
    config = {"evaluation_config": {"measures": value}}
    if taken:
        check_config(config, Gate("a stranger", "trust it"))
    else:
        with pytest.raises(ConfigError, match="is not taken from a stranger"):
            check_config(config, Gate("a stranger", "trust it"))
