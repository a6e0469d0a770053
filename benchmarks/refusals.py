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
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.config.algorithms import COMMON_SECTIONS, OWN
from rllib_lmgame.experiments.checks.check import check_experiment, check_quickly
from rllib_lmgame.experiments.search.spaces import SEARCH_KEYS
from rllib_lmgame.experiments.spec import Source, make_spec

CORPUS = Path(__file__).with_name("refusals.jsonl.xz")
OF_TESTS = 1418
"""So many come from tests, at the beginning; the others were drawn at random."""
RENAMED = {
    "use_kl_loss": "token_ppo.kl",
    "token_ppo.baseline_decay": "token_ppo.advantage_estimator.baseline_decay",
    "token_ppo.critic_target": "token_ppo.critic.target",
    "token_ppo.critic_warmup_iterations": "token_ppo.critic.warmup.iterations",
    "token_ppo.critic_warmup": "token_ppo.critic.warmup.type",
    "token_ppo.critic_warmup_lr": "token_ppo.critic.warmup.lr",
    "token_ppo.value_normalization": "token_ppo.critic.normalization",
    "token_ppo.value_lr": "token_ppo.critic.lr",
    "token_ppo.value_backbone_lr": "token_ppo.critic.backbone_lr",
    "token_ppo.value_clip": "token_ppo.critic.clip",
    "token_ppo.value_grad_clip": "token_ppo.critic.grad_clip",
    "token_ppo.clip_low": "token_ppo.policy_loss.clip_low",
    "token_ppo.clip_high": "token_ppo.policy_loss.clip_high",
    "token_ppo.dual_clip": "token_ppo.policy_loss.dual_clip",
    "token_ppo.loss_aggregation": "token_ppo.aggregation",
    "token_ppo.loss_length": "token_ppo.aggregation.length",
    "token_ppo.importance_cap": "token_ppo.importance.cap",
    "token_ppo.importance_level": "token_ppo.importance.level",
    "token_ppo.importance_band": "token_ppo.importance.band",
    "token_ppo.importance_band_level": "token_ppo.importance.band.level",
    "token_ppo.entropy_target": "token_ppo.entropy.target",
    "token_ppo.entropy_rate": "token_ppo.entropy.rate",
    "token_ppo.reference": "token_ppo.kl.reference",
    "token_ppo.kl.reference.kind": "token_ppo.kl.reference.type",
    "token_ppo.kl_in": "token_ppo.kl.in",
    "token_ppo.kl_estimator": "token_ppo.kl.estimator",
    "token_ppo.kl_gradient": "token_ppo.kl.gradient",
    "token_ppo.kl_coeff_range": "token_ppo.kl.coeff_range",
    "token_ppo.kl_schedule": "token_ppo.kl.schedule",
    "data_selection.drop_zero_variance_groups": "data_selection.zero_variance_groups",
    "data_selection.max_refill": "data_selection.zero_variance_groups.max_refill",
    "data_selection.overlong_tokens": "data_selection.overlong.tokens",
    "data_selection.overlong_buffer": "data_selection.overlong.buffer",
    "data_selection.overlong_penalty": "data_selection.overlong.penalty",
    "data_selection.normalize_deviation": "data_selection.normalize_rewards.deviation",
    "league.power": "league.matchmaking.power",
    "league.forgotten_share": "league.forgotten.share",
    "league.forgotten_below": "league.forgotten.below",
    "warm_start.stop_success": "warm_start.stop_at.success",
    "warm_start.stop_invalid_rate": "warm_start.stop_at.invalid_rate",
    "warm_start.evaluate_every": "warm_start.stop_at.every",
    "warm_start.evaluation_episodes": "warm_start.stop_at.episodes",
    "supervised.stop_success": "supervised.stop_at.success",
    "supervised.stop_invalid_rate": "supervised.stop_at.invalid_rate",
    "supervised.evaluate_every": "supervised.stop_at.every",
    "supervised.evaluation_episodes": "supervised.stop_at.episodes",
}
"""Keys of the corpus -> the key where the value stands now."""

TAGGED = (
    *("token_ppo.policy_loss", "token_ppo.advantage_estimator", "kl.reference", ".aggregation"),
    *(".zero_variance_groups", ".normalize_rewards", ".matchmaking"),
)
"""Ends of keys of groups that have a type."""
ACTING = ("token_ppo.kl", ".stop_at.every", ".stop_at.episodes")
"""Ends of keys that were told to be without effect, and that have one where they can be written now."""
FORMS = {"data_selection.drop_zero_variance_groups": {True: "drop", False: "keep"}}
"""Old key -> its values as they are written now."""
SPACES = set(SEARCH_KEYS)
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


