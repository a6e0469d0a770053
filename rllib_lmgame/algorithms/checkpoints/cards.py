"""What a run adds to the model cards of its checkpoint: how it was trained, and its success on held-out levels.

Values of settings are literals of Python: none of it is Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.base.group import as_mapping
from rllib_lmgame.config.run import RunConfig
from rllib_lmgame.measures.statistics import rate_over_levels
from rllib_lmgame.policies.model.export import CARD_FILE, literal
from rllib_lmgame.rollouts.episodes import seed_and_level

SHOWN = (
    "seed", "lr", "gamma", "lambda", "entropy_coeff", "num_epochs", "text_rollouts.episodes_per_iteration",
    "text_rollouts.group_size", "text_rollouts.constrained_decoding", "token_ppo.advantage_estimator",
    "token_ppo.num_minibatches", "token_ppo.ema_decay", "language_model.context_length",
    "language_model.max_tokens_per_turn",
)  # fmt: skip
"""RunConfig a card shows; the others stand in the checkpoint's ``lmgame_config.json``."""


def add_to_cards(
    directories: Iterable[Path],
    settings: RunConfig,
    algorithm: str,
    iteration: int,
    milestones: Mapping[str, Mapping[str, float]],
) -> None:
    """Add to the cards below ``directories`` what is known when a checkpoint is written."""
    text = trained_text(settings, algorithm, iteration) + heldout_text(milestones)
    for file in (directory / CARD_FILE for directory in directories):
        if file.is_file():
            with file.open("a", encoding="utf-8") as card:
                card.write(text)


def trained_text(settings: RunConfig, algorithm: str, iteration: int) -> str:
    """The table of what was trained and how."""
    known = {key: _plain(settings.value(key)) for key in SHOWN}
    rows: dict[str, Any] = {
        "algorithm": algorithm,
        "iterations": iteration,
        "begun from": settings.value("language_model.model"),
        "games": list(dict.fromkeys(str(game.env) for game in settings.games)),
        **{key: value for key, value in known.items() if value is not None},
    }
    lines = [f"| `{name}` | `{_cell(value)}` |" for name, value in rows.items()]
    more = "All settings stand in the checkpoint's `lmgame_config.json`."
    return "\n".join(["", "## How it was trained", "", "| | |", "|---|---|", *lines, "", more, ""])


def _plain(value: Any) -> Any:
    """A group of options as a file has it."""
    return value if value is None or isinstance(value, str | int | float | list | dict) else as_mapping(value)


def _cell(value: Any) -> str:
    """In a code span of a table."""
    return literal(value).replace("`", "\\x60").replace("|", "\\x7c")


def heldout_text(milestones: Mapping[str, Mapping[str, float]]) -> str:
    """The table of held-out levels: milestone -> success by seed; nothing where none were played."""
    rows = []
    for name, successes in milestones.items():
        if successes:
            levels = [seed_and_level(seed)[1] for seed in successes]
            rate = rate_over_levels(list(successes.values()), levels)
            interval = "-" if rate.interval is None else "{:.3f} - {:.3f}".format(*rate.interval)
            when = re.sub(r"[^\w ,.-]", "?", name)
            rows.append(f"| {when} | {len(levels)} | {rate.levels} | {rate.mean:.3f} | {interval} |")
    head = [
        "",
        "## Held-out levels",
        "",
        "| when | episodes | levels | success | 95 % interval |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""]) if rows else ""
