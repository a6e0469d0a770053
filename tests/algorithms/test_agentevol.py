"""What AgentEvol explores and keeps, without engines and learners."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from episode_parts import episode_of, part_of

from rllib_lmgame.algorithms import sft as supervised
from rllib_lmgame.algorithms.agentevol import LMGameAgentEvol, LMGameAgentEvolConfig
from rllib_lmgame.algorithms.sft import SupervisedStage
from rllib_lmgame.datasets.options import SupervisedOptions
from rllib_lmgame.envs.support.item_order import item_of_seed
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.records import PlayResult, Trajectory, Turn, played_parts, trajectory_of

LIST = {"env": "agentgym:textcraft", "env_config": {"url": "http://127.0.0.1:9", "ids": "0-99"}}
SOKOBAN = {"env": "lmgame/Sokoban-v0"}


class NotPlayed(Exception):
    """In place of a game; says how it was to be played."""


class Loop(LMGameAgentEvol):
    """Of an algorithm, what chooses: nothing is started."""

    def __init__(self, own: dict[str, Any], **game: Any) -> None:
        values = {**(game or SOKOBAN), "agentevol": own}
        self.config = LMGameAgentEvolConfig().update_from_dict(values)
        self._explored, self._solved, self._item_order = 0, set(), ItemOrder(0, "explore")
        self.engine_groups = {}

    def play(self, plans: Any, settings: Any, **kwargs: Any) -> PlayResult:
        raise NotPlayed(settings)

    def timed(self, *told: Any) -> Any:
        return nullcontext()

    @property
    def own(self) -> Any:
        return self.config.run.agentevol

    def kept(self, *played: tuple[str, float, bool]) -> list[float]:
        """Of games ``(name, return, success)`` what is kept: the returns."""
        return [got for got, _ in self.chosen(*played)]

    def chosen(self, *played: tuple[str, float, bool]) -> list[tuple[float, Any]]:
        ids, logprobs = np.zeros(2, np.int32), np.zeros(2, np.float32)
        result, returns = PlayResult(), {}
        for number, (game, got, success) in enumerate(played):
            turn = Turn(ids[:1], ids + number, logprobs, got)
            part = part_of(
                Trajectory([turn], True, game=game, agent_id="player", module_id="player", temperature=0.5, logged=True)
            )
            returns[number] = got
            seat = SimpleNamespace(agent_id="player", success=float(success), outcome=None, role="player")
            result.episodes.append(episode_of(part))
            result.summaries.append(
                SimpleNamespace(game_id=game, level=str(number), seed=0, episode_id=str(number), seats=[seat])  # type: ignore[arg-type]
            )
        parts = [part for episode in self._successes(result, self.own) for part in played_parts(episode)]
        found = map(trajectory_of, parts)
        return [(returns[int(each.turns[0].response_ids[0])], each) for each in found]


def test_successes_are_kept_or_what_has_the_least_return() -> None:
    played = ("a", 0.4, False), ("a", 0.9, False), ("b", 0.0, False), ("b", 1.0, True)
    assert Loop({"min_return": 0.5}).kept(*played) == [0.9, 1.0]
    assert Loop({}).kept(*played) == [1.0]
    assert Loop({"min_return": 0.0}).kept(*played) == [0.4, 0.9, 0.0, 1.0]


def test_what_is_kept_is_learnt_as_the_model_says_it() -> None:
    """Not at its game's temperature; and under its new name it stands in no log."""
    ((*_, kept),) = Loop({}).chosen(("a", 1.0, True))
    assert kept.temperature is None and not kept.logged


@pytest.mark.parametrize("start", ["base", "last"])
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("data", [True, False])
def test_what_is_imitated_and_from_which_weights(
    start: str, accumulate: bool, data: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every imitation but the first begins with the first weights again, right before it."""
    loop, done = Loop({"start": start, "accumulate": accumulate, "epochs": 2, "levels": 8}), []
    loop._imitated, loop._kept, loop._stage = False, [], SupervisedStage(loop, SupervisedOptions())
    loop._base_files = {}
    loop.metrics = SimpleNamespace(log_value=lambda *args, **how: None)
    loop.learner_group = None  # type: ignore[assignment]
    explorations = iter([["a"], [], ["b"]])
    for name, does in {
        "_original": lambda: ["first"] if data else [],
        "_explore": lambda own: done.append("explore") or next(explorations),  # type: ignore[func-returns-value]
        "training_data": lambda learnt: learnt,
        "engines_asleep": lambda **how: nullcontext(),
        "after_update": lambda results: None,
        "_write_base": lambda: done.append("keep"),
        "_begin_again": lambda: done.append("begin again"),
        "push_weights": lambda: done.append("push"),
    }.items():
        setattr(loop, name, does)
    monkeypatch.setattr(supervised, "update_learners", lambda group, learnt, *args, **how: done.append(learnt))
    for _ in range(3 + data):
        loop.training_step()

    keep, again = (["keep"], ["begin again"]) if start == "base" else ([], [])
    first = ["first"] if data else []
    second, last = (["a", *first] if accumulate else first), (["a", "b", *first] if accumulate else ["b", *first])
    expected = [*keep, first, first, "push"] if data else []
    for learnt, begins in ((["a", *first], again if data else []), (second, again), (last, again)):
        expected += [*keep, "explore", *([*begins, learnt, learnt, "push"] if learnt else [])]
    assert done == expected


@pytest.mark.parametrize("new", [True, False])
def test_items_of_a_list_are_explored_once_before_any_again(new: bool) -> None:
    loop = Loop({"levels": 50, "samples_per_level": 2, "new_levels": new}, **LIST)
    seen: list[list[int]] = []
    for explored in range(2):
        loop._explored = explored
        plans = loop._plans(loop.own)
        items = {plan.group: item_of_seed(plan.seed, 100) for plan in plans}
        assert len({plan.episode_id for plan in plans}) == 100 and len(set(items.values())) == 50
        seen.append(list(items.values()))
        other = ItemOrder(0, "explore")
        other.set_state(loop._item_order.state())
        loop._item_order = other
    assert (set(seen[0]) | set(seen[1]) == set(range(100))) if new else seen[0] == seen[1]


def test_a_warm_start_shows_each_item_of_a_list_once_before_any_again_also_when_resumed() -> None:
    loop, seen = Loop({}, **LIST), []
    loop.play = lambda plans, settings: seen.extend(item_of_seed(plan.seed, 100) for plan in plans)  # type: ignore
    first, second = (SupervisedStage(loop, SupervisedOptions()) for _ in range(2))
    first.episodes(0, 40)
    second.set_state(first.state())
    second.episodes(5, 60)
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize(
    ("log", "name", "most"), [("off", None, None), ("sample", "train", 16), ("all", "train", None)]
)
def test_explorations_are_logged_as_asked(log: str, name: str | None, most: int | None) -> None:
    loop = Loop({})
    loop.config.text_rollouts(episode_log=log)
    loop.config.env_runners(num_env_runners=2)
    with pytest.raises(NotPlayed) as caught:
        loop._explore(loop.own)
    (settings,) = caught.value.args
    assert (settings.log, settings.log_most) == (name, most)
