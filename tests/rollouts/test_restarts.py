"""Games played on from states in their middle: these are those of the recorded episodes, and their values are right."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import gymnasium
import pytest
from session_play import play_games

from rllib_lmgame.algorithms import mc_rollouts
from rllib_lmgame.algorithms.mc_rollouts import Wanted, play_for_values
from rllib_lmgame.algorithms.ppo import punish_overlong
from rllib_lmgame.envs.contract.base import text_space
from rllib_lmgame.envs.games.duels.tic_tac_toe import CELLS, empty_cells, full, marked, to_move, winner
from rllib_lmgame.learners.advantages.base import advantage_inputs
from rllib_lmgame.learners.advantages.without_critic import Vine
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.options import OverlongOptions
from rllib_lmgame.rollouts.records import PlayResult, PlaySettings, trajectory_of
from rllib_lmgame.rollouts.sources import RolloutError, play_all

MakeRunner = Callable[..., TextGameEnvRunner]
WORDS = ("yes", "I ask: is it big?", "[propose] 1 1 1", "A vote for you.", "cooperate", "zzz", "")


class Chance:
    """A model without any sense: one of the legal moves, or some words."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.asked = 0

    def __call__(self, request):
        self.asked += 1
        return self.random.choice(request.choices or WORDS)


class Here:
    """The runner on the driver, as a source of episodes sees it."""

    def __init__(self, runner: TextGameEnvRunner) -> None:
        self.runner = runner

    def play(self, plans, settings: PlaySettings) -> PlayResult:
        return self.runner.play(plans, settings)

    def heal(self) -> None:
        pass


def play_on(runner: TextGameEnvRunner, keep: str = "nothing"):
    settings = PlaySettings(runner.config.training_games(), keep=keep)
    return lambda plans: play_all(Here(runner), plans, settings, runner.agent_mapper, 3)


REPLAYED = {
    "lmgame/Sokoban-v0": (1, {"max_turns": 4}),
    "lmgame/FrozenLakeSlippery-v0": (2, {}),
    "lmgame/Blackjack-v0": (4, {}),
    "lmgame/KuhnPoker-v0": (2, {}),
    "lmgame/TicTacToe-v0": (1, {}),
    "lmgame/RockPaperScissors-v0": (1, {"max_turns": 3}),
    "lmgame/Negotiation-v0": (1, {"max_turns": 2}),
    "lmgame/Werewolf-v0": (1, {}),
}
"""Episodes and options."""


@pytest.mark.parametrize("game", REPLAYED)
def test_every_state_of_an_episode_is_reached_again(game: str, make_runner: MakeRunner) -> None:
    """Of one player and several, in turn and at once, with chance, hidden cards and free words. Engines are asked for
    nothing but what follows.
    """
    chance = Chance()
    episodes, options = REPLAYED[game]
    listed = game not in ("lmgame/Negotiation-v0", "lmgame/Werewolf-v0")
    runner = make_runner(
        game, chance, env_config=options, rollouts={"constrained_decoding": listed}, model={"context_length": 30_000}
    )
    played = play_games(runner, episodes)
    states = list(mc_rollouts._states(played.episodes, {"player": Wanted(1, 1.0)}))
    plans, owners = mc_rollouts._plans(states, played.summaries)
    chance.asked = 0
    result = play_on(runner, keep="episodes")(plans)
    assert not result.failures and len(result.episodes) == len(states) >= 3
    assert chance.asked == sum(len(turns) for one in result.summaries for turns in one.continued.values())
    for episode, summary in zip(result.episodes, result.summaries, strict=True):
        state, beginning = states[owners[summary.index]], plans[summary.index].beginning
        assert beginning is not None
        for agent, part in state.episode.agent_episodes.items():
            again, before = episode.agent_episodes.get(agent), beginning.turns[agent]
            if again is None:
                assert not before and agent not in state.turns
                continue
            seen, earned = before + (agent in state.turns), max(0, before - 1)
            assert list(again.observations[:seen]) == list(part.observations[:seen])
            assert list(again.actions[:before]) == list(part.actions[:before])
            assert list(again.rewards[:earned]) == list(part.rewards[:earned])


