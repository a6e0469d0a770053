"""RLlib's episodes made of played ones: equal to what RLlib's own step-by-step building gives, and cheap."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from session_play import play_games

from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.chat.format import Prompt
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episodes import (
    episode_metrics,
    level_name,
    seed_and_level,
    success_by_seed,
    summarize,
    to_multi_agent_episode,
    trajectory_of_seat,
)
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan
from rllib_lmgame.rollouts.play import GameStep, PlayedEpisode, SeatEnd
from rllib_lmgame.rollouts.players import ScriptedSeat
from rllib_lmgame.rollouts.records import Turn, trajectory_of
from rllib_lmgame.rollouts.seats import LanguageModelSeat, Seat

MakeRunner = Callable[..., TextGameEnvRunner]


def model_seat(agent: str, turns: list[Turn], **options) -> LanguageModelSeat:
    seat = LanguageModelSeat.__new__(LanguageModelSeat)
    about = {"agent_id": agent, "role": f"role {agent}", "module_id": f"module {agent}"}
    for name, value in {**about, "turns": turns, "final_prompt": None, "temperature": None, **options}.items():
        setattr(seat, name, value)
    seat.numbers.turns, seat.numbers.episode_return = len(turns), sum(turn.reward for turn in turns)
    return seat


def turn(number: int, reward: float) -> Turn:
    rng = np.random.default_rng(number)
    length = int(rng.integers(0, 5))
    return Turn(
        rng.integers(0, 99, 4).astype(np.int32),
        rng.integers(0, 99, length).astype(np.int32),
        rng.random(length).astype(np.float32),
        reward,
        2,
        number % 3 == 0,
    )


def played_episode(
    acting: list[tuple[str, ...]],
    rewards: list[dict[str, float]],
    terminated: bool,
    scripted: tuple[str, ...] = (),
    left: dict[str, SeatEnd] | None = None,
    trained: Sequence[str] = ("module a",),
) -> PlayedEpisode:
    """An episode in which these agents acted; rewards are credited as the playing coroutine does it. ``left``: who left
    before the end.
    """
    agents = tuple(dict.fromkeys(["a", "b", "c"]))
    turns: dict[str, list[Turn]] = {agent: [] for agent in agents}
    steps = []
    for t, (who, earned) in enumerate(zip(acting, rewards, strict=True)):
        for agent in who:
            turns[agent].append(turn(t, 0.0))
        for agent, reward in earned.items():
            if turns[agent]:
                turns[agent][-1].reward += reward
        infos = {agent: {"t": t} for agent in agents}
        steps.append(
            GameStep({a: f"{a} sees {t}" for a in who}, {a: f"{a} does {t}" for a in who}, {}, dict(earned), infos)
        )
    seats: dict[str, Seat] = {}
    for agent in agents:
        if agent in scripted:
            seats[agent] = ScriptedSeat(agent, "role", "script")
        else:
            ended = left[agent].terminated if left and agent in left else terminated
            final = None if ended or not turns[agent] else Prompt([1, 2], np.asarray([2], np.int32), False, 5)
            seats[agent] = model_seat(agent, turns[agent], final_prompt=final)
    final_observations = {agent: f"{agent} sees the end" for agent in agents}
    reason = StopReason.GAME_OVER if terminated else StopReason.MAX_TURNS
    ends = {agent: SeatEnd(terminated, reason, len(steps)) for agent in agents} | (left or {})
    infos = {"a": {"success": terminated}}
    assignments = {
        agent: AgentAssignment(seat.module_id, trained=seat.module_id in trained) for agent, seat in seats.items()
    }
    return PlayedEpisode(
        EpisodePlan("id", 0, 7, "group", 3, assignments=assignments),
        "game",
        seats,
        steps,
        ends,
        final_observations,
        reason,
        infos,
    )


def rllibs_own(played: PlayedEpisode) -> MultiAgentEpisode:
    """The same episode built with ``add_env_reset`` and ``add_env_step``."""
    modules = {agent: seat.module_id for agent, seat in played.seats.items()}
    episode = MultiAgentEpisode(
        id_="id", agent_module_ids=modules, agent_to_module_mapping_fn=lambda agent, ep: modules[agent]
    )
    acted = {agent for step in played.steps for agent in step.actions}
    episode.add_env_reset(observations=played.steps[0].observations)
    rest = next(end for end in played.ends.values() if end.step == len(played.steps))
    for t, step in enumerate(played.steps):
        last = t + 1 == len(played.steps)
        leaving = {agent: end for agent, end in played.ends.items() if end.step == t + 1 and agent in acted}
        seen = {
            **({} if last else played.steps[t + 1].observations),
            **{agent: played.final_observations[agent] for agent in leaving},
        }
        playing = [agent for agent in acted if played.ends[agent].step > t]
        episode.add_env_step(
            observations=seen,
            actions=step.actions,
            rewards={
                agent: step.rewards.get(agent, 0.0)
                for agent in playing
                if agent in episode.agent_episodes or agent in seen
            },
            infos={agent: step.infos[agent] for agent in seen},
            terminateds={
                "__all__": last and rest.terminated,
                **{agent: end.terminated for agent, end in leaving.items() if not last},
            },
            truncateds={
                "__all__": last and not rest.terminated,
                **{agent: not end.terminated for agent, end in leaving.items() if not last},
            },
        )
    return episode


acting = st.lists(st.sampled_from([("a",), ("b",), ("c",), ("a", "b"), ("a", "b", "c")]), min_size=1, max_size=8)


@given(acting, st.booleans(), st.sampled_from([(), ("b",)]), st.booleans(), st.data())
def test_equals_rllibs_own_building(who, terminated, scripted, leaves, data) -> None:
    """Also where a player has left before the end, by the rules or cut short."""
    left: dict[str, SeatEnd] = {}
    out = data.draw(st.integers(1, len(who)))
    known = sorted({agent for agents in who[:out] for agent in agents})
    # RLlib takes an episode to be over when all are done whom it has seen so far.
    if leaves and out < len(who) and len(known) > 1:
        leaver = data.draw(st.sampled_from(known))
        left[leaver] = SeatEnd(data.draw(st.booleans()), StopReason.GAME_OVER, out)
        stays = next(agent for agent in "abc" if agent != leaver)
        who = [*who[:out], *(tuple(agent for agent in agents if agent != leaver) or (stays,) for agents in who[out:])]
    seen: set[str] = set()
    rewards = []
    for t, agents in enumerate(who):
        # RLlib keeps rewards that come before an agent's first observation apart; we leave them out.
        seen |= set(agents)
        earning = sorted(agent for agent in seen if agent not in left or t < left[agent].step)
        rewards.append(data.draw(st.dictionaries(st.sampled_from(earning), st.sampled_from([1.0, -0.5, 2.0]))))
    played = played_episode(who, rewards, terminated, scripted, left)
    ours, theirs = to_multi_agent_episode(played), rllibs_own(played)
    ours.validate()
    assert len(ours) == len(theirs) and ours.env_steps() == theirs.env_steps()
    assert ours.agent_steps() == theirs.agent_steps()
    assert ours.agent_ids == theirs.agent_ids
    assert ours.get_return() == pytest.approx(theirs.get_return())
    if all(end.terminated == terminated for end in left.values()):
        assert (ours.is_terminated, ours.is_truncated) == (theirs.is_terminated, theirs.is_truncated)
        assert ours.is_done == theirs.is_done
    else:
        assert ours.is_truncated and not ours.is_terminated  # Cut short for one of them.
    for agent in ours.agent_ids:
        one, two = ours.agent_episodes[agent], theirs.agent_episodes[agent]
        for field in ("observations", "actions", "rewards"):
            assert getattr(one, field).data == getattr(two, field).data, field
        assert one.infos.data == two.infos.data
        assert (one.t, one.t_started, len(one)) == (two.t, two.t_started, len(two))
        assert (one.is_terminated, one.is_truncated) == (two.is_terminated, two.is_truncated)
        assert ours.env_t_to_agent_t[agent].data == theirs.env_t_to_agent_t[agent].data
        assert ours.module_for(agent) == theirs.module_for(agent) == one.module_id == played.seats[agent].module_id
    assert ours.get_actions() == theirs.get_actions()
    assert ours.get_observations(-1) == theirs.get_observations(-1)


@given(acting, st.booleans())
@settings(max_examples=30, deadline=None)
def test_trajectories_come_back_as_they_went_in(who: list[tuple[str, ...]], terminated: bool) -> None:
    played = played_episode(who, [dict.fromkeys(agents, 1.5) for agents in who], terminated)
    for episode in (to_multi_agent_episode(played), pickle.loads(pickle.dumps(to_multi_agent_episode(played)))):
        for agent, single in episode.agent_episodes.items():
            seat = played.seats[agent]
            there, back = trajectory_of_seat(played, seat), trajectory_of(single)
            assert (back.role, back.agent_id, back.module_id) == (seat.role, agent, seat.module_id)
            assert (back.episode_id, back.group) == ("id", "group")
            assert (back.terminated, back.final_new_row) == (there.terminated, there.final_new_row)
            assert (back.final_prompt_ids is None) == terminated
            assert len(back.turns) == len(there.turns)
            for one, two in zip(back.turns, there.turns, strict=True):
                for name in ("prompt_ids", "response_ids", "rollout_logprobs"):
                    np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
                    assert getattr(one, name).dtype == getattr(two, name).dtype
                assert (one.reward, one.policy_version) == (two.reward, two.policy_version)
                assert (one.new_row, one.stop_reason) == (two.new_row, two.stop_reason)


def test_players_that_never_acted_have_no_episode() -> None:
    played = played_episode([("a",)], [{"b": 5.0}], True)
    played.seats["b"].numbers.episode_return = 5.0
    assert to_multi_agent_episode(played).agent_ids == {"a"}
    assert {seat.agent_id: (seat.episode_return, seat.turns) for seat in summarize(played).seats} == {
        "a": (0.0, 1),
        "b": (5.0, 0),
        "c": (0.0, 0),
    }


def test_summaries() -> None:
    summary = summarize(played_episode([("a",), ("b",)], [{"a": 1.0}, {"b": -1.0}], True))
    assert (summary.episode_id, summary.index, summary.seed) == ("id", 3, 7)
    assert (summary.steps, summary.stop_reason, summary.success) == (2, "game_over", 1.0)
    seat = summary.seats[0]
    assert (seat.role, seat.episode_return, seat.turns) == ("role a", 1.0, 1)
    assert (seat.min_policy_version, seat.prompt_tokens) == (2, 4)
    truncated = played_episode([("a",)], [{}], False)
    truncated.infos = {}
    truncated.seats = {"a": truncated.seats["a"]}
    assert summarize(truncated).success == 0.0  # A player who did not get to the end did not reach the goal.


@pytest.mark.parametrize(
    ("trained", "success"),
    [
        (["module a"], 1.0),
        (["module b"], 0.0),
        (["module a", "module b"], 0.5),
        ([], None),
        (["module a", "module b", "module c"], None),
    ],
)
def test_success_is_that_of_the_trained_seats(trained: list[str], success: float | None) -> None:
    played = played_episode([("a",), ("b",), ("c",)], [{}, {}, {}], True, trained=trained)
    played.infos = {"a": {"success": True}, "b": {"success": False}, "c": {"success": False}}
    summary = summarize(played)
    assert summary.success == success
    assert [seat.outcome for seat in summary.seats] == ["win", "loss", "loss"]
    assert success_by_seed([summary]) == ({} if success is None else {"game 7": success})


@pytest.mark.parametrize("level", ["0123456789abcdef", "easy", 3, None])
def test_a_level_is_what_the_game_calls_it_by_its_digest(level) -> None:
    """Also of a player who never saw the end; a foreign game's own `level` is none."""
    played = played_episode([("a",), ("b",)], [{}, {}], True)
    played.steps[0].infos["a"] = {} if level is None else {"level": level}
    summary = summarize(played)
    digest = level if level == "0123456789abcdef" else None
    assert summary.level == digest
    assert [seed_and_level(name) for name in success_by_seed([summary])] == [
        ("game 7", f"game {digest}") if digest else ("game 7", "game 7")
    ]
    assert level_name(summary) == f"game {digest or 7}"


def test_self_play_has_no_success_but_win_draw_and_loss_by_role(make_runner: MakeRunner) -> None:
    runner = make_runner("lmgame/TicTacToe-v0")
    numbers = episode_metrics(play_games(runner, 200, players={"player": "random"}, keep="nothing").summaries)
    assert "success_rate" not in numbers
    win, draw, loss = (numbers[f"{name}_rate"]["player"] for name in ("win", "draw", "loss"))
    assert win["first"] == loss["second"] > win["second"] == loss["first"] > draw["first"] == draw["second"] > 0
    assert win["first"] + draw["first"] + loss["first"] == pytest.approx(1)
    assert win["first"] == pytest.approx(0.585, abs=0.12)  # Of all random games; 0.585, 0.288 and 0.127 exactly.
