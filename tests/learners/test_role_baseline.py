"""The running baselines of games and roles: the formula, swapped seats, absent roles, and a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_parts import episode_of, part_of

from rllib_lmgame.errors import CheckpointError, ConfigError
from rllib_lmgame.learners.advantages import AdvantageInputs, estimator_state
from rllib_lmgame.learners.advantages.role_baseline import RoleBaseline
from rllib_lmgame.learners.data.rows import WholeEpisodes
from rllib_lmgame.learners.objectives import PPOObjective
from rllib_lmgame.learners.settings import LearnerSettings
from rllib_lmgame.rollouts.records import Trajectory, Turn
from rllib_lmgame.settings.schema import build
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

ROLES, GAMES = ("first", "second"), ("kuhn", "leduc")


def batch(seed: int, trajectories: int = 12, decay: float = 0.95) -> AdvantageInputs:
    """Trajectories of zero to four tokens of two roles in two games, some cut short."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, trajectories)
    tokens = int(lengths.sum())
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return AdvantageInputs(
        rewards=rng.normal(size=tokens).astype(np.float32),
        values=np.full(tokens, np.nan, np.float32),
        bootstrap=np.where(rng.random(trajectories) < 0.3, 7.0, 0.0).astype(np.float32),
        truncated=np.zeros(trajectories, bool),
        offsets=offsets,
        turn_offsets=np.unique(offsets),
        turn_observations=np.zeros(len(np.unique(offsets)) - 1, np.int64),
        groups=np.arange(trajectories),
        roles=rng.integers(0, 2, trajectories),
        role_names=ROLES,
        games=rng.integers(0, 2, trajectories),
        game_names=GAMES,
        episodes=tuple(map(str, range(trajectories))),
        old_logprobs=np.zeros(tokens, np.float32),
        rollout_logprobs=np.zeros(tokens, np.float32),
        gamma=0.9,
        baseline_decay=decay,
    )


def test_a_baseline_takes_in_a_batch_before_it_is_used_on_it() -> None:
    estimator, baselines = RoleBaseline(), {}
    for number in range(5):
        inputs = batch(number)
        returns: dict[tuple[int, int], list[float]] = {}
        to_go = []
        for n, (a, b) in enumerate(pairwise(inputs.offsets)):
            own = [sum(0.9 ** (s - t) * float(inputs.rewards[s]) for s in range(t, b)) for t in range(a, b)]
            to_go.append(own)
            if own:
                returns.setdefault((inputs.games[n], inputs.roles[n]), []).append(own[0])
        for seat, found in returns.items():
            baselines[seat] = 0.95 * baselines.get(seat, np.mean(found)) + 0.05 * np.mean(found)
        expected = [value - baselines[inputs.games[n], inputs.roles[n]] for n, own in enumerate(to_go) for value in own]
        np.testing.assert_allclose(estimator(inputs), expected, rtol=1e-5, atol=1e-6)
    assert estimator.baselines == pytest.approx(
        {(GAMES[game], ROLES[role]): value for (game, role), value in baselines.items()}
    )
    assert len(baselines) == 4


def test_swapped_seats_swap_everything() -> None:
    """Who is called what makes no difference to an advantage, and the baselines change places."""
    one, other = RoleBaseline(), RoleBaseline()
    for number in range(4):
        inputs = batch(number)
        np.testing.assert_array_equal(one(inputs), other(replace(inputs, roles=1 - inputs.roles)))
    swapped = {(game, ROLES[1 - ROLES.index(role)]): value for (game, role), value in one.baselines.items()}
    assert other.baselines == swapped != one.baselines


def test_a_role_that_did_not_play_keeps_its_baseline() -> None:
    """Also where the batch does not have its name."""
    estimator = RoleBaseline()
    inputs = batch(1)
    estimator(inputs)
    before = dict(estimator.baselines)
    estimator(replace(inputs, roles=np.zeros_like(inputs.roles), role_names=ROLES[:1]))
    assert {name for name in before if estimator.baselines[name] != before[name]} <= {(g, "first") for g in GAMES}
    assert [estimator.baselines[game, "second"] for game in GAMES] == [before[game, "second"] for game in GAMES]


def match(rng: np.random.Generator) -> Any:
    """An episode of two roles of one policy, which get opposite rewards."""
    result = float(rng.normal())
    parts = []
    for role, reward in zip(ROLES, (result, -result), strict=True):
        ids = rng.integers(0, 64, (2, 4)).astype(np.int32)
        turn = Turn(ids[0], ids[1], np.full(4, -3.0, np.float32), reward=reward, new_row=True)
        parts.append(
            part_of(
                Trajectory([turn], terminated=True, module_id="player", agent_id=f"player_{role}", role=role, game="g")
            )
        )
    return episode_of(*parts)


