"""The page of what is chosen by name: a line or more of description from each class, with its options."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tables import option_table, table

from rllib_lmgame.base.group import is_group
from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS
from rllib_lmgame.settings import plugins

HEAD = """# Parts by name

Some parts of a run are chosen by name, and one of your own by its import path:

```yaml
# below `config`
token_ppo:
  advantage_estimator: {type: gigpo, step_weight: 0.5}  # a name, with options of its own
  policy_loss: cispo                                    # a name, or my_package.losses:name
text_rollouts:
  group_size: 8
```

What one of your own has to be stands in [extending it](extending.md); how the parts work together in
[algorithms](algorithms.md). `A` is the advantage of a token, `r_t` its reward, `R` the sum of a trajectory's rewards
and `V` what the value function says."""


def parts_page() -> str:
    """The page."""
    parts = [HEAD, *_estimators(), *_losses()]
    for title, registry in (
        ("Objectives", plugins.OBJECTIVES),
        ("Reply formats", plugins.REPLY_FORMATS),
        ("Matchmakers of a league", plugins.MATCHMAKERS),
        ("Measures of an evaluation", plugins.MEASURES),
        ("Reports at the end of a run", plugins.REPORTS),
    ):
        lines = [f"- `{name}`: {_paragraphs(registry[name])[0].replace(chr(10), chr(10) + '  ')}" for name in registry]
        parts.append(f"## {title}\n\n`{registry.key}`\n\n" + "\n".join(lines))
    players = defaultdict(list)
    for name, player in SCRIPTED_PLAYERS.items():
        players[player].append(f"`{name}`")
    lines = [f"- {', '.join(names)}: {_paragraphs(player)[0]}" for player, names in players.items()]
    parts.append(
        "## Scripted players\n\n`policies.*.player`, and wherever a command names a player\n\n" + "\n".join(lines)
    )
    return "\n\n".join(parts) + "\n"


def _estimators() -> Iterator[str]:
    registry = plugins.ESTIMATORS
    rows, firsts = [], [name for name in registry if registry.label(name) == name]
    for name in firsts:
        said = registry.make(name)
        reads = ", ".join(f"`{'lambda' if option == 'lam' else option}`" for option in said.reads)
        words = (_yes(said.needs_groups), _yes(said.needs_critic), _yes(said.own_scale), reads)
        rows.append((f"[`{name}`](#{name})", *words))
    yield (
        f"## Advantage estimators\n\n`{registry.key}`. One that compares needs groups "
        "(`text_rollouts.group_size`); one without a critic has no value function.\n"
        "Advantages with a scale of their own are used as they are unless `normalize_advantages` is set."
    )
    yield table(("name", "compares a group", "critic", "own scale", "reads"), rows)
    for name in firsts:
        first, *more = _paragraphs(registry[name])
        options = [option_table(registry[name])] if is_group(registry[name]) else []
        others = [other for other in registry if other != name and registry[other] is registry[name]]
        again = [f"Also called {', '.join(f'`{other}`' for other in others)}."] if others else []
        yield "\n\n".join([f"### `{name}`", first, *more, *again, *options])


def _losses() -> Iterator[str]:
    registry = plugins.POLICY_LOSSES
    yield (
        f"## Policy losses\n\n`{registry.key}`. `r` is the ratio of a token's probability now to that before the "
        "update."
    )
    for name in registry:
        loss = registry[name]
        ratio = ["Its ratio is that to the sampler."] if loss.to_sampler else []
        yield "\n\n".join([f"### `{name}`", *_paragraphs(loss), *ratio, option_table(loss)])


def _yes(said: bool) -> str:
    return "yes" if said else "no"


def _paragraphs(part: Any) -> list[str]:
    """Those of a docstring before its arguments, as Markdown."""
    said = inspect.getdoc(part)
    if not said:
        raise ValueError(f"{part} has no docstring, which is its text in parts.md")
    text = re.split(r"\n\n(?:Args|Returns|Raises|Attributes):", said)[0]
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    return text.split("\n\n")
