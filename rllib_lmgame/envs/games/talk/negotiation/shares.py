"""Shares of the pool in words."""

from __future__ import annotations

import re

from rllib_lmgame.envs.contract import InvalidAction
from rllib_lmgame.envs.games.talk.negotiation.contexts import KINDS, Share

PROPOSE, ACCEPT, NO_DEAL = "propose", "accept", "no deal"
COUNTED = re.compile(r"(\d+) (books?|hats?|balls?)")


def share_text(share: Share) -> str:
    """``2 books, 0 hats, 1 ball``."""
    return ", ".join(
        f"{number} {kind if number == 1 else kind + 's'}" for number, kind in zip(share, KINDS, strict=True)
    )


def proposal_text(share: Share) -> str:
    """The action that proposes to take ``share``."""
    return f"{PROPOSE}: {share_text(share)}"


def read_share(text: str, counts: Share) -> Share:
    """What ``: 2 books, 0 hats, 1 ball`` takes.

    Raises: InvalidAction: if a kind is not named, or twice, if there is not as much, or anything else stands there.
    """
    parts = [part.strip(" .") for part in re.split(r",| and ", text.strip(" :."))]
    named = [COUNTED.fullmatch(part) for part in parts if part]
    example = f"write it as `{proposal_text((1, 0, 2))}`, with what you take"
    if any(match is None for match in named):
        raise InvalidAction(f"the proposal cannot be read; {example}.")
    kinds = [match[2].rstrip("s") for match in named if match]
    if sorted(kinds) != sorted(KINDS):
        raise InvalidAction(f"name each of books, hats and balls once; {example}.")
    numbers = {match[2].rstrip("s"): match[1] for match in named if match}
    short = [
        kind for kind, most in zip(KINDS, counts, strict=True) if len(numbers[kind]) > 2 or int(numbers[kind]) > most
    ]
    if short:
        raise InvalidAction(f"the pool has only {share_text(counts)}.")
    return tuple(int(numbers[kind]) for kind in KINDS)
