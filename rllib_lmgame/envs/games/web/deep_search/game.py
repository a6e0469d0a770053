"""The game of DeepSearch."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from rllib_lmgame.envs.contract.base import InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.games.web.deep_search.corpus import Passage, Question, exact_match, f1
from rllib_lmgame.envs.games.web.deep_search.loader import load_corpus
from rllib_lmgame.envs.games.web.deep_search.world import MAX_HOPS, generated_corpus
from rllib_lmgame.envs.support.replies import WholeReplyGame
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.settings.schema import option
from rllib_lmgame.text import one_line

SEARCH, ANSWER = "search", "answer"
OPENING = re.compile(f"<({SEARCH}|{ANSWER})>", re.IGNORECASE)
PLAIN_OPENING = re.compile(rf"\b(?:{SEARCH}|{ANSWER})\s?\[", re.IGNORECASE)
SEVERAL_ACTIONS = "only one action is allowed in a reply."
LONGEST_QUERY = 500
LONGEST_RESULTS = 12_000
"""Characters of results that are shown, so that the question always fits."""

RULES = """Answer the question by searching a collection of short passages. The answer may take several steps: \
find one thing, then search for it.
Each reply is one action: search[words to look for] shows the {top_k} passages that fit best; \
answer[your answer] ends the game.
Give the answer as briefly as it can be said: a name, a year, a word.
There are {turns} turns, the answer included. {reward}"""
REWARDS = {
    "exact_match": "A right answer is worth 1, anything else 0.",
    "f1": "The answer is worth the share of words it has in common with the right one (F1), 1 for the right one.",
}


@dataclass(frozen=True)
class DeepSearchOptions(TextGameOptions):
    """``env_config`` of DeepSearch."""

    max_turns: int = option(5, "Replies per episode, the answer included.", low=2)
    top_k: int = option(3, "Passages a search shows.", low=1, high=20)
    reward: str = option("exact_match", "What an answer is worth.", choices=tuple(REWARDS))
    min_hops: int = option(1, "Passages a question of the generated world needs at least.", low=1, high=MAX_HOPS)
    max_hops: int = option(3, "Passages a question of the generated world needs at most.", low=1, high=MAX_HOPS)
    world_seed: int = option(0, "Which generated world.", low=0)
    data: str | None = option(
        None,
        "Questions: JSON lines with `question` and `answer` (or `answers`, `golden_answers`); null generates a world.",
        path=True,
    )
    corpus: str | None = option(
        None, "Passages, with `data`: JSON lines with `title` and `text`, or `contents`.", path=True
    )
    max_passages: int | None = option(None, "Passages read from `corpus` at most; null reads all.", low=1)


class DeepSearch(WholeReplyGame):
    """Answer a question by searching a corpus, hop by hop.

    Observation: the question, what was searched for so far, and the passages of the last search.
    Action: ``search[words]`` or ``answer[text]``. ``search: words``, ``answer: text`` and the tags
        ``<search>words</search>`` and ``<answer>text</answer>`` are understood as well; a policy that takes its own
        answer tags off a reply leaves the forms without tags.
    Reward: 1 for an answer that is exactly right after SQuAD's normalisation (no case, punctuation or articles), else
        0; with ``reward: f1`` the F1 of its words. Success is the exact match in both.
    Horizon: 5 replies, the answer included.
    Levels: questions about an invented world of 658 passages on people, cities, countries, works, companies and
        universities; their number of hops is drawn first. With ``data`` and ``corpus`` those of a file (Natural
        Questions, HotpotQA and the like).
    Solver: for the generated world, searches for the name it has read last until it has read the answer.
    """

    variants = (Variant("lmgame/DeepSearch-v0", (-0.4, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = DeepSearchOptions
    options: DeepSearchOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        if (chosen.data is None) != (chosen.corpus is None):
            missing, given = ("data", "corpus") if chosen.data is None else ("corpus", "data")
            raise ConfigError(
                f"env_config.{missing}",
                f"must be given with {given}: questions need passages to search, and passages questions",
            )
        if chosen.data is not None and chosen.corpus is not None:
            self._corpus = load_corpus(chosen.data, chosen.corpus, chosen.max_passages)
            self._by_hops = [list(self._corpus.questions)]
            return
        if chosen.min_hops > chosen.max_hops:
            raise ConfigError(
                "env_config.min_hops", f"must not be more than max_hops ({chosen.max_hops}), got {chosen.min_hops}"
            )
        self._corpus = generated_corpus(chosen.world_seed)
        every = range(chosen.min_hops, chosen.max_hops + 1)
        self._by_hops = [[question for question in self._corpus.questions if question.hops == hops] for hops in every]

    @property
    def rules(self) -> str:
        chosen = self.options
        return RULES.format(top_k=chosen.top_k, turns=chosen.max_turns, reward=REWARDS[chosen.reward])

    @property
    def success(self) -> bool:
        return self._answer is not None and exact_match(self._answer, self._question.answers)

    @property
    def finished(self) -> bool:
        return self._answer is not None

    @property
    def solver_wins(self) -> bool:
        return self.options.data is None and self.options.max_turns > self.options.max_hops

    def levels(self, rng: random.Random) -> Iterator[Question]:
        while True:
            yield rng.choice(rng.choice(self._by_hops))

    def level_key(self, level: Question) -> str:
        return f"deep_search {level.key}"

    def start(self, level: Question) -> None:
        self._question = level
        self._queries: list[str] = []
        self._results: list[Passage] = []
        self._titles_read: set[str] = set()
        self._answer: str | None = None

    def board(self) -> str:
        parts = [f"Question: {self._question.text}"]
        if self._answer is not None:
            return f"{parts[0]}\nYour answer: {self._answer}"
        if self._queries:
            parts.append("Searched so far: " + "; ".join(self._queries))
            shown = "\n".join(
                one_line(f"[{i}] {passage.title}: {passage.text}") for i, passage in enumerate(self._results, start=1)
            )
            parts.append(f"Results of the last search:\n{shown or 'nothing found'}"[:LONGEST_RESULTS])
        return "\n".join(parts)

    def legal_actions(self) -> tuple[str, ...]:
        """Some useful ones: searches for the question or a title on the page, and those titles as answers; any other
        text may be typed.
        """
        titles = [passage.title for passage in self._results if passage.title]
        searches = [f"search[{self._question.text[:LONGEST_QUERY]}]", *(f"search[{title}]" for title in titles)]
        return (*searches, *(f"answer[{title}]" for title in titles))

    def read_move(self, text: str) -> tuple[str, str]:
        found = read_tags(text) or read_plain(text)
        if found is None or not found[1]:
            raise InvalidAction("reply with search[words to look for] or answer[your answer].")
        return found

    def play_move(self, move: tuple[str, str]) -> float:
        verb, text = move
        if verb == ANSWER:
            self._answer = text
            if self.options.reward == "f1":
                return f1(text, self._question.answers)
            return float(self.success)
        self._queries.append(text[:LONGEST_QUERY])
        self._results = self._corpus.search(text[:LONGEST_QUERY], self.options.top_k)
        self._titles_read.update(passage.title for passage in self._results)
        return 0.0

    def expert_action(self) -> str | None:
        if not self._question.path:
            return None
        unread = next((title for title in self._question.path if title not in self._titles_read), None)
        return f"answer[{self._question.answers[0]}]" if unread is None else f"search[{unread}]"


def read_tags(text: str) -> tuple[str, str] | None:
    """Action and text of the one pair of tags in ``text``, whatever stands around it; ``None`` without tags.

    Raises:
        InvalidAction: for several tags, or one that is not closed.
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

    Raises:
        InvalidAction: for several actions.
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
