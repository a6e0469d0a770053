"""The rules of Hanabi: cards, tokens, fireworks. Nothing here speaks text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

Card = tuple[int, int]
"""Colour and rank, both from 0."""


@dataclass(frozen=True)
class Rules:
    """How large the game is.

    Attributes:
        players: Two to five.
        colours, ranks: Of the cards.
        hand_size: Cards of each player.
        information_tokens, life_tokens: At the beginning, which is the most there can be.
    """

    players: int
    colours: int
    ranks: int
    hand_size: int
    information_tokens: int
    life_tokens: int

    def deck(self) -> list[Card]:
        """All cards in order: of every colour three of the lowest rank, one of the highest, two of each other."""
        copies = {0: 3} | dict.fromkeys(range(1, self.ranks - 1), 2)
        return [(c, r) for c in range(self.colours) for r in range(self.ranks) for _ in range(copies.get(r, 1))]

    def shuffled(self, chance: random.Random) -> tuple[Card, ...]:
        """A deck in the order in which it is dealt."""
        return tuple(chance.sample(deck := self.deck(), len(deck)))

    @property
    def best(self) -> int:
        """The perfect score."""
        return self.colours * self.ranks


@dataclass(frozen=True)
class Move:
    """What a player may do.

    Attributes:
        kind: ``play``, ``discard``, ``colour`` or ``rank``; the last two tell another player.
        value: Index of the card, or the colour or rank that is told.
        target: Seat of who is told.
    """

    kind: str
    value: int
    target: int = -1


class Held:
    """A card in a hand, with what everybody knows its holder to know of it."""

    def __init__(self, card: Card, rules: Rules) -> None:
        self.card = card
        self.colours = set(range(rules.colours))
        """Colours it may have, as its holder knows."""
        self.ranks = set(range(rules.ranks))

    def told(self, move: Move) -> bool:
        """Its holder is told of a colour or a rank; whether this card has it."""
        own, open_to = (self.card[0], self.colours) if move.kind == "colour" else (self.card[1], self.ranks)
        if own == move.value:
            open_to &= {move.value}
        else:
            open_to -= {move.value}
        return own == move.value

    @property
    def possible(self) -> list[Card]:
        """What it may be, by what its holder was told."""
        return [(c, r) for c in sorted(self.colours) for r in sorted(self.ranks)]


class Table:
    """A game in play, from a deck in the order in which it is dealt: hand by hand, then a card for each one played.

    The rules are those of N. Bard et al., The Hanabi Challenge (Artificial Intelligence 280, 2020), as its environment
    has them. A told colour or rank must fit a card, a discard needs a token that is missing, and completing a firework
    gives one back. Once the deck is empty, everybody has one more turn; without lives the score is 0.
    """

    def __init__(self, rules: Rules, deck: Sequence[Card]) -> None:
        self.rules = rules
        self.deck = list(deck)
        self.hands = [[self._drawn() for _ in range(rules.hand_size)] for _ in range(rules.players)]
        self.fireworks = [0] * rules.colours
        """Ranks that lie on the table, per colour: the next one fits."""
        self.discards: list[Card] = []
        self.information = rules.information_tokens
        self.lives = rules.life_tokens
        self.seat = 0
        self.turns_left = rules.players
        """Turns once the deck is empty."""

    @property
    def finished(self) -> bool:
        return self.lives < 1 or sum(self.fireworks) == self.rules.best or self.turns_left < 1

    @property
    def score(self) -> int:
        """Cards on the table; 0 without lives."""
        return sum(self.fireworks) if self.lives > 0 else 0

    def moves(self) -> list[Move]:
        """What the player to move may do."""
        if self.finished:
            return []
        own = range(len(self.hands[self.seat]))
        found = [Move("play", i) for i in own]
        if self.information < self.rules.information_tokens:
            found += [Move("discard", i) for i in own]
        if self.information > 0:
            for other in self.others():
                cards = [held.card for held in self.hands[other]]
                found += [Move("colour", colour, other) for colour in sorted({colour for colour, _ in cards})]
                found += [Move("rank", rank, other) for rank in sorted({rank for _, rank in cards})]
        return found

    def others(self, seat: int | None = None) -> list[int]:
        """The other seats, the next one first."""
        first = self.seat if seat is None else seat
        return [(first + i) % self.rules.players for i in range(1, self.rules.players)]

    def fits(self, card: Card) -> bool:
        """The card may be played now."""
        return self.fireworks[card[0]] == card[1]

    def play(self, move: Move) -> tuple[list[int], Card | None]:
        """Make one of :meth:`moves`.

        Returns:
            Indices of the cards that were told, and the card that was played or discarded.
        """
        self.turns_left -= not self.deck
        told: list[int] = []
        card = None
        if move.target >= 0:
            self.information -= 1
            told = [i for i, held in enumerate(self.hands[move.target]) if held.told(move)]
        else:
            hand = self.hands[self.seat]
            card = hand.pop(move.value).card
            self._lay(card) if move.kind == "play" else self._discard(card)
            if self.deck:
                hand.append(self._drawn())
        self.seat = (self.seat + 1) % self.rules.players
        return told, card

    def _lay(self, card: Card) -> None:
        if not self.fits(card):
            self.lives -= 1
            self.discards.append(card)
            return
        self.fireworks[card[0]] += 1
        if self.fireworks[card[0]] == self.rules.ranks:
            self._return_token()

    def _discard(self, card: Card) -> None:
        self._return_token()
        self.discards.append(card)

    def _return_token(self) -> None:
        self.information = min(self.information + 1, self.rules.information_tokens)

    def _drawn(self) -> Held:
        return Held(self.deck.pop(0), self.rules)
