"""Bandit: names, splits, pay."""

from __future__ import annotations

from itertools import product

import pytest

from rllib_lmgame.envs.games.words.bandit import PAIRS, Bandit
from tests.envs.begun import begun


def test_no_occupation_is_in_two_pairs_and_splits_have_their_own() -> None:
    names = [name for pairs in PAIRS.values() for pair in pairs for name in pair]
    assert len(names) == len(set(names)) and [len(PAIRS[split]) for split in ("train", "test")] == [12, 8]
    for (split, pairs), any_pair in product(PAIRS.items(), (False, True)):
        wanted = list(product(*zip(*pairs, strict=True))) if any_pair else pairs
        games = (begun(Bandit(split=split, any_pair=any_pair), seed=seed) for seed in range(3000 if any_pair else 200))
        assert {game.legal_actions() for game in games} == {*wanted, *(pair[::-1] for pair in wanted)}


@pytest.mark.parametrize(("probability", "better"), [(0.25, 1), (0.05, 0)])
def test_arms_pay_what_is_said_and_the_higher_mean_succeeds(probability: float, better: int) -> None:
    paid: tuple[list[float], list[float]] = ([], [])
    for seed in range(600):
        game = begun(Bandit(split="all", risky_probability=probability, max_turns=3), seed=seed)
        arms = sorted(game.legal_actions(), key=lambda arm: arm == game._level.risky)
        assert f"The {arms[1]} lives a reckless life." in game.expert_thought()
        assert game.step(" or ".join(arms))[4]["invalid_action"]
        assert f"You chose {arms[better]}: " in game.step(arms[better])[0]
        _, reward, terminated, _, info = game.step(f" {arms[seed % 2].upper()}.")
        assert terminated and game.expert_action() == arms[better] and info["success"] == (seed % 2 == better)
        paid[seed % 2].append(reward)
    assert {*paid[0]} == {0.1} and {*paid[1]} == {0.0, 1.0} and abs(sum(paid[1]) / 300 - probability) < 0.05
