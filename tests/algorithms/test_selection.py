"""What is trained on of what was played, against the same written out by hand."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import numpy as np
import pytest
from episode_parts import episode_of, part_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.algorithms.ppo import (
    LMGamePPO,
    LMGamePPOConfig,
    group_spreads,
    kept_groups,
    normalize_rewards,
    overlong_punishment,
    play_and_select,
    punish_overlong,
)
from rllib_lmgame.envs.support.item_order import item_of_seed
from rllib_lmgame.rollouts.item_order import ItemOrder, passes
from rllib_lmgame.rollouts.options import DataSelectionOptions, NormalizeRewardsOptions, OverlongOptions
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.records import PlayResult, Trajectory, Turn

few = settings(max_examples=50)
rewards = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=3)


def part_with(rewards, tokens: int = 2, **names: str):
    """One player's turns with these rewards."""
    ids, logprobs = np.zeros(tokens, np.int32), np.zeros(tokens, np.float32)
    turns = [Turn(ids[:1], ids, logprobs, reward) for reward in rewards]
    return part_of(Trajectory(turns, terminated=True, **names))


def episode(rewards, group: str, tokens: int = 2, **names: str):
    return episode_of(part_with(rewards, tokens, group=group, **names))


def returns_of(episodes) -> list[float]:
    return [sum(part.get_rewards()) for each in episodes for part in each.agent_episodes.values()]


@few
@given(st.lists(st.lists(rewards, min_size=1, max_size=4), min_size=1, max_size=6))
def test_spreads_are_deviations_within_groups(groups: list[list[list[float]]]) -> None:
    episodes = [episode(found, f"g{number}") for number, group in enumerate(groups) for found in group]
    expected = {f"g{number}": statistics.pstdev(map(sum, group)) for number, group in enumerate(groups)}
    assert group_spreads(episodes) == pytest.approx(expected)


def test_what_one_seat_wins_another_may_lose() -> None:
    def match(result: float):
        return episode_of(
            part_with([result], group="g", agent_id="X", role="first"),
            part_with([-result], group="g", agent_id="O", role="second"),
        )

    assert group_spreads([match(1.0), match(-1.0)]) == {"g": 1.0}


@few
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(5, 100), st.booleans(), st.integers(1, 3))
def test_the_groups_kept_are_those_of_the_largest_spread(spreads, percent, drop, least) -> None:
    named = {f"g{number}": float(spread) for number, spread in enumerate(spreads)}
    kept = kept_groups(named, percent / 100, drop, least)
    varied = sum(spread > 0 for spread in spreads)
    wanted = percent * (varied if drop else len(spreads)) // 100
    assert len(kept) == min(max(wanted, least), len(spreads))
    left = [named[group] for group in named if group not in kept]
    assert not left or min(named[group] for group in kept) >= max(left)
    assert not drop or sum(named[group] == 0 for group in kept) <= max(0, least - varied)
    equal = [[group for group in named if named[group] == spread] for spread in set(named.values())]
    assert all(set(group[: len(kept & {*group})]) == kept & {*group} for group in equal), "those played first"


def test_a_share_in_decimals_is_a_share_of_whole_groups() -> None:
    """In binary ``0.7 * 90`` is just below 63."""
    for groups in range(1, 129):
        named = {f"g{number}": 1.0 for number in range(groups)}
        for percent in range(1, 101):
            assert len(kept_groups(named, percent / 100, False, 0)) == percent * groups // 100, (percent, groups)


@few
@given(st.integers(0, 60), st.integers(1, 40), st.integers(0, 39))
def test_the_soft_overlong_punishment(tokens: int, limit: int, buffer: int) -> None:
    buffer = min(buffer, limit - 1)
    got = overlong_punishment(tokens, limit, buffer)
    if tokens <= limit - buffer:
        assert got == 0
    elif tokens <= limit:
        assert got == ((limit - buffer) - tokens) / buffer
    else:
        assert got == -1


def test_every_overlong_reply_pays() -> None:
    episodes = [episode([1.0, 2.0], "", tokens=8), episode([3.0], "", tokens=11), episode([4.0], "", tokens=5)]
    assert punish_overlong(episodes, OverlongOptions(tokens=10, buffer=4, penalty=2.0)) == 0.75
    rewards = [part.get_rewards() for each in episodes for part in each.agent_episodes.values()]
    assert [list(found) for found in rewards] == [[0.0, 1.0], [1.0], [4.0]]
    assert punish_overlong(episodes, None) == 0.0


