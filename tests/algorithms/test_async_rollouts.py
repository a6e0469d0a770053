"""Playing ahead in a thread: barriers of schedules and leagues, errors, and the end; nothing is started but the thread.

Through the loop of PPO: :mod:`tests.e2e.test_async_rollouts`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rllib_lmgame.algorithms.async_rollouts import AsyncRollouts
from rllib_lmgame.algorithms.league import LeaguePlay
from rllib_lmgame.algorithms.ppo import LMGamePPO, LMGamePPOConfig, Selected
from rllib_lmgame.algorithms.scheduled import schedules_of
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.records import PlayResult
from rllib_lmgame.rollouts.sources import RolloutError

PATIENCE_S = 60.0


class Loop(LMGamePPO):
    """The driver alone: an iteration is what it was played by, and two more items."""

    def __init__(self, max_staleness: int, **options: Any) -> None:
        self.config = LMGamePPOConfig().update_from_dict(
            {"env": "lmgame/Sokoban-v0", "num_env_runners": 1, "async_rollouts": {"max_staleness": max_staleness}}
            | options
        )
        self._league: Any = None
        self._rl_iteration, self._policy_version, self._steps = 0, 7, 0
        self._schedules = schedules_of(self.config)
        self._item_order = ItemOrder(0, "train")
        self.played: list[tuple[int, Any, int | None]] = []
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.gate.set()
        self.held: dict[int, threading.Event] = {}
        """Iterations whose games last until then."""
        self.broken = ""
        self.items: dict[int, int] = {}
        self.killed: list[int] = []
        self.unlogged: list[int] = []
        self._ahead = AsyncRollouts(self, max_staleness)

    def _env_steps(self) -> int:
        return self._steps

    def planned(self, present: Any, iteration: int, *args: Any) -> Any:
        self._item_order.set_state({"0": self._item_order.state().get("0", 0) + 2})
        return self._item_order.state()["0"]

    def play_and_select(self, present: Any, iteration: int, oldest: int | None = None, planned: Any = None) -> Selected:
        if iteration in self.held:
            assert self.held[iteration].wait(PATIENCE_S)
        if not self.gate.is_set():
            self.waiting.set()
        assert self.gate.wait(PATIENCE_S)
        self._ahead.check_open()
        if self.broken:
            raise RolloutError(self.broken)
        self.played.append((iteration, present.present, oldest))
        self.items[iteration] = planned
        return Selected(PlayResult(), [iteration], {})  # type: ignore[list-item]

    def unlog(self, iteration: int) -> None:
        self.unlogged.append(iteration)

    def iterate(self) -> int:
        """Take an iteration and begin those behind it; its number."""
        selected = self._ahead.take(self._rl_iteration, self.at_present())
        self._steps += 10
        self._ahead.begin()
        self._rl_iteration += 1
        self._policy_version += 1
        self._schedules.observe({"rl_iteration": self._rl_iteration, "num_env_steps_sampled_lifetime": self._steps})
        number: Any = selected.episodes[0]
        return int(number)


@pytest.fixture
def loop() -> Iterator[Any]:
    """Function that makes a :class:`Loop`; its thread ends behind the test."""
    made = []

    def make(*args: Any, **options: Any) -> Loop:
        made.append(Loop(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.gate.set()
        each._ahead._jobs.put(None)


def test_iterations_are_played_ahead_and_never_by_weights_that_are_too_old(loop: Any) -> None:
    run = loop(2)
    assert [run.iterate() for _ in range(5)] == list(range(5))
    run._ahead.drain()
    # The weights that train on iteration n have version 7 + n.
    assert sorted((number, oldest) for number, _, oldest in run.played) == [(n, 7 + n - 2) for n in range(7)]
    assert run.items_trained_on() == {"0": 10} and run.items_dealt() == {"0": 14}


def test_a_long_iteration_holds_only_the_one_that_trains_on_it(loop: Any) -> None:
    """Those behind it are played meanwhile, as far ahead as the bound lets them, with items in their order."""
    run = loop(3)
    run.held = {0: threading.Event(), 2: threading.Event()}
    first = threading.Thread(target=lambda: taken.append(run.iterate()))
    taken: list[int] = []
    first.start()
    deadline = time.monotonic() + PATIENCE_S
    while {1, 3} - {number for number, _, _ in run.played} and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not taken and sorted(number for number, _, _ in run.played) == [1, 3]
    run.held.pop(0).set()
    first.join(PATIENCE_S)
    assert taken == [0] and run.iterate() == 1 and run.items_trained_on() == {"0": 4}
    run.held.pop(2).set()
    assert run.iterate() == 2
    run._ahead.drain()
    assert run.items == {n: 2 * n + 2 for n in range(6)}
    assert sorted((number, oldest) for number, _, oldest in run.played) == [(n, 7 + n - 3) for n in range(6)]


def test_iterations_are_in_play_one_after_the_other_where_one_depends_on_another(loop: Any) -> None:
    by = {"by": "env_runners/success_rate", "values": [1.0, 0.5], "above": 0.5}
    refills = {"data_selection": {"zero_variance_groups": {"type": "drop", "max_refill": 2}}}
    assert loop(2).overlaps and not loop(2, inference={"temperature": by}).overlaps
    assert not loop(2, text_rollouts={"group_size": 2}, **refills).overlaps  # Items of a list, and refills of them.
    assert loop(2, lr={"by": "learners/player/entropy", "points": [[0, 1e-3], [10, 1e-4]]}).overlaps


def test_numbers_say_who_waited(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a second later; one thread plays."""
    run = loop(1, inference={"temperature": {"by": "env_runners/success_rate", "values": [1.0, 0.5], "above": 0.5}})
    seconds = itertools.count()
    monkeypatch.setattr("rllib_lmgame.algorithms.async_rollouts.time.perf_counter", lambda: float(next(seconds)))
    run.iterate()
    run._ahead.drain()
    numbers = run._ahead.numbers  # The driver has looked before, between or behind the two looks of who plays.
    assert numbers["idle_engine_s"] == numbers["played_again"] == 0 and 1 <= numbers["idle_learner_s"] <= 3
    run.iterate()
    run._ahead.drain()
    numbers = run._ahead.numbers
    assert 2 <= numbers["idle_engine_s"] <= 3 and numbers["idle_learner_s"] == 1 and not numbers["played_again"]


