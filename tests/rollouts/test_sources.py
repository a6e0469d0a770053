"""Sources of episodes: whatever fails or is lost, every plan comes out once, in order, and what failed is played
again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.algorithms.cluster import workers
from rllib_lmgame.algorithms.cluster.workers import RunnerGroup, SharedRunners
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.rollouts.plans import (
    AgentAssignment,
    EpisodePlan,
    Race,
    deal_with_spares,
    first_id,
    plan_episodes,
    split_plans,
)
from rllib_lmgame.rollouts.records import EpisodeSummary, Failure, GameConfig, PlayResult, PlaySettings
from rllib_lmgame.rollouts.sources import AgentMapper, RolloutError, play_all

SETTINGS = PlaySettings((GameConfig(env="game"),))
Fate = Callable[[EpisodePlan], str]
"""What becomes of an episode: empty for a good end, the reason of a failure, or ``lost``."""


class Here(AgentMapper):
    """Assignments of a game that need not be built; ``broken`` says of which plans it could not be."""

    def __init__(self, broken: Callable[[EpisodePlan], bool] = lambda plan: False) -> None:
        self.broken = broken

    def assigned(
        self, plans: Sequence[EpisodePlan], games: Sequence[GameConfig]
    ) -> tuple[list[EpisodePlan], list[Failure]]:
        failures = [Failure(plan, "env_error", "not built") for plan in plans if self.broken(plan)]
        sit = {"player": AgentAssignment("player")}
        return [dataclasses.replace(plan, assignments=sit) for plan in plans if not self.broken(plan)], failures


class FakeRunners:
    """Runners that answer in any order.

    Args:
        fate: What becomes of each episode.
    """

    def __init__(self, fate: Fate, chance: random.Random | None = None) -> None:
        self.fate = fate
        self.chance = chance or random.Random(0)
        self.rounds: list[list[EpisodePlan]] = []
        self.healed: list[int] = []

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        assert settings == SETTINGS and all(plan.assignments for plan in plans)
        self.rounds.append(list(plans))
        result = PlayResult()
        for plan in self.chance.sample(plans, len(plans)):
            reason = self.fate(plan)
            if not reason:
                result.summaries.append(
                    EpisodeSummary(plan.episode_id, plan.index, plan.game, "game", plan.seed, True, "game_over", 1, 1.0)
                )
                result.episodes.append(SimpleNamespace(id_=plan.episode_id))  # type: ignore[arg-type]
            elif reason != "lost":
                result.failures.append(Failure(plan, reason, f"{reason} of {plan.episode_id}"))
        return result

    def heal(self) -> None:
        self.healed.append(len(self.rounds))


def plans_of(count: int) -> list[EpisodePlan]:
    return plan_episodes(count, run_seed=0, purpose="t", iteration=1)


def play(
    runners: FakeRunners, plans: Sequence[EpisodePlan], limit: int = 3, agent_mapper: AgentMapper | None = None
) -> PlayResult:
    return play_all(runners, plans, SETTINGS, agent_mapper or Here(), limit)


FATES = st.lists(
    st.lists(st.sampled_from(["lost", "env_error", "timeout", "engine_error", "env_busy"]), max_size=5),
    min_size=1,
    max_size=10,
)


@given(FATES, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_every_plan_comes_out_once_and_in_order(fates: list[list[str]], chance: random.Random) -> None:
    """``fates``: per plan, how its first attempts fail."""

    def fate(plan: EpisodePlan) -> str:
        return fates[plan.index][plan.attempt] if plan.attempt < len(fates[plan.index]) else ""

    limit = 3
    runners = FakeRunners(fate, chance)
    most = max(map(len, fates))
    try:
        result = play(runners, plans_of(len(fates)), limit)
    except RolloutError:  # Only after as many rounds without an end; in those everybody failed.
        assert all(fate(plan) for plans in runners.rounds[-limit:] for plan in plans)
        assert limit <= len(runners.rounds) <= limit + 1, "no plan is played without end"
        return
    finished = [index for index, attempts in enumerate(fates) if len(attempts) <= limit]
    assert [summary.index for summary in result.summaries] == finished
    assert [episode.id_ for episode in result.episodes] == [summary.episode_id for summary in result.summaries]
    expected = Counter(
        (index, "env_runner_lost" if reason == "lost" else reason)
        for index, reasons in enumerate(fates)
        for reason in reasons[: limit + 1]
    )
    assert Counter((failure.plan.index, failure.reason) for failure in result.failures) == expected
    assert len(runners.rounds) == min(most, limit) + 1
    # After every round that left something to be played again.
    assert runners.healed == list(range(1, len(runners.rounds)))


@pytest.mark.parametrize(
    ("reason", "same_level"),
    [("lost", True), ("engine_error", True), ("env_busy", True), ("env_error", False), ("timeout", False)],
)
def test_only_a_level_that_may_be_to_blame_is_exchanged(reason: str, same_level: bool) -> None:
    runners = FakeRunners(lambda plan: "" if plan.attempt else reason)
    play(runners, plans_of(4))
    first, second = runners.rounds
    assert [(a.seed == b.seed, a.group == b.group) for a, b in zip(first, second, strict=True)] == [
        (same_level, same_level)
    ] * 4
    assert [plan.episode_id for plan in second] == [f"{plan.episode_id}+1" for plan in first]


def test_round_after_round_without_an_end_is_an_error_that_says_why() -> None:
    runners = FakeRunners(lambda plan: "engine_error")
    with pytest.raises(RolloutError, match=r"no episode was finished in 2 rounds: engine_error of t-1-0"):
        play(runners, plans_of(4), limit=2)
    assert len(runners.rounds) == 2


def test_games_that_cannot_be_built_fail_before_they_are_played() -> None:
    runners = FakeRunners(lambda plan: "")
    result = play(runners, plans_of(4), agent_mapper=Here(lambda plan: plan.index in (1, 2) and plan.attempt < 2))
    assert [summary.index for summary in result.summaries] == [0, 1, 2, 3]
    assert Counter((failure.plan.index, failure.message) for failure in result.failures) == {
        (1, "not built"): 2,
        (2, "not built"): 2,
    }
    assert [len(plans) for plans in runners.rounds] == [2, 2]  # In the round between there was nothing to play.
    with pytest.raises(RolloutError, match="no episode was finished in 3 rounds: not built"):
        play(runners, plans_of(4), agent_mapper=Here(lambda plan: True))


def test_what_no_episode_gets_round_is_raised() -> None:
    class Misled(FakeRunners):
        def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
            return PlayResult(error=ConfigError("config.x", "is wrong"))

    with pytest.raises(ConfigError, match="is wrong"):
        play(Misled(lambda plan: ""), plans_of(2))


class Racing(FakeRunners):
    """Each runner stops when enough of its own share has finished.

    Args:
        fate, chance: As for :class:`FakeRunners`.
        number: Of runners.
    """

    def __init__(self, fate: Fate, chance: random.Random, number: int) -> None:
        super().__init__(fate, chance)
        self.number = number

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        result = PlayResult()
        for share in deal_with_spares(plans, self.number):
            race, over, failed = Race(share), PlayResult(), set()
            for plan in self.chance.sample(share, len(share)):
                if race.wants(plan.episode_id):
                    over.extend(super().play([plan], settings))
                    if self.fate(plan):
                        failed.add(plan.episode_id)
                    if over.summaries and over.summaries[-1].episode_id == plan.episode_id:
                        race.finish(plan.episode_id)
            over.summaries = [one for one in over.summaries if race.wants(one.episode_id)]
            over.episodes = [one for one in over.episodes if race.wants(one.id_)]
            unwanted = [plan.episode_id for plan in share if not race.wants(plan.episode_id)]
            over.aborted = [name for name in unwanted if name not in failed]
            result.extend(over)
        return result


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([1.25, 1.5, 2.0]),
    st.integers(1, 3),
    FATES,
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=40)
def test_whatever_fails_as_many_whole_groups_come_out_as_are_needed(
    groups: int, size: int, factor: float, number: int, fates: list[list[str]], chance: random.Random
) -> None:
    """Every plan comes out once: as an episode, as one that was left behind, or as a failure nobody replaced."""

    def fate(plan: EpisodePlan) -> str:
        own = fates[plan.index % len(fates)][:2]
        return own[plan.attempt] if plan.attempt < len(own) else ""

    plans = plan_episodes(groups * size, run_seed=0, purpose="t", iteration=1, group_size=size, oversample=factor)
    runners = Racing(fate, chance, number)
    result = play(runners, plans)  # type: ignore[arg-type]
    came = [summary.index for summary in result.summaries]
    assert came == sorted(came) and [one.id_ for one in result.episodes] == [one.episode_id for one in result.summaries]
    assert len(came) == groups * size and all(came.count(index) == 1 for index in came)
    assert all(len({index // size for index in came[n : n + size]}) == 1 for n in range(0, len(came), size)), "whole"
    begun = [plan.episode_id for plans in runners.rounds for plan in plans]
    failed = [failure.plan.episode_id for failure in result.failures]
    ended = [*failed, *result.aborted, *(summary.episode_id for summary in result.summaries)]
    assert len(set(begun)) == len(begun) and len(set(ended)) == len(ended) and set(begun) <= set(ended)
    behind = {first_id(name) for name in result.aborted}
    assert len(behind) == len(result.aborted) and not behind & {first_id(one.episode_id) for one in result.summaries}
    assert {first_id(name) for name in ended} == {plan.episode_id for plan in plans}


def test_a_group_that_was_left_behind_is_not_gone_on_with() -> None:
    """One runner leaves a group behind in which an episode failed, while all that the other has is lost."""
    plans = plan_episodes(8, run_seed=0, purpose="t", iteration=1, group_size=2, oversample=1.5)
    rounds: list[list[EpisodePlan]] = []

    class OneIsLost(Racing):
        def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
            rounds.append(list(plans))
            if len(rounds) > 1:
                return super().play(plans, settings)
            first, *_ = deal_with_spares(plans, 2)
            behind = [plan for plan in first if plan.group == first[0].group]
            done = [plan for plan in first if plan.group != first[0].group]
            result = FakeRunners.play(self, done, settings)
            result.failures.append(Failure(behind[0], "env_error", "it fell over"))
            result.aborted = [plan.episode_id for plan in behind[1:]]
            return result

    result = play(OneIsLost(lambda plan: "", random.Random(0), 2), plans)  # type: ignore[arg-type]
    of_group = Counter(summary.index // 2 for summary in result.summaries)
    assert len(of_group) == 4 and set(of_group.values()) == {2}
    assert rounds[0][0].group not in {plan.group for plan in rounds[1]}


# -- RLlib's runners -------------------------------------------------------------------------------------------------


class FakeGroup:
    """RLlib's group as far as it is asked.

    Args:
        remote: Number of remote runners.
        dead: Ids of those that are known to have died.
        dies: Ids of those that die when they are asked.
    """

    def __init__(self, remote: int, dead: tuple[int, ...] = (), dies: tuple[int, ...] = ()) -> None:
        self.remote, self.dead, self.dies = remote, dead, dies
        self.asked: dict[int, list[EpisodePlan]] = {}
        self.timeout: float | None = None
        self.runner: Callable[[int], Any] = lambda number: None
        self.local_env_runner = SimpleNamespace(play=lambda plans, settings: self.answer(0, plans, settings))

    def answer(self, number: int, plans: Sequence[EpisodePlan], settings: PlaySettings) -> PlayResult:
        self.asked[number] = list(plans)
        return FakeRunners(lambda plan: "").play(plans, settings)

    def num_remote_env_runners(self) -> int:
        return self.remote

    def healthy_worker_ids(self) -> list[int]:
        return [number for number in range(1, self.remote + 1) if number not in self.dead]

    def foreach_env_runner(
        self, calls, *, local_env_runner: bool, remote_worker_ids: list[int], timeout_seconds: float
    ) -> list[PlayResult]:
        assert not local_env_runner and len(calls) == len(remote_worker_ids)
        self.timeout = timeout_seconds
        runners = {
            n: self.runner(n) or SimpleNamespace(play=lambda plans, settings, n=n: self.answer(n, plans, settings))
            for n in remote_worker_ids
        }
        return [call(runners[n]) for call, n in zip(calls, remote_worker_ids, strict=True) if n not in self.dies]


class SlowRunner:
    """A runner that answers each of its shares at its own call of ``go_on``."""

    def __init__(self) -> None:
        self.shares: dict[int, list[Any]] = {}
        self.calls, self.forgets = 0, -1

    def go_on(self, number: int, begun: Any, seconds: float) -> Any:
        time.sleep(0.001)
        self.calls += 1
        if self.calls == self.forgets:
            self.shares.clear()
        self.shares |= {key: [len(plans), plans, settings] for key, (plans, settings) in begun.items()}
        done = {}
        for key, share in list(self.shares.items()):
            share[0] -= 1
            if share[0] <= 0:
                _, plans, settings = self.shares.pop(key)
                done[key] = FakeRunners(lambda plan: "").play(plans, settings)
        return number, done, list(self.shares)


def test_threads_play_on_the_same_runners_at_once_and_each_gets_its_own() -> None:
    """Short plays do not wait for a long one; what a runner has forgotten, since it was started again, is lost."""
    group = FakeGroup(2)
    slow = {1: SlowRunner(), 2: SlowRunner()}
    group.runner = slow.__getitem__
    shared = SharedRunners(group, None, lambda _: None)
    ended: list[str] = []
    results: dict[str, PlayResult] = {}

    def play(name: str, count: int) -> None:
        plans, _ = Here().assigned(
            [replace(p, episode_id=f"{name}-{p.index}") for p in plans_of(count)], SETTINGS.games
        )
        results[name] = shared.play(plans, SETTINGS)
        ended.append(name)

    def played(*threads: tuple[str, int]) -> None:
        started = [threading.Thread(target=play, args=each) for each in threads]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(60.0)

    played(("long", 160), ("short", 4), ("middle", 40))
    assert ended == ["short", "middle", "long"] and slow[1].calls < 160
    for name, count in (("long", 160), ("short", 4), ("middle", 40)):
        ids = sorted(summary.episode_id for summary in results[name].summaries)
        assert ids == sorted(f"{name}-{index}" for index in range(count))
    slow[1].forgets = slow[1].calls + 10
    played(("lost", 60))
    assert len(results["lost"].summaries) == 30 and not shared._in_play and not shared._results
    group.dies = (2,)
    played(("died", 8))
    assert len(results["died"].summaries) == 4


def test_a_runner_plays_sets_of_plans_side_by_side(make_runner: Callable[..., Any]) -> None:
    """An episode that does not end holds its own set; its games stand still between two calls."""
    gate = asyncio.Event()

    async def answer(request: Any) -> str:
        if request.request_id.startswith("long-1/"):
            await gate.wait()
        return "Up"

    runner = make_runner(answer=answer, num_envs_per_env_runner=3)
    games = runner.config.training_games()

    def share(name: str, count: int) -> tuple[list[EpisodePlan], PlaySettings]:
        plans, _ = AgentMapper(runner.config).assigned(plans_of(count), games)
        return [replace(plan, episode_id=f"{name}-{plan.index}") for plan in plans], PlaySettings(games)

    assert runner.go_on(7, {1: share("long", 3)}, 0.2) == (7, {}, [1])
    number, done, left = runner.go_on(7, {2: share("short", 6)}, 30.0)
    assert (number, [*done], left) == (7, [2], [1]) and len(done[2].episodes) == 6
    gate.set()
    _, after, left = runner.go_on(7, {}, 30.0)
    assert ([*after], left) == ([1], []) and runner.go_on(7, {}, 30.0) == (7, {}, [])
    alone = runner.play(*share("short", 6))
    for name, result in (("long", after[1]), ("short", done[2]), ("short", alone)):
        assert [summary.episode_id for summary in result.summaries] == [
            f"{name}-{index}" for index in range(len(result.summaries))
        ]
    assert [summary.steps for summary in alone.summaries] == [summary.steps for summary in done[2].summaries]
    runner.stop()


def test_plans_are_dealt_to_the_healthy_runners() -> None:
    plans, _ = Here().assigned(plans_of(10), SETTINGS.games)
    group = FakeGroup(4, dead=(2,))
    result = RunnerGroup(group, 7.0, lambda _: None).play(plans, SETTINGS)  # type: ignore[arg-type]
    assert list(group.asked.values()) == split_plans(plans, 3) and list(group.asked) == [1, 3, 4]
    assert len(result.summaries) == 10 and group.timeout == 7.0
    few = FakeGroup(4)
    RunnerGroup(few, None, lambda _: None).play(plans[:2], SETTINGS)  # type: ignore[arg-type]
    assert list(few.asked) == [1, 2]


@pytest.mark.parametrize(("runners", "most"), [(3, [5, 5, 6]), (40, [0] * 24 + [1] * 16)])
def test_a_sample_is_of_all_runners_together(runners: int, most: list[int]) -> None:
    plans, _ = Here().assigned(plans_of(80), SETTINGS.games)
    group, logged = FakeGroup(runners), []
    group.answer = lambda number, plans, settings: logged.append(settings.log_most) or PlayResult()  # type: ignore
    sample = dataclasses.replace(SETTINGS, log="train", log_most=16)
    RunnerGroup(group, None, lambda _: None).play(plans, sample)  # type: ignore[arg-type]
    assert sorted(logged) == most


def test_without_remote_runners_the_local_one_plays() -> None:
    plans, _ = Here().assigned(plans_of(3), SETTINGS.games)
    group = FakeGroup(0)
    assert len(RunnerGroup(group, None, lambda _: None).play(plans, SETTINGS).summaries) == 3  # type: ignore[arg-type]
    assert list(group.asked) == [0]


def test_the_share_of_a_runner_that_dies_is_played_by_the_others() -> None:
    group = FakeGroup(2, dies=(2,))

    def heal(hurt) -> None:
        hurt.dead, hurt.dies = hurt.dies, ()

    result = play_all(RunnerGroup(group, None, heal), plans_of(8), SETTINGS, Here(), 3)  # type: ignore[arg-type]
    assert [summary.index for summary in result.summaries] == list(range(8))
    assert Counter(failure.reason for failure in result.failures) == {"env_runner_lost": 4}
    assert len(group.asked[1]) == 4  # The other one's share.


def test_the_only_runner_is_waited_for_until_it_is_up_again(monkeypatch) -> None:
    """Its replacement needs a while; a round without any runner would be over at once."""
    monkeypatch.setattr(workers, "POLL_S", 0.0)
    group, looks = FakeGroup(1, dies=(1,)), []

    def heal(hurt) -> None:
        looks.append(1)
        hurt.dead, hurt.dies = (() if len(looks) > 20 else (1,)), ()

    result = play_all(RunnerGroup(group, None, heal), plans_of(8), SETTINGS, Here(), 3)  # type: ignore[arg-type]
    assert [summary.index for summary in result.summaries] == list(range(8))
    assert len(result.failures) == 8


@pytest.mark.parametrize(("restarts", "says"), [(True, "within sample_timeout_s=0"), (False, "an env runner died")])
def test_no_runner_left_is_an_error(restarts: bool, says: str) -> None:
    group = RunnerGroup(FakeGroup(2, dead=(1, 2)), 0.0, lambda _: None, restarts)  # type: ignore[arg-type]
    with pytest.raises(RolloutError, match=says):
        play_all(group, plans_of(8), SETTINGS, Here(), 3)
