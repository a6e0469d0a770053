"""What the players of a command share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.base.limits import CALL_LIMIT_S
from rllib_lmgame.rollouts.options import GameConfig


@dataclass(frozen=True)
class PlayerSettings:
    """What all players of a command share.

    Attributes:
        temperature: Of language models, 0 is greedy; ``None``: that of training, or 1.
        seed: Of what engines draw beside the games' own seeds.
        at_once: Most games a player is in at the same time.
        models: Language models that reply at the same time; they share the cores.
        time_limit_s: Of one move of a foreign player, and of one request to an endpoint.
        trust: Take from any checkpoint what could run code.
        games: Games that the user named.
        sections: ``language_model``, ``inference``, ``text_rollouts`` and ``endpoint`` of models without a run.
        flag: Where the players are named, for messages.
    """

    temperature: float | None = None
    seed: int = 0
    at_once: int = 1
    models: int = 1
    time_limit_s: float = CALL_LIMIT_S
    trust: bool = False
    games: tuple[GameConfig, ...] = ()
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    flag: str = "--players"
