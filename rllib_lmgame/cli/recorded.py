"""What commands share that play many episodes and write each down as it ends (``--out DIR``)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.new_files import out_path

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.record_directory import RecordDirectory

T = TypeVar("T")
D = TypeVar("D", bound="RecordDirectory")
Begun = Callable[[int, int], None]
"""Is told how many were played before, and how many are planned."""
Ended = Callable[[], object]
"""Is called as each ends."""


def held_directory(kind: Callable[[Path], D], out: str, stack: ExitStack) -> D:
    """The directory ``out``, held until ``stack`` is left. Raises: ConfigError: it cannot be written, or is held."""
    try:
        directory = kind(out_path(out))
        stack.enter_context(directory.held())
    except OSError as error:
        raise ConfigError("--out", f"{out} cannot be written: {error.strerror}") from None
    return directory


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
                article = "an" if unit[0] in "aeiou" else "a"
                raise ConfigError("--out", f"{article} {unit} could not be written down: {error}") from error
            raise error from None
