"""Numbers of an evaluation: a row for each player and game, and how far it is from the baseline."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Any

from rllib_lmgame.evaluation.comparison.files import Place
from rllib_lmgame.evaluation.comparison.models import EvaluatedModel
from rllib_lmgame.evaluation.comparison.run import Evaluation, Results
from rllib_lmgame.evaluation.evaluate import game_numbers
from rllib_lmgame.measures.statistics import mean_interval, mean_pass_at_k, paired_by_level
from rllib_lmgame.rollouts.episodes import level_name, own_return
from rllib_lmgame.rollouts.records import EpisodeSummary, GameConfig


def rows(evaluation: Evaluation, results: Results, baseline: str | None = None) -> list[dict[str, Any]]:
    """What the table says, game by game, of each player in order; below it, where the game tells categories of levels,
    a row for each (``name`` is then ``GAME/CATEGORY``).

    Of each: its numbers as in ``evaluated`` of :func:`~rllib_lmgame.evaluation.evaluate.evaluate_checkpoint`, and

    * ``player``, ``name`` (of the game), ``samples`` (a level);
    * ``pass_at_k`` (k -> value) where there is success; ``success_rate`` is that of all samples, known as avg@k;
    * ``success_gain`` and ``return_gain``: mean difference to the baseline on the same levels, lower and upper
      bound (of a single level the mean alone).
    """
    return [
        row
        for name, game in evaluation.games.items()
        for model in evaluation.models
        for row in _rows_of(evaluation, results, (name, game), model, baseline)
    ]


def _rows_of(
    evaluation: Evaluation,
    results: Results,
    named: tuple[str, GameConfig],
    model: EvaluatedModel,
    baseline: str | None,
) -> Iterator[dict[str, Any]]:
    """The row of one game and player, and one for each category of its levels."""
    name, game = named
    own = results.of(model.name, name)
    others = None if baseline in (None, model.name) else results.of(str(baseline), name)
    dropped = [
        failure["reason"]
        for place, failure in results.failures.items()
        if (place.player, place.game) == (model.name, name)
    ]
    categories = sorted({summary.category for summary in own.values() if summary.category is not None})
    for category in (None, *categories):
        shown = name if category is None else f"{name}/{category}"
        part = _of_category(own, category)
        row = {"player": model.name, "name": shown, "samples": evaluation.samples}
        lost = dropped if category is None else ()
        temperature = model.temperature_in(game)
        row |= game_numbers(game, [*part.values()], lost, temperature=temperature, samples=evaluation.samples)
        row |= _scores(part, evaluation.samples)
        if others is not None:
            row |= _gains(part, _of_category(others, category))
        yield row


def _of_category(played: Mapping[Place, EpisodeSummary], category: str | None) -> Mapping[Place, EpisodeSummary]:
    """Episodes on levels of a category; all without one."""
    if category is None:
        return played
    return {place: summary for place, summary in played.items() if summary.category == category}


def _scores(own: Mapping[Place, EpisodeSummary], samples: int) -> dict[str, Any]:
    judged = _judged(own)
    if not judged:
        return {}
    passed = [[summary.success == 1 for summary in level] for level in _by_level(judged).values()]
    at = {k: mean_pass_at_k(passed, k) for k in range(1, samples + 1)}
    return {"pass_at_k": {str(k): value for k, value in at.items() if value is not None}}


def _gains(own: Mapping[Place, EpisodeSummary], others: Mapping[Place, EpisodeSummary]) -> dict[str, Any]:
    gains: dict[str, Any] = {}
    names = {str(place.level): level_name(summary) for place, summary in {**own, **others}.items()}
    after, before = (_level_means(_judged(each), own_success) for each in (own, others))
    if len(after.keys() & before.keys()) > 1:
        _, *found = paired_by_level(after, before, names.__getitem__)
        gains["success_gain"] = _with_bounds(*found)
    earned, least = (_level_means(each, own_return) for each in (own, others))
    shared = [level for level in earned if level in least]
    if len(shared) > 1:
        differences = [earned[level] - least[level] for level in shared]
        gains["return_gain"] = _with_bounds(*mean_interval(differences, [names[level] for level in shared]))
    return gains


def _with_bounds(mean: float, low: float, high: float) -> list[float]:
    """The mean alone where a single level leaves the interval infinitely wide."""
    return [mean, low, high] if math.isfinite(low) else [mean]


def _judged(own: Mapping[Place, EpisodeSummary]) -> dict[Place, EpisodeSummary]:
    return {place: summary for place, summary in own.items() if summary.success is not None}


def _level_means(own: Mapping[Place, EpisodeSummary], value: Callable[[EpisodeSummary], float]) -> dict[str, float]:
    return {str(level): fmean(map(value, on_level)) for level, on_level in _by_level(own).items()}


def _by_level(own: Mapping[Place, EpisodeSummary]) -> dict[int, list[EpisodeSummary]]:
    """Episodes of each level, in order."""
    found: dict[int, list[EpisodeSummary]] = defaultdict(list)
    for place, summary in own.items():
        found[place.level].append(summary)
    return dict(found)


def own_success(summary: EpisodeSummary) -> float:
    """Success of an episode that has one."""
    return float(summary.success or 0.0)
