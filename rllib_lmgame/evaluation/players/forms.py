"""How players are named, in one line: for help and errors. Importing this loads neither torch nor Ray."""

from __future__ import annotations

from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS

FORMS = (
    f"{', '.join(SCRIPTED_PLAYERS)}, package.module:Class, a checkpoint (DIR or DIR:POLICY), hf:MODEL, or "
    "openai:MODEL@http://HOST:PORT/v1"
)
"""All forms of a player."""
