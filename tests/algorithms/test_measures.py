"""Measures of an evaluation: which there are, who takes the seats, and where the numbers stand."""

from __future__ import annotations

import pytest

from rllib_lmgame.algorithms.measuring import measures
from rllib_lmgame.algorithms.measuring.exact import Exploitability
from rllib_lmgame.algorithms.measuring.measures import measure_policies, measured_columns, profiles
from rllib_lmgame.algorithms.trust import check_config
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.registry import MEASURES
from rllib_lmgame.base.trust import Gate
from rllib_lmgame.inference.serving import client
from rllib_lmgame.rollouts.batch_inference import Answer, NotAnswered
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.sources import AgentMapper

KUHN = {"env": "lmgame/KuhnPoker-v0", "env_config": {}}


class Seats:
    """A measure of one's own: which policies were measured."""

    columns = ("first", "last")

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def problem(self, game: GameConfig) -> str | None:
        return "a game for one" if "Sokoban" in game.env else None

    def __call__(self, game: GameConfig, policies):
        return {"first": self.scale * len(policies), "last": self.scale * len(game.env)}


class Forgetful(Seats):
    """A number that is promised and not given, and one that is given and not promised."""

    columns = ("first", "last", "middle")


class Talkative(Seats):
    columns = ("first",)


class Gains(Seats):
    """Numbers that cannot be told from those of the last iterate."""

    columns = ("gain", "gain_last")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (["exploitabilty"], r"measures\[0\]: .*did you mean `exploitability`"),
        (["exploitability", 3], r"measures\[1\]: expected a name"),
        ([{"type": "exploitability", "samples": 1}], "samples"),
        (["json:dumps"], "dumps"),
        ([{"type": "against", "player": "json:dumps"}], r"measures\[0\]\.player: "),
    ],
)
def test_what_is_no_measure_is_refused(make_config, setting, says) -> None:
    with pytest.raises(ConfigError, match=says):
        make_config(**KUHN, evaluation_config={"measures": setting}).validate()


def test_a_measure_that_no_game_has_is_refused(make_config) -> None:
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


TWO = {"policies": ["one", "two"]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {(): ["player", "player"]}),
        ({**TWO, "policy_mapping_fn": {"player_0": "one", "player_1": "two"}}, {(): ["one", "two"]}),
        ({**TWO, "policy_mapping_fn": "random_seat"}, {("one",): ["one", "one"], ("two",): ["two", "two"]}),
        (
            {
                "policies": {"one": {}, "foe": {"player": "random"}},
                "policy_mapping_fn": {"player_0": "one", "player_1": "foe"},
            },
            {(): ["one", "one"]},
        ),
    ],
)
def test_who_takes_the_seats(make_config, settings, expected) -> None:
    config = make_config(**KUHN, **settings)
    found = profiles(config, AgentMapper(config), GameConfig(env=KUHN["env"]))
    assert {name: list(seats.values()) for name, seats in found.items()} == expected


def test_where_the_numbers_stand(make_config, monkeypatch) -> None:
    monkeypatch.setattr(measures, "_with_engines", lambda config, game, seats, use, heal, play: use(seats))
    own = {"type": "seats", "scale": 2}
    monkeypatch.setitem(MEASURES.own, "seats", Seats)  # type: ignore[arg-type]
    config = make_config(**KUHN)
    two, three = GameConfig(env=KUHN["env"]), GameConfig(env=KUHN["env"], env_config={"players": 3})
    sokoban = GameConfig(env="lmgame/Sokoban-v0")
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


def test_numbers_of_one_name_are_refused_and_games_keep_theirs_apart(make_config, monkeypatch) -> None:
    twice = ["exploitability", {"type": "exploitability", "samples": 8}]
    every = {"evaluation_interval": 1}
    with pytest.raises(ConfigError, match=r"measures\[1\].* names already: exploitability"):
        make_config(**KUHN, **every, evaluation_config={"measures": twice}).validate()
    averages = {"training": {"ema_decay": 0.9}}
    gains = {**KUHN, **every, "evaluation_config": {"measures": [f"{__name__}:Gains"]}}
    for averaged in (averages, {"algorithm_config_overrides_per_module": {"player": averages}}):
        with pytest.raises(ConfigError, match=r"measures\[0\].* names already: gain_last"):
            make_config(**gains, **averaged).validate()
    make_config(**gains).validate()
    monkeypatch.setattr(
        measures, "_with_engines", lambda config, game, seats, use, heal, play: {"illegal_mean": len(seats)}
    )
    games = [GameConfig(env="lmgame/TicTacToe-v0"), GameConfig(env=KUHN["env"])]
    found = measure_policies(make_config(**KUHN), ["exploitability", {"type": "against", "player": "minimax"}], games)
    assert set(found["games"]) == {"lmgame_TicTacToe-v0", "lmgame_KuhnPoker-v0"} and len(found) == 1


