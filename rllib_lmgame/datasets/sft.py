"""Supervised data: conversations of files as episodes."""

from __future__ import annotations

import copy
import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.datasets.files import Numbered, files_of, records_of
from rllib_lmgame.datasets.options import SupervisedOptions
from rllib_lmgame.datasets.readers.chat import ChatExample, is_log, read_record
from rllib_lmgame.datasets.replay import RecordedSession, recorded_session, replay
from rllib_lmgame.policies.chat.chat_datasets import LearntTurn, TranscriptWriter
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.chat.template import TemplateError
from rllib_lmgame.rollouts.episodes import episode_of_texts
from rllib_lmgame.rollouts.records import Trajectory, Turn

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner


class Facts(NamedTuple):
    """Place, game, level ("" if unknown), return and success of a conversation; ``digest`` identifies it without
    level.
    """

    where: str
    game: str
    level: str
    episode_return: float | None
    digest: str = ""
    success: bool | None = None


def choose(facts: Sequence[Facts], options: SupervisedOptions) -> tuple[list[int], list[int]]:
    """Apply ``successes_only``, ``min_return``, ``one_per_level``, ``top_share``, ``validation_share``, in this order.

    Returns: Indices of conversations that are trained on, and of those held out.

    Raises: ConfigError: a conversation lacks a return or level that is needed, or nothing is left.
    """
    kept = list(range(len(facts)))
    if options.successes_only:
        kept = [place for place in kept if _succeeded(facts[place])]
        if not kept:
            raise ConfigError("successes_only", f"leaves none of {len(facts)} conversations: none was a success")
    if options.min_return is not None:
        before = kept
        kept = [place for place in before if _return_of(facts[place], "min_return") >= options.min_return]
        if not kept:
            best = max(_return_of(facts[place], "min_return") for place in before)
            raise ConfigError(
                "min_return", f"leaves none of {len(before)} conversations; their best return is {best:g}"
            )
    if options.one_per_level is not None:
        kept = _one_per_level(facts, kept, options.one_per_level)
    if options.top_share is not None:
        kept = _top(facts, kept, options.top_share)
    held_out = _held_out(facts, kept, options.validation_share)
    training = [place for place in kept if place not in held_out]
    validation = [place for place in kept if place in held_out]
    if options.validation_share and not (training and validation):
        raise ConfigError("validation_share", f"of {len(kept)} conversations leaves none to hold out, or to learn from")
    return training, validation


def _succeeded(facts: Facts) -> bool:
    if facts.success is None:
        raise ConfigError("successes_only", f"needs to know it, but {facts.where} says none (`success`)")
    return facts.success


def _return_of(facts: Facts, key: str) -> float:
    if facts.episode_return is None:
        raise ConfigError(key, f"needs returns, but {facts.where} says none (`reward` or `return`)")
    return facts.episode_return


def _one_per_level(facts: Sequence[Facts], kept: Iterable[int], which: str) -> list[int]:
    found: dict[tuple[str, str], int] = {}
    for place in kept:
        each = facts[place]
        if not each.level:
            raise ConfigError("one_per_level", f"needs levels, but {each.where} says none (`item_id` or `level`)")
        other = found.setdefault((each.game, each.level), place)
        if which == "best" and _return_of(each, "one_per_level") > _return_of(facts[other], "one_per_level"):
            found[each.game, each.level] = place
    return sorted(found.values())


def _top(facts: Sequence[Facts], kept: Sequence[int], share: float) -> list[int]:
    """The best of each game, at least one; the first ones among equals."""
    games: dict[str, list[int]] = {}
    for place in kept:
        games.setdefault(facts[place].game, []).append(place)
    found: list[int] = []
    for places in games.values():
        best = sorted(places, key=lambda place: -_return_of(facts[place], "top_share"))
        found += best[: max(1, math.floor(share * len(places) + 1e-9))]
    return sorted(found)


def _held_out(facts: Sequence[Facts], kept: Sequence[int], share: float) -> set[int]:
    """A share of whole levels, by a hash: independent of order and other options."""
    if not share:
        return set()
    levels: dict[str, list[int]] = {}
    for place in kept:
        each = facts[place]
        levels.setdefault(f"{each.game} {each.level or each.digest or each.where}", []).append(place)
    wanted, found = max(1, round(share * len(kept))), set[int]()
    for name in sorted(levels, key=lambda name: hashlib.blake2b(name.encode("utf-8", "replace")).digest()):
        if len(found) >= wanted:
            break
        found.update(levels[name])
    return found


logger = logging.getLogger(__name__)

MOST_KINDS = 64
"""Kinds of conversations that are checked before a run."""
MOST_KEPT = 2_000
"""Replayed episodes of logs that are kept for later passes."""
ChatOf = Callable[[str], ChatFormat]
"""A policy's chat format."""
AGENT = "assistant"
"""Agent id in conversations."""


