"""Options that commands with players share, and ``--out DIR``."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build
from rllib_lmgame.base.new_files import out_path
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.cli.options import TRUST, Option, mapping, seconds

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.players.settings import PlayerSettings
    from rllib_lmgame.evaluation.recorded import RecordDirectory
    from rllib_lmgame.rollouts.records import GameConfig

T = TypeVar("T")
D = TypeVar("D", bound="RecordDirectory")
PLAYER_OPTIONS = (
    Option(
        "--time-limit S", f"seconds for an endpoint's reply, or your player's move (default {CALL_LIMIT_S:g})", seconds
    ),
    Option(
        "--temperature T",
        "of language models; 0 is greedy (default: that of training; `evaluate`: of evaluation)",
        float,
    ),
    Option(
        "-c|--config YAML",
        "settings of hf: and openai: players, the sections language_model, inference, text_rollouts and endpoint: "
        "'{language_model: {max_tokens_per_turn: 512}}'",
    ),
    TRUST,
)


def player_settings(
    args: argparse.Namespace, games: tuple[GameConfig, ...], at_once: int, flag: str = "--players"
) -> PlayerSettings:
    """What :data:`PLAYER_OPTIONS` and ``--seed`` say; ``flag`` names the players.

    Raises: ConfigError: for a value that is out of range, even an unused one.
    """
    from rllib_lmgame.evaluation.players.settings import PlayerSettings, Sections

    if args.temperature is not None and not 0 <= args.temperature < math.inf:
        raise ConfigError("--temperature", f"must be a number of at least 0, got {args.temperature:g}")
    sections = mapping(args.config, "--config", "{language_model: {think: optional}}")
    return PlayerSettings(
        temperature=args.temperature,
        seed=getattr(args, "seed", 0),
        at_once=at_once,
        time_limit_s=args.time_limit or CALL_LIMIT_S,
        trust=args.trust_checkpoint,
        games=games,
        sections=build(Sections, sections, "--config"),
        flag=flag,
    )


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

    Raises: as ``play``.
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
            raise first_error(group) from None
