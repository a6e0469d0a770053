"""Every registered estimator against its definition, written out in loops; and the baselines that one remembers."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_parts import episode_of, part_of
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import moved, restored, together, update, weights

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.registry import ESTIMATORS
from rllib_lmgame.learners.advantages import AdvantageInputs
from rllib_lmgame.learners.advantages.without_critic import RoleBaseline
from rllib_lmgame.learners.objectives import PPOObjective
from rllib_lmgame.rollouts.records import Trajectory, Turn

GAMMA, LAM = 0.9, 0.8
GAMES, ROLES = ("sokoban", "taxi"), ("black", "white")


@dataclass
class Play:
    """One trajectory: of each turn what was seen and the value by play, and of each of its tokens reward and value."""

    game: int
    role: int
    level: int
    episode: str
    seen: list[int] = field(default_factory=list)
    turns: list[list[tuple[float, float]]] = field(default_factory=list)
    bootstrap: float = 0.0

    @property
    def group(self) -> tuple[int, int, int]:
        return self.game, self.role, self.level

    @property
    def tokens(self) -> list[tuple[float, float]]:
        return [token for turn in self.turns for token in turn]

    @property
    def total(self) -> float:
        return sum(reward for reward, _ in self.tokens)


def plays(seed: int) -> list[Play]:
    """Groups of one to four episodes with one or two seats of a role, of zero to four turns; some win all alike."""
    rng = np.random.default_rng(seed)
    result: list[Play] = []
    for level in range(rng.integers(1, 5)):
        game, alike, seats = int(rng.integers(2)), rng.random() < 0.3, int(rng.integers(1, 3))
        for number in range(rng.integers(1, 5)):
            for _ in range(seats):
                play = Play(game, int(rng.integers(2)), level, f"e{level}-{number}")
                for _ in range(rng.integers(0, 5)):
                    rewards = np.zeros(rng.integers(1, 5))
                    rewards[-1] = 0.0 if alike else rng.choice([0.0, 1.0, rng.normal()])
                    if rng.random() < 0.3:  # As a KL penalty in the rewards.
                        rewards -= 0.0 if alike else 0.1 * rng.random(len(rewards))
                    values = rng.normal(size=len(rewards)).astype(np.float32)
                    play.turns.append(list(zip(rewards.tolist(), values.tolist(), strict=True)))
                    play.seen.append(int(rng.integers(3)))
                play.bootstrap = float(np.float32(rng.normal())) if rng.random() < 0.3 else 0.0
                result.append(play)
    rng.shuffle(result)  # type: ignore[arg-type]
    return result


def inputs_of(played: list[Play], **kwargs: Any) -> AdvantageInputs:
    tokens = [token for play in played for token in play.tokens]
    groups: dict[tuple[int, int, int], int] = {}
    nothing = np.zeros(len(tokens), np.float32)
    lengths = [len(turn) for play in played for turn in play.turns]
    return AdvantageInputs(
        rewards=np.array([reward for reward, _ in tokens], np.float64),
        values=np.array([value for _, value in tokens], np.float32),
        bootstrap=np.array([play.bootstrap for play in played], np.float32),
        truncated=np.array([play.bootstrap != 0 for play in played], bool),
        offsets=np.cumsum([0, *(len(play.tokens) for play in played)]),
        turn_offsets=np.cumsum([0, *lengths]),
        turn_observations=np.array([seen for play in played for seen in play.seen], np.int64),
        groups=np.array([groups.setdefault(play.group, len(groups)) for play in played], np.int64),
        roles=np.array([play.role for play in played], np.int64),
        role_names=ROLES,
        games=np.array([play.game for play in played], np.int64),
        game_names=GAMES,
        episodes=tuple(play.episode for play in played),
        old_logprobs=nothing,
        rollout_logprobs=nothing,
        **{"gamma": GAMMA, "lam": LAM, **kwargs},
    )


def same(play: Play, value: float) -> list[float]:
    return [value] * len(play.tokens)


def group(play: Play, played: list[Play]) -> list[Play]:
    return [other for other in played if other.group == play.group and other.tokens]


def deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def turn_gae(play: Play, played: list[Play], lam: float = LAM) -> list[float]:
    first = [turn[0][1] for turn in play.turns] + [play.bootstrap]
    deltas = [sum(r for r, _ in turn) + GAMMA * first[u + 1] - first[u] for u, turn in enumerate(play.turns)]
    sums = [sum((GAMMA * lam) ** (k - u) * deltas[k] for k in range(u, len(deltas))) for u in range(len(deltas))]
    return [value for value, turn in zip(sums, play.turns, strict=True) for _ in turn]


def bilevel_gae(
    play: Play, played: list[Play], gamma: float = GAMMA, lam: float = LAM, of_turns: float = LAM
) -> list[float]:
    result: list[float] = []
    running, after, coming = 0.0, play.bootstrap, 0.0
    for turn in reversed(play.turns):
        reward, value = turn[-1]
        running = reward + gamma * (coming + after) - value + gamma * of_turns * running
        coming = sum(reward for reward, _ in turn[:-1])
        after, inside = value, running
        backwards = [inside]
        for (reward, value), (_, following) in reversed(list(pairwise(turn))):
            inside = reward + GAMMA * following - value + GAMMA * lam * inside
            backwards.append(inside)
        result = backwards[::-1] + result
    return result


def grpo(play: Play, played: list[Play], epsilon: float = 1e-6) -> list[float]:
    totals = [other.total for other in group(play, played)]
    return same(play, (play.total - statistics.fmean(totals)) / (deviation(totals) + epsilon) if totals else 0.0)


def dr_grpo(play: Play, played: list[Play]) -> list[float]:
    return same(play, play.total - statistics.fmean([o.total for o in group(play, played)] or [0.0]))


def rloo(play: Play, played: list[Play]) -> list[float]:
    others = [other.total for other in group(play, played) if other.episode != play.episode]
    return same(play, play.total - sum(others) / len(others) if others else 0.0)


def max_rl(play: Play, played: list[Play]) -> list[float]:
    totals = [other.total for other in group(play, played)] or [0.0]
    mean = statistics.fmean(totals)
    return same(play, (play.total - mean) / mean if mean > 1e-6 * statistics.fmean(map(abs, totals)) else 0.0)


def to_go(play: Play, played: list[Play]) -> list[float]:
    rewards = [reward for reward, _ in play.tokens]
    return [sum(GAMMA ** (s - t) * rewards[s] for s in range(t, len(rewards))) for t in range(len(rewards))]


def whitened(play: Play, played: list[Play]) -> list[float]:
    everything = [value for other in played for value in to_go(other, played)]
    spread = (statistics.pstdev(everything) or 1.0) if everything else 1.0
    return [(value - statistics.fmean(everything)) / spread for value in to_go(play, played)]


def gigpo(play: Play, played: list[Play], weight: float = 1.0, divide: bool = True) -> list[float]:
    def scaled(value: float, values: list[float]) -> float:
        return (value - statistics.fmean(values)) / (deviation(values) + 1e-6 if divide else 1.0)

    def after(one: Play, turn: int) -> float:
        return sum(GAMMA ** (k - turn) * sum(r for r, _ in one.turns[k]) for k in range(turn, len(one.turns)))

    result = []
    for number, turn in enumerate(play.turns):
        totals = [o.total for o in group(play, played)]
        anchored = [
            after(other, u)
            for other in group(play, played)
            for u, seen in enumerate(other.seen)
            if seen == play.seen[number]
        ]
        value = scaled(play.total, totals) + weight * scaled(after(play, number), anchored)
        result += [value] * len(turn)
    return result


def rae(play: Play, played: list[Play]) -> list[float]:
    """Of the first batch, whose mean is the baseline."""
    seat = [to_go(o, played)[0] for o in played if (o.game, o.role) == (play.game, play.role) and o.tokens]
    return [value - statistics.fmean(seat) for value in to_go(play, played)]


def gae(play: Play, played: list[Play]) -> list[float]:
    return turn_gae(replace(play, turns=[[token] for token in play.tokens]), played)


Definition = Callable[[Play, list[Play]], list[float]]
DEFINITIONS: list[tuple[Any, Definition]] = [
    ("gae", gae),
    ("turn_gae", turn_gae),
    ("bilevel_gae", bilevel_gae),
    (
        {"type": "bilevel_gae", "turn_gamma": 0.5, "turn_lambda": 0.3},
        lambda play, played: bilevel_gae(play, played, 0.5, LAM, 0.3),
    ),
    ("grpo", grpo),
    ({"type": "grpo", "std_epsilon": 0.5}, lambda play, played: grpo(play, played, 0.5)),
    ("dr_grpo", dr_grpo),
    ("rloo", rloo),
    ("max_rl", max_rl),
    ("reinforce", to_go),
    ("reinforce_pp", whitened),
    ("rae", rae),
    ("gigpo", gigpo),
    ({"type": "gigpo", "step_weight": 0.3}, lambda play, played: gigpo(play, played, 0.3)),
    ({"type": "gigpo", "divide_by_std": False}, lambda play, played: gigpo(play, played, divide=False)),
]


def name_of(choice: Any) -> str:
    return choice if isinstance(choice, str) else "-".join(map(str, choice.values()))


by_definition = pytest.mark.parametrize(
    ("choice", "definition"),
    DEFINITIONS,
    ids=lambda value: name_of(value)[:30] if isinstance(value, str | dict) else "",
)


def test_every_registered_estimator_has_a_definition_here() -> None:
    assert {name_of(choice).partition("-")[0] for choice, _ in DEFINITIONS} == set(ESTIMATORS)


@by_definition
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_estimator_equals_its_definition(choice: Any, definition: Definition, seed: int) -> None:
    played = plays(seed)
    expected = [value for play in played for value in definition(play, played)]
    found = ESTIMATORS.read(choice)(inputs_of(played))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


@by_definition
@pytest.mark.parametrize("learners", [2, 3])
def test_several_learners_give_what_one_gives(choice: Any, definition: Definition, learners: int) -> None:
    """Groups stay whole; one of three learners has nothing."""
    played = plays(5)
    shards: list[list[Play]] = [[] for _ in range(learners)]
    for play in played:
        shards[play.level % 2].append(play)
    assert all(shards[:2])
    found = together(
        learners, lambda ranks: ESTIMATORS.read(choice)(inputs_of(shards[ranks.rank], all_reduce=ranks.sum))
    )
    expected = [value for shard in shards for play in shard for value in definition(play, played)]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("monte_carlo", [False, True])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_critics_target_is_discounted_as_the_advantages_are(monte_carlo: bool, seed: int) -> None:
    played, lam = plays(seed), 1.0 if monte_carlo else LAM
    inputs = inputs_of(played)
    values = {
        "turn_gae": [turn[0][1] for play in played for turn in play.turns for _ in turn],
        "bilevel_gae": inputs.values.tolist(),
        "gae": inputs.values.tolist(),
    }
    definitions: dict[str, Definition] = {
        "turn_gae": lambda play, played: turn_gae(play, played, lam),
        "bilevel_gae": lambda play, played: bilevel_gae(play, played, GAMMA, lam, lam),
        "gae": lambda play, played: turn_gae(replace(play, turns=[[token] for token in play.tokens]), played, lam),
    }
    for name in definitions:
        estimator = ESTIMATORS.read(name)
        advantages = [value for play in played for value in definitions[name](play, played)]
        expected = np.array(advantages) + values[name]
        found = estimator.value_targets(inputs, monte_carlo=monte_carlo)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("scale", [2.0**-30, 1.0, 2.0**20])
def test_returns_that_cancel_out_have_no_mean_to_divide_by(scale: float) -> None:
    """What rounding leaves of a mean of 0 is no scale; a small mean of small returns is one."""
    played = [
        Play(0, 0, 0, f"e{i}", [0] * n, [[(r * scale, 0.0)]] * n) for i, (r, n) in enumerate([(0.1, 3), (-0.3, 1)])
    ]
    inputs = inputs_of(played)
    assert 0.0 < inputs.returns.mean() < 1e-7 * scale
    np.testing.assert_array_equal(ESTIMATORS.read("max_rl")(inputs), np.zeros(4))
    positive = inputs_of([replace(play, turns=[[(n * scale, 0.0)]], seen=[0]) for n, play in enumerate(played)])
    np.testing.assert_allclose(ESTIMATORS.read("max_rl")(positive), [-1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize("won", [-0.3, 1.1, 703561.9732242674, 83194321.52802452])
@pytest.mark.parametrize("name", ["grpo", "gigpo", "dr_grpo", "rloo", "max_rl"])
def test_groups_whose_returns_are_equal_learn_exactly_nothing(name: str, won: float) -> None:
    """Whatever their size and the size of the returns, and whatever stands before them in the batch: an update is left
    out where every advantage is exactly 0.
    """
    turns = [[(0.0, 0.0)], [(0.0, 0.0), (won, 0.0)]]
    options = {"std_epsilon": 1e-8} if name in ("grpo", "gigpo") else {}
    played = [Play(0, 0, size, f"e{size}-{i}", [0, 1], turns) for size in range(2, 17) for i in range(size)]
    before = Play(0, 0, 99, "other", [0], [[(1e9 / 3, 0.0)]])
    for trajectories in (played, [before, *played]):
        inputs = inputs_of(trajectories, gamma=1.0)
        assert {won} == set(inputs.returns[-135:].tolist()) == set(inputs.turn_rewards[-1::-2][:135].tolist())
        advantages = ESTIMATORS.read({"type": name, **options})(inputs)
        np.testing.assert_array_equal(advantages, np.zeros_like(advantages))


@pytest.mark.parametrize("scale", [1e-7, 1e-4, 1.0, 1e6])
def test_whitened_returns_have_unit_deviation_whatever_their_size(scale: float) -> None:
    """Where they are equal but for rounding they are 0."""
    won, lost = ([Play(0, 0, 0, f"e{i}{r}", [0], [[(r * scale, 0.0)]]) for i in range(5)] for r in (1.1, 0.3))
    assert ESTIMATORS.read("reinforce_pp")(inputs_of(won + lost)).std() == pytest.approx(1.0)
    cut = Play(0, 0, 0, "cut", [0, 0], [[(0.0, 0.0)], [(1.1 * scale * (1 + 2**-52), 0.0)]])
    found = ESTIMATORS.read("reinforce_pp")(inputs_of([*won, cut], gamma=1.0))
    np.testing.assert_allclose(found, 0.0, atol=1e-6)


def batch(seed: int) -> list[Play]:
    """Trajectories of both roles in both games, some without a token, some cut short."""
    return [play for number in range(8) for play in plays(8 * seed + number)]


def test_a_baseline_takes_in_a_batch_before_it_is_used_on_it() -> None:
    memory, baselines = dict[str, Any](), dict[tuple[str, str], float]()
    for number in range(5):
        played, returns = batch(number), defaultdict[tuple[str, str], list[float]](list)
        for play in played:
            returns[GAMES[play.game], ROLES[play.role]] += to_go(play, played)[:1]
        for seat, found in returns.items():
            baselines[seat] = 0.95 * baselines.get(seat, np.mean(found)) + 0.05 * np.mean(found)
        expected = [
            value - baselines[GAMES[play.game], ROLES[play.role]] for play in played for value in to_go(play, played)
        ]
        inputs = inputs_of(played, memory=memory)
        np.testing.assert_allclose(RoleBaseline()(inputs), expected, rtol=1e-5, atol=1e-6)
    found = {(game, role): value for game, role, value in inputs.memory["baselines"]}
    assert found == pytest.approx(baselines) and len(baselines) == 4


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


def test_baselines_go_on_bit_for_bit(make_learner: Any, tmp_path: Path) -> None:
    kwargs = {"training": {"advantage_estimator": "rae", "normalize_advantages": "none"}, "lr": 1e-2}
    learner, fresh = make_learner(**kwargs), make_learner(**kwargs)
    rng = np.random.default_rng(0)
    matches = [[match(rng) for _ in range(4)] for _ in range(4)]

    def remembered(each: Any, number: int) -> dict[str, Any]:
        update(each, matches[number])
        return each.objective("player").get_state()["estimators"]["rae"]

    begun = [remembered(learner, number) for number in range(2)]
    assert begun[0] != begun[1]
    restored(fresh, learner, tmp_path)
    assert fresh.objective("player").get_state() == learner.objective("player").get_state()
    for number in range(2, 4):
        assert remembered(fresh, number) == remembered(learner, number)
    assert not moved(fresh, weights(learner))


def test_what_cannot_be_saved_is_told() -> None:
    objective = PPOObjective()
    objective.set_state({"estimators": {"mine": {"seen": {1, 2}}}})
    with pytest.raises(ConfigError, match=r"cannot be saved as JSON: .*set"):
        objective.get_state()
