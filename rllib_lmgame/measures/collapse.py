"""Whether a run has lost what it had learned: ``on_collapse``.

1. A rate has collapsed when the upper bound of its 95 % interval is below a share of the best lower bound of the run:
   in one evaluation (over levels), or in ``patience`` training iterations together, of which each rate is as low.
2. A loss has collapsed when no step of an iteration had a number, or none of ``patience`` in a row a finite gradient.
3. In a warm start only losses are watched, in imitation no entropy; nothing is compared with results of other games.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rllib_lmgame.base.group import Group, option, tag
from rllib_lmgame.base.schedule import number_at
from rllib_lmgame.measures.statistics import wilson_interval
from rllib_lmgame.telemetry.metrics import JUDGED, OUTCOMES, OVER_LEVELS, win_draw_loss

RESTORE = "restore"

Watched = tuple[str, float, float | None, float | None, float | None, int]
"""Name, share of the best, lower bound, number, upper bound (infinite: too early), times in a row it must be low."""


class CollapseOptions(Group):
    """``on_collapse``: what is watched, and what a collapse does."""

    type: str = tag(
        "stop",
        "`stop` ends the trial; `restore` goes on with the weights of its best checkpoint (`evaluation_config.best`).",
        choices=("stop", RESTORE),
    )
    success: float = option(0.25, "Share of its best below which `success_rate` has collapsed; 0: never.", ge=0, lt=1)
    wins: float = option(
        0.1, "Likewise of a trained policy's points in a role: games won, and half of those drawn.", ge=0, lt=1
    )
    entropy: float = option(
        0.01, "Likewise of a policy's entropy, while fewer than nine in ten games are won.", ge=0, lt=1
    )
    patience: int = option(5, "Training iterations that must be this low; one evaluation is enough.", ge=1)
    max_restores: int = option(3, "Times that the run goes back; then it ends.", ge=0)


class CollapseGuard:
    """Watches the results of a trial. ``games`` names what is played, by groups of ``group_size`` games on a level."""

    def __init__(self, options: CollapseOptions, games: str, group_size: int = 1) -> None:
        self._options, self._games, self._group_size = options, games, group_size
        self._best: dict[str, tuple[float, float, int]] = {}  # Lower bound, number, iteration.
        self._row, self._restores = Counter[str](), 0
        self._latest: dict[str, list[tuple[float, float]]] = {}  # Levels won, and all, of the last iterations.

    def seen(self, result: Mapping[str, Any]) -> str:
        """What has collapsed, from what to what; empty if nothing has."""
        named, lost, iteration = result.get("learners") or {}, [], int(result["training_iteration"])
        learners = {key: own for key, own in named.items() if key != "__all_modules__" and isinstance(own, Mapping)}
        for policy, own in learners.items():
            steps, name = number_at(own, "num_steps"), f"learners/{policy}/nan_steps"
            none = bool(steps) and number_at(own, "nan_steps") == steps
            self._row[name] = self._row[name] + 1 if none else 0
            if none and not math.isfinite(own.get("total_loss", 0.0)):
                lost.append(f"learners/{policy}/total_loss is no number in all of {steps:.0f} steps")
            elif self._row[name] >= self._options.patience:
                lost.append(f"learners/{policy} had no finite gradient in {self._row[name]} iterations in a row")
        watched = self._watched(result, learners) if number_at(result, "phase") != 0 else ()
        for name, share, low, value, high, patience in watched:
            if low is None or value is None or high is None:
                continue
            best, before, then = self._best.setdefault(name, (low, value, iteration))
            self._row[name] = self._row[name] + 1 if high < share * best else 0
            if self._row[name] >= patience:
                lost.append(f"{name} fell from {before:.4g} (iteration {then}) to {value:.4g}")
            if low > best:
                self._best[name] = low, value, iteration
        return ", ".join(lost)

    def _watched(self, result: Mapping[str, Any], learners: Mapping[str, Any]) -> Iterator[Watched]:
        options, runners = self._options, result.get("env_runners") or {}
        numbers = (
            number_at(result, f"evaluation/env_runners/{x}") for x in (OVER_LEVELS[1], "success_rate", OVER_LEVELS[2])
        )
        yield "evaluation/env_runners/success_rate", options.success, *numbers, 1
        success = number_at(runners, "success_rate"), number_at(runners, JUDGED)
        rates = {"env_runners/success_rate": (options.success, *success)}
        for policy, role, (win, draw, _) in win_draw_loss(runners):
            if policy in learners:
                rates[f"points of {policy} as {role}"] = options.wins, win + draw / 2, runners[OUTCOMES][policy][role]
        for name, (share, rate, count) in rates.items():
            if rate is not None and count:
                levels, patience = count / self._group_size, options.patience
                latest = [*self._latest.get(name, ()), (min(1.0, rate) * levels, levels)][-patience:]
                won, levels = (sum(each) for each in zip(*latest, strict=True))
                low, high = wilson_interval(won, levels)
                self._latest[name] = latest
                most = max(high, *(each / of for each, of in latest)) if len(latest) == patience else math.inf
                yield name, share, low, won / levels, most, 1
        watched = options.entropy * bool(number_at(runners, "num_episodes") and (success[0] or 0) < 0.9)
        for policy, own in learners.items():
            yield f"learners/{policy}/entropy", watched, *[number_at(own, "entropy")] * 3, options.patience

    def goes_back(self) -> bool:
        """Whether the run goes back to its best checkpoint, which it does ``max_restores`` times."""
        self._row, self._latest = Counter[str](), {}
        self._restores += 1
        return self._options.type == RESTORE and self._restores <= self._options.max_restores

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, f"_{name}") for name in ("games", "best", "row", "restores", "latest")}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on as saved; what was saved of other games is left out."""
        if state.get("games") == self._games:
            self._best = {name: tuple(best) for name, best in state["best"].items()}
            self._row, self._restores = Counter(state["row"]), int(state["restores"])
            self._latest = dict(state.get("latest", {}))
