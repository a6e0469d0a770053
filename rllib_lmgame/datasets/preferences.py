"""Preference data: records that are pairs, or conversations and logs that are compared by level and return.

A pair's record has ``chosen`` and ``rejected``, each a text or a list of messages, and mostly a ``prompt``, likewise;
without it the prompt is what both begin with. Messages may have any format of conversations.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.datasets.options import DPOOptions
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
from rllib_lmgame.rollouts.episodes import new_episode
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, played_parts, turns_of

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner


EQUAL = 1e-9
"""Tolerance of comparisons with ``reward_gap``."""


class Candidate(NamedTuple):
    """A trajectory; those with the same ``key`` are compared by ``value``."""

    key: Hashable
    value: float
    item: Any


Pairs = list[tuple[Any, Any]]
"""Pairs of chosen and rejected."""


def choose_pairs(candidates: Sequence[Candidate], options: DPOOptions) -> Pairs:
    """Pairs of candidates with the same key whose values differ by ``reward_gap``.

    ``pairs_per_level: one`` takes the best and the worst of each key, the first ones among equals.
    """
    found, of_key = [], dict[Hashable, list[Candidate]]()
    for each in candidates:
        of_key.setdefault(each.key, []).append(each)
    for better in of_key.values():
        worse = better
        if options.pairs_per_level == "one":
            better, worse = [max(better, key=lambda c: c.value)], [min(better, key=lambda c: c.value)]
        found += [
            (chosen.item, rejected.item)
            for chosen in better
            for rejected in worse
            if chosen.value - rejected.value >= options.reward_gap - EQUAL
        ]
    return found


def has_choice(part: SingleAgentEpisode) -> bool:
    """Whether a token of a player's replies was a free choice; otherwise nothing of them is trained on."""
    return any(turn.has_choice for turn in turns_of(part))


def side_of(part: SingleAgentEpisode, group: str, name: str, chosen: bool) -> MultiAgentEpisode:
    """One player's part as an episode, one side of the pair ``group``; the sign of its reward says if it is chosen."""
    return alone(part, name, group=group, reward=1.0 if chosen else -1.0)


def alone(part: SingleAgentEpisode, name: str, *, group: str = "", reward: float = 0.0) -> MultiAgentEpisode:
    """One player's part as an episode of another group; the part is not changed.

    ``reward`` of the last turn replaces all rewards. The game's temperature is dropped, and the new name is in no log.
    """
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

    agent = part.agent_id
    one = copy.copy(part)
    one.multi_agent_episode_id = name
    one.rewards = InfiniteLookbackBuffer([0.0] * (len(part) - 1) + [reward])
    about = part.custom_data[CUSTOM_DATA_KEY]
    own = replace(about, group=group, temperature=None, logged=False, final_prompt_ids=None)  # No value is asked for.
    one._custom_data = {**part.custom_data, CUSTOM_DATA_KEY: own}
    episode = new_episode(name, {agent: part.module_id})
    episode.env_t = len(part)
    episode.agent_episodes[agent] = one
    episode.is_terminated = True
    return episode


ENOUGH = 64
"""If none of so many pairs can be used, the run ends, even if there are more."""


class Side(NamedTuple):
    """One side of a pair: a conversation, or the seat of ``agent`` in an episode of a log."""

    source: Conversation
    chosen: bool
    agent: str | None = None


class PreferenceDataset(ConversationDataset):
    """The pairs of ``options.data``, shuffled.

    ``limits`` are the most tokens in a row of each trained policy.

    Raises: ConfigError: names file and line of what cannot be read or compared, or the option that leaves nothing.
    """

    def __init__(self, options: DPOOptions, limits: Mapping[str, int]) -> None:
        super().__init__(options.shuffle_seed, limits)
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
                    found = self._side(side, turns, f"pair@{position}", name, runner)
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


def _units(options: DPOOptions) -> Iterator[tuple[Side, Side]]:
    compared: list[Conversation] = []
    found = 0
    for where, record in numbered(options.data or []):
        if record.keys() & {"chosen", "rejected"}:
            found += 1
            chosen, rejected = read_pair(record, where)
            yield Side(chosen, True), Side(rejected, False)
        else:
            compared.append(read_conversation(where, record))
    pairs = choose_pairs(_candidates(compared), options)
    for (better, agent), (worse, _) in pairs:
        if type(better) is type(worse) and _beginning(better) != _beginning(worse):
            first, second = facts_of(better), facts_of(worse)
            why = f"begins otherwise than {second.where}, though both say level {first.level}"
            raise ConfigError("data", f"{first.where}: {why}")
        yield Side(better, True, agent), Side(worse, False, agent)
    if not pairs and not found:
        both = f"no two of {len(compared)} conversations are of one level"
        raise ConfigError("data", f"leaves no pair: {both}, with returns {options.reward_gap:g} (reward_gap) apart")


def _candidates(sources: Sequence[Conversation]) -> list[Candidate]:
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


def _beginning(source: Conversation) -> Any:
    if not isinstance(source, ChatExample):
        return source.instructions, source.beginning
    first = source.transcript.learnt[0]
    return [(said.role, said.text.strip()) for said in source.transcript.messages[:first]]
