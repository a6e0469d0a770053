"""Plans do not depend on who plays them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.rollouts.plans import EpisodePlan, deal_games, plan_episodes, split_plans, stable_seed

counts = st.integers(1, 60)
weights = st.lists(st.floats(0.01, 100), min_size=1, max_size=5)


def plans_of(count: int, **options: object) -> list[EpisodePlan]:
    return plan_episodes(count, **{"run_seed": 0, "purpose": "train", "iteration": 3, **options})  # type: ignore[arg-type]


@given(counts, st.integers(1, 8), st.integers(1, 7), weights)
def test_runners_share_the_same_plans(count: int, group_size: int, runners: int, shares: list[float]) -> None:
    plans = plans_of(count, group_size=group_size, game_weights=shares)
    assert plans == plans_of(count, group_size=group_size, game_weights=shares)
    dealt = split_plans(plans, runners)
    assert len(dealt) == runners
    assert sorted((p for share in dealt for p in share), key=lambda p: p.index) == plans


@given(counts, st.integers(1, 8), st.integers(1, 7))
def test_shares_are_even_and_groups_stay_together_where_they_can(count: int, group_size: int, runners: int) -> None:
    dealt = split_plans(plans_of(count, group_size=group_size), runners)
    share = -(-count // runners)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= min(group_size, share)
    if group_size <= share:
        homes: dict[str, set[int]] = {}
        for runner, plans in enumerate(dealt):
            for plan in plans:
                homes.setdefault(plan.group, set()).add(runner)
        assert all(len(home) == 1 for home in homes.values())


@given(counts, st.integers(1, 8), weights)
def test_groups_share_their_level_and_game(count: int, group_size: int, shares: list[float]) -> None:
    plans = plans_of(count, group_size=group_size, game_weights=shares)
    groups: dict[str, list[EpisodePlan]] = {}
    for plan in plans:
        groups.setdefault(plan.group, []).append(plan)
    assert [len(g) for g in groups.values()] == [group_size] * (count // group_size) + (
        [count % group_size] if count % group_size else []
    )
    for group in groups.values():
        assert len({(plan.seed, plan.game) for plan in group}) == 1
    assert [plan.index for plan in plans] == list(range(count))
    assert len({plan.episode_id for plan in plans}) == count


@given(st.integers(0, 200), weights, st.integers(0, 2**31 - 1))
def test_every_game_gets_its_share_within_one_group(groups: int, shares: list[float], seed: int) -> None:
    dealt = Counter(deal_games(groups, shares, seed))
    assert sum(dealt.values()) == groups
    for game, weight in enumerate(shares):
        assert abs(dealt[game] - groups * weight / sum(shares)) < 1 + 1e-9


def test_purposes_iterations_and_runs_play_other_levels() -> None:
    seeds = [
        {plan.seed for plan in plans_of(200, **options)}
        for options in ({}, {"purpose": "evaluation"}, {"iteration": 4}, {"run_seed": 1})  # type: ignore[arg-type]
    ]
    assert all(len(s) == 200 for s in seeds)
    assert len(set.union(*seeds)) == 800


def test_replacements() -> None:
    plan = plans_of(8, group_size=4)[5]
    again = plan.replacement(new_level=False)
    assert (again.seed, again.group, again.index) == (plan.seed, plan.group, 5)
    assert (again.attempt, again.episode_id) == (1, "train-3-5+1")
    other = again.replacement(new_level=True)
    assert other.seed != plan.seed and other.group != plan.group and other.episode_id == "train-3-5+2"
    # The same group gets the same new level.
    assert plans_of(8, group_size=4)[6].replacement(True).seed == plan.replacement(True).seed


def test_any_text_has_a_seed() -> None:
    assert stable_seed("\ud800") != stable_seed("\udfff")
    assert stable_seed("train", 2, "ü") == 1378173075
