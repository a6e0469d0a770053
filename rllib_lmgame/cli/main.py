"""Entry point of the ``rllib`` command: one module per subcommand, imported when it is used."""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rllib_lmgame.algorithms.cluster.ray_cluster import be_patient
from rllib_lmgame.base.errors import CheckpointError, ConfigError, MissingDependencyError, nearest
from rllib_lmgame.base.text import first_line, printable
from rllib_lmgame.cli.options import Parser
from rllib_lmgame.experiments.run.signals import ENDINGS, leave_closed_output, set_handlers

COMMANDS = {
    "train": "train an algorithm, from a file or from flags",
    "doctor": "check this machine and print the command that fixes each problem",
    "evaluate": "evaluate checkpoints, models and other players on the same levels",
    "example": "list, show and run the tuned examples",
    "collect": "record a player's episodes as a log or as conversations to train on",
    "compare": "compare runs: final metrics, keys that differ, learning curves",
    "data": "list and fetch published data sets",
    "games": "list and check the text games",
    "info": "describe a game",
    "init": "write the first files of your own game",
    "play": "play a game, alone, against any player, or watch",
    "rescore": "compute the rewards of stored episodes anew",
    "retriever": "serve a corpus for search, or build its index",
    "serve": "serve games or a policy to other programs",
    "view": "look at episodes in a browser or a file",
    "tournament": "let players play each other, and rate them",
}
_DESCRIPTION = """Language models that learn to play games, on Ray RLlib.

  rllib train file tuned_examples/quickstart-sokoban.yaml    train from a file
  rllib train --algo PPO --env CartPole-v1                   train from flags
  rllib evaluate PATH_OF_A_CHECKPOINT                        measure a checkpoint
  rllib example list                                         what else there is
"""
EXIT_FAILED, EXIT_USAGE = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; gives 0 (done), 1 (a trial failed), 2 (wrong usage or configuration), 128 + a signal's."""
    started = time.monotonic()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if argv is None:  # A process of its own.
        gc.set_threshold(100_000)  # Ray and torch make half a million objects that stay, to be looked through in vain.
    if isinstance(sys.stdout, io.TextIOWrapper):  # Its encoding may lack what is printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    _prepare_environment()
    ended: list[int] = []
    try:
        with raised_signals(ended):
            try:
                status = _dispatch(arguments, started)
            except SystemExit as stop:
                status = stop.code if isinstance(stop.code, int) else EXIT_USAGE
        print(end="", flush=True)
        return 128 + ended[-1] if ended else status
    except (ConfigError, CheckpointError, MissingDependencyError) as error:
        if debug:
            raise
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + (ended or [signal.SIGINT])[-1]
    except BrokenPipeError:
        _let_go_of_output()
        return 0
    except OSError as error:
        if debug:
            raise
        print(f"error: {_in_words(error)}", file=sys.stderr)
        return EXIT_FAILED


@contextmanager
def raised_signals(ended: list[int]) -> Iterator[None]:
    """Inside, SIGTERM, SIGHUP and SIGUSR1 end a command as Ctrl-C does; ``ended`` gets their numbers, since Ray's calls
    turn them into a plain ``KeyboardInterrupt``. ``rllib train`` has its own handlers.

    In an event loop asyncio's handler for SIGINT gets it: that cancels everything and raises ``KeyboardInterrupt`` at
    the end. Raised inside one of many coroutines it would leave errors that nobody asks for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        ended.append(number)
        leave_closed_output()
        of_loop = signal.getsignal(signal.SIGINT)
        (of_loop if callable(of_loop) else signal.default_int_handler)(signal.SIGINT, frame)

    before = set_handlers(ENDINGS, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_words(error: OSError) -> str:
    """The error of the system in one line; output that cannot be written is discarded."""
    if error.filename is None:  # Perhaps it was the output.
        try:
            print(flush=True)
        except OSError as output:
            _let_go_of_output()
            return f"standard output cannot be written: {output.strerror}"
    return printable(f"{first_line(error)} (--debug shows where)")


def _let_go_of_output() -> None:
    """Discard the output: it is closed or the disk is full, and Python would try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str], started: float) -> int:
    command = arguments[0] if arguments else None
    if command is not None and command not in COMMANDS and (meant := nearest(command, COMMANDS)) is not None:
        raise ConfigError("", f"unknown command {command!r}; did you mean `rllib {meant}`?")
    parser = make_parser(command)
    parsed, rest = parser.parse_known_args(arguments)
    if parsed.version:
        from importlib import metadata

        from rllib_lmgame import __version__

        print(f"rllib-lmgame {__version__} (ray {metadata.version('ray')})")
        return 0
    if not hasattr(parsed, "run"):
        if rest:
            parser.unknown([f"{rest[0]} in front of `{parsed.command}`"] if parsed.command else rest)
        parser.print_help()
        return 0 if not arguments else EXIT_USAGE
    if rest and hasattr(parsed, "words") and not any(r.startswith("-") for r in rest):
        parsed.words = [*parsed.words, *rest]  # argparse takes positional words only where they stand together
    elif rest:
        parsed.parser.unknown(rest)
    parsed.started = started
    return parsed.run(parsed)


def make_parser(command: str | None = None) -> Parser:
    """The parser of one command, or the list of all without one."""
    parser = Parser(prog="rllib", description=_DESCRIPTION)
    parser.add_argument("--version", action="store_true", help="print the versions of this package and of Ray")
    parser.add_argument("--debug", action="store_true", help="show the stack trace of an error")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    if command is not None and command in COMMANDS:
        module = importlib.import_module(f"rllib_lmgame.cli.{command}")
        module.command.add_to(subparsers, command, COMMANDS[command])
    else:
        for name, summary in COMMANDS.items():
            subparsers.add_parser(name, help=summary)
    return parser


def _prepare_environment() -> None:
    """Defaults that keep Ray patient, other libraries quiet and trials in this directory; set variables stay."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # Else each process looks through all packages.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("PYTHONWARNINGS", "ignore::DeprecationWarning")
    be_patient()
    if sys.stdout is None or not sys.stdout.isatty():  # No colours in a file, of Ray or vLLM.
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
        os.environ.setdefault("NO_COLOR", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Else a file that a game's options name is sought in the trial's own directory.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
