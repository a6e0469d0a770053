"""What a league decides is carried out: with engines, learners and games that only note what is asked of them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rllib_lmgame.algorithms import league as league_of_algorithm
from rllib_lmgame.algorithms.league import LeaguePlay
from rllib_lmgame.errors import CheckpointError
from rllib_lmgame.league.options import LeagueOptions
from rllib_lmgame.rollouts.plans import plan_episodes
from rllib_lmgame.rollouts.records import PlaySettings

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
    """As much of an algorithm as a league asks of: its weights are one number, the version."""

    def __init__(self, directory: Path, engines: int, asleep: bool = False) -> None:
        self.policy_version = 0
        self.engine_groups = {f"league:{i}": Engines(f"engine-{i}") for i in range(engines)}
        self.learner_group = SimpleNamespace(is_local=True, _learner=self, _workers=None)
        self.config = SimpleNamespace(
            seed=3,
            trained_policies=lambda: ["p"],
            seat_mapping=lambda: None,
            inference_options=SimpleNamespace(sleep_during_update=asleep),
        )
        self.trial_directory = lambda: directory
        self.played: list[dict[str, tuple[str, ...]]] = []

    def export_hf(self, directory: Path, policy: str, use: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_file({"w": np.full(3, self.policy_version, np.float32)}, directory / "model.safetensors")

    def play(self, plans: Any, settings: PlaySettings, line_ups: Any) -> Any:
        self.played.append(dict(settings.members))
        summaries = []
        for plan in plans:
            seats = line_ups.line_up(plan, ROLES).values()
            assert {seat.member for seat in seats} - {None} <= set(settings.members)
            won = random.Random(plan.seed).random() < 0.5
            seats = [SimpleNamespace(trained=seat.trained, outcome="win" if won else "loss") for seat in seats]
            summaries.append(SimpleNamespace(index=plan.index, seats=seats))
        return SimpleNamespace(summaries=summaries)


@pytest.fixture(autouse=True)
def no_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(league_of_algorithm.SharedBundle, "put", lambda bundle: bundle)


def iterate(play: LeaguePlay, algorithm: Algorithm, iteration: int) -> list[int]:
    """As the algorithm does; how often each engine's weights were exchanged for this iteration."""
    groups = list(algorithm.engine_groups.values())
    play.prepare(iteration)
    exchanged = [len(group.pushed) for group in groups]
    check_engines(play, algorithm, iteration)
    for group in groups:
        group.pushed = group.pushed[-1:]
    plans = plan_episodes(40, run_seed=3, purpose="train", iteration=iteration)
    before = [len(group.pushed) for group in groups]
    play.play(plans, PlaySettings(()), iteration)
    with play.reading_ahead(iteration + 1):
        algorithm.policy_version += 1
    assert all(len(group.pushed) - there <= 1 for group, there in zip(groups, before, strict=True))
    return [count - 1 for count in exchanged]


def check_engines(play: LeaguePlay, algorithm: Algorithm, iteration: int) -> None:
    """What an engine was given last are the weights of the snapshot that its table names."""
    tables = play.league.tables(iteration)
    there = Counter(group.pushed[-1] for group in algorithm.engine_groups.values() if group.pushed)
    wanted = Counter((table.member.checksum, table.member.version) for table in tables)
    assert not wanted - there
    assert all(table.member.version <= iteration for table in tables)


@pytest.mark.parametrize("asleep", [False, True])
def test_engines_hold_what_their_tables_name_and_are_changed_once(tmp_path: Path, asleep: bool) -> None:
    """Members were snapshots of their versions, and stay what they were."""
    algorithm = Algorithm(tmp_path, engines=2, asleep=asleep)
    play = LeaguePlay(algorithm, LeagueOptions(snapshot_every=2, max_members=8, opponent_engines=2))  # type: ignore[arg-type]
    exchanged = [iterate(play, algorithm, iteration) for iteration in range(40)]
    assert all(count <= 1 for counts in exchanged[1:] for count in counts)
    assert [member.version for member in play.league.members] == list(range(24, 40, 2))
    assert {path.name for path in (tmp_path / "league").iterdir()} == {
        *(member.name for member in play.league.members),
        "league.json",
    }
    assert len({name for played in algorithm.played for name in played}) > 10
    assert all(
        set(played.values()) <= {("engine-0",), ("engine-1",), ("engine-0", "engine-1")} for played in algorithm.played
    )
    assert play.numbers()["swaps"] <= 2 * 40


def test_a_league_is_taken_from_a_checkpoint_elsewhere(tmp_path: Path) -> None:
    """With as many iterations behind it, the same members are met with the same weights."""
    options = LeagueOptions(snapshot_every=1, max_members=12, opponent_engines=2)
    whole = Algorithm(tmp_path / "first", engines=2)
    play = LeaguePlay(whole, options)  # type: ignore[arg-type]
    for iteration in range(20):
        iterate(play, whole, iteration)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    play.save(checkpoint)
    state = play.league.state()
    for iteration in range(20, 30):
        iterate(play, whole, iteration)
    resumed = Algorithm(tmp_path / "second", engines=2)
    resumed.policy_version = 20
    again = LeaguePlay(resumed, options)  # type: ignore[arg-type]
    again.set_state(state)
    again.load(checkpoint)
    assert len(again.league.members) == 12
    for iteration in range(20, 30):
        iterate(again, resumed, iteration)
    assert again.league.state() == play.league.state()
    assert [sorted(played) for played in resumed.played] == [sorted(played) for played in whole.played[20:]]


def test_a_damaged_member_ends_the_run_when_its_weights_are_read(tmp_path: Path) -> None:
    algorithm = Algorithm(tmp_path, engines=1)
    play = LeaguePlay(algorithm, LeagueOptions(snapshot_every=1, matchmaking="latest", forgotten_share=0))  # type: ignore[arg-type]
    iterate(play, algorithm, 0)
    save_file({"w": np.full(3, 7, np.float32)}, tmp_path / "league" / "p-0" / "model.safetensors")
    play.set_state(play.league.state())  # the engines have to be given their members anew
    with pytest.raises(CheckpointError, match="p-0 does not hold the weights of the league's member any more"):
        play.prepare(0)
