"""What the players of a command share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.settings.sections.text_rollouts import CALL_LIMIT_S


@dataclass(frozen=True)
class PlayerSettings:
    """What all players of a command share.

    Attributes:
        temperature: Sampling temperature of language models, 0 is greedy; ``None``: that of training, or 1.
        seed: Of what engines draw beside the games' own seeds.
        at_once: Games a player is in at the same time, at most.
        time_limit_s: Of one move of a player that is not part of this package, and of one request to an endpoint.
        trust: Take from checkpoints what could run code, whoever wrote them.
        games: Games the user named instead of those of a checkpoint.
        sections: The sections ``language_model``, ``inference``, ``text_rollouts`` and ``endpoint`` of models that have
            no run: as in an experiment's file.
        flag: Where the players are named, for messages.
    """

    temperature: float | None = None
    seed: int = 0
    at_once: int = 1
    time_limit_s: float = CALL_LIMIT_S
    trust: bool = False
    games: tuple[str, ...] = ()
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    flag: str = "--players"