@cache
def outcomes(cells: str, mark: str) -> tuple[Fraction, Fraction]:
    """Mean and mean square of what ``mark`` gets if both play at random from a board on."""
    won = winner(cells)
    if won or full(cells):
        return (Fraction(won == mark) - Fraction(bool(won) and won != mark), Fraction(bool(won)))
    free = empty_cells(cells)
    after = [outcomes(marked(cells, int(cell) - 1, to_move(cells)), mark) for cell in free]
    return sum(mean for mean, _ in after) / Fraction(len(free)), sum(square for _, square in after) / Fraction(
        len(free)
    )


@pytest.mark.parametrize("mark", ["X", "O"])
def test_values_are_those_of_the_game(mark: str, make_runner: MakeRunner) -> None:
    """TicTacToe, a senseless model against the random player, whose exact values are known: both go on with draws of
    their own. Four deviations, where anything can happen at all.
    """
    rollouts, players = 60, {"player": {}, "chance": {"player": "random"}}
    other = {"X": "O", "O": "X"}[mark]
    runner = make_runner(
        "lmgame/TicTacToe-v0",
        Chance(3),
        rollouts={"constrained_decoding": True},
        players={"policies": players, "policy_mapping_fn": {mark: "player", other: "chance"}},
    )
    played = play_games(runner, 1)
    counts = play_for_values(
        played.episodes, played.summaries, play_on(runner), {"player": Wanted(rollouts, 1.0)}, None
    )
    states = list(mc_rollouts._states(played.episodes, {"player": Wanted(1, 1.0)}))
    assert counts["vine_states"] == len(states) and counts["vine_rollouts"] == rollouts * len(states)
    for state in states:
        cells, moves = CELLS, mc_rollouts._moves(state.episode)
        for step in range(state.step):
            (agent,) = (agent for agent, steps in moves.items() if step in steps)
            action = state.episode.agent_episodes[agent].actions[moves[agent].index(step)]
            cells = marked(cells, int(action) - 1, to_move(cells))
        mean, square = map(float, outcomes(cells, mark))
        (turn,) = state.turns.values()
        value = trajectory_of(state.episode.agent_episodes[mark]).turns[turn].value
        assert abs(value - mean) <= 4 * math.sqrt((square - mean**2) / rollouts) + 1e-9


def test_values_are_of_the_rewards_that_training_sees(make_runner: MakeRunner) -> None:
    """Penalties and punishments included, discounted per turn, over the turns that were left: a model that always says
    the same gets the same.
    """
    runner = make_runner(env_config={"max_turns": 4}, answer=lambda request: "zzz", rollouts={"format_penalty": -1.0})
    played = play_games(runner, 1)
    (part,) = played.episodes[0].agent_episodes.values()
    overlong = OverlongOptions(tokens=1, penalty=0.25)
    assert punish_overlong(played.episodes, overlong) == 1.0
    play_for_values(played.episodes, played.summaries, play_on(runner), {"player": Wanted(2, 0.5)}, overlong)
    rewards = [float(reward) for reward in part.rewards[:]]
    turns = trajectory_of(part).turns
    expected = [sum(0.5**n * reward for n, reward in enumerate(rewards[start:])) for start in range(len(rewards))]
    assert len(turns) > 1 and [turn.value for turn in turns] == pytest.approx(expected)


