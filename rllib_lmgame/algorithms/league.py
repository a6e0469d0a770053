"""The league as the algorithm handles it: snapshots, member files, opponent engines."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_lmgame.algorithms.checkpoints.learner_files import written_by_learners
from rllib_lmgame.algorithms.checkpoints.manifest import FileRecords, file_records
from rllib_lmgame.algorithms.cluster.workers import foreach_learner, opponent_key
from rllib_lmgame.base.json_files import write_json
from rllib_lmgame.inference.serving.client import engine_of
from rllib_lmgame.inference.weights import Base, SharedBundle
from rllib_lmgame.league.files import (
    DIRECTORY,
    LIST_FILE,
    copy_members,
    move_directory,
    read_bundle,
    read_member,
    remove_members,
)
from rllib_lmgame.league.league import League
from rllib_lmgame.league.matches import LeagueAgentMapper, Table, assign_engines
from rllib_lmgame.league.matchmaking import Member
from rllib_lmgame.learners.options import WeightUse
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.records import EpisodeSummary, PlayResult, PlaySettings

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.base import LMGameAlgorithm
    from rllib_lmgame.league.options import LeagueOptions


class LeaguePlay:
    """Carries out the decisions of a :class:`~rllib_lmgame.league.league.League`.

    1. A member's files are complete or absent, and are never rewritten.
    2. Before an iteration is played, each opponent engine holds its member's weights, with the checksum of the member's
       file. A restarted engine gets the same weights before it serves.
    3. An engine's weights, or each of its adapters, change at most once per iteration.
    """

    def __init__(self, algorithm: LMGameAlgorithm, options: LeagueOptions) -> None:
        self._algorithm = algorithm
        self.league = League(options, algorithm.config.trained_policies(), algorithm.config.seed or 0)
        self.directory = algorithm.trial_directory() / DIRECTORY
        self._groups = [algorithm.engine_groups[opponent_key(number)] for number in range(options.opponent_engines)]
        self._held: list[str | None] = [None] * len(self._groups)
        self._agent_mapper = LeagueAgentMapper(algorithm.config)
        self._swaps = 0
        self._prepare_s = 0.0

    # -- an iteration -------------------------------------------------------------------------------------------

    def prepare(self, iteration: int) -> None:
        """Take due snapshots and load the opponent engines; idempotent."""
        began = time.perf_counter()
        snapshots = [self._take_snapshot(member) for member in self.league.due(iteration)]
        remove_members(self.directory, self.league.decided(iteration, snapshots))
        if snapshots:
            write_json(self.directory / LIST_FILE, self.league.state(), indent=1)
        self._load(self.league.tables(iteration))
        self._prepare_s = time.perf_counter() - began

    def prepare_without_snapshots(self, iteration: int) -> bool:
        """:meth:`prepare` if no snapshot is due. Returns whether it did."""
        due = bool(self.league.due(iteration))
        if not due:
            self.prepare(iteration)
        return not due

    def play(self, plans: Sequence[EpisodePlan], settings: PlaySettings, iteration: int) -> PlayResult:
        """Play matches of ``iteration``, after :meth:`prepare`; indices of plans are unique in an iteration."""
        settings = dataclasses.replace(settings, members=self._holders(self.league.tables(iteration)))
        self._agent_mapper.matches = {**self._agent_mapper.matches, **self.league.matches(plans, iteration)}
        return self._algorithm.play(plans, settings, agent_mapper=self._agent_mapper)

    def record(self, summaries: Sequence[EpisodeSummary]) -> None:
        """Count the results of an iteration once; older results decay once."""
        self.league.record(summaries, self._agent_mapper.matches)
        self._agent_mapper.matches = {}

    def _holders(self, tables: Sequence[Table]) -> dict[str, tuple[str, ...]]:
        holders: dict[str, dict[str, str]] = {table.member.name: {} for table in tables}
        for group, held in zip(self._groups, self._held, strict=True):
            if held in holders:
                holders[held] |= {engine_of(name): name for name in group.names}
        return {member: tuple(names.values()) for member, names in holders.items()}

    def numbers(self) -> dict[str, Any]:
        """:meth:`.League.numbers`, ``swaps`` of weights since the start, and seconds of :meth:`prepare`."""
        return {**self.league.numbers(), "swaps": self._swaps, "prepare_s": self._prepare_s}

    def _load(self, tables: Sequence[Table]) -> None:
        members = {table.member.name: table.member for table in tables}
        wanted = assign_engines(self._held, [table.member.name for table in tables])
        read: dict[str, SharedBundle] = {}
        for place, name in enumerate(wanted):
            if name is None or name == self._held[place]:
                continue
            member = members[name]
            if name not in read:
                read[name] = SharedBundle.put(read_member(self.directory, member, self._base(member.policy)))
            self._held[place] = None
            self._groups[place].make_room()
            self._groups[place].push(read[name], member.version)
            self._held[place] = name
            self._swaps += 1

    def _base(self, policy: str) -> Base | None:
        config = self._algorithm.config
        options = config.language_model_of(policy)
        if options.lora is None:
            return None
        return Base(config.model_files[policy], options.trust_remote_code)

    def _take_snapshot(self, member: Member) -> Member:
        use = WeightUse.EXPORT if self.league.options.averaged_snapshots else WeightUse.TRAINING
        scratch = self.directory / f".taking-{member.name}"
        shutil.rmtree(scratch, ignore_errors=True)
        group = self._algorithm.learner_group
        with self._algorithm.learners_present(), written_by_learners(group, scratch):
            foreach_learner(group, lambda learner: learner.export_member(scratch, member.policy, use))
        version = self._algorithm.policy_version
        checksum = read_bundle(scratch, version, self._base(member.policy)).checksum
        taken = dataclasses.replace(member, version=version, checksum=checksum, files=file_records(scratch))
        move_directory(scratch, self.directory / member.name)
        return taken

    # -- checkpoints --------------------------------------------------------------------------------------------

    def save(self, checkpoint: Path) -> None:
        directory = checkpoint / DIRECTORY
        directory.mkdir()
        copy_members(self.directory, directory, self.league.members)
        write_json(directory / LIST_FILE, self.league.state(), indent=1)

    def recorded_files(self) -> FileRecords:
        """Manifest entries of files in a checkpoint that are known already."""
        return {
            f"{DIRECTORY}/{member.name}/{name}": record
            for member in self.league.members
            for name, record in member.files.items()
        }

    def load(self, checkpoint: Path) -> None:
        """Reverse :meth:`save`, after :meth:`set_state`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        copy_members(checkpoint / DIRECTORY, self.directory, self.league.members)

    def set_state(self, state: dict[str, Any]) -> None:
        self.league.set_state(state)
        self._held = [None] * len(self._groups)
