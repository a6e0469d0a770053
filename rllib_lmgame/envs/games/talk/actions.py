"""Telling a player's actions from its words: an action stands alone, everything else is talk."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rllib_lmgame.envs.contract.base import InvalidAction


def the_action(reply: str, openers: Sequence[str], phrases: Sequence[str]) -> str | None:
    """The action of a reply, in lower case with single blanks, or ``None`` if the reply is a message.

    An action is an opener with a colon and what follows it (``propose: 2 books``), or one of the phrases (``accept``),
    whatever their case and closing punctuation. It must be all of the reply (the same one again does no harm), so that
    nobody has to guess whether "Fine. propose: 2 books" was said or done.

    Raises: InvalidAction: if the reply has no words, or an action is mixed with words or with another action.
    """
    if not any(mark.isalnum() for mark in reply):
        raise InvalidAction("say something.")
    lines = [" ".join(line.lower().split()) for line in reply.splitlines() if line.strip()]
    bare = [line.strip(" .!\"'`*") for line in lines]
    opening = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, openers))}) ?:")
    if not any(line in phrases or opening.search(line) for line in bare) and not _misspelt(bare[0], openers):
        return None
    if len(set(bare)) > 1:
        raise InvalidAction("an action stands alone; reply with a message or with one action, not both.")
    if bare[0] in phrases:
        return bare[0]
    if not opening.match(bare[0]):
        example = f"{openers[0]}: ..."
        raise InvalidAction(f"an action begins the reply and stands alone, as `{example}`.")
    return bare[0]


def _misspelt(line: str, openers: Sequence[str]) -> bool:
    """Whether a reply begins like an action whose colon was forgotten ("propose 2 books")."""
    words = line.split(maxsplit=2)
    return len(words) > 1 and words[0] in openers and words[1][0].isdigit()
