"""The judge of configurations: what an earlier version refused, and at which key, against what this one says.

`refusals.jsonl.xz` holds settings as plain data, one a line, and the verdict of that version: some thousands that the
tests of that time asked for, and as many drawn at random over all options. Run it after every change of a check:

    python benchmarks/refusals.py            # all of them, some minutes
    python benchmarks/refusals.py --every 20 # a sample
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import logging
import lzma
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError, MissingDependencyError
from rllib_lmgame.experiments.checks.check import check_experiment, check_quickly
from rllib_lmgame.experiments.spec import Source, make_spec
from rllib_lmgame.settings.algorithms import COMMON_SECTIONS, OWN

CORPUS = Path(__file__).with_name("refusals.jsonl.xz")
OF_TESTS = 1418
"""So many come from tests, at the beginning; the others were drawn at random."""
WORDS = 60
"""Characters of a message that are kept, to be read."""


@dataclass(frozen=True)
class Verdict:
    """What is said of settings.

    Attributes:
        key: What is refused; ``None`` if nothing is.
        words: How the message begins.
        told: Keys that are told to be without effect.
    """

    key: str | None
    words: str = ""
    told: tuple[str, ...] = ()


def entries(corpus: Path = CORPUS, every: int = 1) -> Iterator[tuple[dict[str, Any], Verdict]]:
    """Settings and their verdict; of a sample every ``every``-th."""
    with lzma.open(corpus, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % every == 0:
                entry = json.loads(line)
                key, words, *told = entry.pop("verdict")
                if not _translate(entry):
                    continue
                key = key and key.replace("config.schedules.", "config.")
                yield entry, Verdict(key, words, tuple(sorted({name for keys in told for name in keys.split(", ")})))


def _translate(entry: Any) -> bool:
    """Write settings as they are written now, everywhere in an entry; ``False`` if there is no place for one of them,
    so that it cannot be written any more.
    """
    parts = list(entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ())
    if not all(_translate(part) for part in parts):
        return False
    schedules = entry.get("schedules") if isinstance(entry, dict) else None
    if isinstance(schedules, dict):
        del entry["schedules"]
        for key, schedule in schedules.items():
            *above, name = key.split(".")
            if above[:1] == ["games"] or key in COMMON_SECTIONS or key.endswith((".clip_hi", ".objective")):
                return False
            place: Any = entry
            for section in above:
                inner = place.get(section)
                place[section] = place = inner if isinstance(inner, dict) else {}
            if isinstance(place.get(name), list):
                return False  # It was a schedule of RLlib's, too.
            place[name] = schedule
    return True


def ask(entry: Mapping[str, Any]) -> Verdict:
    """The verdict of the code that is imported."""
    try:
        notices = _experiment(entry["settings"]) if entry["kind"] == "experiment" else _object(entry)
    except ConfigError as error:
        return Verdict(error.path, error.message[:WORDS])
    except MissingDependencyError as error:
        return Verdict("(missing)", str(error)[:WORDS])
    except Exception as error:  # Tests ask for such, too.
        return Verdict("(raised)", f"{type(error).__name__}: {error}"[:WORDS])
    return Verdict(None, told=notices)


def _experiment(settings: Mapping[str, Any]) -> tuple[str, ...]:
    spec = make_spec("a", settings, Source("x.yaml", {}))
    before = len(spec.notices)
    check_quickly([spec])
    check_experiment(spec)
    return tuple(sorted({key for notice in spec.notices[before:] for key in notice.partition(":")[0].split(", ")}))


def _object(entry: Mapping[str, Any]) -> tuple[str, ...]:
    config = OWN[entry["run"]].config_class()()
    for method, args, kwargs in entry["calls"]:
        config = getattr(config, method)(*args, **kwargs)
    config.validate()
    return ()


CHANGED: tuple[tuple[str, Callable[[Verdict, Verdict], Any]], ...] = (
    ("what follows no schedules says so at the option", lambda old, new: old.key == "config.schedules" and new.key),
    ("`env_config` beside `games` is refused as such", lambda old, new: new.key == "config.env_config"),
    (
        "whether a game can be made as its schedule ends is asked where games are made",
        lambda old, new: old.key == "config.env_config.min_distance" and new.key is None,
    ),
    (
        "an option that cannot change is refused before its schedule is looked at",
        lambda old, new: "cannot change during a run" in new.words and str(old.key).startswith(str(new.key)),
    ),
    ("a mapping without its `type` is refused at that key", lambda old, new: new.key == f"{old.key}.type"),
)
"""What is another verdict on purpose: why, and which."""


def same(old: Verdict, new: Verdict) -> bool:
    """Whether the same is refused; or, on purpose, not."""
    keys = [key and key.removeprefix("config.") for key in (old.key, new.key)]
    return (keys[0], old.told) == (keys[1], new.told) or any(meant(old, new) for _, meant in CHANGED)


def hidden(entry: Mapping[str, Any], old: Verdict, new: Verdict) -> bool:
    """Whether the old key is refused, too, once what is refused now is left out: of several faults another is told."""
    config = copy.deepcopy(entry.get("settings", {}).get("config", {}))
    for _ in range(8):
        if new.key is None or new.key == old.key or not _leave_out(config, new.key):
            break
        new = ask({**entry, "settings": {**entry["settings"], "config": config}})
    return old.key is not None and new.key == old.key


def _leave_out(config: Any, key: str) -> bool:
    """Take the option of a key out, or the nearest mapping around it."""
    *above, last = key.removeprefix("config.").split(".")
    for size in range(len(above), -1, -1):
        place: Any = config
        for part in above[:size]:
            place = place.get(part) if isinstance(place, dict) else None
        names = (".".join([*above, last][size:]).partition("[")[0], [*above, last][size].partition("[")[0])
        for name in names:
            for spelled in [known for known in place or () if name == known or name.startswith(f"{known}.")]:
                del place[spelled]
                return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--show", type=int, default=3, help="settings shown of every kind of difference")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    asked, differing = 0, collections.defaultdict(list)
    for entry, old in entries(every=args.every):
        asked += 1
        new = ask(entry)
        if not same(old, new) and not hidden(entry, old, new):
            differing[old.key, new.key, old.told == new.told].append((entry, old, new))
    for (old_key, new_key, _), found in sorted(differing.items(), key=lambda item: -len(item[1])):
        print(f"{len(found)} x {old_key} -> {new_key}")
        for entry, old, new in found[: args.show]:
            print(f"    {json.dumps(entry.get('settings') or entry)}\n      {old}\n      {new}")
    print(f"{asked} settings, {sum(map(len, differing.values()))} with another verdict")


if __name__ == "__main__":
    main()
