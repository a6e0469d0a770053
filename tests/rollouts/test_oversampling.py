"""Oversampling: of more groups than are needed the first to finish come out, whole; nothing of the others stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.algorithms.ppo import LMGamePPO
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episode_log import read_log
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.options import spare_groups
from rllib_lmgame.rollouts.plans import EpisodePlan, Race, deal_with_spares, plan_episodes, with_spares
from rllib_lmgame.rollouts.records import PlayResult, PlaySettings
from rllib_lmgame.rollouts.sources import AgentMapper

MakeRunner = Callable[..., TextGameEnvRunner]
few = settings(max_examples=40, deadline=None)
counts = st.integers(1, 12)
factors = st.sampled_from([1.0, 1.1, 1.25, 1.5, 2.0, 3.7])
weights = st.lists(st.sampled_from([0.3, 1.0, 2.0]), min_size=1, max_size=3)


def plans_of(groups: int, size: int, oversample: float, shares: list[float] | None = None) -> list[EpisodePlan]:
    return plan_episodes(
        groups * size,
        run_seed=3,
        purpose="t",
        iteration=1,
        group_size=size,
        game_weights=shares or [1.0],
        oversample=oversample,
    )


def groups_of(plans: list[EpisodePlan]) -> dict[str, list[EpisodePlan]]:
    found: dict[str, list[EpisodePlan]] = {}
    for plan in plans:
        found.setdefault(plan.group, []).append(plan)
    return found


def needed(plans: list[EpisodePlan]) -> Counter[int]:
    """Game -> groups of it that are not spare."""
    return Counter(group[0].game for group in groups_of(plans).values() if not group[0].spare)


@few
@given(counts, st.integers(1, 3), factors, weights)
def test_spare_groups_come_last_and_change_nothing_before_them(groups, size, factor, shares) -> None:
    plans = plans_of(groups, size, factor, shares)
    assert plans[: groups * size] == plans_of(groups, size, 1.0, shares)
    assert [plan.spare for plan in plans] == [False] * groups * size + [True] * (len(plans) - groups * size)
    assert [plan.index for plan in plans] == list(range(len(plans))) and all(
        len(group) == size and len({(plan.game, plan.seed) for plan in group}) == 1
        for group in groups_of(plans).values()
    )
    wanted, spare = needed(plans), Counter(group[0].game for group in groups_of(plans).values() if group[0].spare)
    assert all(spare[game] == spare_groups(count, factor) for game, count in wanted.items())
    assert len({plan.seed for plan in plans}) == len(groups_of(plans))
    for game in wanted:  # Seats and opponents go on being dealt in turn.
        numbers = [group[0].number or 0 for group in groups_of(plans).values() if group[0].game == game]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@few
@given(counts, st.integers(1, 3), factors, weights, st.integers(1, 5))
def test_who_has_a_share_can_stop_by_itself(groups, size, factor, shares, runners) -> None:
    plans = plans_of(groups, size, factor, shares)
    dealt = deal_with_spares(plans, runners)
    assert sorted((plan for share in dealt for plan in share), key=lambda plan: plan.index) == plans
    assert len(dealt) <= runners and all(dealt)
    assert sum((needed(share) for share in dealt), Counter()) == needed(plans)
    for share in dealt:
        assert all(len(group) == size for group in groups_of(share).values())
        for game in {plan.game for plan in share}:
            own = [group[0].spare for group in groups_of(share).values() if group[0].game == game]
            assert False in own and (True in own or not with_spares(plans))


@few
@given(counts, st.integers(1, 3), factors, weights, st.randoms(use_true_random=False))
def test_those_are_kept_that_finish_first(groups, size, factor, shares, chance) -> None:
    plans = plans_of(groups, size, factor, shares)
    order = chance.sample(plans, len(plans))
    race, wanted = Race(plans), needed(plans)
    whole = list(groups_of(plans).values())
    whole.sort(key=lambda group: max(order.index(plan) for plan in group))
    kept = [
        group
        for n, group in enumerate(whole)
        if sum(g[0].game == group[0].game for g in whole[:n]) < wanted[group[0].game]
    ]
    superfluous = [race.finish(plan.episode_id) for plan in order]
    assert {plan.episode_id for plan in plans if race.wants(plan.episode_id)} == {
        plan.episode_id for group in kept for plan in group
    }
    assert sum(superfluous) == (len(wanted) if with_spares(plans) else 0)


# -- the env runner --------------------------------------------------------------------------------------------------


class Slow:
    """Answers at once, but never to some episodes.

    Args:
        never: Ids of these.
    """

    def __init__(self, *never: str) -> None:
        self.never = never
        self.given_up: list[str] = []

    async def __call__(self, request) -> str:
        episode = request.request_id.partition("/")[0]
        if episode in self.never:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up.append(episode)
                raise
        return "Up"


def run(runner: TextGameEnvRunner, plans: list[EpisodePlan], **options) -> PlayResult:
    games = runner.config.training_games()
    seated, _ = AgentMapper(runner.config).assigned(plans, games)
    result = runner.play(seated, PlaySettings(games, **options))
    assert result.error is None
    return result


def test_a_game_that_never_ends_is_left_behind(make_runner, tmp_path) -> None:
    """So are the others of its group; nothing of them is kept, counted or logged, and no engine is busy with them."""
    answer = Slow("t-1-3")
    runner = make_runner(answer=answer, episode_log_dir=str(tmp_path))
    plans = plans_of(4, 2, 1.25)
    result = run(runner, plans, log="train")
    assert [summary.index for summary in result.summaries] == [0, 1, 4, 5, 6, 7, 8, 9]
    assert len(result.episodes) == 8 and result.aborted == ["t-1-2", "t-1-3"] and not result.failures
    assert answer.given_up == ["t-1-3"]
    assert Counter(runner.client("player").forgotten) == Counter(plan.episode_id for plan in plans)
    logged = [record["episode_id"] for path in tmp_path.glob("*.jsonl") for record in read_log(path)]
    assert sorted(logged) == sorted(summary.episode_id for summary in result.summaries)


@pytest.mark.parametrize(("trusted", "kept"), [(True, 2), (False, 1)])
def test_a_game_is_used_again_unless_a_call_may_be_under_way_in_it(make_runner, trusted, kept) -> None:
    runner = make_runner(answer=Slow("t-1-0"))
    (game,) = runner.config.training_games()
    pool = runner.hooks.idle[game.key]
    run(runner, plans_of(1, 1, 2.0))
    assert len(pool) == 2, "this package's own games are called in place: that one waits between two calls"
    for session in pool:
        session.trusted = trusted
    run(runner, plans_of(1, 1, 2.0))
    assert len(pool) == kept


def test_an_iteration_is_what_finished_first(make_runner: MakeRunner) -> None:
    """From the configuration to what is trained on; the next iteration's levels are what they were."""
    runner = make_runner(answer=Slow("train-0-1"), rollouts={"episodes_per_iteration": 4, "group_size": 2})
    config = runner.config
    config.data_selection(oversample=1.5)
    group = SimpleNamespace(num_remote_env_runners=lambda: 0, local_env_runner=runner)
    algorithm = LMGamePPO.__new__(LMGamePPO)  # Without Ray: playing asks nothing else of it.
    algorithm.__dict__.update(
        config=config,
        agent_mapper=AgentMapper(config),
        env_runner_group=group,
        engine_groups={"player": None},
        _league=None,
        _needs_groups=False,
        _item_order=ItemOrder(0, "train"),
    )
    selected = algorithm.play_and_select(config.run, 0)
    counts = selected.counts
    assert (counts["groups"], counts["kept_episodes"], counts["aborted_episodes"]) == (2, 4, 2)
    assert [episode.id_ for episode in selected.episodes] == [f"train-0-{index}" for index in (2, 3, 4, 5)]
    assert [summary.index for summary in selected.result.summaries] == [2, 3, 4, 5]
    seeds = {summary.seed for summary in algorithm.play_and_select(config.run, 1).result.summaries}
    planned = plan_episodes(4, run_seed=config.seed or 0, purpose="train", iteration=1, group_size=2, oversample=1.5)
    assert seeds == {plan.seed for plan in planned[:4]}
