"""What an experiment needs, beside what is here, in a few words: the dry run's estimate for ``rllib info``."""

from __future__ import annotations

import math

from rllib_lmgame.algorithms.cluster.footprint import USABLE, machine_mib
from rllib_lmgame.experiments.checks.cards import cards_of
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.experiments.checks.machine import cards_here
from rllib_lmgame.experiments.checks.resources import footprints_here, request_of
from rllib_lmgame.experiments.checks.sandboxes import sandboxed_games

ROUNDING = 1e-6
"""Of sums of shares of a GPU."""
COUNTED = {1: "one card", 2: "two cards", 4: "four cards", 8: "eight cards"}


def needs_of(experiment: CheckedExperiment) -> dict[str, str]:
    """Name of a need -> what is needed of it and what is here."""
    asked = request_of(experiment).total
    gpus = asked.get("GPU", 0)
    found = {"processes": f"{asked.get('CPU', 0):g} CPU, {gpus:g} GPU, reserved for one trial"}
    if not experiment.algorithm.own:
        return found | ({"gpu": f"{_cards(gpus)}; here: {cards_here()}"} if gpus else {})
    config = experiment.configs[0]
    here = machine_mib()
    taken = next(footprints_here(experiment, here))
    games = [game.called(game.env) for game in config.training_games()]
    known = all(shape is not None and shape.layers for shape in taken.policies.values())
    host = f"{'' if known else 'at least '}{taken.on_host / 1024:.1f} GiB; here: {here / 1024:.1f}"
    found = {
        "games": ", ".join(games),
        "model": ", ".join(dict.fromkeys(str(config.language_model_of(name).model) for name in taken.policies)),
        **found,
        "memory": host + ("" if taken.on_host <= USABLE * here else ", too little"),
    }
    if gpus:
        sizes = [card.size for card in cards_of(config, taken)]
        largest = max((size for size in sizes if size is not None), default=0)
        size = "" if not sizes else f" of {largest} GB" if None not in sizes else ", and none is large enough"
        found["gpu"] = f"{_cards(gpus)}{size}; here: {cards_here()}"
    if programs := sandboxed_games(experiment):
        found["sandbox"] = f"for what players of {', '.join(programs)} write (`rllib doctor`)"
    return found


def _cards(gpus: float) -> str:
    whole = math.ceil(gpus - ROUNDING)
    return COUNTED.get(whole, f"{whole} cards")
