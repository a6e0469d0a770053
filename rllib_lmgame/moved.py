"""Where public modules stood in the version before, for errors that say where they are now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MOVED: Mapping[str, str] = {
    "algorithms.evaluation": "evaluation.evaluate",
    "algorithms.measures": "algorithms.measuring.measures",
    "algorithms.options": "settings.sections.supervised",
    "algorithms.registry": "settings.algorithms",
    "envs.checker": "envs.checking.checker",
    "envs.datasets": "envs.support.datasets",
    "envs.replies": "envs.support.replies",
    "envs.sandbox": "sandbox",
    "envs.session": "envs",
    "envs.simultaneous": "envs.contract",
    "envs.splits": "envs.contract.splits",
    "envs.turns": "envs.contract",
    "envs.waiting": "waiting",
    "evaluation.players.player": "evaluation.players.settings",
    "inference.options": "settings.sections.inference",
    "inference.transformers_engine": "inference.engines.transformers_engine",
    "inference.vllm_engine": "inference.engines.vllm_engine",
    "league.options": "settings.sections.league",
    "learners.batching": "learners.data.batching",
    "learners.options": "settings.sections.token_ppo",
    "policies.options": "settings.sections.language_model",
    "rollouts.episode_log": "rollouts.log.episode_log",
    "rollouts.options": "settings.sections.text_rollouts",
    "schedules": "settings.schedules",
    "schema": "settings.schema",
    "signatures": "settings.plugins",
    "trust": "settings.trust",
}
"""Old place -> new one, below this package; a game's modules are in ``envs.games.<family>`` now."""

_PACKAGE = __name__.partition(".")[0]


def new_place(module: str) -> str | None:
    """Where a module is now that stood at ``module`` before; ``None`` if it is not known to have moved."""
    top, _, name = module.partition(".")
    if top != _PACKAGE:
        return None
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return f"{_PACKAGE}.{new}{name.removeprefix(old)}"
    folder, _, game = name.partition(".")
    place = game.replace(".", "/")
    games = Path(__file__).parent / "envs" / "games"
    found = sorted({*games.glob(f"*/{place}.py"), *games.glob(f"*/{place}/__init__.py")}) if place else []
    if folder != "envs" or len(found) != 1:
        return None
    family = found[0].relative_to(games).parts[0]
    return f"{_PACKAGE}.envs.games.{family}.{game}"
