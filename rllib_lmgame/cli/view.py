"""``rllib view``: look at episodes in a browser, or in one file to send."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_server import check_port
from rllib_lmgame.base.new_files import new_file, out_path, writing
from rllib_lmgame.base.text import size_text
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import Option

if TYPE_CHECKING:
    from rllib_lmgame.viewer.library import Library

PATHS = Option(
    "PATH...",
    "a run, its trial or checkpoint, the directory of a tournament or evaluation, or a log; several are read as one",
    dest="words",
)

PAGE = (
    Option("--port N", "port of the page; 0 takes a free one", int, 8010),
    Option("--no-browser", "only print the address"),
)


@options.command(
    "Look at episodes turn by turn: a page for the browser of this machine, which follows a run while it trains. "
    "--export writes it to a file with the episodes in it, which opens anywhere.",
    PATHS,
    Option("--export FILE", "write the page to a file (page.html) and exit"),
    *PAGE,
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.viewer.library import Library, sources_of

    check_port(args.port)
    library = Library(sources_of(args.words))
    title = ", ".join(Path(path).absolute().name for path in args.words)
    if args.export is not None:
        return _export(library, title, args.export)
    from rllib_lmgame.servers.viewer import Viewer

    with Viewer(library, title, args.port, lambda: sources_of(args.words)) as viewer:
        show_page("Episodes", args, viewer.address)
        viewer.wait()
    return 0


def check_read(library: Library, episodes: int) -> None:
    """Print what could not be read. Raises: ConfigError: there is no episode in any file."""
    for kind, lines in (("warning", library.problems), ("note", library.unfinished)):
        for line in lines:
            print(f"{kind}: {line}", file=sys.stderr)
    if not episodes:
        read = ", ".join(source.label for source in library.sources) or "no file"
        raise ConfigError("", f"there are no episodes (read: {read}); a run writes them with text_rollouts.episode_log")


def _export(library: Library, title: str, wanted: str) -> int:
    from rllib_lmgame.viewer.page import exported

    out = out_path(wanted, "--export")
    with new_file(out, "--export") as file:
        for _ in library.refresh():
            pass
        check_read(library, len(library.rows))
        head = {"title": title, **library.about(), "unfinished": library.unfinished}
        with writing(out, "--export"), file.open("w", encoding="utf-8") as target:
            target.writelines(exported(library, head))
    print(f"{out}: {len(library.rows)} episodes, {size_text(out.stat().st_size)}")
    return 0


def show_page(what: str, args: argparse.Namespace, address: str) -> None:
    """Print the address of a page, and open it unless ``--no-browser`` is given."""
    import webbrowser

    print(f"{what}: {address} (Ctrl-C ends it)", flush=True)
    if not args.no_browser and sys.stdout.isatty():
        webbrowser.open(address)
