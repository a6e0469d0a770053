"""``rllib schema``: print the JSON schema of experiment files, for editors."""

from __future__ import annotations

import argparse

from rllib_lmgame.cli import options


@options.command(
    "Print the JSON schema (draft 2020-12) of experiment files. An editor then completes keys, shows their "
    "documentation and marks wrong ones: save it, and begin a file with `# yaml-language-server: $schema=PATH`."
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.experiments.files.schema import file_schema

    return options.print_json(file_schema())