def test_engines_are_not_idle_while_an_earlier_iteration_is_in_play(loop: Any, monkeypatch: Any) -> None:
    """The one before has ended at 1 s and the next begins at 50 s, but one more before it lasts until 100 s."""
    run, clock, deadline = loop(2), [1.0], time.monotonic() + PATIENCE_S
    monkeypatch.setattr("rllib_lmgame.algorithms.async_rollouts.time.perf_counter", lambda: clock[0])
    run.held = {1: threading.Event()}
    for taken, ahead, now in ((0, 2, 50.0), (1, 3, 100.0)):
        (taker := threading.Thread(target=run.iterate)).start()
        while ahead not in {number for number, _, _ in run.played} or not run._ahead.begun[-1].future.done():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        clock[0] = now
        if taken in run.held:
            run.held.pop(taken).set()
        taker.join(PATIENCE_S)
    for _ in range(2):
        run.iterate()
        assert run._ahead.numbers["idle_engine_s"] == 0


def test_what_counters_say_is_known_ahead_and_anything_else_is_played_again(loop: Any) -> None:
    by = {"by": "env_runners/success_rate", "values": [1.0, 0.5], "above": 0.5}
    schedules = {
        "inference": {"temperature": by},
        "text_rollouts": {"format_penalty": {"points": [[0, 0], [10, -10]]}},
        "lr": {"by": "learners/player/entropy", "points": [[0, 1e-3], [10, 1e-4]]},
    }
    run = loop(1, **schedules)
    assert [run.iterate() for _ in range(3)] == [0, 1, 2]
    run._ahead.drain()
    assert [number for number, _, _ in run.played] == [0, 1, 2, 3]
    assert [values["text_rollouts.format_penalty"] for _, values, _ in run.played] == [0, -1, -2, -3]
    run._schedules.observe({"learners": {"player": {"entropy": 5.0}}})  # Nothing of play.
    assert run.iterate() == 3
    run._ahead.drain()
    assert len(run.played) == 5 and not run._ahead.numbers["played_again"]
    run._schedules.observe({"env_runners": {"success_rate": 0.9}})
    assert run.iterate() == 4
    run._ahead.drain()
    assert run._ahead.numbers["played_again"] == 1
    assert [(number, values["inference.temperature"]) for number, values, _ in run.played[4:]] == [
        (4, 1.0),
        (4, 0.5),
        (5, 0.5),
    ]
    # Its items are dealt again, not the next ones, and what stood in the logs has gone.
    assert run._ahead.items == {"0": 2 * 5} and run.unlogged == [4]


