"""Preference data: records that are pairs, or conversations and logs that are compared by level and return.

A pair's record has ``chosen`` and ``rejected``, each a text or a list of messages, and mostly a ``prompt``, likewise;
without it the prompt is what both begin with. Messages may have any format of conversations. A record of a single
trajectory (``kto``) has ``label``: whether it is good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import shown
from rllib_lmgame.datasets.options import DPOOptions
from rllib_lmgame.datasets.pairs import Candidate, choose_pairs, has_choice, parted, side_of
from rllib_lmgame.datasets.readers.chat import ChatExample, read_pair
from rllib_lmgame.datasets.replay import replay
from rllib_lmgame.datasets.sft import (
    Conversation,
    ConversationDataset,
    episode_of,
    facts_of,
    numbered,
    read_conversation,
)
from rllib_lmgame.policies.chat.chat_datasets import LearntTurn
from rllib_lmgame.rollouts.records import played_parts

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner

ENOUGH = 64
"""If none of so many pairs can be used, the run ends, even if there are more."""


class Side(NamedTuple):
    """One side of a pair: a conversation, or the seat of ``agent`` in an episode of a log."""

    source: Conversation
    chosen: bool
    agent: str | None = None


class PreferenceDataset(ConversationDataset):
    """The pairs of ``options.data``, shuffled; with ``kto`` its good and bad trajectories.

    ``limits`` are the most tokens in a row of each trained policy.

    Raises: ConfigError: names file and line of what cannot be read or compared, or the option that leaves nothing.
    """

    def __init__(self, options: DPOOptions, limits: Mapping[str, int]) -> None:
        super().__init__(options.shuffle_seed, limits)
        self._pairs = options.loss.pairs
        self.units = list(_units(options))

    def __len__(self) -> int:
        return len(self.units)

    @property
    def conversations(self) -> list[Conversation]:
        """The conversations that are compared, each once."""
        found = [side.source for unit in self.units for side in unit]
        return list({id(source): source for source in found}.values())

    def episodes(self, start: int, count: int, runner: TextGameEnvRunner) -> list[MultiAgentEpisode]:
        """The sides of ``count`` pairs from position ``start`` on, in pass after pass, as episodes.

        A pair is left out and counted if a side is too long, cannot be written, or is in no trained seat.

        Raises: ConfigError: all pairs so far (:data:`ENOUGH`, or all there are) are left out.
        """
        places = self.places(start, count, len(self.units))
        sides = [side for place in places for side in self.units[place]]
        written = self.written([side.source for side in sides if isinstance(side.source, ChatExample)], runner.chat)
        episodes: list[MultiAgentEpisode] = []
        why = ""
        for position, place in enumerate(places, start):
            made, problem = [], ""
            for side in self.units[place]:
                name = f"pair-{place}-{'chosen' if side.chosen else 'rejected'}"
                turns, wrong = next(written) if isinstance(side.source, ChatExample) else ({}, None)
                if wrong is not None:
                    problem = f"{side.source.where}: {wrong}"
                elif not problem:
                    found = self._side(side, turns, f"pair@{position}" if self._pairs else "", name, runner)
                    made += found
                    problem = "" if found else f"{side.source.where}: {side.agent} is in no seat whose policy learns"
            if problem:
                why = problem
                self.leave_out(why)
                self.passed_over += 1
            else:
                episodes += made
        taken = start + count
        if why and min(ENOUGH, len(self.units)) <= taken <= self.passed_over:
            raise ConfigError("data", f"all {taken} pairs so far are left out; {why}")
        return episodes

    def _side(
        self, side: Side, turns: dict[str, list[LearntTurn]], group: str, name: str, runner: TextGameEnvRunner
    ) -> list[MultiAgentEpisode]:
        if isinstance(side.source, ChatExample):
            episode = episode_of(side.source, turns, name)
        else:
            episode = replay(side.source, runner, name)
        return [
            side_of(part, group, name, side.chosen)
            for part in played_parts(episode, self.limits)
            if side.agent in (None, part.agent_id) and has_choice(part)
        ]


def _units(options: DPOOptions) -> Iterator[tuple[Side, ...]]:
    compared: list[Conversation] = []
    found = 0
    for where, record in numbered(options.data or []):
        for unit in _of_record(where, record, options):
            found += 1
            yield unit
        if not _says_itself(record):
            compared.append(read_conversation(where, record, options.format))
    if options.loss.pairs:
        pairs = choose_pairs(_candidates(compared), options)
        both = f"no two of {len(compared)} conversations are of one level"
    else:
        for (source, agent), good in parted(_candidates(compared), options):
            found += 1
            yield (Side(source, good, agent),)
        pairs, both = [], "none of them is good or bad"
    for (chosen, agent), (rejected, _) in pairs:
        _check_beginnings(chosen, rejected)
        sides = (Side(chosen, True, agent), Side(rejected, False, agent))
        yield from ((side,) for side in sides) if not options.loss.pairs else (sides,)
    if not pairs and not found:
        asked = f"reward_gap: {options.reward_gap:g}" + ("" if options.chosen_min is None else " and chosen_min")
        raise ConfigError("data", f"leaves no pair: {both} with returns as far apart as {asked} asks")


def _says_itself(record: Mapping[str, Any]) -> bool:
    return not {"chosen", "rejected", "label"}.isdisjoint(record)


def _of_record(where: str, record: Mapping[str, Any], options: DPOOptions) -> Iterator[tuple[Side, ...]]:
    """The pair or labelled side in a record."""
    if not _says_itself(record):
        return
    if "label" in record and "chosen" not in record:
        if options.loss.pairs:
            raise ConfigError("loss", f"{options.loss.type} compares two, but {where} has one; take kto")
        if not isinstance(record["label"], bool):
            raise ConfigError("data", f"{where}: label is {shown(record['label'])}; it must be true or false")
        yield (Side(read_conversation(where, record, options.format), record["label"]),)
        return
    sides = tuple(Side(example, good) for example, good in zip(read_pair(record, where), (True, False), strict=True))
    yield from (sides,) if options.loss.pairs else ((side,) for side in sides)


def _candidates(sources: Sequence[Conversation]) -> list[Candidate]:
    """Candidates for pairs. Raises: ConfigError: a level or return is missing."""
    found = []
    for source in sources:
        facts = facts_of(source)
        if not facts.level:
            raise ConfigError("data", f"{facts.where}: is no pair, and says no level (`item_id` or `level`) to join by")
        if isinstance(source, ChatExample):
            if facts.episode_return is None:
                raise ConfigError("data", f"{facts.where}: is no pair, and says no return (`reward` or `return`)")
            found.append(Candidate((facts.game, facts.level, ""), facts.episode_return, (source, None)))
        else:
            for agent, value in source.returns.items():
                found.append(Candidate((facts.game, facts.level, agent), value, (source, agent)))
    return found


def _check_beginnings(chosen: Conversation, rejected: Conversation) -> None:
    """Raises: ConfigError: the sides of a pair begin differently."""
    if isinstance(chosen, ChatExample) != isinstance(rejected, ChatExample) or _beginning(chosen) == _beginning(
        rejected
    ):
        return
    first, second = facts_of(chosen), facts_of(rejected)
    raise ConfigError(
        "data",
        f"{first.where}: begins otherwise than {second.where}, though both say level {first.level}; a pair is of one "
        "level",
    )


def _beginning(source: Conversation) -> Any:
    if not isinstance(source, ChatExample):
        return source.instructions, source.beginning
    first = source.transcript.learnt[0]
    return [(said.role, said.text.strip()) for said in source.transcript.messages[:first]]
