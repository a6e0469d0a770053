"""The game of WebShop."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_data_set
from rllib_lmgame.downloads.places import beside, is_named, level_files
from rllib_lmgame.envs.contract.base import SEPARATOR, InvalidAction, TextGameOptions, Variant
from rllib_lmgame.envs.contract.splits import TEST, TRAIN, VALIDATION, split_of
from rllib_lmgame.envs.games.web.webshop.expert import Seen, keywords, next_moves
from rllib_lmgame.envs.games.web.webshop.generated import generated_catalogue, generated_goals
from rllib_lmgame.envs.games.web.webshop.pages import BUY, Page, clickables, clicked, page_text
from rllib_lmgame.envs.games.web.webshop.products import Catalogue, Goal, Score, draw_price_limit, score
from rllib_lmgame.envs.games.web.webshop.shelf import Shelf, catalogue_of
from rllib_lmgame.envs.support.listed_levels import ListedLevels

ACTION = re.compile(r"(search|click)\s*\[(.*)\]", re.IGNORECASE | re.DOTALL)
LONGEST_SEARCH = 500
GENERATED = 1500
"""Products of the generated shop, by default."""

SESSIONS = {TEST: (0, 500), VALIDATION: (500, 1500), TRAIN: (1500, 2**31)}
"""Of the published program's goals, in its order, by split."""

RULES = """You shop in a text web shop. Buy the product that the instruction describes: the right type of product, \
with every attribute and
option asked for, within the price limit.
Actions: search[keywords], on the page with the search box; click[text], \
where text is one of the clickables of the page.
A product has pages for its description, features, reviews and attributes; \
click the option values you want (color, size ...) before you buy.
click[buy now] ends the game: the reward is the share of what was asked for that you bought, 1 if all of it.
{per_reply}
There are {turns} turns{total}."""


class WebShopOptions(TextGameOptions):
    """``env_config`` of WebShop."""

    max_turns: int = option(11, "Replies per episode.", ge=1)
    max_actions_per_turn: int = option(10, "Moves per reply, joined by `||`; what goes beyond is not played.", ge=1)
    max_actions: int | None = option(30, "Moves per episode; null is no limit.", ge=1)
    num_products: int | None = option(
        None,
        f"Products in the shop; null is all of `data`, and {GENERATED:,} in the generated shop.",
        ge=60,
        le=2_000_000,
    )
    data: str | None = option(
        None,
        "WebShop's `items_shuffle*.json`, or `data:webshop`, which has the other files too; null generates a shop.",
        path=True,
        stranger=is_data_set,
    )
    attributes_data: str | None = option(None, "WebShop's `items_ins_v2*.json`, with `data`.", path=True)
    goals_data: str | None = option(
        None,
        "WebShop's `items_human_ins.json`, with `data`; null takes the instructions of `attributes_data`.",
        path=True,
    )


