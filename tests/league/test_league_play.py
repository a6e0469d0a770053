"""What a league decides is carried out: with engines, learners and games that only note what is asked of them."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections import Counter
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rllib_lmgame.algorithms import league as league_of_algorithm
from rllib_lmgame.algorithms.league import LeaguePlay
from rllib_lmgame.algorithms.ppo import LMGamePPO, LMGamePPOConfig
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.league.options import LeagueOptions
from rllib_lmgame.learners.options import WeightUse
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.plans import plan_episodes
from rllib_lmgame.rollouts.records import PlayResult, PlaySettings

ROLES = {"X": "first", "O": "second"}


class Engines:
    """A group of one engine; what it was pushed this iteration, and what it holds."""

    def __init__(self, name: str) -> None:
        self.names = [name]
        self.pushed: list[tuple[str, int]] = []

    def make_room(self) -> None:
        pass

    def push(self, bundle: Any, version: int) -> None:
        self.pushed.append((bundle.checksum, version))


class Algorithm:
    """As much of an algorithm as a league asks of: its weights are one number, which an update makes one greater."""

    def __init__(self, directory, engines: int, policies: tuple[str, ...] = ("p",)) -> None:
        self.policy_version = 0
        self.weights = dict.fromkeys(policies, 0)
        self.engine_groups = {f"league:{i}": Engines(f"engine-{i}") for i in range(engines)}
        self.learner_group = SimpleNamespace(is_local=True, _learner=self, _workers=None)
        self.config = SimpleNamespace(
            seed=3,
            trained_policies=lambda: list(policies),
            agent_to_module_mapping=lambda: None,
            language_model_of=lambda policy, entry=None: LanguageModelOptions(),
        )
        self.trial_directory, self.learners_present = lambda: directory, nullcontext
        self.exported: list[WeightUse] = []
        self.played: list[dict[str, tuple[str, ...]]] = []
        self.matches: dict[int, Any] = {}

    def export_member(self, directory, policy: str, use: WeightUse) -> None:
        self.exported.append(use)
        directory.mkdir(parents=True, exist_ok=True)
        save_file({"w": np.full(3, self.weights[policy], np.float32)}, directory / "model.safetensors")

    def update(self) -> None:
        self.policy_version += 1
        self.weights = {policy: weight + 1 for policy, weight in self.weights.items()}

    def play(self, plans: Any, settings: PlaySettings, agent_mapper: Any) -> Any:
        assert all(settings.members.values()), "a member that no engine holds"
        self.played.append(dict(settings.members))
        self.matches |= {plan.index: agent_mapper.matches[plan.index] for plan in plans}
        summaries: list[Any] = []
        for plan in plans:
            seats = agent_mapper.assignments(plan, ROLES).values()
            assert {seat.member for seat in seats} - {None} <= set(settings.members)
            won = random.Random(plan.seed).random() < 0.5
            seats = [SimpleNamespace(trained=seat.trained, outcome="win" if won else "loss") for seat in seats]
            summaries.append(SimpleNamespace(index=plan.index, seats=seats))
        return PlayResult(summaries=summaries)


@pytest.fixture(autouse=True)
def no_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(league_of_algorithm.SharedBundle, "put", lambda bundle: bundle)


def iterate(play: LeaguePlay, algorithm: Algorithm, *iterations: int) -> list[list[int]]:
    """As the algorithm does; how often each engine's weights were exchanged for each iteration."""
    return [iterate_once(play, algorithm, iteration) for iteration in iterations]


def iterate_once(play: LeaguePlay, algorithm: Algorithm, iteration: int) -> list[int]:
    groups = list(algorithm.engine_groups.values())
    play.prepare(iteration)
    exchanged = [len(group.pushed) for group in groups]
    check_engines(play, algorithm, iteration)
    for group in groups:
        group.pushed = group.pushed[-1:]
    plans = plan_episodes(40, run_seed=3, purpose="train", iteration=iteration)
    play.record(play.play(plans, PlaySettings(()), iteration).summaries)
    algorithm.update()
    return [count - 1 for count in exchanged]


def check_engines(play: LeaguePlay, algorithm: Algorithm, iteration: int) -> None:
    """What an engine was given last are the weights of the snapshot that its table names."""
    tables = play.league.tables(iteration)
    there = Counter(group.pushed[-1] for group in algorithm.engine_groups.values() if group.pushed)
    wanted = Counter((table.member.checksum, table.member.version) for table in tables)
    assert not wanted - there
    assert all(table.member.version <= iteration for table in tables)


