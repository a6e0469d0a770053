"""Who meets whom: the published rules, drawn as often as they say, the same in every process."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.league.league import League
from rllib_lmgame.league.matchmaking import Matchmaker, Member, Standing, draw_member, drawn, forgotten
from rllib_lmgame.league.options import LeagueOptions

RATES = [0.5, 0.05, 0.9, 0.3, 0.95, 0.6]


def standings_of(rates: list[float]) -> list[Standing]:
    return [Standing(Member(f"m{i}", "p", i), rate, 10.0) for i, rate in enumerate(rates)]


def league_of(rates: list[float], **options) -> League:
    """A league whose policy has won so often against its members."""
    league = League(LeagueOptions(**options), ["p"], run_seed=5)
    for number, rate in enumerate(rates):
        league.decided(number, [Member(f"m{number}", "p", number)])
        for outcome, games in (("win", 1000 * rate), ("loss", 1000 * (1 - rate))):
            league.payoffs.add("p", f"m{number}", outcome, games)
    return league


@pytest.mark.parametrize(
    ("name", "options", "formula", "draws"),
    [
        ("pfsp_hard", {}, lambda x: (1 - x) ** 2, 20_000),
        ("pfsp_hard", {"power": 0.5}, lambda x: (1 - x) ** 0.5, 20_000),
        ("pfsp_var", {}, lambda x: x * (1 - x), 20_000),
        ("uniform", {}, lambda x: 1.0, 10_000),
        ("latest", {}, lambda x: float(x == RATES[-1]), 1_000),
    ],
)
def test_members_are_met_as_often_as_the_rule_says(name: str, options: dict[str, float], formula, draws: int) -> None:
    """Each within 4 standard deviations."""
    league = league_of(RATES, matchmaking={"type": name, **options}, forgotten=None, opponent_engines=100)
    met = Counter(table.member.name for iteration in range(draws // 100) for table in league.tables(iteration))
    rates = [standing.win_rate for standing in league.standings("p")]
    weights = [formula(x) for x in (RATES if name == "latest" else rates)]
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(met[f"m{number}"] - draws * share) <= 4 * math.sqrt(draws * share * (1 - share))


@pytest.mark.parametrize(
    ("rates", "names"),
    [
        ([0.3, 0.9, 0.8, 0.5], ["m0", "m1"]),
        ([0.9, 0.8, 0.5], []),  # ever harder, as it should be
        ([0.75, 0.9, 0.8], []),  # all of them are beaten still
        ([0.2, 0.6, 0.4, 0.9, 0.5], ["m0", "m1", "m2", "m3"]),
        ([0.5], []),
    ],
)
def test_forgotten_members(rates: list[float], names: list[str]) -> None:
    assert [standing.member.name for standing in forgotten(standings_of(rates), 0.7)] == names


@given(st.lists(st.sampled_from([0.1, 0.4, 0.7, 0.9]), max_size=8), st.sampled_from([0.0, 0.5, 0.7, 1.0]))
def test_forgotten_members_are_the_published_ones(rates: list[float], below: float) -> None:
    """``remove_monotonic_suffix`` and the threshold on the least of what it leaves, from the pseudocode that
    accompanies Vinyals et al., Nature 575, 2019.
    """
    left: list[str] = []
    for i in range(len(rates) - 1, 0, -1):
        if rates[i - 1] < rates[i]:
            left = [f"m{number}" for number in range(i + 1)] if min(rates[: i + 1]) < below else []
            break
    assert [standing.member.name for standing in forgotten(standings_of(rates), below)] == left


def test_forgotten_members_get_their_share_of_the_matches() -> None:
    """.15 of all matches is .15 / .65 of those against members, by (1 - x)^2; within 4 standard deviations."""
    options = LeagueOptions(matchmaking="latest", self_play_share=0.35)
    standings, draws = standings_of([0.1, 0.9, 0.8]), 20_000
    met = Counter(
        draw_member(standings, options, lambda purpose, i=i: drawn(i, purpose)).name  # type: ignore[misc]
        for i in range(draws)
    )
    for name, weight in (("m0", 0.9**2), ("m1", 0.1**2)):
        share = 0.15 / 0.65 * weight / (0.9**2 + 0.1**2)
        assert abs(met[name] - draws * share) <= 4 * math.sqrt(draws * share * (1 - share))
    assert met["m0"] + met["m1"] + met["m2"] == draws


def hardest(standings: list[Standing]) -> list[float]:
    """A matchmaker of one's own."""
    least = min(standing.win_rate for standing in standings)
    return [float(standing.win_rate == least) for standing in standings]


def nobody(standings: list[Standing]) -> list[float]:
    return [0.0] * len(standings)


def negative(standings: list[Standing]) -> list[float]:
    return [-1.0] * len(standings)


class Older(Matchmaker):
    """All alike but the newest ``left_out``."""

    left_out: int = option(1, "How many.", ge=0)

    def __call__(self, standings: list[Standing], /) -> list[float]:
        return [float(number < len(standings) - self.left_out) for number in range(len(standings))]


def test_a_matchmaker_of_ones_own() -> None:
    league = league_of(RATES, matchmaking=f"{__name__}:hardest", forgotten=None)
    assert {table.member.name for i in range(20) for table in league.tables(i)} == {"m1"}
    with pytest.raises(ConfigError, match=r"must return one number of at least 0 for each"):
        league_of(RATES, matchmaking=f"{__name__}:negative", forgotten=None).tables(0)
    league = league_of(RATES, matchmaking={"type": f"{__name__}:Older", "left_out": 5}, forgotten=None)
    assert {table.member.name for i in range(20) for table in league.tables(i)} == {"m0"}
    for wrong, told in (
        ("pfsp_herd", "did you mean `pfsp_hard`"),
        (f"{__name__}:test_a_matchmaker_of_ones_own", "takes one argument"),
        ({"type": "uniform", "power": 3}, r"power: unknown key"),
        ({"type": f"{__name__}:Older", "left_out": -1}, "left_out"),
    ):
        with pytest.raises(ConfigError, match=rf"matchmaking.*{told}"):
            LeagueOptions(matchmaking=wrong)


def test_where_all_weights_are_zero_every_member_is_drawn_alike() -> None:
    """Within 4 standard deviations."""
    league = league_of(RATES, matchmaking=f"{__name__}:nobody", forgotten=None, opponent_engines=100)
    met = Counter(table.member.name for iteration in range(60) for table in league.tables(iteration))
    for number in range(len(RATES)):
        assert abs(met[f"m{number}"] - 1000) <= 4 * math.sqrt(6000 * 1 / 6 * 5 / 6)