@pytest.mark.parametrize(
    ("measure", "says"),
    [
        ("Forgetful", r"measures\[1\]: Forgetful gave first, last, but its `columns` name first, last, middle"),
        ("Talkative", r"measures\[1\]: Talkative gave first, last, but its `columns` name first"),
    ],
)
def test_a_measure_gives_the_numbers_that_it_promises(make_config, monkeypatch, measure, says) -> None:
    monkeypatch.setattr(measures, "_with_engines", lambda config, game, seats, use, heal, play: use(seats))
    settings, games = [f"{__name__}:Seats", f"{__name__}:{measure}"], [GameConfig(env=KUHN["env"])]
    with pytest.raises(ConfigError, match=says):
        measure_policies(make_config(**KUHN), settings, games)


class Uniform:
    """Policies that take all legal replies alike; what they were asked for."""

    def __init__(self, reasoning: bool) -> None:
        self.reasoning = reasoning
        self.asked: list[int] = []

    def ask(self, decisions, samples: int) -> list[Answer]:
        self.asked.append(samples)
        drawn = samples if self.reasoning else None
        return [self._answer(decision, number, drawn) for number, decision in enumerate(decisions)]

    def _answer(self, decision, number: int, samples: int | None = None) -> Answer:
        """The first decision has an illegal reply half the time."""
        legal = decision.legal_actions
        counts = None if samples is None else dict.fromkeys(legal, samples // len(legal) // (1 if number else 2))
        return Answer(dict.fromkeys(legal, 1 / len(legal)), 0.0 if number else 0.5, counts)


@pytest.mark.parametrize("reasoning", [False, True])
def test_the_exploitability_of_policies_that_reason_and_of_others(reasoning: bool) -> None:
    """Of samples as many as the measure says."""
    measure, policies = Exploitability(samples=48), Uniform(reasoning)
    numbers = measure(GameConfig(env=KUHN["env"]), policies)  # type: ignore[arg-type]
    assert policies.asked == [48] and set(numbers) == set(measure.columns)
    value = numbers["exploitability"]
    assert value == pytest.approx(11 / 24) and numbers["nash_conv"] == pytest.approx(2 * value)
    assert numbers["illegal_max"] == 0.5 and numbers["illegal_mean"] == pytest.approx(0.5 / 12)


@pytest.mark.parametrize(("fails", "heals"), [(0, True), (1, True), (2, True), (3, True), (1, False)])
def test_engines_that_die_are_asked_once_more_when_they_are_back(make_config, monkeypatch, fails, heals) -> None:
    """Three times at most, with clients of its own each time, which are closed; not where nobody brings them back."""
    happened: list[str] = []

    class Client:
        def __init__(self, names: list[str], request_timeout_s: float) -> None:
            assert names == ["engine"]
            happened.append("client")

        def generate(self, request) -> None:
            raise AssertionError("not asked in this test")

        def close(self) -> None:
            happened.append("closed")

    class Once(Seats):
        def __call__(self, game: GameConfig, policies):
            if happened.count("client") <= fails:
                raise NotAnswered("gone")
            return {"first": 1.0, "last": 2.0}

    monkeypatch.setattr(client, "EngineClient", Client)
    monkeypatch.setitem(MEASURES.own, "once", Once)
    config = make_config(**KUHN)
    config.engine_names = {"player": ["engine"]}
    monkeypatch.setattr(measures, "AskedPolicies", lambda *args: args)
    heal = (lambda: happened.append("healed")) if heals else None

    def measured():
        return measure_policies(config, ["once"], [GameConfig(env=KUHN["env"])], heal)

    if heals and fails < 3:
        assert measured() == {"first": 1.0, "last": 2.0}
        assert happened == ["client", "closed", "healed"] * fails + ["client", "closed"]
    else:
        with pytest.raises(NotAnswered, match="gone"):
            measured()
        tries = 3 if heals else 1
        assert happened == ["client", "closed", "healed"] * (tries - 1) + ["client", "closed"]


def test_no_game_is_walked_where_nothing_evaluates(make_config, monkeypatch) -> None:
    walks: list[str] = []
    monkeypatch.setattr(Exploitability, "problem", lambda self, game: walks.append(game.env))
    for interval in (None, 1):
        make_config(**KUHN, evaluation_interval=interval, evaluation_config={"measures": ["exploitability"]}).validate()
        assert bool(walks) is bool(interval)


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (["exploitability", {"type": "exploitability", "samples": 8}], True),
        (["somewhere.else:Measure"], False),
        ([{"type": "somewhere.else:Measure"}], False),
        ("somewhere.else:Measure", False),
    ],
)
def test_a_strangers_file_names_only_measures_of_this_package(value, taken) -> None:
    config = {"evaluation_config": {"measures": value}}
    if taken:
        check_config(config, Gate("a stranger", "trust it"))
    else:
        with pytest.raises(ConfigError, match="is not taken from a stranger"):
            check_config(config, Gate("a stranger", "trust it"))
