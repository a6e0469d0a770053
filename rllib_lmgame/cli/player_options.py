"""Options of commands in which players of any kind play."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.text import shown
from rllib_lmgame.settings.sections.text_rollouts import CALL_LIMIT_S

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.players.settings import PlayerSettings
    from rllib_lmgame.rollouts.records import GameConfig

SECTIONS = ("language_model", "inference", "text_rollouts", "endpoint")


def add_player_options(parser: Any) -> None:
    add_time_limit(parser)
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="sampling temperature of language models; 0 is greedy (default: that of training; 1 of other models)",
    )
    parser.add_argument(
        "--config",
        "-c",
        metavar="YAML",
        help="settings of hf: and openai: players, the sections "
        f"{', '.join(SECTIONS)}: '{{language_model: {{max_tokens_per_turn: 512}}}}'",
    )


MOST = 1_000_000
"""Of anything that a command counts: episodes, games at once, ..."""


def whole(low: int = 1, high: int = MOST) -> Callable[[str], int]:
    """The type of an argument that is a whole number from ``low`` to ``high``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, got {value}")
        if value > high:
            raise argparse.ArgumentTypeError(f"must be at most {high:,}, got {shown(value, 30)}")
        return value

    return read


seed = whole(0, (1 << 63) - 1)
"""The type of ``--seed``: no generator takes a number below 0."""


def add_time_limit(parser: Any) -> None:
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="seconds that a request to an endpoint, or a move of a player of your own, may take (default "
        f"{CALL_LIMIT_S:g})",
    )


def player_settings(
    args: argparse.Namespace,
    games: tuple[GameConfig, ...],
    at_once: int,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
) -> PlayerSettings:
    """What the options say, ``seed`` and ``trust_checkpoint`` included; ``sections`` are those in ``--config``.

    Raises: ConfigError: for a value out of range, even an unused one, or a section that is none.
    """
    from rllib_lmgame.base.group import build
    from rllib_lmgame.endpoints.settings import EndpointOptions
    from rllib_lmgame.evaluation.players.settings import PlayerSettings

    if args.temperature is not None and not 0 <= args.temperature < math.inf:
        raise ConfigError("--temperature", f"must be a number of at least 0, got {args.temperature:g}")
    time_limit_s = CALL_LIMIT_S if args.time_limit is None else args.time_limit
    if not 0 < time_limit_s < math.inf:
        raise ConfigError("--time-limit", f"must be a number of seconds above 0, got {time_limit_s:g}")
    sections = _sections(args.config) if sections is None else sections
    build(EndpointOptions, sections.get("endpoint", {}), "--config.endpoint")
    return PlayerSettings(
        temperature=args.temperature,
        seed=args.seed,
        at_once=at_once,
        time_limit_s=time_limit_s,
        trust=args.trust_checkpoint,
        games=games,
        sections=sections,
    )


def _sections(text: str | None) -> Mapping[str, Mapping[str, Any]]:
    if text is None:
        return {}
    from rllib_lmgame.experiments.files.reading import parse_value

    value = parse_value(text, "--config")
    if not isinstance(value, dict) or not all(isinstance(section, dict) for section in value.values()):
        raise ConfigError("--config", f"expected sections like '{{language_model: {{think: optional}}}}', got {text!r}")
    for name in value:
        if name not in SECTIONS:
            hint = did_you_mean(name, SECTIONS, f"sections: {', '.join(SECTIONS)}")
            raise ConfigError(f"--config.{name}", f"unknown section; {hint}")
    _check(value)
    return value


def _check(sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise :class:`ConfigError` for a value that no player could use, whether one is there that would or not."""
    from rllib_lmgame.base.group import build
    from rllib_lmgame.settings.sections.inference import InferenceOptions
    from rllib_lmgame.settings.sections.language_model import LanguageModelOptions
    from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions

    for name, options in (
        ("language_model", LanguageModelOptions),
        ("inference", InferenceOptions),
        ("text_rollouts", TextRolloutOptions),
    ):
        build(options, sections.get(name, {}), f"--config.{name}")
