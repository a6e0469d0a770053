"""Options that commands with players share, and ``--out DIR``."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.new_files import out_path
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.cli.options import TRUST, Option, above_0, mapping

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.players.language_model import LocalModel
    from rllib_lmgame.evaluation.players.settings import PlayerSettings
    from rllib_lmgame.evaluation.recorded import RecordDirectory
    from rllib_lmgame.rollouts.options import TextRolloutOptions
    from rllib_lmgame.rollouts.records import GameConfig

T = TypeVar("T")
D = TypeVar("D", bound="RecordDirectory")
SECTIONS = ("language_model", "inference", "text_rollouts", "endpoint")
PLAYER_OPTIONS = (
    Option(
        "--time-limit S",
        "seconds that a request to an endpoint, or a move of a player of your own, may take (default "
        f"{CALL_LIMIT_S:g})",
        float,
    ),
    Option(
        "--temperature T",
        "sampling temperature of language models; 0 is greedy (default: that of training; 1 of other models)",
        float,
    ),
    Option(
        "-c|--config YAML",
        f"settings of hf: and openai: players, the sections {', '.join(SECTIONS)}: "
        "'{language_model: {max_tokens_per_turn: 512}}'",
    ),
    TRUST,
)


def player_settings(
    args: argparse.Namespace, games: tuple[GameConfig, ...], at_once: int, flag: str = "--players", **more: Any
) -> PlayerSettings:
    """What :data:`PLAYER_OPTIONS` and ``--seed`` say; ``flag`` names the players, ``more`` goes before all.

    Raises: ConfigError: for a value out of range, even an unused one, or a section that is none.
    """
    from rllib_lmgame.evaluation.players.settings import PlayerSettings

    if args.temperature is not None and not 0 <= args.temperature < math.inf:
        raise ConfigError("--temperature", f"must be a number of at least 0, got {args.temperature:g}")
    above_0(args, "--time-limit")
    said = {
        "temperature": args.temperature,
        "seed": args.seed,
        "time_limit_s": args.time_limit or CALL_LIMIT_S,
        "trust": args.trust_checkpoint,
    }
    sections = more.pop("sections", None)
    if sections is None:
        sections = _sections(args.config)
    return PlayerSettings(**(said | more), at_once=at_once, games=games, sections=checked(sections), flag=flag)


def _sections(text: str | None) -> Mapping[str, Any]:
    sections = mapping(text, "--config", "{language_model: {think: optional}}")
    for name, section in sections.items():
        if name not in SECTIONS:
            hint = did_you_mean(name, SECTIONS, f"sections: {', '.join(SECTIONS)}")
            raise ConfigError(f"--config.{name}", f"unknown section; {hint}")
        if not isinstance(section, dict):
            raise ConfigError(f"--config.{name}", f"must be a mapping, got {section!r}")
    return sections


def checked(sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sections, after validation. Raises: ConfigError: a value is invalid, even if no player reads it."""
    from rllib_lmgame.base.group import Group, build
    from rllib_lmgame.endpoints.address import EndpointOptions
    from rllib_lmgame.inference.options import InferenceOptions
    from rllib_lmgame.policies.options import LanguageModelOptions
    from rllib_lmgame.rollouts.options import TextRolloutOptions

    kinds: tuple[type[Group], ...] = (LanguageModelOptions, InferenceOptions, TextRolloutOptions, EndpointOptions)
    for name, kind in zip(SECTIONS, kinds, strict=True):
        build(kind, sections.get(name, {}), f"--config.{name}")
    return sections


def limits_of(settings: PlayerSettings) -> TextRolloutOptions:
    """Limits of an episode, from ``--config``."""
    from rllib_lmgame.base.group import build
    from rllib_lmgame.rollouts.options import TextRolloutOptions

    return build(TextRolloutOptions, settings.sections.get("text_rollouts", {}), "--config.text_rollouts")


def held_directory(kind: type[D], out: str | None, stack: ExitStack) -> D | None:
    """The directory ``--out``, if there is one, held until ``stack`` is left.

    Raises: ConfigError: it cannot be written, or another process holds it.
    """
    if out is None:
        return None
    try:
        directory = kind(out_path(out))
        stack.enter_context(directory.held())
    except OSError as error:
        raise ConfigError("--out", f"{out} cannot be written: {error.strerror}") from None
    return directory


Begun = Callable[[int, int], None]
"""Called once with the numbers of episodes already played and planned."""
Ended = Callable[[], object]
"""Called when an episode ends."""


def play_with_bar(play: Callable[[Begun, Ended], Coroutine[Any, Any, T]], unit: str, *, quiet: bool) -> T:
    """What ``play`` returns, its progress shown; unless ``quiet`` it is said what was played before.

    Raises: ConfigError: a ``unit`` could not be written down; as ``play``.
    """
    from tqdm import tqdm

    from rllib_lmgame.rollouts.play import first_error

    with tqdm(total=0, unit=unit, disable=not sys.stderr.isatty(), leave=False) as bar:

        def begun(played: int, planned: int) -> None:
            if played and not quiet:
                print(f"{played} of {planned} {unit}s have been played before")
            bar.reset(total=planned)
            bar.update(played)

        try:
            return asyncio.run(play(begun, bar.update))
        except BaseExceptionGroup as group:
            error = first_error(group)
            if isinstance(error, OSError):
                raise ConfigError("--out", f"a record of the {unit} could not be written: {error}") from error
            raise error from None


def local_model(args: argparse.Namespace, source: str, flag: str, at_once: int) -> LocalModel:
    """The language model of this machine that ``flag`` names. Raises: ConfigError: it is another kind of player."""
    from rllib_lmgame.evaluation.players.language_model import LocalModel
    from rllib_lmgame.evaluation.players.naming import make_player

    player = make_player(source, source, player_settings(args, (), at_once, flag))
    if not isinstance(player, LocalModel):
        raise ConfigError(flag, f"{source} is no language model of this machine; name a checkpoint or hf:DIR_OR_ID")
    return player
