"""Who sits where is decided before an episode is played, and is what everybody reads: who plays, who logs, who
learns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_play import play_games

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.learners.data.sharding import num_tokens
from rllib_lmgame.learners.learner import LMGameLearner
from rllib_lmgame.policies.mapping import MappingFn, make_mapping
from rllib_lmgame.policies.options import PlayerOptions
from rllib_lmgame.rollouts import game_calls
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import (
    AgentAssignment,
    EpisodePlan,
    plan_episodes,
    plan_evaluation,
    stable_seed,
    with_samples,
)
from rllib_lmgame.rollouts.records import GameConfig, PlaySettings, assignments_of, played_parts
from rllib_lmgame.rollouts.sources import AgentMapper

MakeRunner = Callable[..., TextGameEnvRunner]

POLICIES = {"player": PlayerOptions(), "rival": PlayerOptions(trained=False), "chance": PlayerOptions(player="random")}
ROLES = {"X": "first", "O": "second"}
TIC_TAC_TOE = (GameConfig(env="lmgame/TicTacToe-v0"),)


def configuration(spec):
    """As much of a configuration as assignments need."""
    return SimpleNamespace(
        run=SimpleNamespace(policies=POLICIES, text_rollouts=TextRolloutOptions()),
        agent_to_module_mapping=lambda: make_mapping(spec, list(POLICIES)),
        trained_policies=lambda: ["player"],
    )


def plans_of(count: int) -> list[EpisodePlan]:
    return plan_episodes(count, run_seed=5, purpose="t", iteration=2)


@given(st.sampled_from(["shared", "random_seat", {"X": "chance", "second": "rival"}, {"*": "player"}]), st.randoms())
def test_an_assignment_follows_from_the_plan_and_the_seats_alone(spec, chance) -> None:
    """Not from the order, nor from what else is played; and it is what the mapping says of plan and seat."""
    plans = plans_of(12)
    agent_mapper = {plan.episode_id: AgentMapper(configuration(spec)).assignments(plan, ROLES) for plan in plans}
    some = chance.sample(plans, 7)
    seated, _ = AgentMapper(configuration(spec)).assigned(some, TIC_TAC_TOE)
    assert [plan.assignments for plan in seated] == [agent_mapper[plan.episode_id] for plan in some]
    mapping: MappingFn = make_mapping(spec, list(POLICIES))
    for plan in seated:
        seed = stable_seed(plan.seed, plan.number, "seats")
        for agent, assignment in plan.assignments.items():
            assert assignment.module_id == mapping(agent, None, role=ROLES[agent], agent_ids=("X", "O"), seed=seed)
            assert (assignment.player, assignment.trained) == (
                POLICIES[assignment.module_id].player,
                assignment.module_id == "player",
            )


def test_a_mapping_is_told_of_the_seat_the_table_and_the_episode() -> None:
    """Once per seat, with the number of the episode among those of its game."""
    told = []

    def mapping(agent_id: str, episode, **known) -> str:
        told.append({"agent_id": agent_id, **known})
        return "player"

    (plan,) = plans_of(1)
    plan = dataclasses.replace(plan, number=7)
    AgentMapper(configuration(mapping)).assignments(plan, ROLES)
    table = {"agent_ids": ("X", "O"), "roles": ROLES, "number": 7, "seed": stable_seed(plan.seed, 7, "seats")}
    assert told == [{"agent_id": agent, "role": role, **table} for agent, role in ROLES.items()]


def test_episodes_of_one_level_have_the_same_seats() -> None:
    """Those of a group, and samples of an evaluation, whatever is played beside them."""
    roles = {f"player_{seat}": "player" for seat in range(3)}

    def agent_mapper(plans: list[EpisodePlan]) -> dict[str, set[tuple[str, ...]]]:
        found: dict[str, set[tuple[str, ...]]] = {}
        for plan in plans:
            seats = AgentMapper(configuration("random_seat")).assignments(plan, roles).values()
            found.setdefault(plan.group, set()).add(tuple(seat.module_id for seat in seats))
        return found

    for plans in (
        plan_episodes(48, run_seed=5, purpose="t", iteration=2, group_size=4),
        with_samples(plan_evaluation(1, 12), 4),
    ):
        found = agent_mapper(plans)
        assert all(len(seats) == 1 for seats in found.values()) and len(set.union(*found.values())) > 1
    beside = plan_evaluation(2, 12)
    first = [plan for plan in beside if plan.game == 0]
    assert list(agent_mapper(first).values()) == list(found.values())


def test_an_assignment_that_stands_is_kept() -> None:
    own = {"X": AgentAssignment("rival"), "O": AgentAssignment("player", member="player-3")}
    plans = [dataclasses.replace(plan, assignments=own if plan.index % 2 else {}) for plan in plans_of(6)]
    seated, _ = AgentMapper(configuration("shared")).assigned(plans, TIC_TAC_TOE)
    assert [plan.assignments == own for plan in seated] == [False, True] * 3
    assert seated[1].replacement(new_level=True).assignments == own


def test_a_scripted_player_takes_a_policys_seats_under_its_name() -> None:
    (plan,) = AgentMapper(configuration({"X": "player", "O": "rival"}), {"player": "solver"}).assigned(
        plans_of(1), TIC_TAC_TOE
    )[0]
    assert plan.assignments == {"X": AgentAssignment("player", "solver", trained=True), "O": AgentAssignment("rival")}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (lambda *_, **__: "nobody", "maps 'X' to 'nobody'"),
        (lambda *_, **__: ["player"], r"maps 'X' to \['player'\]"),
        (lambda *_, **__: int("x"), "raised ValueError for 'X'"),
        (lambda agent: agent, r"`<function .*` takes \(agent\); it is called as \(agent_id, None, role"),
    ],
)
def test_a_mapping_that_names_no_policy(mapping, message) -> None:
    with pytest.raises(ConfigError, match=f"config.policy_mapping_fn: {message}"):
        AgentMapper(configuration(mapping)).assigned(plans_of(3), TIC_TAC_TOE)


def test_a_game_is_built_once_and_closed_and_its_failure_costs_its_own_episodes(monkeypatch) -> None:
    built: list[str] = []
    closed: list[str] = []
    broken = {"lmgame/KuhnPoker-v0"}

    def make(env: str, env_config):
        built.append(env)
        if env in broken:
            raise GameError("no cards")
        session = make_session(env, env_config)
        session.close = lambda: closed.append(env)  # type: ignore[method-assign]
        return session

    monkeypatch.setattr(game_calls, "make_session", make)
    games = (*TIC_TAC_TOE, GameConfig(env="lmgame/KuhnPoker-v0"))
    plans = [dataclasses.replace(plan, game=plan.index % 2) for plan in plans_of(8)]
    agent_mapper = AgentMapper(configuration("shared"))
    seated, failures = agent_mapper.assigned(plans, games)
    assert [plan.index for plan in seated] == [0, 2, 4, 6]
    assert [(failure.plan.index, failure.reason) for failure in failures] == [
        (index, "env_error") for index in (1, 3, 5, 7)
    ]
    assert "the constructor: GameError: no cards" in failures[0].message
    broken.clear()
    seated, failures = agent_mapper.assigned(plans, games)
    assert [set(plan.assignments) for plan in seated] == [{"X", "O"}, {"player_0", "player_1"}] * 4 and not failures
    assert built == ["lmgame/TicTacToe-v0", "lmgame/KuhnPoker-v0", "lmgame/KuhnPoker-v0"]
    assert closed == ["lmgame/TicTacToe-v0", "lmgame/KuhnPoker-v0"]


def league_game(make_runner: MakeRunner, **settings):
    """A game of the policy against a past member of its own, which does not learn."""
    runner = make_runner("lmgame/TicTacToe-v0", lambda request: "5", episode_log_dir=str(settings.pop("directory", "")))
    runner._clients["player-past"] = type(runner.client("player"))(runner.chat("player"), lambda request: "1")  # type: ignore[call-arg, arg-type]
    assignments = {"X": AgentAssignment("player", member="player-past"), "O": AgentAssignment("player", trained=True)}
    plans = [dataclasses.replace(plan, assignments=assignments) for plan in plans_of(2)]
    result = runner.play(plans, PlaySettings(runner.config.training_games(), **settings))
    assert result.error is None and not result.failures
    return runner, result


def test_only_trained_seats_reach_the_learner(make_runner: MakeRunner) -> None:
    """Both seats play for the same policy: what tells them apart is the assignment."""
    _, result = league_game(make_runner)
    for episode, summary in zip(result.episodes, result.summaries, strict=True):
        assert {agent for agent, assignment in assignments_of(episode).items() if assignment.trained} == {"O"}
        assert [part.agent_id for part in played_parts(episode, ["player"])] == ["O"]
        (own,) = (seat for seat in summary.seats if seat.trained)
        assert own.agent_id == "O" and summary.success == float(own.outcome == "win")
        tokens = [
            len(turn.prompt_ids) + len(turn.response_ids)
            for turn in episode.agent_episodes["O"].extra_model_outputs["turn"].data
        ]
        assert num_tokens(episode, ["player"]) == sum(tokens) > 0
    learner = SimpleNamespace(engines={"player": None})
    trajectories = LMGameLearner._trajectories(learner, result.episodes)
    assert [trajectory.agent_id for trajectory in trajectories["player"]] == ["O", "O"]


def test_a_members_replies_come_from_its_own_weights(make_runner: MakeRunner) -> None:
    runner, _ = league_game(make_runner)
    clients = runner._clients
    assert all("/O/" in request.request_id for request in clients["player"].requests)
    assert all("/X/" in request.request_id for request in clients["player-past"].requests)
    assert clients["player"].requests and clients["player-past"].requests


def test_weights_that_no_engine_holds(make_runner: MakeRunner) -> None:
    runner = make_runner()
    plan = dataclasses.replace(plans_of(1)[0], assignments={"player": AgentAssignment("player", member="player-7")})
    result = runner.play([plan], PlaySettings(runner.config.training_games()))
    assert isinstance(result.error, ConfigError)
    assert "no engine holds the weights 'player-7'; engines hold player" in str(result.error)


def test_an_assignment_for_other_seats_costs_its_own_episode(make_runner: MakeRunner) -> None:
    runner = make_runner()
    wrong = dataclasses.replace(plans_of(1)[0], assignments={"X": AgentAssignment("player")})
    result = runner.play([wrong], PlaySettings(runner.config.training_games()))
    assert [failure.reason for failure in result.failures] == ["env_error"]
    assert "has the seats player; the assignments of the episode are for X" in result.failures[0].message


def test_the_same_seed_seats_and_plays_the_same(make_runner: MakeRunner) -> None:
    """Also what scripted players draw follows from plan and seat."""
    players = {"policies": {"player": {}, "rival": {"player": "random"}}, "policy_mapping_fn": "random_seat"}
    once, again = (
        play_games(make_runner("lmgame/TicTacToe-v0", players=players), 8, players={"player": "random"})
        for _ in range(2)
    )
    assert once.summaries == again.summaries
    assert len({tuple(seat.module_id for seat in summary.seats) for summary in once.summaries}) == 2
