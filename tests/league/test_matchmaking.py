"""Who meets whom: the published rules, drawn as often as they say, the same in every process."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.league.league import League
from rllib_lmgame.league.matchmaking import Matchmaker, Member, Standing
from rllib_lmgame.league.options import LeagueOptions

RATES = [0.5, 0.05, 0.9, 0.3, 0.95, 0.6]


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
    league = league_of(RATES, matchmaking={"type": name, **options}, opponent_engines=100)
    met = Counter(table.member.name for iteration in range(draws // 100) for table in league.tables(iteration))
    rates = [standing.win_rate for standing in league.standings("p")]
    weights = [formula(x) for x in (RATES if name == "latest" else rates)]
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(met[f"m{number}"] - draws * share) <= 4 * math.sqrt(draws * share * (1 - share))


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
    league = league_of(RATES, matchmaking=f"{__name__}:hardest")
    assert {table.member.name for i in range(20) for table in league.tables(i)} == {"m1"}
    with pytest.raises(ConfigError, match=r"must return one number of at least 0 for each"):
        league_of(RATES, matchmaking=f"{__name__}:negative").tables(0)
    league = league_of(RATES, matchmaking={"type": f"{__name__}:Older", "left_out": 5})
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
    league = league_of(RATES, matchmaking=f"{__name__}:nobody", opponent_engines=100)
    met = Counter(table.member.name for iteration in range(60) for table in league.tables(iteration))
    for number in range(len(RATES)):
        assert abs(met[f"m{number}"] - 1000) <= 4 * math.sqrt(6000 * 1 / 6 * 5 / 6)
