"""A negotiator that asks for much and gives way: every decision follows from what a player may see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rllib_lmgame.envs.games.talk.negotiation.contexts import KINDS, TOTAL_VALUE, Context, Share
from rllib_lmgame.envs.games.talk.negotiation.shares import ACCEPT, proposal_text, share_text

FLOOR = 4.0
"""What the concession curve ends at."""

POWER = 1.2
"""Shape of the concession curve: above 1 it gives way late."""

PATIENCE = 8
"""Replies in which the curve comes down to the floor, or the number of replies there are if that is less."""

CLAIM = "I would like to take {share}; the rest is yours."

COUNTED = re.compile(r"(?<![\w.,$-])(\d{1,2}) (books?|hats?|balls?)\b")
MINE = re.compile(r"\bi(?:'d|'ll)?\b")
YOURS = re.compile(r"\byou\b")


@dataclass(frozen=True)
class Sight:
    """What a negotiator who is to move knows.

    Attributes:
        context: The pool. Of the values only its own are looked at.
        seat: 0 or 1.
        turn: Replies it has given.
        turns: Replies it has in all, or ``None`` for any number.
        claims: What it has claimed in words, in order.
        heard: What the other player has claimed in words.
        offered: What the other player takes by its proposal, where that may be accepted.
        must_propose: The other player has made its sealed proposal.
    """

    context: Context
    seat: int
    turn: int
    turns: int | None
    claims: Sequence[Share] = ()
    heard: Sequence[Share] = ()
    offered: Share | None = None
    must_propose: bool = False

    @property
    def demand(self) -> Share:
        """What it would claim now."""
        heard = self.heard if self.offered is None else (self.offered,)
        return demand(self.context, self.seat, aspiration(self.turn, self.turns), heard)

    @property
    def is_late(self) -> bool:
        """A proposal can still be answered, and hardly more."""
        return self.turns is not None and self.turns - self.turn <= 1 + self.seat

    def takes(self, share: Share) -> bool:
        """Whether ``share`` is as good as what it would claim now, or at the end better than nothing."""
        worth = self.context.worth(self.seat, share)
        return worth >= (1 if self.is_late else self.context.worth(self.seat, self.demand))


def open_reply(sight: Sight) -> str:
    """Accept, or propose what one would claim."""
    if sight.offered is not None and sight.takes(sight.context.rest(sight.offered)):
        return ACCEPT
    return proposal_text(sight.demand)


def sealed_reply(sight: Sight) -> str:
    """A proposal answers what the other player has claimed last; so to a proposal of the other player one's own last
    claim is the answer.
    """
    if sight.must_propose:
        return proposal_text(sight.claims[-1] if sight.claims else sight.demand)
    if sight.heard and sight.takes(left := sight.context.rest(sight.heard[-1])):
        return proposal_text(left)
    return proposal_text(sight.claims[-1]) if sight.claims and sight.is_late else claim_text(sight.demand)


def aspiration(turn: int, turns: int | None) -> float:
    """What a negotiator asks for in its reply number ``turn`` (from 0) of ``turns``."""
    last = min(PATIENCE, turns or PATIENCE) - 1
    progress = min(1.0, turn / max(1, last))
    return TOTAL_VALUE - (TOTAL_VALUE - FLOOR) * progress**POWER


def demand(context: Context, seat: int, least: float, claims: Sequence[Share]) -> Share:
    """The share worth at least ``least`` to a player that leaves most to the other one, as far as its ``claims`` tell
    what it is after.
    """
    wish = [
        1.0 + 2.0 * sum(claim[kind] for claim in claims) / (max(1, len(claims)) * context.counts[kind])
        for kind in range(len(KINDS))
    ]
    enough = [share for share in context.shares() if context.worth(seat, share) >= least]

    def merit(share: Share) -> tuple[float, int, Share]:
        left = sum(weight * number for weight, number in zip(wish, context.rest(share), strict=True))
        return round(left, 9), context.worth(seat, share), share

    return max(enough, key=merit)


def read_claim(text: str, counts: Share) -> Share | None:
    """What a message claims for its speaker ("I take 2 books and 1 ball"): the numbers of the first part of it that
    speaks of "I" and not of "you". Kinds that are not named are not claimed; ``None`` if nothing is claimed, or more
    than there is.
    """
    for clause in re.split(r"[.;!?\n]", text.lower()[:1_000]):
        named = COUNTED.findall(clause)
        if not named or not MINE.search(clause) or YOURS.search(clause):
            continue
        kinds = [word.rstrip("s") for _, word in named]
        if len(set(kinds)) < len(kinds):
            return None
        claim = tuple(int(named[kinds.index(kind)][0]) if kind in kinds else 0 for kind in KINDS)
        return claim if all(n <= most for n, most in zip(claim, counts, strict=True)) and any(claim) else None
    return None


def claims(said: Iterable[str], counts: Share) -> list[Share]:
    """The claims among a player's messages, in order."""
    return [claim for claim in (read_claim(text, counts) for text in said) if claim is not None]


def claim_text(share: Share) -> str:
    """A message that claims ``share``."""
    return CLAIM.format(share=share_text(share))
