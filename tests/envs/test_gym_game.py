"""Gymnasium environments as text games: the adapter, and the four that come with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from rllib_lmgame.envs.games.adapted.gym_games.game import GymTextGame, best_policy
from rllib_lmgame.envs.games.adapted.gym_games.toy_text import should_hit
from rllib_lmgame.envs.registry import make_game
from tests.envs.begun import begun


class Parrot(gymnasium.Env):
    """Says a word; whoever repeats it is done. Its own time limit is three steps."""

    observation_space = spaces.Text(10)
    action_space = spaces.Text(10)

    def reset(self, *, seed: int | None = None, options=None) -> tuple[str, dict]:
        super().reset(seed=seed)
        self.word, self.steps = f"w{int(self.np_random.integers(1000))}", 0
        return self.word, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        self.steps += 1
        done = action == self.word
        return self.word, float(done), done, self.steps == 3 and not done, {}


class Countdown(gymnasium.Env):
    """An action space that starts at 5, and an observation of several numbers."""

    observation_space = spaces.Tuple((spaces.Discrete(10), spaces.MultiDiscrete([3, 3])))
    action_space = spaces.Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 10))
        return (self.left, [1, 2]), {}

    def step(self, action: int):
        assert action in (5, 6)
        self.left -= action - 4
        return (max(self.left, 0), [1, 2]), 1.0, self.left <= 0, False, {}


@pytest.fixture(autouse=True, scope="module")
def registered():
    for name, cls in (("TestParrot-v0", Parrot), ("TestCountdown-v0", Countdown)):
        gymnasium.register(name, entry_point=cls)
    yield
    for name in ("TestParrot-v0", "TestCountdown-v0"):
        del gymnasium.registry[name]


def test_text_actions_and_the_time_limit_of_the_environment() -> None:
    game = GymTextGame(env_id="TestParrot-v0", observation="values", show_rules=False)
    observation, info = game.reset(seed=1)
    assert observation.startswith("Observation: w") and info["legal_actions"] == ()
    assert game.step("x" * 20)[4]["invalid_action"]
    for _ in range(2):
        assert game.step("hm")[2:4] == (False, False)
    _, _, terminated, truncated, info = game.step("hm")
    assert (terminated, truncated, info["success"]) == (False, True, False)
    observation, _ = game.reset(seed=2)
    _, reward, terminated, truncated, info = game.step(observation.removeprefix("Observation: "))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_actions_that_do_not_start_at_zero_and_tuples_of_numbers() -> None:
    game = GymTextGame(env_id="TestCountdown-v0", observation="values", action_names=("one", "two"), show_rules=False)
    observation, info = game.reset(seed=3)
    left = int(observation.split()[1].strip(","))
    assert observation == f"Observation: {left}, 1, 2" and info["legal_actions"] == ("one", "two")
    assert game.step("Two.")[0] == f"Observation: {left - 2}, 1, 2"
    assert game.expert_action() is None
    unnamed = begun(GymTextGame(env_id="TestCountdown-v0", observation="values"), seed=3)
    assert unnamed.legal_actions() == ("5", "6") and not unnamed.step("6")[4]["invalid_action"]


def at(row: int, column: int, passenger: int, destination: int) -> Callable[[Any], None]:
    """Puts a taxi there; passenger and destination are numbers of the stands R, G, Y, B."""

    def put(env: Any) -> None:
        env.s = env.encode(row, column, passenger, destination)

    return put


def holding(player: list[int], dealer: list[int]) -> Callable[[Any], None]:
    def put(env: Any) -> None:
        env.player, env.dealer = list(player), list(dealer)

    return put


LAKE = {"env_kwargs": {"is_slippery": False}, "action_names": ("Left", "Down", "Right", "Up"), "split_by_start": False}
KNOWN: dict[str, tuple[str, dict[str, Any], Any, list[str], list[float], bool | None]] = {
    "over the lake": (
        "GymFrozenLake",
        LAKE,
        None,
        ["Down", "Down", "Right", "Right", "Down", "Right"],
        [0, 0, 0, 0, 0, 1],
        True,
    ),
    "into a hole": ("GymFrozenLake", LAKE, None, ["Right", "Down"], [0, 0], False),
    "along the cliff": (
        "CliffWalking",
        {},
        None,
        ["Up || Right || Right || Right || Right", "Right || " * 4 + "Right", "Right || Right || Down"],
        [-5, -5, -3],
        True,
    ),
    "down the cliff, and on": ("CliffWalking", {}, None, ["Right", "Left"], [-100, -1], None),
    "a ride": ("Taxi", {}, at(0, 0, 0, 2), ["Pickup", "South || " * 3 + "South", "Dropoff"], [-1, -4, 20], True),
    "a ride that begins nowhere": ("Taxi", {}, at(0, 1, 0, 2), ["Pickup", "Dropoff", "West"], [-10, -10, -1], None),
    "20 against 19": ("Blackjack", {}, holding([10, 10], [10, 9]), ["Stick"], [1], True),
    "19 against 19": ("Blackjack", {}, holding([10, 9], [10, 9]), ["Stick"], [0], False),
    "18 against 19": ("Blackjack", {}, holding([10, 8], [10, 9]), ["Stick"], [-1], False),
    "more than 21": ("Blackjack", {}, holding([10, 10, 1], [10, 9]), ["Hit"], [-1], False),
    "an ace that is 11": ("Blackjack", {}, holding([1, 9], [10, 9]), ["Stick"], [1], True),
}
"""Game, options, what is put where, replies, what the rules say that each pays, and whether it ends as a success."""


@pytest.mark.parametrize("what", KNOWN)
def test_known_episodes_pay_what_the_rules_say(what: str) -> None:
    name, options, put, replies, rewards, won = KNOWN[what]
    game = begun(make_game(f"lmgame/{name}-v0", {**options, "show_rules": False}))
    if put is not None:
        put(game._env.unwrapped)
    steps = [game.step(reply) for reply in replies]
    assert [step[1] for step in steps] == rewards
    assert [step[2] for step in steps] == [False] * (len(steps) - 1) + [won is not None]
    assert not any(step[3] or step[4]["invalid_action"] for step in steps) and steps[-1][4].get("success") is won


def test_values_of_the_slippery_lake() -> None:
    """The best policy crosses the 4x4 lake with probability 0.82 (without a time limit), as is well known."""
    transitions = gymnasium.make("FrozenLake-v1").unwrapped.P
    policy = best_policy(transitions)
    reached = dict.fromkeys(transitions, 0.0)
    for _ in range(3000):
        for state in transitions:
            reached[state] = sum(
                p * (r if done else reached[int(ahead)]) for p, ahead, r, done in transitions[state][policy[state]]
            )
    assert reached[0] == pytest.approx(0.8235, abs=0.0005)


@cache
def dealer_ends(total: int, ace: bool) -> dict[int, float]:
    """Chances of the dealer's final sums (22 and more is bust)."""
    value = total + 10 if ace and total + 10 <= 21 else total
    if value >= 17:
        return {min(value, 22): 1.0}
    ends: dict[int, float] = {}
    for card in range(1, 11):
        for end, chance in dealer_ends(total + card, ace or card == 1).items():
            ends[end] = ends.get(end, 0.0) + chance * (4 / 13 if card == 10 else 1 / 13)
    return ends


@cache
def best(total: int, ace: bool, dealer: int) -> tuple[float, float]:
    """Values of sticking and hitting with an infinite deck: the independent reference."""
    value = total + 10 if ace and total + 10 <= 21 else total
    if value > 21:
        return -1.0, -1.0
    stick = sum(
        chance * ((end > 21 or value > end) - (end <= 21 and value < end))
        for end, chance in dealer_ends(dealer, dealer == 1).items()
    )
    hit = sum(
        (4 / 13 if card == 10 else 1 / 13) * max(best(total + card, ace or card == 1, dealer)) for card in range(1, 11)
    )
    return stick, hit


def test_basic_strategy_is_optimal() -> None:
    for dealer in range(1, 11):
        for total in range(4, 22):
            stick, hit = best(total, False, dealer)
            assert should_hit(total, dealer, False) == (hit > stick), (total, dealer)
        for total in range(12, 22):
            stick, hit = best(total - 10, True, dealer)
            assert should_hit(total, dealer, True) == (hit > stick), (total, dealer, "ace")