@pytest.mark.parametrize(("by", "ahead"), [("rl_iteration", 3), ("env_steps", 1), ("env_runners/success_rate", 0)])
def test_nothing_is_played_ahead_of_what_its_schedules_are_not_known_for(loop: Any, by: str, ahead: int) -> None:
    run = loop(3, inference={"temperature": {"by": by, "points": [[0, 1.0], [1000, 0.5]]}})
    for number in range(3):
        assert run.iterate() == number
        assert len(run._ahead.begun) == ahead and not run._ahead.numbers["played_again"]


def test_a_league_plays_one_iteration_ahead_and_none_behind_a_snapshot(loop: Any) -> None:
    run = loop(3)
    prepared: list[int] = []
    run._league = SimpleNamespace(
        prepare_without_snapshots=lambda iteration: iteration % 3 > 0 and not prepared.append(iteration)
    )
    ahead = []
    for number in range(7):
        assert run.iterate() == number
        ahead.append(len(run._ahead.begun))
    assert ahead == [1, 1, 0, 1, 1, 0, 1] and prepared == [1, 2, 4, 5, 7]


def test_a_league_prepares_an_iteration_only_without_a_snapshot() -> None:
    for due in ([], ["player-3"]):
        prepared: list[int] = []
        play: Any = SimpleNamespace(league=SimpleNamespace(due=lambda _, due=due: due), prepare=prepared.append)
        assert LeaguePlay.prepare_without_snapshots(play, 3) is not bool(due)
        assert prepared == ([] if due else [3])


def test_an_error_comes_when_the_iteration_is_due(loop: Any) -> None:
    run = loop(1)
    assert run.iterate() == 0
    run._ahead.drain()
    run.broken = "all games raise"
    assert run.iterate() == 1
    run._ahead.drain()
    with pytest.raises(RolloutError, match="all games raise"):
        run.iterate()


def test_an_iteration_that_failed_is_played_anew_and_those_behind_it_too(loop: Any) -> None:
    run = loop(2)
    assert run.iterate() == 0
    run._ahead.drain()
    run._ahead.forget()
    run.broken = "all games raise"
    with pytest.raises(RolloutError, match="all games raise"):
        run.iterate()
    run._ahead.begin()  # As if those behind it had begun before it failed.
    run._ahead.drain()
    run.broken = ""
    assert run.iterate() == 1
    # The update of an iteration fails when those behind it have begun.
    run._ahead.take(2, run.at_present())
    run._ahead.begin()
    assert [run.iterate() for _ in range(3)] == [2, 3, 4]
    run._ahead.drain()
    assert sorted(number for number, _, _ in run.played[-5:]) == [2, 3, 4, 5, 6] and run.unlogged == [1, 2]


def test_nothing_is_waited_for_behind_the_end(loop: Any) -> None:
    run = loop(1)
    run._ahead.close()
    with pytest.raises(RolloutError, match="the run has ended"):
        run.iterate()


def test_what_is_restored_is_played_from_there_on(loop: Any) -> None:
    run = loop(2)
    for _ in range(2):
        run.iterate()
    iteration, items = run._rl_iteration, dict(run._ahead.items)
    for _ in range(2):
        run.iterate()
    run._ahead.forget()
    run._rl_iteration, run._ahead.items = iteration, items
    run.deal_items_after(items)
    assert run.iterate() == 2 and run._ahead.items == {"0": 6}


def test_the_end_kills_who_still_plays_and_waits_for_nobody(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = loop(2)
    run.iterate()
    run._ahead.drain()
    monkeypatch.setattr("rllib_lmgame.algorithms.async_rollouts.ray.kill", run.killed.append)
    run.env_runner_group = SimpleNamespace(_worker_manager=SimpleNamespace(actors=lambda: {1: "one", 2: "two"}))
    run._ahead.close()
    assert not run.killed, "nobody plays"
    with pytest.raises(RolloutError, match="the run has ended"):
        run._heal(None)

    playing = loop(2)
    playing.env_runner_group = run.env_runner_group
    playing.iterate()
    playing._ahead.drain()
    playing.gate.clear()
    playing.iterate()
    assert playing.waiting.wait(PATIENCE_S)
    playing._ahead.close()
    assert run.killed == ["one", "two"]