class ConversationDataset:
    """Writes conversations for the trained policies, and gives their order.

    ``limits`` are the most tokens in a row of each trained policy. ``passed_over`` counts conversations that were too
    long so far, or that a chat template cannot write; a resumed run sets it.
    """

    def __init__(self, shuffle_seed: int | None, limits: Mapping[str, int]) -> None:
        self.limits = dict(limits)
        self.passed_over = 0
        self._shuffle_seed = shuffle_seed
        self._told = False
        self._writers: dict[str, TranscriptWriter] = {}

    @property
    def conversations(self) -> Sequence[Conversation]:
        """All conversations, trained on or held out."""
        raise NotImplementedError

    def check(self, chat_of: ChatOf) -> None:
        """Write one conversation of each kind.

        Raises: ConfigError: names file and line of one that the chat template cannot write.
        """
        everything = [each for each in self.conversations if isinstance(each, ChatExample)]
        some = list({each.transcript.kind: each for each in reversed(everything)}.values())[:MOST_KINDS]
        for source, (_, problem) in zip(some, self.written(some, chat_of), strict=True):
            if isinstance(problem, TemplateError):
                raise ConfigError("data", f"{source.where}: the chat template cannot write it: {problem}")

    def places(self, start: int, count: int, size: int) -> list[int]:
        """Indices below ``size`` of ``count`` positions from ``start`` on, in pass after pass."""
        orders = {epoch: self._order(epoch, size) for epoch in range(start // size, -(-(start + count) // size))}
        return [orders[at // size][at % size] for at in range(start, start + count)]

    def _order(self, epoch: int, size: int) -> Sequence[int]:
        seed = self._shuffle_seed
        return range(size) if seed is None else np.random.default_rng([seed, epoch]).permutation(size).tolist()

    def leave_out(self, why: str) -> None:
        """Log the first conversation that is left out."""
        if not self._told:
            self._told = True
            logger.warning("A conversation is left out, and others like it are counted: %s", why)

    def written(
        self, sources: Sequence[ChatExample], chat_of: ChatOf
    ) -> Iterator[tuple[dict[str, list[LearntTurn]], Exception | None]]:
        """For each conversation the turns of each policy, and the error if it is left out."""
        transcripts = [source.transcript for source in sources]
        self._writers = self._writers or {policy: TranscriptWriter(chat_of(policy)) for policy in self.limits}
        per_policy = {policy: writer.write(transcripts) for policy, writer in self._writers.items()}
        for number in range(len(sources)):
            turns: dict[str, list[LearntTurn]] = {}
            problem: Exception | None = None
            for policy, written in per_policy.items():
                found = written[number]
                if isinstance(found, TemplateError):
                    problem = found
                    continue
                turns[policy] = found
                if (tokens := longest_row(found)) > self.limits[policy]:
                    problem = ValueError(f"it makes {tokens} tokens of a row, which may have {self.limits[policy]}")
            yield turns, problem


class SFTDataset(ConversationDataset):
    """The conversations of ``options.data``, selected, shuffled, and some of them held out.

    Raises: ConfigError: naming file and line of what cannot be read, or the option that leaves nothing.
    """

    def __init__(self, options: SupervisedOptions, limits: Mapping[str, int]) -> None:
        super().__init__(options.shuffle_seed, limits)
        everything = list(read_all(options.data or []))
        training, validation = choose([facts_of(each) for each in everything], options)
        self.training = [everything[place] for place in training]
        self.validation = [everything[place] for place in validation]
        self._held_out: list[MultiAgentEpisode] | None = None
        self._replayed: dict[str, MultiAgentEpisode] = {}

    def episodes(self, start: int, count: int, runner: TextGameEnvRunner) -> list[MultiAgentEpisode]:
        """``count`` conversations from position ``start`` on, in pass after pass, as episodes.

        Raises: ConfigError: all are left out.
        """
        places = self.places(start, count, len(self.training))
        names = [f"sft-{at}" for at in range(start, start + count)]
        made = self._made([self.training[place] for place in places], names, runner)
        self.passed_over += count - len(made)
        return made

    @property
    def left_out(self) -> int:
        """:attr:`passed_over`, and held-out conversations that are dropped for the same reasons."""
        return self.passed_over + (0 if self._held_out is None else len(self.validation) - len(self._held_out))

    def held_out(self, runner: TextGameEnvRunner) -> list[MultiAgentEpisode]:
        """The held-out conversations, made once. Raises: as :meth:`episodes`."""
        if self._held_out is None:
            names = [f"held-out-{at}" for at in range(len(self.validation))]
            self._held_out = self._made(self.validation, names, runner)
        return self._held_out

    def check_rewarded(self) -> None:
        """Raises: ConfigError: a conversation has no rewards, or all rewards are 0."""
        rewarded = False
        for each in self.training:
            if not isinstance(each, ChatExample):
                rewarded |= any(each.returns.values())
                continue
            if each.rewards is None:
                why = "values need rewards of whole episodes, and it has none (`reward` or `return`)"
                raise ConfigError("data", f"{each.where}: {why}")
            rewarded |= any(each.rewards)
        if not rewarded:
            raise ConfigError("data", f"all rewards of {len(self.training)} episodes are 0")

    @property
    def conversations(self) -> list[Conversation]:
        return [*self.training, *self.validation]

    def _made(
        self, sources: Sequence[Conversation], names: Sequence[str], runner: TextGameEnvRunner
    ) -> list[MultiAgentEpisode]:
        written = self.written([each for each in sources if isinstance(each, ChatExample)], runner.chat)
        episodes, why = [], ""
        for source, name in zip(sources, names, strict=True):
            if not isinstance(source, ChatExample):
                episodes.append(self._played_again(source, name, runner))
                continue
            turns, problem = next(written)
            if problem is None:
                episodes.append(episode_of(source, turns, name))
                continue
            why = f"{source.where}: {problem}"
            self.leave_out(why)
        if why and not episodes:
            raise ConfigError("data", f"all {len(names)} conversations are left out; {why}")
        return episodes

    def _played_again(self, session: RecordedSession, name: str, runner: TextGameEnvRunner) -> MultiAgentEpisode:
        """A logged episode; the first :data:`MOST_KEPT` are replayed once and only renamed in later passes."""
        if session.where in self._replayed:
            again = copy.copy(self._replayed[session.where])
            again.id_ = name
            return again
        episode = replay(session, runner, name)
        if len(self._replayed) < MOST_KEPT:
            self._replayed[session.where] = episode
        return episode


Conversation = ChatExample | RecordedSession
"""A conversation of a file, or an episode of a log."""


def read_all(data: str | Sequence[str]) -> Iterator[Conversation]:
    """The conversations in the files of ``data``, one at a time.

    Raises: ConfigError: names file and line of what cannot be read, or a file without conversations.
    """
    for where, record in numbered(data):
        yield read_conversation(where, record)


def numbered(data: str | Sequence[str]) -> Iterator[Numbered]:
    """The records of the files with their places. Raises: ConfigError: as :func:`read_all`."""
    for path in files_of(data):
        empty = True
        for where, record in records_of(path):
            empty = False
            if any(key.endswith("input_ids") for key in map(str, record)):
                raise ConfigError("data", f"{where}: holds token ids, maybe of another tokenizer; it must hold texts")
            yield where, record
        if empty:
            raise ConfigError("data", f"{path} holds no episodes or conversations")


def read_conversation(where: str, record: Mapping[str, Any]) -> Conversation:
    """The conversation of a record. Raises: ConfigError: names ``where`` and what is wrong."""
    return recorded_session(record, where) if is_log(record) else read_record(record, where)


def texts_of(conversations: Iterable[Conversation], most: int) -> list[str]:
    """The texts of the first ``most`` conversations that are no logs."""
    some = islice((each.transcript for each in conversations if isinstance(each, ChatExample)), most)
    return [said.text for transcript in some for said in transcript.messages]


def facts_of(source: Conversation) -> Facts:
    if isinstance(source, ChatExample):
        said = "\n".join(said.text for said in source.transcript.messages).encode()
        digest = hashlib.blake2b(said, digest_size=16).hexdigest()
        return Facts(source.where, source.game, source.level, source.episode_return, digest, source.success)
    return Facts(source.where, source.game_id, source.level_name, source.mean_return, success=source.success)


def longest_row(turns: Sequence[LearntTurn]) -> int:
    """Tokens of the longest row of ``turns``."""
    longest = tokens = 0
    for turn in turns:
        tokens = (0 if turn.new_row else tokens) + len(turn.prompt_ids) + len(turn.reply_ids)
        longest = max(longest, tokens)
    return longest


def episode_of(source: ChatExample, turns: dict[str, list[LearntTurn]], name: str) -> MultiAgentEpisode:
    """A conversation as an episode with one player per policy; all learn the same."""
    messages = source.transcript.messages
    replies = [messages[place].text for place in source.transcript.learnt]
    seen = [messages[place - 1].text for place in source.transcript.learnt]
    rewards = source.rewards or (0.0,) * len(replies)
    trajectories = {
        AGENT if len(turns) == 1 else policy: Trajectory(
            [
                Turn(
                    prompt_ids=turn.prompt_ids,
                    response_ids=turn.reply_ids,
                    rollout_logprobs=np.zeros(len(turn.reply_ids), np.float32),
                    reward=reward,
                    new_row=turn.new_row,
                    weight=turn.weight,
                    observed=turn.observed,
                )
                for turn, reward in zip(some, rewards, strict=True)
            ],
            terminated=source.ended,
            role=AGENT,
            module_id=policy,
            episode_id=name,
            game=source.game,
        )
        for policy, some in turns.items()
    }
    return episode_of_texts(trajectories, [*seen, ""], replies, name)