def test_engines_hold_what_their_tables_name_and_are_changed_once(tmp_path) -> None:
    """Members were snapshots of their versions, and stay what they were."""
    algorithm = Algorithm(tmp_path, engines=2)
    play = LeaguePlay(algorithm, LeagueOptions(snapshot_every=2, max_members=8, opponent_engines=2))
    exchanged = iterate(play, algorithm, *range(40))
    assert all(count <= 1 for counts in exchanged[1:] for count in counts)
    assert [member.version for member in play.league.members] == list(range(24, 40, 2))
    names = {"league.json", *(member.name for member in play.league.members)}
    assert {path.name for path in (tmp_path / "league").iterdir()} == names
    assert len({name for played in algorithm.played for name in played}) > 10
    engines = {("engine-0",), ("engine-1",), ("engine-0", "engine-1")}
    assert all(set(played.values()) <= engines for played in algorithm.played)
    assert play.numbers()["swaps"] <= 2 * 40


@pytest.mark.parametrize("averaged", [False, True])
def test_members_are_the_weights_in_training_or_the_averaged_ones(tmp_path, averaged: bool) -> None:
    algorithm = Algorithm(tmp_path, engines=1)
    play = LeaguePlay(algorithm, LeagueOptions(snapshot_every=1, averaged_snapshots=averaged))
    iterate(play, algorithm, *range(2))
    assert algorithm.exported == [WeightUse.EXPORT if averaged else WeightUse.TRAINING] * 2


def test_what_is_played_in_place_of_zero_variance_groups_counts_with_the_rest(tmp_path) -> None:
    """Pay-offs are those of all results counted at once; further rounds meet the members that engines hold."""
    algorithm = Algorithm(tmp_path, engines=2)
    play = LeaguePlay(algorithm, LeagueOptions(snapshot_every=1, opponent_engines=2))
    config = LMGamePPOConfig().update_from_dict(
        {
            "env": "lmgame/TicTacToe-v0",
            "text_rollouts": {"episodes_per_iteration": 40, "group_size": 4},
            "data_selection": {"zero_variance_groups": {"type": "drop", "max_refill": 3}},
        }
    )
    for iteration in range(8):
        loop: Any = SimpleNamespace(config=config, _league=play, _rl_iteration=iteration, _needs_groups=False)
        loop._item_order, loop.planned = ItemOrder(0, "train"), partial(LMGamePPO.planned, loop)
        play.prepare(iteration)
        once = copy.deepcopy(play.league)
        selected = LMGamePPO.play_and_select(loop, config.run, iteration)
        play.record(selected.result.summaries)
        assert selected.counts["refill_rounds"] == 3
        summaries = selected.result.summaries
        assert sorted(summary.index for summary in summaries) == list(range(4 * 40))
        once.record(summaries, algorithm.matches)
        assert play.league.state() == once.state()
        algorithm.update()
    games = sum(play.league.payoffs.games("p", member.name) for member in play.league.members)
    assert games == pytest.approx(104 * sum(0.9**age for age in range(8)), abs=20)  # of 160, .65 against members


def test_a_damaged_member_ends_the_run_when_its_weights_are_read(tmp_path) -> None:
    algorithm = Algorithm(tmp_path, engines=1)
    play = LeaguePlay(algorithm, LeagueOptions(snapshot_every=1, matchmaking="latest"))
    iterate(play, algorithm, 0)
    save_file({"w": np.full(3, 7, np.float32)}, tmp_path / "league" / "p-0" / "model.safetensors")
    play.set_state(play.league.state())  # the engines have to be given their members anew
    with pytest.raises(CheckpointError, match="p-0 does not hold the weights of the league's member any more"):
        play.prepare(0)


def test_a_league_is_taken_from_a_checkpoint_elsewhere(tmp_path) -> None:
    """It goes on there as where it was."""
    whole = Algorithm(tmp_path / "first", engines=2)
    options = LeagueOptions(snapshot_every=2, max_members=4, opponent_engines=2)
    play = LeaguePlay(whole, options)
    iterate(play, whole, *range(8))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    play.save(checkpoint)
    state = json.loads(json.dumps(play.league.state()))
    resumed = Algorithm(tmp_path / "second", engines=2)
    resumed.policy_version, resumed.weights = whole.policy_version, dict(whole.weights)
    iterate(play, whole, *range(8, 20))
    shutil.rmtree(tmp_path / "first")
    again = LeaguePlay(resumed, options)
    again.set_state(state)
    again.load(checkpoint)
    iterate(again, resumed, *range(8, 20))
    assert again.league.state() == play.league.state() and resumed.weights == whole.weights
    assert [sorted(played) for played in resumed.played] == [sorted(played) for played in whole.played[8:]]
