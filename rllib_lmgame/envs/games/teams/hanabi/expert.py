"""A player of Hanabi with one convention: a rank that is told says that the card is to be played.

It tells a rank only if every card that this points at fits now, and plays a card whose rank it knows as long as that
may fit. Else it discards what is surely of no use, or its oldest card of unknown rank; where it may not discard, it
tells a colour, which calls for nothing.
"""

from __future__ import annotations

from rllib_lmgame.envs.games.teams.hanabi.table import Card, Held, Move, Table


def best_move(table: Table) -> Move:
    """What the expert does for the player to move, who sees all hands but its own."""
    moves = table.moves()
    hand = table.hands[table.seat]
    plays = [move for move in moves if move.kind == "play" and _is_to_be_played(table, hand[move.value])]
    calls = sorted((move for move in moves if _called(table, move)), key=lambda move: -_called(table, move))
    discards = sorted(
        (move for move in moves if move.kind == "discard"), key=lambda move: _worth(table, hand[move.value])
    )
    colours = [move for move in moves if move.kind == "colour"]
    return next(iter([*plays, *calls, *discards, *colours, *moves]))


def _is_called(held: Held) -> bool:
    """Its holder knows its rank."""
    return len(held.ranks) == 1


def _is_to_be_played(table: Table, held: Held) -> bool:
    """It surely fits, or its rank was told and may fit."""
    fits = [table.fits(card) for card in held.possible]
    return all(fits) or (_is_called(held) and any(fits))


def _called(table: Table, move: Move) -> int:
    """How many cards a rank calls for, all of them rightly; else 0."""
    if move.kind != "rank":
        return 0
    cards = [h.card for h in table.hands[move.target] if h.card[1] == move.value and not _is_called(h)]
    if len(set(cards)) < len(cards) or any(not table.fits(card) or _is_taken(table, card) for card in cards):
        return 0
    return len(cards)


def _is_taken(table: Table, card: Card) -> bool:
    """Such a card has been called for before, or one of the player to move has perhaps."""
    return any(
        _is_called(held) and (card in held.possible if seat == table.seat else held.card == card)
        for seat, hand in enumerate(table.hands)
        for held in hand
    )


def _worth(table: Table, held: Held) -> int:
    """0 for a card that surely is of no use, 1 for one of unknown rank, 2 for another."""
    is_useless = all(table.fireworks[colour] > rank for colour, rank in held.possible)
    return 0 if is_useless else 1 + _is_called(held)