@pytest.mark.parametrize("finished", [True, False])
def test_what_was_earned_before_the_first_choice_is_part_of_its_value(finished: bool, make_runner: MakeRunner) -> None:
    """The first legal move is taken always, so that nothing is left to chance and no reply is better than another; some
    levels begin with a state that has one move alone.
    """
    runner = make_runner(
        "lmgame/Sokoban-v0",
        lambda request: request.choices[0],
        env_config={"max_turns": 4},
        rollouts={"constrained_decoding": True},
    )
    played = play_games(runner, 40)

    def play(plans) -> PlayResult:
        return play_on(runner)(plans) if finished else PlayResult()

    play_for_values(played.episodes, played.summaries, play, {"player": Wanted(1, 1.0)}, None)
    trajectories = [trajectory_of(part) for episode in played.episodes for part in episode.agent_episodes.values()]
    forced_first = 0
    for trajectory in trajectories:
        batch = TokenBatch.from_trajectories([trajectory], max_row_tokens=4000)
        if batch.num_rows:
            inputs = advantage_inputs(batch, gamma=1.0, lam=1.0, ranks=ProcessGroup())
            assert Vine()(inputs) == pytest.approx(0.0, abs=1e-6)
            forced_first += not trajectory.turns[0].has_choice
    assert forced_first >= 2


class Moody(gymnasium.Env[str, str]):
    """Three turns of a game that remembers how often it was played."""

    replayable = True
    times = 0

    def __init__(self) -> None:
        self.observation_space = self.action_space = text_space()

    def reset(self, *, seed: int | None = None, options=None):
        type(self).times += 1
        self.turn = 0
        return "begin", {}

    def step(self, action: str):
        self.turn += 1
        return f"game {self.times}", 1.0, self.turn == 3, False, {}


class Steady(Moody):
    """The same as a function of its seed."""

    def step(self, action: str):
        _, reward, terminated, truncated, infos = super().step(action)
        return "game", reward, terminated, truncated, infos


def test_a_game_that_goes_another_way_ends_the_run_and_is_named(make_runner: MakeRunner) -> None:
    """It always begins as it did; were that enough, all values would be the episode's own returns, all advantages 0."""
    runner = make_runner(f"{__name__}:Moody")
    played = play_games(runner, 1)
    with pytest.raises(RolloutError, match=r"test_restarts:Moody shows player another text before turn 2 when"):
        play_for_values(played.episodes, played.summaries, play_on(runner), {"player": Wanted(2, 1.0)}, None)


def test_a_state_without_a_finished_rollout_has_what_the_episode_got(make_runner: MakeRunner) -> None:
    runner = make_runner(f"{__name__}:Steady")
    played = play_games(runner, 1)

    def of_the_first_state_alone(plans) -> PlayResult:
        return play_on(runner)(plans[:2])

    wanted = {"player": Wanted(2, 1.0)}
    counts = play_for_values(played.episodes, played.summaries, of_the_first_state_alone, wanted, None)
    assert (counts["vine_states"], counts["vine_fallbacks"], counts["vine_rollouts"]) == (3, 2, 2)
    turns = trajectory_of(played.episodes[0].agent_episodes["player"]).turns
    assert [turn.value for turn in turns] == [3.0, 2.0, 1.0]


class Fickle:
    """A scripted player that follows no seed: each second game begins with another move."""

    games = itertools.count()

    def act(self, session, agent_id: str, observation, rng: random.Random) -> str:
        first = next(self.games) % 2 if len(observation.legal_actions) == 9 else 0
        return observation.legal_actions[first]


def test_a_player_that_goes_another_way_is_named(make_runner: MakeRunner) -> None:
    players = {
        "policies": {"player": {}, "other": {"player": f"{__name__}:Fickle"}},
        "policy_mapping_fn": {"X": "other", "O": "player"},
    }
    runner = make_runner("lmgame/TicTacToe-v0", Chance(), rollouts={"constrained_decoding": True}, players=players)
    played = play_games(runner, 1)
    states = list(mc_rollouts._states(played.episodes, {"player": Wanted(20, 1.0)}))
    plans, _ = mc_rollouts._plans(states, played.summaries)
    failures = play_on(runner)(plans).failures
    assert failures and {failure.reason for failure in failures} == {"restart_mismatch"}
    assert any("the player Fickle of lmgame/TicTacToe-v0 makes another move before turn" in f.message for f in failures)
    assert all(failure.plan.attempt == 0 for failure in failures)
