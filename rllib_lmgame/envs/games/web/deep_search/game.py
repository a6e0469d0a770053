"""The game of DeepSearch."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.text import one_line
from rllib_lmgame.base.trust import is_data_set, is_name
from rllib_lmgame.downloads.places import LevelFiles, level_files
from rllib_lmgame.envs.contract.base import InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.games.web.deep_search.corpus import (
    Corpus,
    Question,
    exact_match,
    f1,
    generated_corpus,
    holds_answer,
)
from rllib_lmgame.envs.games.web.deep_search.loader import load_passages, load_questions
from rllib_lmgame.envs.games.web.deep_search.retrievers import BM25, E5, Retriever, found_by, retriever_of
from rllib_lmgame.envs.support.datasets import once_per_file, readable
from rllib_lmgame.envs.support.listed_levels import ListedLevels
from rllib_lmgame.envs.support.replies import WholeReplyGame
from rllib_lmgame.envs.support.retrieval.client import HttpRetriever
from rllib_lmgame.envs.support.retrieval.passages import Passage
from rllib_lmgame.envs.synthetic.world import MAX_HOPS

SEARCH, ANSWER = "search", "answer"
PLAIN, SEARCH_R1 = "plain", "search_r1"
OPENING = re.compile(f"<({SEARCH}|{ANSWER})>", re.IGNORECASE)
PLAIN_OPENING = re.compile(rf"\b(?:{SEARCH}|{ANSWER})\s?\[", re.IGNORECASE)
INFORMATION = re.compile(r"<(?=/?information>)", re.IGNORECASE)
SEVERAL_ACTIONS = "only one action is allowed in a reply."
LONGEST_QUERY = 500
LONGEST_RESULTS = 12_000
"""Characters of results that are shown, so that the question always fits."""

RULES = """Answer the question by searching a collection of short passages. The answer may take several steps: \
find one thing, then search for it.
{actions}
Give the answer as briefly as it can be said: a name, a year, a word.
There are {turns} turns, the answer included. {reward}"""
ACTIONS = {
    PLAIN: "Each reply is one action: search[words to look for] shows the {top_k} passages that fit best; "
    "answer[your answer] {ends}.",
    SEARCH_R1: "Each reply is one action: <search>words to look for</search> shows, between <information> and "
    "</information>, the {top_k} passages that fit best; <answer>your answer</answer> {ends}.",
}
ENDS = {"ends": "ends the game", "goes_on": "ends the game if it is right"}
REWARDS = {
    "exact_match": "A right answer is worth 1, anything else 0.",
    "sub_em": "An answer that holds the right one is worth 1, anything else 0.",
    "f1": "The answer is worth the share of words it has in common with the right one (F1), 1 for the right one.",
}
FORMAT = " {share:g} of that is for replies of which all could be read."


class DeepSearchOptions(TextGameOptions):
    """``env_config`` of DeepSearch."""

    max_turns: int = option(5, "Replies per episode, the answer included.", ge=2)
    top_k: int = option(3, "Passages a search shows.", ge=1, le=20)
    form: str = option(
        PLAIN, "How actions and results are written: `search_r1` has Search-R1's tags.", choices=(PLAIN, SEARCH_R1)
    )
    reward: str = option("exact_match", "What an answer is worth.", choices=tuple(REWARDS))
    format_reward: float = option(
        0.0, "Share of the reward that is for an answer without any invalid reply before it.", ge=0, le=1
    )
    wrong_answer: str = option("ends", "What the game does at a wrong answer.", choices=tuple(ENDS))
    min_hops: int = option(1, "Passages a question of the generated world needs at least.", ge=1, le=MAX_HOPS)
    max_hops: int = option(3, "Passages a question of the generated world needs at most.", ge=1, le=MAX_HOPS)
    world_seed: int = option(0, "Which generated world.", ge=0)
    data: str | None = option(
        None,
        "Questions: JSON lines or parquet with `question` and `answer` (or `answers`, `golden_answers`); null makes up "
        "a world. `data:searchqa` is Search-R1's.",
        path=True,
        stranger=is_data_set,
    )
    sets: tuple[str, ...] = option(
        (), "Data sets (`data_source`) of `data` that are asked; empty for all.", stranger=is_name
    )
    ids: str | int | None = option(
        None,
        "Questions of `data` that are asked: a JSON array of AgentGym's `{item_id}`, or its numbers, as `7` or "
        "`0-99, 120`.",
        path=True,
        stranger=is_data_set,
    )
    corpus: str | None = option(
        None,
        "Passages, with `data`: JSON lines with `title` and `text`, or `contents`.",
        path=True,
        stranger=is_data_set,
    )
    max_passages: int | None = option(None, "Passages read from `corpus` at most, with `bm25`; null reads all.", ge=1)
    retriever: str = option(
        BM25,
        "Who searches: `bm25`, `e5`, the address of a retriever, or `package.module:Class` with "
        "`search(queries, topk)`.",
    )
    index: str | None = option(None, "FAISS index of `corpus`, with `e5`.", path=True, stranger=is_data_set)
    encoder: str = option("intfloat/e5-base-v2", "Model that made `index`: hub id or directory.", path=True)
    retriever_timeout_s: float = option(
        60.0, "Seconds a search at an address may take, attempts again included.", gt=0, le=3600
    )


class DeepSearch(ListedLevels, WholeReplyGame):
    """Answer a question by searching a corpus, hop by hop.

    Observation: the question, what was searched for so far, and the passages of the last search; with ``form:
        search_r1`` the question at first, later those passages alone (``history: keep`` shows all).
    Action: ``search[words]`` or ``answer[text]``. ``search: words``, ``answer: text`` and the tags
        ``<search>words</search>`` and ``<answer>text</answer>`` are understood as well; a policy that takes its own
        answer tags off a reply leaves the forms without tags. ``form: search_r1`` reads tags only: with
        ``language_model: {answer_tag: [search, answer]}`` they reach the game.
    Reward: 1 for an answer that is exactly right after SQuAD's normalisation (no case, punctuation or articles), else
        0; ``reward: sub_em`` asks that it holds a right one, ``f1`` pays the F1 of its words. Success is the right
        answer, with ``f1`` the exact one. With ``format_reward: 0.2`` a score ``s`` is worth ``0.2 + 0.8 s`` if every
        reply could be read, else ``0.8 s`` (Search-R1). With ``wrong_answer: goes_on`` only the right answer ends the
        game, and each pays what it is better than the best before.
    Horizon: 5 replies, the answer included.
    Levels: questions about an invented world of 658 passages on people, cities, countries, works, companies and
        universities; their number of hops is drawn first. With ``data`` those of a file (Natural Questions, HotpotQA
        and the like, Search-R1's parquet), in the split that the file says; ``validation`` is a tenth of its training
        questions. Without one the hash of the question decides.
    Retriever: ``bm25`` over ``corpus`` in memory, ``e5`` over a FAISS index on disk, or a server. One that fails, hangs
        or answers nonsense costs the episode, which is dropped and counted (``env_busy``).
    Solver: for the generated world, searches for the name it has read last until it has read the answer.
    """

    variants = (Variant("lmgame/DeepSearch-v0", (-0.4, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = DeepSearchOptions
    real_levels = ("data", "questions about Wikipedia (`data: data:searchqa`)")
    lists_levels = "data"
    options: DeepSearchOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        self._check_files()
        self._published = LevelFiles(())
        self._asked: tuple[Any, ...] = ()
        if chosen.data is not None:
            self._published = level_files(chosen.data, chosen.split)
            self._asked = (tuple(map(str, self._published.files)), chosen.sets, chosen.ids)
            load_questions(*self._asked)
            self._retriever = self._retriever_of_file()
            self.slow_calls = chosen.retriever != BM25
            self.check_split()
            return
        if chosen.min_hops > chosen.max_hops:
            raise ConfigError(
                "env_config.min_hops", f"must not be more than max_hops ({chosen.max_hops}), got {chosen.min_hops}"
            )
        corpus = generated_corpus(chosen.world_seed)
        self._retriever = corpus
        every = range(chosen.min_hops, chosen.max_hops + 1)
        self._by_hops = [[question for question in corpus.questions if question.hops == hops] for hops in every]

    def _check_files(self) -> None:
        """Raises: ConfigError: an option needs another one."""
        chosen = self.options
        needs = {BM25: ("data", "corpus"), E5: ("data", "corpus", "index")}.get(chosen.retriever, ("data",))
        given = [name for name in ("data", "corpus", "index", "ids") if getattr(chosen, name) is not None]
        if (given or chosen.retriever != BM25) and (missing := [name for name in needs if name not in given]):
            rest = [name for name in needs if name in given] or [f"retriever {chosen.retriever}"]
            why = "questions need passages to search, and passages questions"
            if missing[0] == "index":
                why = "`rllib retriever --build` makes one"
            raise ConfigError(f"env_config.{missing[0]}", f"must be given with {' and '.join(rest)}: {why}")

    def _retriever_of_file(self) -> Retriever:
        chosen = self.options
        if chosen.retriever == BM25:
            return bm25_of(chosen.corpus or "", chosen.max_passages)
        return retriever_of(chosen.retriever, chosen.corpus, chosen.index, chosen.encoder, chosen.retriever_timeout_s)

    def check_ready(self) -> str:
        """Ask the server of ``retriever``, if it is one; what it found, in words.

        Raises: ConfigError: it is not there, or does not answer as a retriever.
        """
        if not isinstance(self._retriever, HttpRetriever):
            return ""
        self._retriever.check(self.options.top_k)
        return f"searches at {self._retriever.shown}"

    @property
    def rules(self) -> str:
        chosen = self.options
        actions = ACTIONS[chosen.form].format(top_k=chosen.top_k, ends=ENDS[chosen.wrong_answer])
        reward = REWARDS[chosen.reward] + (FORMAT.format(share=chosen.format_reward) if chosen.format_reward else "")
        return RULES.format(actions=actions, turns=chosen.max_turns, reward=reward)

    @property
    def success(self) -> bool:
        right = holds_answer if self.options.reward == "sub_em" else exact_match
        return self._answer is not None and right(self._answer, self._question.answers)

    @property
    def finished(self) -> bool:
        return self.success if self.options.wrong_answer == "goes_on" else self._answer is not None

    @property
    def solver_wins(self) -> bool:
        return self.options.data is None and self.options.max_turns > self.options.max_hops

    @property
    def listed(self) -> Sequence[Question]:
        return load_questions(*self._asked)

    def made_up(self, rng: random.Random) -> Iterator[Question]:
        while True:
            yield rng.choice(rng.choice(self._by_hops))

    def level_key(self, level: Question) -> str:
        return f"deep_search {level.key}"

    def split_of_level(self, digest: str, level: Question) -> str:
        published = level.split or self._published.published or None
        return LevelFiles((), published).split_of(super().split_of_level(digest, level))

    def category(self, level: Question) -> str:
        """The data set of a question, or its hops in the generated world; empty if neither is known."""
        return level.source or (f"{level.hops} hop" + "s" * (level.hops > 1) if level.hops else "")

    def start(self, level: Question) -> None:
        self._question = level
        self._queries: list[str] = []
        self._results: list[Passage] = []
        self._titles_read: set[str] = set()
        self._answer: str | None = None
        self._wrong: list[str] = []
        self._best = 0.0
        self._all_read = True

    def board(self) -> str:
        parts = [f"Question: {self._question.text}"]
        if self._answer is not None and self.finished:
            return f"{parts[0]}\nYour answer: {self._answer}"
        if self.options.form == SEARCH_R1:
            return self._said or (self._information() if self._queries else parts[0])
        if self._wrong:
            parts.append("Not right: " + "; ".join(self._wrong))
        if self._queries:
            parts.append("Searched so far: " + "; ".join(self._queries))
            shown = "\n".join(
                one_line(f"[{i}] {passage.title}: {passage.text}") for i, passage in enumerate(self._results, start=1)
            )
            parts.append(f"Results of the last search:\n{shown or 'nothing found'}"[:LONGEST_RESULTS])
        return "\n".join(parts)

    def _information(self) -> str:
        """The passages in Search-R1's form; no text of theirs can end it."""
        shown = "\n".join(
            one_line(f'Doc {i}(Title: "{passage.title}") {passage.text}') for i, passage in enumerate(self._results, 1)
        )
        harmless = INFORMATION.sub("< ", shown or "nothing found")[:LONGEST_RESULTS]
        return f"<information>{harmless}</information>"

    def legal_actions(self) -> tuple[str, ...]:
        """Some useful ones: searches for the question or a title on the page, and those titles as answers; any other
        text may be typed.
        """
        titles = [passage.title for passage in self._results if passage.title]
        searches = [self._said_as(SEARCH, text) for text in (self._question.text[:LONGEST_QUERY], *titles)]
        return (*searches, *(self._said_as(ANSWER, title) for title in titles))

    def _said_as(self, verb: str, text: str) -> str:
        return f"<{verb}>{text}</{verb}>" if self.options.form == SEARCH_R1 else f"{verb}[{text}]"

    def read_move(self, text: str) -> tuple[str, str]:
        found = read_tags(text) or (read_plain(text) if self.options.form == PLAIN else None)
        if found is None or not found[1]:
            search, answer = self._said_as(SEARCH, "words to look for"), self._said_as(ANSWER, "your answer")
            raise InvalidAction(f"reply with {search} or {answer}.")
        return found

    def _read(self, action: Any) -> list[Any]:
        try:
            return super()._read(action)
        except InvalidAction:
            self._all_read = False
            raise

    def play_move(self, move: tuple[str, str]) -> float:
        verb, text = move
        if verb == ANSWER:
            return self._answered(text)
        query = readable(text[:LONGEST_QUERY])
        self._results = found_by(self._retriever, query, self.options.top_k)
        self._queries.append(query)
        self._titles_read.update(passage.title for passage in self._results)
        return 0.0

    def _answered(self, text: str) -> float:
        self._answer = text
        if not self.finished:
            self._wrong.append(one_line(text)[:LONGEST_QUERY])
            self._said = "That is not the right answer."
        score = f1(text, self._question.answers) if self.options.reward == "f1" else float(self.success)
        share = self.options.format_reward
        worth = (1 - share) * score + share * (self._all_read and self.finished)
        better = max(0.0, worth - self._best)
        self._best += better
        return better

    def expert_action(self) -> str | None:
        if not self._question.path:
            return None
        unread = next((title for title in self._question.path if title not in self._titles_read), None)
        return self._said_as(*((ANSWER, self._question.answers[0]) if unread is None else (SEARCH, unread)))


@once_per_file
def bm25_of(corpus: str, max_passages: int | None) -> Corpus:
    """The passages of a file with their index."""
    return Corpus(load_passages(corpus, max_passages), ())


def read_tags(text: str) -> tuple[str, str] | None:
    """Action and text of the one pair of tags in ``text``, whatever stands around it; ``None`` without tags.

    Raises: InvalidAction: for several tags, or one that is not closed.
    """
    opened = list(OPENING.finditer(text))
    if not opened:
        return None
    if len(opened) > 1:
        raise InvalidAction(SEVERAL_ACTIONS)
    verb = opened[0][1].lower()
    closing = re.compile(f"</{verb}>", re.IGNORECASE).search(text, opened[0].end())
    if closing is None:
        raise InvalidAction(f"<{verb}> is not closed by </{verb}>.")
    return verb, text[opened[0].end() : closing.start()].strip()


def read_plain(text: str) -> tuple[str, str] | None:
    """Action and text of ``search[...]``, ``search: ...`` and the same with ``answer``; ``None`` for anything else.

    Raises: InvalidAction: for several actions.
    """
    if len(PLAIN_OPENING.findall(text)) > 1:
        raise InvalidAction(SEVERAL_ACTIONS)
    for verb in (SEARCH, ANSWER):
        if text[: len(verb)].lower() == verb:
            rest = text[len(verb) :].strip()
            if rest.startswith("[") and rest.rstrip(".").endswith("]"):
                return verb, rest.rstrip(".")[1:-1].strip()
            if rest.startswith(":"):
                return verb, rest[1:].strip()
    return None
