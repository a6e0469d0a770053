"""The section of the reference on options that do not go together: the rows of ``settings/rules.py``."""

from __future__ import annotations

import re

from rllib_lmgame.settings import rules

_TABLES = {
    "RLlib's keys and games": rules.RLLIB,
    "A language model": (*rules.REPLIES, *rules.LENGTHS, *rules.NUMERICS),
    "The update of a policy": (*rules.UPDATE, *rules.CRITIC, *rules.NO_CRITIC, *rules.STATES),
    "Schedules": (*rules.FOLLOWED, *rules.BASELINE),
    "What is played and kept": (*rules.PLAY, *rules.SELECTION, *rules.OVERLONG),
    "A league": rules.LEAGUE,
    "Engines": rules.ENGINES,
}


def rules_section() -> str:
    """Each rule with the settings that break it, and what is said."""
    parts = [
        "# Options that do not go together",
        "Each entry has settings that are refused, the key that the message names, and what is wrong. Dots stand for "
        "what depends on the settings.",
    ]
    for title, table in _TABLES.items():
        rows = [f"- `{rule.example}`: `{rule.key}`: {_said(rule.say)}" for rule in table]
        parts += [f"## {title}", "\n".join(rows)]
    told = [f"- `{row.example}`: {_said(row.say)}" for row in rules.TOLD]
    text = "These are taken, so that one file can compare settings. A notice says that they have no effect, and why."
    return "\n\n".join([*parts, "## Taken, with a notice", text, "\n".join(told)])


def _said(say: str) -> str:
    text = re.sub(r"(?<!{){[^{}]*}", "...", say).replace("{{", "{").replace("}}", "}")
    return text if text.endswith("...") else f"{text}."
