"""Each seat has an end of its own: players who leave early, and players who can write no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from episode_parts import sessions
from pettingzoo import ParallelEnv
from pettingzoo.test import api_test
from pettingzoo.utils.conversions import parallel_to_aec
from session_play import play

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.checking.checker import TypedText
from rllib_lmgame.envs.contract.adapters import AECSession, ParallelSession
from rllib_lmgame.envs.contract.base import read_word, text_space
from rllib_lmgame.envs.contract.turns import TextAECGame
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episode_log import EpisodeLog, episode_record
from rllib_lmgame.rollouts.episodes import summarize, to_multi_agent_episode, trajectory_of_seat
from rllib_lmgame.rollouts.plans import AgentAssignment
from rllib_lmgame.rollouts.play import SeatEnd
from rllib_lmgame.rollouts.records import trajectory_of
from rllib_lmgame.rollouts.seats import EpisodeFailed, LanguageModelSeat

MakeRunner = Callable[..., TextGameEnvRunner]
AGENTS = ("a", "b", "c")


class Knockout(ParallelEnv):
    """Everybody speaks at once; who says ``out`` is out, with -1. After four rounds who is left is cut short, with 2
    each.
    """

    metadata = {"name": "knockout_v0", "is_parallelizable": True, "render_modes": []}
    render_mode = None
    verdict = False
    """Of those who are out."""
    instructions = "Say stay or out."

    def __init__(self, rounds: int = 4) -> None:
        self.rounds = rounds
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []

    def observation_space(self, agent: str):
        return text_space()

    def action_space(self, agent: str):
        return text_space()

    def reset(self, seed: int | None = None, options=None):
        self.agents, self.round = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, "round 0"), {
            agent: {"legal_actions": ("stay", "out")} for agent in self.agents
        }

    def step(self, actions: Mapping[str, str]):
        self.round += 1
        over = self.round == self.rounds
        out = {agent: action == "out" for agent, action in actions.items()}
        texts = {agent: f"round {self.round}{' (out)' * out[agent]}" for agent in self.agents}
        rewards = {agent: -1.0 if out[agent] else 2.0 * over for agent in self.agents}
        infos = {
            agent: {"success": self.verdict if out[agent] else True} if out[agent] or over else {}
            for agent in self.agents
        }
        cut = {agent: over and not out[agent] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (out[agent] or over)]
        return texts, rewards, out, cut, infos


class Elimination(TextAECGame):
    """Players take turns; who says ``out`` is out, with -1; the last one left takes 2, and so do all who are left after
    four rounds.
    """

    metadata = {"name": "elimination_v0", "is_parallelizable": False, "render_modes": ["ansi"]}
    seats = dict.fromkeys(AGENTS, "player")
    zero_sum = False
    rules = "Say stay or out."

    def start(self) -> None:
        self.out: list[str] = []
        self.spoken = 0

    def player_to_move(self) -> str:
        order = [agent for agent in AGENTS[self.turn :] + AGENTS[: self.turn] if agent not in self.out]
        return order[0] if order else AGENTS[0]

    @property
    def turn(self) -> int:
        return self.spoken % 3

    def view(self, agent: str) -> str:
        return f"{agent}: {self.spoken}"

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return () if self.finished or agent != self.player_to_move() else ("stay", "out")

    def read_move(self, text: str) -> str:
        return read_word(text, ("stay", "out"), "word")

    def play_move(self, agent: str, move: str) -> None:
        if move == "out":
            self.out.append(agent)
        self.spoken = AGENTS.index(agent) + 1 + 3 * ((self.spoken + (AGENTS.index(agent) < self.turn) * 3) // 3)

    def eliminated(self) -> dict[str, float]:
        return dict.fromkeys(self.out, -1.0)

    @property
    def finished(self) -> bool:
        return self.spoken >= 12 or len(self.out) == 2

    def results(self) -> dict[str, float]:
        return {agent: -1.0 if agent in self.out else 2.0 for agent in AGENTS}

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return {other: -1.0 if other == agent else 0.5 for other in AGENTS}


class Absent(Elimination):
    """a is out before anybody has spoken."""

    def reset(self, seed: int | None = None, options=None) -> None:
        super().reset(seed, options)
        self.out, self.terminations["a"] = ["a"], True
        self.agent_selection = self.player_to_move()
        self._deads_step_first()


class Undead(Elimination):
    """Who is out stays at the table."""

    def _was_dead_step(self, action) -> None:
        pass


class Absentminded(Elimination):
    """It asks who has left."""

    def step(self, action: str | None) -> None:
        super().step(action)
        if "b" not in self.agents:
            self.agent_selection = "b"


def saying(words: dict[str, str]):
    """``<agent>/<turn>`` -> word; anything else is ``stay``."""
    return lambda request: words.get(request.request_id.removeprefix("e/"), "stay")


SESSIONS = {
    "parallel": lambda: ParallelSession("knockout", Knockout()),
    "aec of others": lambda: AECSession("knockout", parallel_to_aec(Knockout())),
    "our base class": lambda: AECSession("elimination", Elimination()),
}


def test_the_base_class_lets_players_out_as_pettingzoo_wants_it() -> None:
    api_test(TypedText(Elimination()), num_cycles=100)


@pytest.mark.parametrize("kind", SESSIONS)
def test_a_player_who_is_out_does_not_bootstrap(make_runner: MakeRunner, kind: str) -> None:
    """b is out in its second turn. The others are cut short (or, in our base class, come to the end) two rounds
    later.
    """
    played = play(make_runner(answer=saying({"b/1": "out"})), SESSIONS[kind]())
    left = played.ends["b"]
    assert left.terminated and left.stop_reason is StopReason.GAME_OVER
    assert left.step < len(played.steps) == played.ends["c"].step
    others_end = kind == "our base class"
    for agent, turns, rewards in (("a", 4, [0, 0, 0, 2]), ("b", 2, [0, -1]), ("c", 4, [0, 0, 0, 2])):
        seat = played.seats[agent]
        assert [turn.reward for turn in seat.turns] == rewards and len(seat.turns) == turns
        assert (seat.final_prompt is None) == (agent == "b" or others_end)
    assert played.terminated is others_end
    assert "(out)" in played.final_observations["b"] or others_end
    episode = to_multi_agent_episode(played)
    episode.validate()
    assert {a: (e.is_terminated, e.is_truncated) for a, e in episode.agent_episodes.items()} == {
        "a": (others_end, not others_end),
        "b": (True, False),
        "c": (others_end, not others_end),
    }
    assert {agent: trajectory_of(single).terminated for agent, single in episode.agent_episodes.items()} == {
        "a": others_end,
        "b": True,
        "c": others_end,
    }


@pytest.mark.parametrize("kind", SESSIONS)
def test_the_verdict_on_who_left_early_is_kept(make_runner, kind, tmp_path) -> None:
    runner = make_runner(answer=saying({"b/1": "out"}))
    played = play(runner, SESSIONS[kind]())
    summary = summarize(played)
    assert [seat.success for seat in summary.seats] == [True, False, True]
    assert [seat.outcome for seat in summary.seats] == ["win", "loss", "win"]
    record = episode_record(played)
    assert [(t["terminated"], t["success"], t["outcome"]) for t in record["trajectories"]][1] == (True, False, "loss")
    assert record["trajectories"][1]["ended_at"] < record["trajectories"][2]["ended_at"] == len(record["steps"])
    EpisodeLog(tmp_path / "log.jsonl").write([record])
    again = play(runner, sessions(tmp_path / "log.jsonl")[0])
    assert again.ends == played.ends and [s.actions for s in again.steps] == [s.actions for s in played.steps]


@pytest.mark.parametrize(
    ("game", "words", "reason", "others"),
    [
        ("TicTacToe", {f"X/{turn}": "nonsense" for turn in range(3)}, StopReason.FORFEIT, StopReason.GAME_OVER),
        ("TicTacToe", {"X/0": "1", "O/0": "4", "X/1": "2", "O/1": "5", "X/2": "3"}, StopReason.GAME_OVER, None),
        ("FrozenLake", {f"player/{turn}": "nonsense" for turn in range(3)}, StopReason.FORFEIT, None),
        ("FrozenLake", {f"player/{turn}": "Up" for turn in range(10)}, StopReason.MAX_TURNS, None),
    ],
)
def test_why_a_game_ended_is_told_of_it_and_of_each_seat(
    game: str, words: dict[str, str], reason: StopReason, others: StopReason | None, make_runner: MakeRunner
) -> None:
    """Who forfeits is named; to the other one the game is over by its rules."""
    options = {"max_invalid_actions": 3} if reason is StopReason.FORFEIT else {}
    played = play(make_runner(answer=saying(words)), make_session(f"lmgame/{game}-v0", options))
    first, *rest = played.seats
    own_rules = reason is not StopReason.MAX_TURNS
    assert played.ends == {
        first: SeatEnd(own_rules, reason, len(words)),
        **{agent: SeatEnd(own_rules, others or reason, len(words)) for agent in rest},
    }
    assert played.stop_reason is reason and summarize(played).stop_reason == reason.value
    assert summarize(played).terminated is own_rules


def test_a_player_who_is_out_from_the_start_is_asked_nothing(make_runner, tmp_path) -> None:
    played = play(make_runner(answer=saying({})), AECSession("absent", Absent()))
    assert [step.actions for step in played.steps[:2]] == [{"b": "stay"}, {"c": "stay"}]
    assert played.ends["a"] == SeatEnd(True, StopReason.GAME_OVER, 1) and played.seats["a"].numbers.turns == 0
    assert [played.seats[agent].numbers.episode_return for agent in "bc"] == [2.0, 2.0]
    episode = to_multi_agent_episode(played)
    episode.validate()
    assert "a" not in episode.agent_episodes
    assert [seat.success for seat in summarize(played).seats] == [None, True, True]
    EpisodeLog(tmp_path / "log.jsonl").write([episode_record(played)])
    assert play(make_runner(answer=saying({})), sessions(tmp_path / "log.jsonl")[0]).ends == played.ends


@pytest.mark.parametrize(
    ("game", "said"),
    [
        (Undead, "still among the agents"),
        (Absentminded, "agent_selection is 'b', who is not among the agents any more"),
    ],
)
def test_a_game_that_breaks_pettingzoos_rules_of_leaving_is_named(game, said, make_runner) -> None:
    """And does not go on for ever."""
    with pytest.raises(EpisodeFailed, match=f"faulty: .*{said}"):
        play(make_runner(answer=saying({"b/0": "out"})), AECSession("faulty", game()))


# -- players who can write no more -----------------------------------------------------------------------------------


def long_reply(runner: TextGameEnvRunner, word: str) -> list[int]:
    return runner.chat("player").reply_ids(f"{word} {word} {word} {word} {word} {word}")


def test_in_a_game_of_all_at_once_the_others_play_on(make_runner: MakeRunner) -> None:
    """a has tokens for one reply; in the three rounds after it nothing is said for it, and the others' replies are
    played.
    """
    long = long_reply(make_runner(), "stay")
    runner = make_runner(
        answer=lambda request: long if "/a/" in request.request_id else "stay",
        model={"max_tokens_per_episode": len(long)},
    )
    played = play(runner, SESSIONS["parallel"]())
    assert played.ends["a"] == SeatEnd(False, StopReason.TOKEN_BUDGET, 1)
    assert [sorted(step.actions) for step in played.steps] == [["a", "b", "c"], ["b", "c"], ["b", "c"], ["b", "c"]]
    assert [step.passes for step in played.steps] == [{}, {"a": ""}, {"a": ""}, {"a": ""}]
    assert played.stop_reason is StopReason.MAX_TURNS and played.ends["b"] == SeatEnd(False, StopReason.MAX_TURNS, 4)
    a = played.seats["a"]
    assert len(a.turns) == a.numbers.turns == 1 and a.numbers.episode_return == 2.0
    assert a.turns[0].reward == 2.0 and trajectory_of_seat(played, a).terminated
    assert [len(seat.turns) for seat in played.seats.values() if isinstance(seat, LanguageModelSeat)] == [1, 4, 4]
    episode = to_multi_agent_episode(played)
    episode.validate()
    assert (len(episode.agent_episodes["a"]), episode.agent_episodes["a"].is_truncated) == (1, True)


def test_in_a_game_for_two_who_can_write_no_more_forfeits(make_runner, tmp_path) -> None:
    long = long_reply(make_runner(), "5")
    runner = make_runner(
        answer=lambda request: long if "/X/" in request.request_id else "1",
        model={"max_tokens_per_episode": len(long) + 1},
    )
    played = play(runner, make_session("lmgame/TicTacToe-v0"))
    assert played.ends == {"X": SeatEnd(False, StopReason.TOKEN_BUDGET, 2), "O": SeatEnd(True, StopReason.GAME_OVER, 3)}
    assert played.stop_reason is StopReason.TOKEN_BUDGET and not played.terminated
    assert [seat.outcome for seat in summarize(played).seats] == ["loss", "win"]
    x, o = (seat for seat in played.seats.values() if isinstance(seat, LanguageModelSeat))
    # The budget is a rule: the forfeit it leads to is what the last reply earned.
    assert [turn.reward for turn in x.turns] == [-1.0]
    assert [turn.reward for turn in o.turns] == [1.0]
    to_multi_agent_episode(played).validate()
    EpisodeLog(tmp_path / "log.jsonl").write([episode_record(played)])
    again = play(
        make_runner(answer=lambda request: "5" if "/X/" in request.request_id else "1"),
        sessions(tmp_path / "log.jsonl")[0],
    )
    assert [sorted(step.actions) for step in again.steps] == [["X"], ["O"]]
    assert again.steps[1].rewards == {"X": -1.0, "O": 1.0}


def test_a_game_may_pass_for_who_can_write_no_more(make_runner: MakeRunner) -> None:
    """Kuhn poker: who bet against a player without tokens takes the pot, by the rules."""
    long = make_runner().chat("player").reply_ids("check")
    runner = make_runner(
        answer=lambda request: long if "_0/" in request.request_id else "bet",
        model={"max_tokens_per_episode": len(long) + 1},
    )
    played = play(runner, make_session("lmgame/KuhnPoker-v0"))
    assert [step.actions for step in played.steps] == [{"player_0": "check"}, {"player_1": "bet"}, {}]
    assert played.steps[2].passes == {"player_0": "fold"}
    assert played.steps[2].rewards == {"player_0": -1.0, "player_1": 1.0}
    assert played.ends == {
        "player_0": SeatEnd(False, StopReason.TOKEN_BUDGET, 2),
        "player_1": SeatEnd(True, StopReason.GAME_OVER, 3),
    }
    assert played.stop_reason is StopReason.GAME_OVER


def test_who_was_ahead_when_the_tokens_ran_out_has_not_won(make_runner: MakeRunner) -> None:
    """A game of another author without verdicts, broken off: what was earned until then is no result."""

    class Leading(Knockout):
        def step(self, actions: Mapping[str, str]):
            texts, rewards, out, cut, _ = super().step(actions)
            rewards = {agent: float(agent == "a") for agent in rewards}
            return texts, rewards, out, cut, {agent: {} for agent in rewards}

    long = long_reply(make_runner(), "stay")
    runner = make_runner(answer=lambda request: long, model={"max_tokens_per_episode": len(long)})
    played = play(runner, ParallelSession("leading", Leading()))
    others = {agent: AgentAssignment("opponent") for agent in "bc"}
    played.plan = replace(played.plan, assignments={**played.plan.assignments, **others})
    summary = summarize(played)
    assert [(seat.episode_return, seat.outcome) for seat in summary.seats] == [
        (1.0, "loss"),
        (0.0, "loss"),
        (0.0, "loss"),
    ]
    assert summary.success == 0.0
