"""The page on what is accepted from a checkpoint: text, and the tables of options that say so themselves."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from typing import Any

from tables import table

from rllib_lmgame.algorithms.trust import SECTIONS
from rllib_lmgame.base.group import NAMED, is_open, leaves, walk
from rllib_lmgame.settings.sections.demonstrations import is_shown
from rllib_lmgame.settings.sections.games import GameConfig
from rllib_lmgame.settings.trust import is_data_set, is_hub_id, is_name, is_number, is_template, verdict

INTRODUCTION = """# What is accepted from a checkpoint

A checkpoint is data, whoever wrote it. Playing with one runs none of its code unless you say so:

```console
$ rllib evaluate downloads/checkpoint                               # games and players of this package
$ rllib evaluate downloads/checkpoint --env lmgame/Sokoban-v0       # in a game that you name
$ rllib evaluate downloads/checkpoint --trust-checkpoint            # its code may run
```

What could run code, start a program, or read files of its choice is refused, and the error names the key and the flag. This also holds for checkpoints of your own runs: with a game of your own (`package.module:Class`), or options that name files, pass `--trust-checkpoint`. The commands that a run prints at its end have the flag where it is needed.

The options themselves declare what is accepted:

- Numbers, truth values and an option's fixed choices are accepted.
- Other text is accepted only where its option says so.
- A key that is no declared option is not accepted.

| | without `--trust-checkpoint` |
|---|---|
| the algorithm | by its name: of this package, or announced by a package that is installed |
| games of this package by id, with options that are plain data | accepted |
| other games (import paths, entry points), and those on servers and sites (`agentgym:TASK`, WebArena) | refused; `--env ID` (or `ID` of `play`) plays the game that you name |
| a game's programs, files and addresses, also those of the models it asks (`engine_path`, `mcp`, `functions`, `data`, `url`, `oracle`, `judge`, ...) | refused |
| published [data sets](data-sets.md) (`data: data:NAME`) | accepted, and read if they are here |
| players, experts, engines, estimators, seat mappings | registered names |
| models and tokenizers | trained ones from `hf/`; others by hub id or known name |
| `trust_remote_code`, `engine_kwargs` | refused |
| a chat template | its text (Jinja's immutable sandbox, in a process with limits of time and memory), no file |
| `hf/`, `hf_last/` | safetensors, JSON, text and templates; files with other endings, links, adapters, `auto_map`, attention functions from a hub and other models are refused |
| RLlib's other keys | numbers and truth values, and a few texts such as `grad_clip_by: norm` |

With `--trust-checkpoint` (in Python `trust=True`) a checkpoint's configuration is used as it is, and code that it names or brings along is run.

A checkpoint can still ask for much memory, processors, disk or time, and its weights play the games. Where a game runs what a model writes, [the sandbox](sandbox.md) stands between.

## What is unpickled

| command | what Ray and RLlib unpickle | condition |
|---|---|---|
| `evaluate`, `play` on a checkpoint of `LMGamePPO`, `LMGameSFT` or another with an entry | nothing | |
| `evaluate` on a checkpoint of a stock algorithm | `*.pkl` in it | `--trust-checkpoint` |
| `restore:`, `--restore` | `*.pkl` in the checkpoint | `--trust-checkpoint` |
| `train ... --resume` | the state of the experiment that you name in your results, and its trials' checkpoints | its files are yours and nobody else can write them (a group may), or `--trust-checkpoint` |
| Python: `Algorithm.from_checkpoint`, `restore_from_path` | `*.pkl` in the checkpoint | none: as everywhere in RLlib, load what you trust |

Do not unpack archives of others into your results. The optimizer's state (`optimizer.pt`) is read with `weights_only=True`. DeepSpeed's shards are unpickled by DeepSpeed; only `restore:` and `--resume` read them.

A tournament that resumes in a directory (`--out`) reads JSON alone; nothing in it is run or unpickled.

## Options that are restricted

All options of the sections and games that are not listed here are accepted."""  # noqa: E501

_OF_GAMES = {("`games`", "`env`"), ("`games`", "`env_config`")}
"""What the table of the games is about."""

_VERDICTS: Mapping[Any, str] = {
    is_name: "names",
    is_hub_id: "hub ids",
    is_data_set: "names of data sets",
    is_template: "text of a template",
    is_shown: "how many, or the turns; no file",
    False: "the default only",
}


def trust_page() -> str:
    """The page."""
    return "\n\n".join((INTRODUCTION, _table(_sections()), "Of the games:", _table(_games()))) + "\n"


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    return table(("of", "key", "accepted"), rows)


def _sections() -> list[tuple[str, str, str]]:
    from rllib_lmgame.settings.sections.language_model import PlayerOptions

    groups = {**SECTIONS, "policies": PlayerOptions, "games": GameConfig}
    rows = [(f"`{name}`", f"`{key}`", taken) for name, group in groups.items() for key, taken in _limited(group)]
    return [row for row in rows if row[:2] not in _OF_GAMES]


def _games() -> list[tuple[str, str, str]]:
    from rllib_lmgame.envs.registry import load_factory, own_games, served

    rows: dict[tuple[str, str], dict[str, None]] = {}  # Of names of classes, in their order.
    for spec in (*own_games().values(), *served().values()):
        factory = load_factory(spec)
        group = getattr(factory, "Options", None)
        for key, taken in _limited(group) if group is not None else ():
            rows.setdefault((f"`{key}`", taken), {})[f"`{factory.__name__}`"] = None
    return [(", ".join(games), key, taken) for (key, taken), games in sorted(rows.items())]


def _limited(group: type) -> Iterable[tuple[str, str]]:
    """Options a stranger may not set to every value of their type, with what is taken."""
    yield from ((f"{each.key}.*", "numbers and words") for each in walk(group) if each.group and is_open(each.group))
    for key, each in leaves(group).items():
        taken, kinds = verdict(each.says), _kinds(each.hint)
        if each.holds and each.holds.group in SECTIONS.values():
            yield key, "as the section of that name"
        elif each.holds:
            names = "NAME." if each.holds.form == NAMED else ""
            yield from ((f"{key}.{names}{inner}", words) for inner, words in _limited(each.holds.group))
        elif each.says.get("is_tag") and taken is is_number:
            yield key, "names"
        elif taken is not is_number:
            if taken is not True:
                yield key, _VERDICTS[taken]
        elif str in kinds:
            yield key, _VERDICTS[False]
        elif Any in kinds:
            yield key, "numbers and truth values"


def _kinds(hint: Any) -> set[Any]:
    """The plain types in an annotation, values of mappings included."""
    arms = typing.get_args(hint)
    if typing.get_origin(hint) is dict:
        return _kinds(arms[1])
    return set().union(*map(_kinds, arms)) if arms else {hint}
