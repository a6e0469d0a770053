"""Players of some roles against players of the others."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import roles

from rllib_lmgame.rollouts.plans import AgentAssignment
from rllib_lmgame.rollouts.records import GameConfig

GAME = GameConfig(env="lmgame/Werewolf-v0", env_config={"players": 5})
MODEL, SOLVER = AgentAssignment("player", trained=True), AgentAssignment("solver", "solver")


def test_who_plays_which_roles_and_the_levels_stay() -> None:
    plans = {own.module_id: list(roles.seated(GAME, 6, ["werewolf"], own, SOLVER)) for own in (MODEL, SOLVER)}
    for plan in plans["player"]:
        assert {agent for agent, seat in plan.assignments.items() if seat == MODEL} == {"werewolf"}
        assert sum(seat == SOLVER for seat in plan.assignments.values()) == 4
    assert [plan.seed for plan in plans["player"]] == [plan.seed for plan in plans["solver"]]
    assert len({plan.seed for plan in plans["player"]}) == 6


@pytest.mark.parametrize("named", [["wolf"], ["werewolf", "seers"], ["werewolf", "seer", "doctor", "villager"]])
@pytest.mark.parametrize("others", [SOLVER, MODEL])
def test_roles_that_are_not_there_or_leave_a_side_empty_are_refused(named: list[str], others: AgentAssignment) -> None:
    with pytest.raises(SystemExit, match="--roles must name some of the roles"):
        list(roles.seated(GAME, 1, named, MODEL, others))


def test_a_directory_without_a_checkpoint_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["roles.py", str(tmp_path), "--roles", "werewolf"])
    with pytest.raises(SystemExit, match=str(tmp_path)):
        roles.main()


def test_a_side_wins_though_one_of_it_forfeited() -> None:
    seats = [SimpleNamespace(role=role, outcome=outcome) for role, outcome in
             (("seer", "loss"), ("werewolf", "loss"), ("doctor", "win"), ("villager", "win"))]  # fmt: skip
    result = SimpleNamespace(summaries=[SimpleNamespace(seats=seats)])
    assert roles.outcomes(result, ["seer", "doctor", "villager"]) == [True]
    assert roles.outcomes(result, ["werewolf"]) == [False]
