"""``rllib schema``: print the JSON schema of experiment files, for editors."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "schema",
        help=summary,
        description="Print the JSON schema (draft 2020-12) of experiment files. An editor then completes keys, shows "
        "what they are and marks wrong ones: save it, and begin a file with `# yaml-language-server: $schema=PATH`.",
    )
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    from rllib_lmgame.experiments.files.schema import file_schema

    print(json.dumps(file_schema(), indent=1))
    return 0
