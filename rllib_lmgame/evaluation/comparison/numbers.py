"""Numbers of an evaluation: a row for each player and game, and how far it is from the baseline."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from rllib_lmgame.evaluation.comparison.files import Place
from rllib_lmgame.evaluation.comparison.run import Evaluation, Results
from rllib_lmgame.evaluation.evaluate import game_numbers
from rllib_lmgame.measures.statistics import mean_interval, mean_pass_at_k, paired_by_level
from rllib_lmgame.rollouts.episodes import level_name, own_return
from rllib_lmgame.rollouts.records import EpisodeSummary

Played = Mapping[Place, EpisodeSummary]


def rows(evaluation: Evaluation, results: Results, baseline: str | None = None) -> list[dict[str, Any]]:
    """What the table says, game by game, of each player in order; below it, where the game tells categories of levels,
    a row for each (``name`` is then ``GAME/CATEGORY``).

    Of each: :func:`~rllib_lmgame.evaluation.evaluate.game_numbers`, and

    * ``player``, ``name`` (of the game), ``samples`` (a level);
    * ``pass_at_k`` (k -> value) where there is success; ``success_rate`` is that of all samples, known as avg@k;
    * ``success_gain`` and ``return_gain``: mean difference to the baseline on the same levels, lower and upper
      bound (of a single level the mean alone).
    """
    found: list[dict[str, Any]] = []
    samples = evaluation.samples
    for name, game in evaluation.games.items():
        for model in evaluation.models:
            own = results.of(model.name, name)
            others = {} if baseline in (None, model.name) else results.of(str(baseline), name)
            failed = [one for place, one in results.failures.items() if place[:2] == (model.name, name)]
            temperature = model.temperature_in(game)
            for category in (None, *sorted({one.category for one in own.values() if one.category is not None})):
                part, beside = (
                    {place: one for place, one in each.items() if category in (None, one.category)}
                    for each in (own, others)
                )
                lost = [failure["reason"] for failure in failed if category is None]
                found.append(
                    {
                        "player": model.name,
                        "name": name if category is None else f"{name}/{category}",
                        "samples": samples,
                        **game_numbers(game, [*part.values()], lost, temperature=temperature, samples=samples),
                        **_scores(part, samples),
                        **_gains(part, beside),
                    }
                )
    return found


def _scores(own: Played, samples: int) -> dict[str, Any]:
    levels = _by_level(_judged(own), lambda one: one.success == 1)
    if not levels:
        return {}
    at = {str(k): mean_pass_at_k([*levels.values()], k) for k in range(1, samples + 1)}
    return {"pass_at_k": {k: value for k, value in at.items() if value is not None}}


def _gains(own: Played, others: Played) -> dict[str, Any]:
    gains: dict[str, Any] = {}
    names = {str(place.level): level_name(summary) for place, summary in {**own, **others}.items()}
    after, before = (_means(_judged(each), lambda one: float(one.success or 0.0)) for each in (own, others))
    if len(after.keys() & before.keys()) > 1:
        _, *found = paired_by_level(after, before, names.__getitem__)
        gains["success_gain"] = _with_bounds(*found)
    earned, least = (_means(each, own_return) for each in (own, others))
    shared = [level for level in earned if level in least]
    if len(shared) > 1:
        differences = [earned[level] - least[level] for level in shared]
        gains["return_gain"] = _with_bounds(*mean_interval(differences, [names[level] for level in shared]))
    return gains


def _with_bounds(mean: float, low: float, high: float) -> list[float]:
    """The mean alone where a single level leaves the interval infinitely wide."""
    return [mean, low, high] if math.isfinite(low) else [mean]


def _judged(own: Played) -> Played:
    return {place: one for place, one in own.items() if one.success is not None}


def _means(own: Played, value: Callable[[EpisodeSummary], float]) -> dict[str, float]:
    return {str(level): fmean(values) for level, values in _by_level(own, value).items()}


def _by_level(own: Played, value: Callable[[EpisodeSummary], Any]) -> dict[int, list[Any]]:
    """``value`` of the episodes of each level, in order."""
    found: dict[int, list[Any]] = defaultdict(list)
    for place, summary in own.items():
        found[place.level].append(value(summary))
    return dict(found)
