"""What a run adds to the model cards of its checkpoint: how it was trained, how it went, and a game it played.

Texts of models and games stand in code blocks, values of settings are literals of Python: none of it is Markdown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_lmgame.base.group import as_mapping
from rllib_lmgame.base.json_files import parse
from rllib_lmgame.base.results import number_at
from rllib_lmgame.base.text import printable, sparkline
from rllib_lmgame.config.run import RunConfig
from rllib_lmgame.measures.statistics import rate_over_levels
from rllib_lmgame.policies.model.export import CARD_FILE, literal
from rllib_lmgame.rollouts.episode_log import episode_text
from rllib_lmgame.rollouts.episodes import seed_and_level

SUCCESS, RETURN = "env_runners/success_rate", "env_runners/episode_return_mean"
MOST_VALUES = 512
"""Of a curve that a checkpoint carries: where there are more, every second goes."""
SHOWN = (
    "seed", "lr", "gamma", "lambda", "entropy_coeff", "num_epochs", "text_rollouts.episodes_per_iteration",
    "text_rollouts.group_size", "text_rollouts.constrained_decoding", "token_ppo.advantage_estimator",
    "token_ppo.num_minibatches", "token_ppo.ema_decay", "language_model.context_length",
    "language_model.max_tokens_per_turn",
)  # fmt: skip
"""RunConfig a card shows; the others stand in the checkpoint's ``lmgame_config.json``."""
_LONGEST_GAME = 4000
_TAIL = 4 << 20


@dataclass
class Curve:
    """Success (or the return, where games have none; of several seats the first one's, since the sum may always be 0)
    of training iterations, ``every`` so many.

    It travels in the state of a checkpoint, so that it goes on after a restart.
    """

    metric: str = ""
    every: int = 1
    values: list[float] = field(default_factory=list)
    seen: int = 0

    def add(self, result: Mapping[str, Any]) -> None:
        """Note an iteration; those that measured nothing (a warm start) are left out."""
        if not self.metric:
            names = (SUCCESS, *_seat_returns(result), RETURN)
            self.metric = next((name for name in names if number_at(result, name) is not None), "")
        value = number_at(result, self.metric) if self.metric else None
        if value is None or not math.isfinite(value):
            return
        if self.seen % self.every == 0:
            self.values.append(value)
        self.seen += 1
        if len(self.values) > MOST_VALUES:
            self.values, self.every = self.values[::2], 2 * self.every


def _seat_returns(result: Mapping[str, Any]) -> list[str]:
    """The metric of the first seat's return, where there are several."""
    earned = (result.get("env_runners") or {}).get("seat_returns_mean") or {}
    seats = [f"env_runners/seat_returns_mean/{policy}/{role}" for policy in earned for role in earned[policy]]
    return seats[:1] if len(seats) > 1 else []


def add_to_cards(
    directories: Iterable[Path],
    settings: RunConfig,
    algorithm: str,
    iteration: int,
    milestones: Mapping[str, Mapping[str, float]],
    curve: Curve,
    trial: Path,
) -> None:
    """Add to the cards below ``directories`` what is known when a checkpoint is written; a sample game comes from the
    newest episode log of the ``trial``, where there is one.
    """
    parts = [trained_text(settings, algorithm, iteration), curve_text(curve), heldout_text(milestones)]
    text = "\n".join(part for part in (*parts, game_text(trial / "episodes")) if part)
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


def curve_text(curve: Curve) -> str:
    """The curve as a line of blocks; nothing where nothing was measured."""
    if not curve.values:
        return ""
    what = "success" if curve.metric == SUCCESS else "return"
    first, last = curve.values[0], curve.values[-1]
    over = f"over {curve.seen} iteration" + "s" * (curve.seen != 1)
    said = f"{what.capitalize()} while training, {over}: {first:.3f} to {last:.3f}."
    return "\n".join(["", "## Learning curve", "", "```text", sparkline(curve.values), "```", "", said, ""])


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


def game_text(logs: Path) -> str:
    """The last game of the newest episode log in a folder; nothing where there is none."""
    record = newest_record(logs)
    if record is None:
        return ""
    try:
        text = printable(episode_text(record))
    except (KeyError, TypeError, AttributeError, ValueError):  # A log of another version.
        return ""
    text = text if len(text) <= _LONGEST_GAME else f"{text[:_LONGEST_GAME]}\n[...]"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return "\n".join(["", "## A game", "", f"{fence}text", text, fence, ""])


def newest_record(logs: Path) -> dict[str, Any] | None:
    """The last record of the log in a folder that was written to last; ``None`` where none can be read."""
    try:
        files = [file for file in logs.glob("*.jsonl") if file.is_file()]
        return last_record(max(files, key=lambda file: file.stat().st_mtime)) if files else None
    except OSError:
        return None


def last_record(file: Path) -> dict[str, Any] | None:
    """The last whole record of a log, which may be in the making."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _TAIL))
            lines = log.read(_TAIL).splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            record = parse(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            return record
    return None
