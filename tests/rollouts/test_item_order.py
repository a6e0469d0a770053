"""Items of a list: each once before any comes again, in an order of the run's own."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.envs.support.item_order import PLACES, item_of_seed, seed_of_place
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.options import GameConfig
from rllib_lmgame.rollouts.plans import plan_episodes, plan_evaluation

LIST = GameConfig(env="agentgym:textcraft", env_config={"url": "http://127.0.0.1:9", "ids": "0-99"})
SOKOBAN = GameConfig(env="lmgame/Sokoban-v0")


@given(st.integers(0, 2**31), st.integers(1, 500), st.sampled_from([0, PLACES]))
def test_consecutive_places_are_all_items_before_any_again(order: int, count: int, near: int) -> None:
    start = near // count * count
    items = [item_of_seed(seed_of_place(order, place), count) for place in range(start, start + 3 * count)]
    for epoch in range(3):
        assert sorted(items[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert count < 5 or items[:count] != items[count : 2 * count] or items[:count] != items[2 * count :]


def test_any_seed_means_an_item_and_all_are_as_likely() -> None:
    counts = Counter(item_of_seed(seed * 48_271 % (2**31 - 1), 10) for seed in range(20_000))
    assert set(counts) == set(range(10)) and max(counts.values()) < 1.15 * min(counts.values())
    assert 0 <= item_of_seed(2**31 - 1, 7) < 7 and PLACES == 2**20


def test_a_run_deals_each_item_once_an_epoch_whole_groups_on_one() -> None:
    order, games = ItemOrder(3, "train"), [SOKOBAN, LIST]
    seeds: list[int] = []
    for iteration in range(25):
        plans = plan_episodes(
            32, run_seed=3, purpose="train", iteration=iteration, group_size=4, game_weights=[1.0, 1.0]
        )
        dealt = order.dealt(plans, games)
        assert [plan.seed for plan in dealt if plan.game == 0] == [plan.seed for plan in plans if plan.game == 0]
        groups = {plan.group: plan.seed for plan in dealt if plan.game == 1}
        assert all(plan.seed == groups[plan.group] for plan in dealt if plan.game == 1)
        seeds += groups.values()
        if iteration == 11:  # A resumed run goes on where the checkpoint was.
            resumed = ItemOrder(3, "train")
            resumed.set_state(order.state())
            order = resumed
    assert len(seeds) == 100 and {item_of_seed(seed, 100) for seed in seeds} == set(range(100))
    assert [plan.seed for plan in ItemOrder(4, "train").dealt(plans, games) if plan.game == 1][:4] != seeds[:4]


def test_an_evaluation_plays_all_items_of_a_list_whatever_the_address_of_its_server() -> None:
    elsewhere = GameConfig(env=LIST.env, env_config={**LIST.env_config, "url": "http://127.0.0.1:10"})
    dealt = [ItemOrder(0, "evaluation").dealt(plan_evaluation(1, 100), [game]) for game in (LIST, elsewhere)]
    assert dealt[0] == dealt[1] and {item_of_seed(plan.seed, 100) for plan in dealt[0]} == set(range(100))
    purposes = [
        ItemOrder(0, purpose).dealt(plan_evaluation(1, 100), [LIST]) for purpose in ("evaluation", "validation")
    ]
    assert [plan.seed for plan in purposes[0]] != [plan.seed for plan in purposes[1]]