def entries(corpus: Path = CORPUS, every: int = 1) -> Iterator[tuple[int, dict[str, Any], Verdict]]:
    """Place in the corpus, settings and their verdict; of a sample every ``every``-th."""
    with lzma.open(corpus, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % every == 0:
                entry = json.loads(line)
                key, words, *told = entry.pop("verdict")
                if words.startswith("cannot import") or not _translate(entry):  # Which modules there are is no rule.
                    continue
                key = key and _renamed(key.replace("config.schedules.", "config."))
                names = {_renamed(name) for keys in told for name in keys.split(", ")}
                yield (
                    number,
                    entry,
                    Verdict(key, words, tuple(sorted(name for name in names if not name.endswith(ACTING)))),
                )


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
            if key.partition(".")[0] == "games" or key in COMMON_SECTIONS or key.endswith((".clip_hi", ".objective")):
                return False
            place: Any = entry
            for section in above:
                inner = place.get(section)
                place[section] = place = inner if isinstance(inner, dict) else {}
            if isinstance(place.get(name), list):
                return False  # It was a schedule of RLlib's, too.
            place[name] = schedule
    return _move(entry) and _group(entry) if isinstance(entry, dict) else True


def _renamed(key: str) -> str:
    """A key as it is called now."""
    for old in sorted(RENAMED, key=len, reverse=True):
        found = re.fullmatch(rf"(.*\.|){re.escape(old)}(\W.*|)", key)
        if found:
            key = f"{found[1]}{RENAMED[old]}{found[2]}"
            break
    return f"{key}.type" if key.endswith(TAGGED) else key


def _move(config: dict[str, Any]) -> bool:
    """Put options of other sections than ``token_ppo`` into their groups, as :func:`_translate` does."""
    for old, new in RENAMED.items():
        section, _, name = old.partition(".")
        options = config.get(section)
        if section == "token_ppo" or not isinstance(options, dict) or name not in options:
            continue
        value = options.pop(name)
        if old in FORMS:
            if not isinstance(value, bool):
                return False
            value = FORMS[old][value]
        _put(options, [*new.split(".")[1:], *(["type"] if new.endswith(TAGGED) else [])], value)
    league = config.get("league")
    forgotten = league.get("forgotten") if isinstance(league, dict) else None
    if isinstance(league, dict) and isinstance(forgotten, dict) and forgotten.get("share") == 0:
        if "below" in forgotten:
            return False
        league["forgotten"] = None
    selection = config.get("data_selection")
    overlong = selection.get("overlong") if isinstance(selection, dict) else None
    if isinstance(selection, dict) and isinstance(overlong, dict) and overlong.get("tokens") is None:
        if overlong.get("buffer", 0) == 0 and overlong.get("penalty", 1) == 1:
            del selection["overlong"]
        else:
            overlong.pop("tokens", None)
    return True


def _put(options: Any, where: list[str], value: Any) -> None:
    """Set an option in groups in groups; one that was its type alone is written out."""
    *above, last = where
    for part in above:
        inner = options.get(part)
        plain = isinstance(inner, dict) and not set(inner) & SPACES
        options[part] = options = inner if plain else {} if inner is None else {"type": inner}
    options[last] = value


def _group(config: dict[str, Any]) -> bool:
    """Put options of ``token_ppo`` into their groups, as :func:`_translate` does."""
    off = config.get("use_kl_loss") is False
    penalised, options = config.pop("use_kl_loss", False), config.get("token_ppo", {})
    if not isinstance(options, dict):
        return penalised is False
    had = {old.removeprefix("token_ppo."): new.split(".")[1:] for old, new in RENAMED.items() if "." in old}
    moved: dict[str, Any] = {name: options.pop(name) for name in had if name in options}
    lone = {"critic_warmup": "critic_warmup_iterations", "critic_warmup_lr": "critic_warmup_iterations"}
    lone |= {"entropy_rate": "entropy_target", "importance_band_level": "importance_band"}
    if any(name in moved and not moved.get(needed) for name, needed in lone.items()) or penalised not in (True, False):
        return False  # It has no place without the other.
    if isinstance(moved.get("critic_warmup_iterations"), dict):
        return False  # A search space with 0, which is ``warmup: null`` now.
    if "loss_length" in moved and moved.get("loss_aggregation") != "constant_length":
        return False
    if "baseline_decay" in moved and options.get("advantage_estimator") not in ("rae", "role_baseline"):
        return False
    if not penalised and any(had[name][0] == "kl" and moved[name] is not None for name in moved):
        return False
    if "importance_band" in moved and moved["importance_band"] is not None:
        band = moved["importance_band"]
        if not isinstance(band, list) or len(band) != 2:
            return False
        moved["importance_band"] = {"low": band[0], "high": band[1]}
    if penalised:
        options["kl"] = {}
    elif off:
        options["kl"] = None
    for name, value in moved.items():
        if name in ("critic_warmup_iterations", "entropy_target") and not value:
            continue
        if had[name][0] == "kl" and not penalised:
            continue
        *above, last = had[name]
        _put(options, [*above, "aggregation", "type"] if name == "loss_aggregation" else [*above, last], value)
    if options:
        config["token_ppo"] = options
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


def _heads(verdict: Verdict) -> set[str]:
    """What is told, of options in groups in groups the inner group."""
    return {".".join(key.split(".")[:4]) for key in verdict.told}


GONE = re.compile(
    r"no effect|no result has|is never |is what is configured|is no number|stands still|also counts|is 1 in every|"
    r"own va|lies bet|trained policies take|null leaves it|leaves no matches|_per_episode=.* is less|with some of|"
    r"reward_variance_filter=0.059|stands beside token_ppo.kl_coeff_range|importance_cap"
)
"""Beginnings of refusals that are gone: of what has no effect, and of metrics, which the first result tells."""

CHANGED: tuple[tuple[str, Callable[[Verdict, Verdict], Any]], ...] = (
    ("what has no effect is taken", lambda old, new: new.key != old.key and GONE.search(old.words)),
    (
        "players may be plain data where objects stood",
        lambda old, new: old.key == "config.player_options" and not new.key,
    ),
    (
        "what has no effect is not told",
        lambda old, new: old.key is new.key is None and {*new.told} <= {*old.told},
    ),
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
    (
        "a group is refused at an option in it, or an option at its group",
        lambda old, new: (
            old.told == new.told
            and old.key is not None
            and new.key is not None
            and all("." in key.removeprefix("config.") for key in (old.key, new.key))
            and (f"{new.key}.".startswith(f"{old.key}.") or f"{old.key}.".startswith(f"{new.key}."))
        ),
    ),
    (
        "an option of another type is refused also with the value of its default",
        lambda old, new: old.key is None and new.words.startswith("has no effect with ") and "; it be" in new.words,
    ),
    (
        "what has no effect is refused, or told, also with the value of its default",
        lambda old, new: (
            old.key is None
            and (new.words.startswith("has no effect ") or (new.key is None and {*old.told} < {*new.told}))
        ),
    ),
    ("what a type needs is asked first", lambda old, new: old.key is not None and new.words.startswith("is missing")),
    (
        "a policy can be without the penalty that the others have",
        lambda old, new: old.key == "config.token_ppo.kl.in" and new.key is None,
    ),
    (
        "of a group its options are told, and not the name that is the default",
        lambda old, new: (
            old.key is new.key is None and _heads(old) - _heads(new) <= {"config.token_ppo.advantage_estimator.type"}
        ),
    ),
    (
        "a text in the place of a function of RLlib's is refused",
        lambda old, new: old.key is None and new.words.startswith("expected a function"),
    ),
    (
        "a policy's options as an object are refused at its name",
        lambda old, new: old.key == "config.player_options" and str(new.key).startswith("config.player_options."),
    ),
    ("a mapping without its `type` is refused at that key", lambda old, new: new.key == f"{old.key}.type"),
)
"""What is another verdict on purpose: why, and which."""

ANOTHER_FAULT = frozenset(
    (
        *(3457, 3509, 3515, 3689, 5197, 5241, 6321, 7472, 7709, 8153, 10196, 11374, 12368, 13469, 13517, 14913),
        *(16455, 16461, 17927, 18063, 18284, 18945, 20178, 20516, 21207),
    )
)
"""Places of settings with several faults, of which another is told first, and which leaving it out alone does not show:
a value out of its range, or an option of another type, is told before what does not go together.
"""
PENALTY_OF_ONE, NO_TARGET = 13444, 20609
"""Places of settings that are right now: a policy's own ``kl`` turns its penalty on; an ``entropy_target`` of 0 cannot
be written any more.
"""


def same(old: Verdict, new: Verdict) -> bool:
    """Whether the same is refused; or, on purpose, not."""
    keys = [key and key.removeprefix("config.") for key in (old.key, new.key)]
    return (keys[0], old.told) == (keys[1], new.told) or any(meant(old, new) for _, meant in CHANGED)


def hidden(entry: Mapping[str, Any], old: Verdict, new: Verdict) -> bool:
    """Whether the old key is refused, too, once what is refused now is left out: of several faults another is told."""
    config = copy.deepcopy(entry.get("settings", {}).get("config", {}))
    for _ in range(8):
        if new.key is None or same(old, new) or not _leave_out(config, new.key):
            break
        new = ask({**entry, "settings": {**entry["settings"], "config": config}})
    return old.key is not None and new.key is not None and same(old, new)


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


def other_verdict(number: int, entry: Mapping[str, Any], old: Verdict) -> Verdict | None:
    """What is said now, where that is another verdict and not on purpose."""
    new = ask(entry)
    if same(old, new) or hidden(entry, old, new) or number in (PENALTY_OF_ONE, NO_TARGET):
        return None
    return None if number in ANOTHER_FAULT and new.key is not None else new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--show", type=int, default=3, help="settings shown of every kind of difference")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    asked, differing = 0, collections.defaultdict(list)
    for number, entry, old in entries(every=args.every):
        asked += 1
        new = other_verdict(number, entry, old)
        if new is not None:
            differing[old.key, new.key, old.told == new.told].append((entry, old, new))
    for (old_key, new_key, _), found in sorted(differing.items(), key=lambda item: -len(item[1])):
        print(f"{len(found)} x {old_key} -> {new_key}")
        for entry, old, new in found[: args.show]:
            print(f"    {json.dumps(entry.get('settings') or entry)}\n      {old}\n      {new}")
    print(f"{asked} settings, {sum(map(len, differing.values()))} with another verdict")


if __name__ == "__main__":
    main()
