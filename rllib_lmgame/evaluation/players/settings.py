"""What the players of a command share."""

from __future__ import annotations

from dataclasses import dataclass, field

from rllib_lmgame.base.group import Group, option
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.endpoints.address import EndpointOptions
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.options import GameConfig, TextRolloutOptions


class Sections(Group):
    """The sections of ``--config``: settings of models without a run."""

    language_model: LanguageModelOptions = option(LanguageModelOptions(), "How they are talked to.")
    inference: InferenceOptions = option(InferenceOptions(), "How replies are sampled.")
    text_rollouts: TextRolloutOptions = option(TextRolloutOptions(), "Limits of an episode.")
    endpoint: EndpointOptions = option(EndpointOptions(), "Requests to endpoints.")


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
        sections: Settings of models without a run.
        flag: Where the players are named, for messages.
    """

    temperature: float | None = None
    seed: int = 0
    at_once: int = 1
    models: int = 1
    time_limit_s: float = CALL_LIMIT_S
    trust: bool = False
    games: tuple[GameConfig, ...] = ()
    sections: Sections = field(default_factory=Sections)
    flag: str = "--players"
