"""What a player types: ``click [12]``, ``type [5] [some text]``, ``goto [/shop]``, ``stop [answer]`` and the like."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rllib_lmgame.envs.contract.base import InvalidAction

FORMS = "click [id], type [id] [text], goto [path], go_back, scroll [down], stop [answer]"
CLICK = re.compile(r"\[\s*([0-9]{1,5})\s*\]")
TYPE = re.compile(r"\[\s*([0-9]{1,5})\s*\]\s*\[(.*)\]", re.DOTALL)
ENTER = re.compile(r"(.*)\]\s{0,9}\[\s{0,9}([01])\s{0,9}", re.DOTALL)
TEXT = re.compile(r"\[(.*)\]", re.DOTALL)


@dataclass(frozen=True)
class Action:
    """One action: ``click``, ``type``, ``goto``, ``go_back``, ``scroll`` or ``stop``, with what belongs to it."""

    verb: str
    number: int = 0
    text: str = ""
    enter: bool = False


def read_action(text: str) -> Action:
    """The action that ``text`` says. Raises: InvalidAction: if it says none."""
    verb, rest = _verb(text.strip())
    if verb == "go_back" and not rest:
        return Action(verb)
    if verb == "click" and (match := CLICK.fullmatch(rest)):
        return Action(verb, int(match[1]))
    if verb == "type" and (match := TYPE.fullmatch(rest)):
        typed, enter = match[2], False
        if closing := ENTER.fullmatch(typed):
            typed, enter = closing[1], closing[2] == "1"
        return Action(verb, int(match[1]), typed, enter)
    if verb in ("goto", "stop", "scroll"):
        match = TEXT.fullmatch(rest)
        said = match[1].strip() if match else rest.strip()
        if verb == "stop" or (verb == "goto" and said) or (verb == "scroll" and said.lower() in ("up", "down")):
            return Action(verb, text=said.lower() if verb == "scroll" else said)
    raise InvalidAction(f"the action must be one of: {FORMS}.")


def _verb(text: str) -> tuple[str, str]:
    """The first word and what follows it."""
    match = re.match(r"[a-z_]{1,10}", text.lower())
    end = match.end() if match else 0
    return text[:end].lower(), text[end:].strip()