def test_groups_are_chosen_by_what_was_earned_and_normalized_by_what_is_left_of_it() -> None:
    """A group that differs in its lengths alone is constant; what is trained on is punished once, before its mean."""
    alike = [episode([1.0], "alike", tokens=tokens) for tokens in (5, 20)]
    kept = [episode([reward], "kept", tokens=tokens) for reward, tokens in ((1.0, 5), (0.0, 20), (1.0, 10))]
    options = DataSelectionOptions(
        zero_variance_groups="drop",
        normalize_rewards=NormalizeRewardsOptions(type="group", deviation=False),
        overlong=OverlongOptions(tokens=10, buffer=4, penalty=2.0),
    )
    selected = play_and_select([], lambda _: PlayResult(episodes=alike + kept), lambda *_: [], options)
    assert selected.episodes == kept and selected.counts["overlong_rate"] == pytest.approx(2 / 3)
    assert returns_of(selected.episodes) == pytest.approx([5 / 3, -4 / 3, -1 / 3])


@few
@given(
    st.lists(st.tuples(rewards, st.sampled_from("ab"), st.sampled_from("pq"), st.sampled_from("xy")), max_size=9),
    st.sampled_from(["group", "batch", "game", "role"]),
    st.booleans(),
)
def test_returns_are_normalized_among_what_is_compared(played, over, divide) -> None:
    episodes = [
        episode(found, game + role, game=game, role=role, module_id=module) for found, game, role, module in played
    ]
    normalize_rewards(episodes, over, divide)
    for (found, game, role, module), now in zip(played, returns_of(episodes), strict=True):
        among = [
            sum(other)
            for other, of_game, of_role, of_module in played
            if of_module == module
            and (over == "batch" or of_game == game)
            and (over in ("batch", "game") or of_role == role)
        ]
        deviation = statistics.pstdev(among)
        expected = (sum(found) - statistics.fmean(among)) / (deviation if divide and deviation > 1e-6 else 1.0)
        assert now == pytest.approx(expected, abs=1e-9)


def player(constant, calls: list[list[EpisodePlan]]):
    def play(plans) -> PlayResult:
        calls.append(list(plans))
        found = [episode([0.0 if constant(plan) else float(plan.index)], plan.group) for plan in plans]
        return PlayResult(episodes=found, wall_s=1.0)

    return play