@pytest.mark.parametrize("how", ["state", "files"])
def test_baselines_go_on_bit_for_bit(how: str, make_learner: Callable[..., Any], tmp_path: Path) -> None:
    kwargs = {"token_ppo": {"advantage_estimator": "role_baseline", "normalize_advantages": "none"}, "lr": 1e-2}
    learner, fresh = make_learner(**kwargs), make_learner(**kwargs)
    rng = np.random.default_rng(0)
    matches = [[match(rng) for _ in range(4)] for _ in range(4)]

    def update(each: Any, number: int) -> dict[str, Any]:
        each.update(training_data=WholeEpisodes(episodes=matches[number]))
        return each.objective("player").get_state()["estimators"]["rae"]

    begun = [update(learner, number) for number in range(2)]
    assert begun[0] != begun[1]
    if how == "state":
        fresh.set_state(learner.get_state())
    else:
        learner.save_shard(tmp_path)
        fresh.load_shard(tmp_path)
    assert fresh.objective("player").get_state() == learner.objective("player").get_state()
    for number in range(2, 4):
        assert update(fresh, number) == update(learner, number)
    for (name, a), (_, b) in zip(*(x.module["player"].named_parameters() for x in (learner, fresh)), strict=True):
        assert a.equal(b), name


def test_what_makes_no_baselines_is_told(make_learner: Callable[..., Any]) -> None:
    learner = make_learner(token_ppo={"advantage_estimator": "rae"})
    for saved in ([["a", "b"]], [["g", "player_0", math.nan]]):
        learner.objective("player").set_state({"estimators": {"rae": {"baselines": saved}}})
        with pytest.raises(CheckpointError, match=r"what token_ppo\.advantage_estimator remembers cannot be restored"):
            learner.update(training_data=WholeEpisodes(episodes=[match(np.random.default_rng(0))]))


def test_without_a_memory_the_baseline_is_the_batch(make_learner: Callable[..., Any]) -> None:
    ppo, rng = {"advantage_estimator": {"type": "rae", "baseline_decay": 0.0}}, np.random.default_rng(0)
    learner = make_learner(token_ppo=ppo, gamma=1.0)
    for _ in range(2):
        matches = [match(rng) for _ in range(4)]
        learner.update(training_data=WholeEpisodes(episodes=matches))
        mean = np.mean([each.agent_episodes[f"player_{ROLES[0]}"].get_return() for each in matches])
        found = learner.objective("player").get_state()["estimators"]["rae"]["baselines"]
        assert sorted(value for *_, value in found) == pytest.approx(sorted([mean, -mean]))


def test_baselines_are_kept_however_the_estimator_is_spelt() -> None:
    """Also those of a checkpoint that has one of its other spellings."""
    kept, objective = {"baselines": [["kuhn", "first", 0.5]]}, PPOObjective()
    for saved in ("rae", "role_baseline", '{"type": "rae"}'):
        objective.set_state({"estimators": {saved: kept}})
        for choice in ("rae", "role_baseline", {"type": "rae"}):
            objective.needs_critic(
                LearnerSettings(build(TokenPPOOptions, {"advantage_estimator": choice}), 1.0, 1.0, 0.0)
            )
            assert objective.get_state() == {"estimators": {"rae": kept}}


def test_what_cannot_be_saved_is_named() -> None:
    class Forgetful(RoleBaseline):
        def get_state(self) -> dict[str, Any]:
            return {"seen": {1, 2}}

    with pytest.raises(ConfigError, match=r"`mine`\.get_state\(\) gives cannot be saved as JSON: .*set"):
        estimator_state("mine", Forgetful())


def test_baselines_follow_a_reward_scale_that_changes_on_resume() -> None:
    """Rewards of a tenth of the size make baselines of a tenth, also of those that do not play."""

    def scaled(number: int, scale: float) -> AdvantageInputs:
        inputs = batch(number)
        return replace(inputs, rewards=inputs.rewards * np.float32(scale), reward_scale=scale)

    one, other = RoleBaseline(), RoleBaseline()
    one(scaled(0, 2.0))
    other.set_state(estimator_state("rae", one) or {})
    for number in range(1, 4):
        np.testing.assert_allclose(other(scaled(number, 0.25)), one(scaled(number, 2.0)) / 8, rtol=1e-5, atol=1e-6)
    assert {name: 8 * value for name, value in other.baselines.items()} == pytest.approx(one.baselines)
    of_old = RoleBaseline()
    of_old.set_state({"baselines": [["kuhn", "first", 0.5]]})  # That does not say its scale: it is the present one.
    of_old(scaled(1, 0.25))
    assert of_old.reward_scale == 0.25
    with pytest.raises(ValueError, match="reward_scale"):
        of_old.set_state({"baselines": [], "reward_scale": 0})


def test_a_learner_tells_its_estimator_the_reward_scale(make_learner: Callable[..., Any]) -> None:
    learner, scheduled = make_learner(token_ppo={"advantage_estimator": "rae"}), {"text_rollouts.reward_scale": 0.5}
    learner.update(training_data=WholeEpisodes(episodes=[match(np.random.default_rng(0))]), scheduled=scheduled)
    assert learner.objective("player").get_state()["estimators"]["rae"]["reward_scale"] == 0.5
