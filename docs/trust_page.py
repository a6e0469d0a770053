"""The page on what is taken from files of others: text, and the tables of options that say so themselves."""

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

INTRODUCTION = """# What is taken from files of others

A checkpoint from a colleague or a hub, and an experiment file at an http(s) address, are data. Looking at them runs none of their code:

```console
$ rllib evaluate downloads/checkpoint --env lmgame/Sokoban-v0       # a stranger's checkpoint, in a game that you name
$ rllib evaluate downloads/checkpoint --trust-checkpoint            # one whose author you trust: its code may run
```

What could run code, start a program, or read files of its choice is refused by name, with what to do. One allow-list decides for both. It is made of the options as they are declared:

- Numbers, truth values and an option's fixed choices are taken.
- Other text is taken only where its option says so.
- A key that is no declared option is not taken at all.

So an option that is new is refused until somebody decides otherwise.

| | a stranger's checkpoint | a file from the network |
|---|---|---|
| an algorithm | by its name: of this package, or announced by a package that is installed | the same, and RLlib's |
| games of this package by id, with options that are plain data | taken | taken |
| Gymnasium's own environments by id, with numbers as options | no such checkpoints | taken |
| other games (import paths, entry points, `module:Id-v0`), and those on servers and sites (`agentgym:TASK`, WebArena) | refused; `--env ID` (or `ID` of `play`) plays the game that you name | refused |
| a game's programs, files and addresses, also those of the models it asks (`engine_path`, `mcp`, `functions`, `data`, `url`, `oracle`, `judge`, ...) | refused | refused |
| published [data sets](data-sets.md) (`data: data:NAME`) | taken, and read if they are here | the same |
| players, experts, engines, estimators, seat mappings | registered names | registered names |
| models and tokenizers | trained ones from `hf/`; others by hub id or known name | hub ids, known names; no `.gguf` files |
| `trust_remote_code`, `engine_kwargs` | refused | refused |
| a chat template | its text (Jinja's immutable sandbox, in a process with limits of time and memory), no file | its text, no file |
| `hf/`, `hf_last/` | safetensors, JSON, text and templates; files with other endings, links, adapters, `auto_map`, attention functions from a hub and other models are refused | |
| search spaces | none | every value is looked at, of numbers between bounds the extremes; `sample_from` and `eval` are refused |
| what a scheduler changes (`hyperparam_mutations`, `hyperparam_bounds`) | none | as if it stood in `config` |
| RLlib's other keys | numbers and truth values | the same, and a few texts such as `grad_clip_by: norm` |
| DeepSpeed's keys | not read | precision and ZeRO; no files, no monitors, no offload to disks |
| `report` | not read | those of this package, with numbers and names as arguments |
| `callbacks`, `storage_path`, `restore`, `export_formats` | not read | refused |

The commands `evaluate`, `play`, `tournament` and `train` take `--trust-checkpoint`, in Python `trust=True`. Then a checkpoint's configuration is used as
it is, and code that it names or brings along is run. For a fetched file there is no such switch: download it, read it, run it from disk. What
you set yourself with `--set` is yours and not looked at.

What remains: a stranger's file can ask for much memory, processors, disk or time. It can download a model by its hub id, and its weights play the games.
Where a game runs what a model writes, [the sandbox](sandbox.md) stands between.

## Whose a checkpoint is

Who owns the files says nothing: what you unpack is yours. A checkpoint counts as written by your own runs if one of two things holds. Then it is used
as it is, also with a game of your own by its import path.

1. Its `manifest.json` carries a signature (HMAC-SHA256) by your key over the sizes and hashes of all its files, and no file was added to it. It
   may have been copied anywhere; a byte that was changed is noticed.
2. It lies where a trial leaves its checkpoints, `EXPERIMENT/TRIAL/CHECKPOINT`, and the experiment's `started_by.json` carries a signature by
   your key of the directory's own path, as the command `train` writes it. An archive unpacked elsewhere has none that holds, your own included. All
   its files must be owned by you, must be writable by nobody but you (and perhaps a group) and must not be links.

The key is made at first use: `$XDG_STATE_HOME/rllib_lmgame/signing.key`, by default below `~/.local/state`. It is readable by you alone; with other
permissions it is not used. Machines that share a home directory share the key. On clusters whose machines do not, trials on other nodes sign
with other keys. But the directory of the experiment is signed where the command runs, so the second rule holds there. Where no key can be
kept, nothing is signed and everything needs `--trust-checkpoint`. Whoever can write as you, or through a group into your results, is trusted. Do
not unpack archives of others into the directories of your own experiments.

## A tournament's directory

A tournament that finds its directory (`--out`) from an earlier command reads its settings, which must be those of the command, and the results of its
games. They are JSON; nothing of it is run or unpickled. Links, directories and devices in it are refused. Whose it is nobody asks: results that somebody
else wrote into it count like your own. Players come from the command line, where a checkpoint is held to the rules above.

## What is unpickled

| command | what Ray and RLlib unpickle | condition |
|---|---|---|
| `evaluate`, `play` on a checkpoint of `LMGamePPO`, `LMGameSFT` or another with an entry | nothing | |
| `evaluate` on a checkpoint of a stock algorithm | `*.pkl` in it | yours, or `--trust-checkpoint` |
| `restore:`, `--restore` | `*.pkl` in the checkpoint | yours, or `--trust-checkpoint` |
| `train ... --resume` | `tuner.pkl`, `experiment_state-*.json` (pickles in hexadecimal), search and trial state, and the trials' checkpoints | rule 2, or `--trust-checkpoint` |
| Python: `Algorithm.from_checkpoint`, `restore_from_path` | `*.pkl` in the checkpoint | none: as everywhere in RLlib, load what you trust |

The optimizer's state (`optimizer.pt`) is read with `weights_only=True`. DeepSpeed's shards are read by DeepSpeed, which unpickles: the same
conditions hold, since only `restore:` and `--resume` read them.

## Options that are not taken as they are

All options of the sections and games that are not listed here are taken."""  # noqa: E501

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
    return table(("of", "key", "taken"), rows)


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