@few
@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 2**20), st.integers(1, 2))
def test_zero_variance_groups_are_played_again_elsewhere(groups: int, rounds: int, luck: int, least: int) -> None:
    def planned(number: int, count: int) -> list[EpisodePlan]:
        return plan_episodes(2 * count, run_seed=1, purpose=f"train-{number}", iteration=0, group_size=2)

    def constant(plan: EpisodePlan) -> bool:
        return (luck >> (plan.index // 2 % 20)) % 2 == 1

    calls: list[list[EpisodePlan]] = []
    options = DataSelectionOptions(zero_variance_groups={"type": "drop", "max_refill": rounds})
    chosen = play_and_select(planned(0, groups), player(constant, calls), planned, options, least=min(least, groups))
    varied = 0
    for number, plans in enumerate(calls):
        assert len(plans) == 2 * (groups - varied), "as many as are missing"
        assert number == 0 or varied < groups
        varied += sum(not constant(plan) for plan in plans[::2])
    assert varied >= groups or len(calls) == rounds + 1
    assert [plan.index for plans in calls for plan in plans] == list(range(sum(map(len, calls))))
    assert len({plan.seed for plans in calls for plan in plans}) == sum(map(len, calls)) / 2
    counts = chosen.counts
    assert len(chosen.result.episodes) == sum(map(len, calls)), "everything is counted as played"
    assert counts["groups"] == sum(map(len, calls)) / 2 and counts["groups"] - counts["zero_variance_groups"] == varied
    assert counts["kept_groups"] == max(varied, min(least, groups)) == len(chosen.episodes) / 2
    assert counts["refill_rounds"] == len(calls) - 1 and chosen.result.wall_s == len(calls)


class Loop(LMGamePPO):
    """Of an algorithm, what chooses: nothing is started."""

    def __init__(self, config: LMGamePPOConfig, calls: list[list[EpisodePlan]]) -> None:
        self.config, self._league, self._rl_iteration, self.calls = config, None, 3, calls
        self._needs_groups, self._item_order = True, ItemOrder(0, "train")

    def play(self, plans, settings, **kwargs) -> PlayResult:  # type: ignore[override]
        """Every first group differs in itself."""
        return player(lambda plan: plan.group != plans[0].group, self.calls)(plans)


@pytest.mark.parametrize("divide", [True, False])
def test_an_iteration_plays_other_levels_again_and_keeps_a_group_for_each_learner(divide: bool) -> None:
    options = {
        "env": "lmgame/Sokoban-v0",
        "num_learners": 3,
        "text_rollouts": {"episodes_per_iteration": 8, "group_size": 2},
        "data_selection": {
            "zero_variance_groups": {"type": "drop", "max_refill": 1},
            "normalize_rewards": {"type": "batch", "deviation": divide},
        },
    }
    config, calls = LMGamePPOConfig().update_from_dict(options), []
    selected = Loop(config, calls).play_and_select(config.run, 0)
    assert [len(plans) for plans in calls] == [8, 6]
    assert len({plan.seed for plans in calls for plan in plans}) == 7, "as many levels as groups"
    assert (selected.counts["groups"], selected.counts["zero_variance_groups"], selected.counts["kept_groups"]) == (
        7,
        5,
        3,
    )
    returns = returns_of(selected.episodes)
    assert len(returns) == 6 and statistics.fmean(returns) == pytest.approx(0)
    assert (statistics.pstdev(returns) == pytest.approx(1)) == divide


@pytest.mark.parametrize("group_size", [1, 3])
def test_passes_over_lists_are_counted_with_groups_refills_and_a_resume(group_size: int) -> None:
    """The list that was dealt least counts: a pass is over when every level of every list has been played."""
    lists = [{"url": "http://127.0.0.1:9", "ids": ids, "split": "all"} for ids in ("0-6", "50-59")]
    options = {
        "games": ["lmgame/Sokoban-v0", *({"env": "agentgym:textcraft", "env_config": each} for each in lists)],
        "text_rollouts": {"episodes_per_iteration": 9, "group_size": group_size},
        "data_selection": {} if group_size == 1 else {"zero_variance_groups": {"type": "drop", "max_refill": 2}},
    }
    config, calls = LMGamePPOConfig().update_from_dict(options), []
    sizes = {"1": 7, "2": 10}
    assert math.isnan(passes({"1": 3}, {"1": 0, "2": 10})) and passes({"2": 3}, {"1": 0, "2": 10}) == 0
    run, times, ends = Loop(config, calls), Counter[tuple[int, int]](), 0
    for iteration in range(60):
        run.play_and_select(config.run, iteration)
        if iteration == 20:
            dealt, run = run.items_trained_on(), Loop(config, calls)
            run.deal_items_after(dealt)
        groups = {plan.group: plan for plans in calls for plan in plans if plan.game}
        calls.clear()
        times.update((plan.game, item_of_seed(plan.seed, sizes[str(plan.game)])) for plan in groups.values())
        least = min(times[game, item] for game in (1, 2) for item in range(sizes[str(game)]))
        epochs = passes(run.items_trained_on(), sizes)
        assert math.floor(epochs) == least
        ends += epochs == least
    assert epochs > 3 and ends


def test_an_episode_of_no_group_stays() -> None:
    """There is nothing it could be compared with."""
    episodes = [episode([1.0], ""), episode([2.0], "a"), episode([2.0], "a"), episode([2.0], "b"), episode([3.0], "b")]
    options = DataSelectionOptions(zero_variance_groups="drop")
    selected = play_and_select([], lambda _: PlayResult(episodes=episodes), lambda *_: [], options)
    assert selected.episodes == [episodes[0], *episodes[3:]]
    assert (selected.counts["groups"], selected.counts["kept_groups"], selected.counts["kept_episodes"]) == (2, 1, 3)
    beside_a_teacher = play_and_select(
        [], lambda _: PlayResult(episodes=episodes), lambda *_: [], options, all_teach=True
    )
    assert beside_a_teacher.episodes == episodes and beside_a_teacher.counts["zero_variance_groups"] == 1
