"""A player of Werewolf that talks in a few fixed sentences and believes who says to be the seer."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rllib_lmgame.envs.games.teams.werewolf.teams import DOCTOR, SEER, WEREWOLF

_CLAIM = re.compile(r"I am the seer\. (\w+) is a werewolf\.")
_SUSPICION = re.compile(r"I suspect (\w+)\.")


class Claims:
    """What was said in public, as far as the expert understands it.

    Attributes:
        accused: Names that somebody who said to be the seer has called werewolves, the latest last.
        suspected: Names that somebody suspects, the latest last.
        seers: Names of those who said to be the seer.
    """

    def __init__(self) -> None:
        self.accused: list[str] = []
        self.suspected: list[str] = []
        self.seers: list[str] = []

    def hear(self, speaker: str, said: str) -> None:
        """Take in a speech."""
        accused = _CLAIM.findall(said)
        self.accused += [name for name in accused if name != speaker]
        self.suspected += [name for name in _SUSPICION.findall(said) if name != speaker]
        self.seers += [speaker] * bool(accused)


@dataclass(frozen=True)
class Knowledge:
    """What a player knows when it is to act.

    Attributes:
        role: Its own.
        choices: Names it may name.
        claims: What was said in public.
        found: What it has found out as the seer: name -> it is a werewolf.
        pack: Names of the werewolves, for one of them.
        wanted: Names the other werewolves have chosen this night, for one of them.
    """

    role: str
    choices: Sequence[str]
    claims: Claims
    found: Mapping[str, bool]
    pack: Collection[str] = ()
    wanted: Sequence[str] = ()

    @property
    def wolves(self) -> list[str]:
        """Whom the seer knows to be a werewolf."""
        return [name for name in self.choices if self.found.get(name)]

    @property
    def doubtful(self) -> list[str]:
        """Whom it may suspect: not its own pack, nobody the seer knows to be none; all where that leaves nobody."""
        open_to = [name for name in self.choices if name not in self.pack and self.found.get(name, True)]
        return open_to or list(self.choices)


def speech(known: Knowledge, rng: random.Random) -> str:
    """What the expert says by day."""
    if known.wolves:
        return f"I am the seer. {known.wolves[0]} is a werewolf."
    return f"I suspect {rng.choice(known.doubtful)}."


def vote(known: Knowledge, rng: random.Random) -> str:
    """A werewolf it knows of, else who was accused last, else who is suspected most, else anybody."""
    accused = [name for name in known.claims.accused if name in known.doubtful]
    suspected = [name for name in known.claims.suspected if name in known.doubtful]
    if known.wolves or accused:
        return known.wolves[0] if known.wolves else accused[-1]
    return max(suspected, key=suspected.count) if suspected else rng.choice(known.doubtful)


def night_choice(known: Knowledge, rng: random.Random) -> str:
    """Whom it names at night: a werewolf follows the others, or takes who says to be the seer; the seer asks for
    somebody new.
    """
    choices = list(known.choices)
    if known.role == WEREWOLF:
        seers = [name for name in choices if name in known.claims.seers]
        return known.wanted[-1] if known.wanted else rng.choice(seers or choices)
    if known.role == SEER:
        return rng.choice([name for name in choices if name not in known.found] or choices)
    if known.role == DOCTOR:
        return rng.choice(choices)
    raise ValueError(f"the {known.role} does not act at night")