class WebShop(ListedLevels):
    """Find, configure and buy the product an instruction describes.

    Observation: the page in WebShop's plain text, parts separated by ``[SEP]``, beginning with the instruction; below
        it the available actions. Options that are chosen are marked.
    Action: ``search[keywords]`` where the page has the search box, ``click[text]`` for a clickable; several joined by
        ``||``.
    Reward: 0 until ``click[buy now]``, then ``r_type * (attributes met + options met + price within the limit) /
        (attributes + options + 1)``, in [0, 1]: the reward of the WebShop paper (Yao et al., 2022, section 2.3) with
        its fuzzy matching of texts. Success is a reward of 1, not that something was bought. Three things differ from
        the published program. A chosen option serves one wanted option only (there more options than wanted can push
        the reward above 1). Products are compared by their type or the words of their titles, not by the nouns a
        language model finds there. Colours are compared as they are written, not reduced to a list of basic ones
        before.
    Horizon: 11 replies of up to 10 moves, 30 moves in all. Search results come by tens, 50 at most, ranked by BM25.
    Levels: a product of the shop, some of its attributes, a value of each option and a price limit drawn by WebShop's
        rule. The product decides the split: products to be found in the test are never asked for in training. ``data``
        plays the published catalogue; there a price range counts with its mean, and a missing price as 100 dollars.
        Of ``data:webshop`` the wishes of people are played, in the published program's order: its sessions 0 to 499 are
        ``test``, 500 to 1499 ``validation``, the others ``train``. A large catalogue is put into a file once, which
        all processes search (SQLite's BM25).
    Solver: searches for the instruction's words, opens the first product whose title and price fit, reads options and
        attributes, and buys if they fit; it wins all levels of the generated shop.
    """

    variants = (Variant("lmgame/WebShop-v0", (-0.8, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = WebShopOptions
    real_levels = ("data", "WebShop's products (`data: data:webshop`)")
    lists_levels = "data"
    options: WebShopOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        self._catalogue: Catalogue | Shelf
        self._sessions: range | None = None
        if chosen.data is None:
            for key in ("attributes_data", "goals_data"):
                if getattr(chosen, key) is not None:
                    raise ConfigError(f"env_config.{key}", "belongs to a catalogue file; give env_config.data as well")
            self._human = False
            self._catalogue = generated_catalogue(chosen.num_products or GENERATED, 0)
        else:
            data, attributes, goals = self._files(chosen.data)
            self._human = goals is not None
            self.slow_calls = True  # a search in a file of a million products
            self._catalogue = catalogue_of(data, attributes, goals, chosen.num_products)
            if is_named(chosen.data) and self._human:
                self._sessions = sessions_of(chosen.split, len(self._catalogue.wishes))

    def _files(self, data: str) -> tuple[str, str | None, str | None]:
        """Catalogue, attributes and goals."""
        chosen = self.options
        if not is_named(data):
            return data, chosen.attributes_data, chosen.goals_data
        file = level_files(data, chosen.split).files[0]
        own = {name: beside(data, file, name) for name in ("attributes_data", "goals_data")}
        return str(file), chosen.attributes_data or own["attributes_data"], chosen.goals_data or own["goals_data"]

    @property
    def rules(self) -> str:
        chosen = self.options
        return RULES.format(
            per_reply=self.moves_rule(("click[red]", "click[large]", "click[buy now]"), "action"),
            turns=chosen.max_turns,
            total=self.total_rule("action"),
        )

    @property
    def success(self) -> bool:
        return self._score is not None and self._score.perfect

    @property
    def finished(self) -> bool:
        return self._score is not None

    @property
    def solver_wins(self) -> bool:
        chosen = self.options
        budget = (
            chosen.max_turns >= 11
            and chosen.max_actions_per_turn >= 4
            and (chosen.max_actions is None or chosen.max_actions >= 30)
        )
        return chosen.data is None and budget

    @property
    def listed(self) -> Sequence[int]:
        """Numbers of the wishes to play; those that are split by product are drawn until one fits."""
        return range(len(self._catalogue.wishes)) if self._sessions is None else self._sessions

    def made_up(self, rng: random.Random) -> Iterator[Goal]:
        assert isinstance(self._catalogue, Catalogue)
        return generated_goals(self._catalogue, rng)

    def levels(self, rng: random.Random) -> Iterator[Goal]:
        made_up = self.options.data is None
        return super().levels(rng) if made_up else (self._wish(number, rng) for number in super().levels(rng))

    def level_key(self, level: Goal) -> str:
        session = "" if self._sessions is None else f"{level.session} "
        return f"webshop {session}{level.product.asin} {level.text} {list(level.attributes)} {list(level.options)}"

    def split_of_level(self, digest: str, level: Goal) -> str:
        if self._sessions is not None and level.session is not None:
            return next(name for name, (low, high) in SESSIONS.items() if low <= level.session < high)
        return split_of(f"webshop product {level.product.asin}")

    def start(self, level: Goal) -> None:
        self._goal = level
        self._page = Page()
        self._seen = Seen()
        self._score: Score | None = None

    def board(self) -> str:
        text = page_text(self._page, self._goal.text)
        if self._score is not None:
            return f"{text} [SEP] Your score (between 0 and 1): {self._score.reward:.3f}"
        actions = {"has_search_bar": self._page.results is None, "clickables": clickables(self._page)}
        return f"{text}\nAvailable actions: {json.dumps(actions, ensure_ascii=False)}"

    def legal_actions(self) -> tuple[str, ...]:
        if self._page.results is None:
            return (f"search[{self._keywords()}]",)
        return tuple(f"click[{text}]" for text in clickables(self._page))

    def functions(self) -> list[dict[str, Any]]:
        """Its two actions, one to a call."""
        said = (("search", "keywords", "looks for products"), ("click", "item", "clicks one of the clickables"))
        return [
            {
                "name": name,
                "action": f"{name}[{{{argument}}}]",
                "description": description,
                "parameters": {
                    "type": "object",
                    "properties": {argument: {"type": "string", "pattern": r"^[^\[\]|]+$"}},
                    "required": [argument],
                },
            }
            for name, argument, description in said
        ]

    def read_move(self, text: str) -> tuple[str, str]:
        match = ACTION.fullmatch(text.strip().rstrip("."))
        if match is None:
            raise InvalidAction("each action must read search[keywords] or click[text]; several are joined by ||.")
        return match[1].lower(), match[2].strip()

    def play_move(self, move: tuple[str, str]) -> float:
        verb, text = move
        reward = self._search(text) if verb == "search" else self._click(text.lower())
        self._seen.look(self._page)
        return reward

    def expert_action(self) -> str | None:
        moves = next_moves(self._page, self._goal, self._seen, self._keywords())
        return f" {SEPARATOR} ".join(moves[: self.options.max_actions_per_turn])

    def _search(self, text: str) -> float:
        if self._page.results is not None:
            raise InvalidAction("there is no search box on this page; click[back to search] leads to it.")
        if not text:
            raise InvalidAction("write what to search for, for example search[red shoes].")
        self._page = Page(results=tuple(self._catalogue.search(text[:LONGEST_SEARCH])))
        return 0.0

    def _click(self, text: str) -> float:
        if text not in clickables(self._page):
            raise InvalidAction(f"there is no {text[:60]!r} to click on this page.")
        if text != BUY.lower():
            self._page = clicked(self._page, text)
            return 0.0
        assert self._page.product is not None
        self._score = score(self._page.product, self._page.chosen, self._goal)
        self._page = replace(self._page, bought=True)
        return self._score.reward

    def _keywords(self) -> str:
        return keywords(self._goal).replace(SEPARATOR, " ")[:LONGEST_SEARCH]

    @cached_property
    def _of_split(self) -> Sequence[int]:
        return self.listed

    def _wish(self, number: int, rng: random.Random) -> Goal:
        """One of the data set's wishes with what is left to chance: the price limit and, where it names
        none, the options.
        """
        goal = self._catalogue.wishes[number]
        if not self._human:
            chosen = {name: rng.choice(values) for name, values in goal.product.options.items() if values}
            text = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
            goal = replace(
                goal, options=tuple(chosen.values()), instruction=goal.instruction + (f" with {text}" if text else "")
            )
        return replace(goal, price_limit=draw_price_limit(rng, goal.product.price))


def sessions_of(split: str, count: int) -> range:
    """The sessions of a split among ``count``. Raises: ConfigError: there is none."""
    low, high = SESSIONS.get(split, (0, count))
    if low >= count:
        raise ConfigError(
            "env_config.split", f"there are {count} wishes of people, and the {split} split begins with number {low}"
        )
    return range(low, min(high, count))
