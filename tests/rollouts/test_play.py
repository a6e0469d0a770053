"""Playing: no game waits for another; rewards reach the right turn; running out of tokens truncates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from episode_parts import rows_in_batch
from session_play import play, play_games

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.session import GameSession, Observation, StepResult
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, StopReason
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episode_log import episode_record
from rllib_lmgame.rollouts.episodes import episode_metrics, summarize, trajectory_of_seat, unread_replies
from rllib_lmgame.rollouts.records import TEXT_SPACE
from rllib_lmgame.rollouts.seats import EpisodeFailed, LanguageModelSeat

MakeRunner = Callable[..., TextGameEnvRunner]
Rewards = dict[str, float]


class ScriptedGame(GameSession):
    """A game that follows a script: who acts, and what everybody earns.

    Args:
        script: Per step the agents that act and the rewards that follow.
        truncated: It ends by a budget.
    """

    game_id = "scripted"
    instructions = "Play."
    trusted = True

    def __init__(self, script: list[tuple[tuple[str, ...], Rewards]], truncated: bool = False) -> None:
        self.script = script
        self.truncated = truncated
        self.agent_ids = tuple(dict.fromkeys(agent for agents, _ in script for agent in agents))
        self.roles = {agent: f"role of {agent}" for agent in self.agent_ids}
        self.heard: list[dict[str, str]] = []

    def reset(self, seed: int) -> None:
        self.heard = []

    def to_act(self) -> tuple[str, ...]:
        return self.script[len(self.heard)][0] if len(self.heard) < len(self.script) else ()

    def observe(self, agent_id: str) -> Observation:
        return Observation(f"{agent_id} sees step {len(self.heard)}")

    def step(self, actions: Mapping[str, str]) -> StepResult:
        _, rewards = self.script[len(self.heard)]
        self.heard.append(dict(actions))
        over = len(self.heard) == len(self.script)
        return StepResult(
            rewards,
            over and not self.truncated,
            over and self.truncated,
            {"a": {"invalid_action": len(self.heard) == 1}},
        )

    def expert_action(self, agent_id: str) -> str | None:
        return None


class Talkative(ScriptedGame):
    """Says more at every step."""

    def __init__(self, words: int) -> None:
        super().__init__([(("a",), {})] * 50)
        self.words = words

    def observe(self, agent_id: str) -> Observation:
        return Observation("see " + "Up " * (self.words * len(self.heard)))


def rewards_of(played) -> dict[str, list[float]]:
    return {
        agent: [turn.reward for turn in seat.turns]
        for agent, seat in played.seats.items()
        if isinstance(seat, LanguageModelSeat)
    }


def test_one_slow_reply_delays_no_other_game(make_runner: MakeRunner) -> None:
    release = asyncio.Event()
    finished: list[str] = []

    async def answer(request) -> str:
        if request.request_id.startswith("t-1-0/"):
            await release.wait()
        return "Up"

    runner = make_runner(answer=answer, num_envs_per_env_runner=4)
    forget = runner.hooks.forget

    def note(plan) -> None:
        finished.append(plan.episode_id)
        if len(finished) == 11:  # All others are over, those that waited for a free place included.
            release.set()
        forget(plan)

    runner.hooks.forget = note  # type: ignore[method-assign]
    result = play_games(runner, 12)
    assert finished[-1] == "t-1-0"
    assert [summary.index for summary in result.summaries] == list(range(12))


def test_requests_of_one_tick_are_made_together(make_runner: MakeRunner) -> None:
    waiting: list[asyncio.Future[str]] = []
    together: list[int] = []

    async def answer(request) -> str:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not waiting:
            loop.call_soon(flush)
        waiting.append(future)
        return await future

    def flush() -> None:
        together.append(len(waiting))
        for future in waiting:
            future.set_result("Up")
        waiting.clear()

    play_games(make_runner(answer=answer, num_envs_per_env_runner=16), 16)
    assert together[0] == 16


def test_a_reward_during_the_opponents_move_is_credited_to_the_last_own_turn(make_runner: MakeRunner) -> None:
    script = [
        (("a",), {"a": 1.0}),
        (("b",), {"a": 2.0, "b": 10.0}),
        (("a",), {"b": 20.0}),
        (("b",), {"a": 4.0, "b": 40.0}),
    ]
    played = play(make_runner(), ScriptedGame(script))
    assert rewards_of(played) == {"a": [3.0, 4.0], "b": [30.0, 40.0]}
    assert {agent: seat.numbers.episode_return for agent, seat in played.seats.items()} == {"a": 7.0, "b": 70.0}


def test_a_reward_before_the_first_own_move_counts_in_the_return_only(make_runner: MakeRunner) -> None:
    played = play(make_runner(), ScriptedGame([(("a",), {"b": 5.0}), (("b",), {"b": 1.0})]))
    assert rewards_of(played)["b"] == [1.0]
    assert played.seats["b"].numbers.episode_return == 6.0


def test_simultaneous_players_wait_for_each_other_only(make_runner: MakeRunner) -> None:
    """b's reply is asked for before a's has come."""
    asked: list[str] = []
    release = asyncio.Event()

    async def answer(request) -> str:
        asked.append(request.request_id)
        if len(asked) == 2:
            release.set()
        await release.wait()
        return "x"

    play(make_runner(answer=answer), ScriptedGame([(("a", "b"), {})]))
    assert asked == ["e/a/0", "e/b/0"]


def test_turns_hold_what_was_sampled_bit_for_bit(make_runner: MakeRunner) -> None:
    """Weights may change between two replies: each has its version, and the episode is as old as the oldest."""
    versions, reasons = [5, 2, 9], [StopReason.EOS, StopReason.MAX_TOKENS, StopReason.EOS]

    def answer(request: GenerationRequest) -> Generation:
        turn = int(request.request_id.rpartition("/")[2])
        ids = np.asarray(runner.chat("player").reply_ids("Up"), np.int32)
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) / 7
        return Generation(request.request_id, ids, logprobs, reasons[turn], versions[turn])

    runner = make_runner(answer=answer)
    played = play(runner, ScriptedGame([(("a",), {})] * 3))
    assert summarize(played).seats[0].min_policy_version == 2
    client = runner.client("player")
    seat = played.seats["a"]
    row: list[int] = []
    for turn, request in zip(seat.turns, client.requests, strict=True):
        row = [*row, *turn.prompt_ids.tolist()]
        assert request.prompt_ids == row
        row += turn.response_ids.tolist()
        assert turn.response_ids.tolist() == runner.chat("player").reply_ids("Up")
        np.testing.assert_array_equal(
            turn.rollout_logprobs, -np.arange(1, len(turn.response_ids) + 1, dtype=np.float32) / 7
        )
        assert (turn.response_ids.dtype, turn.rollout_logprobs.dtype) == (np.int32, np.float32)
        assert turn.prompt_ids.dtype == np.int32
    assert [turn.new_row for turn in seat.turns] == [True, False, False]
    assert [turn.policy_version for turn in seat.turns] == versions
    assert [turn.stop_reason for turn in seat.turns] == [reason.value for reason in reasons]
    assert [request.sampling.seed for request in client.requests] == [None] * 3


def test_a_game_cut_short_shows_its_last_state_for_the_bootstrap(make_runner: MakeRunner) -> None:
    runner = make_runner()
    played = play(runner, ScriptedGame([(("a",), {}), (("b",), {}), (("a",), {})], truncated=True))
    assert not played.terminated and played.stop_reason is StopReason.MAX_TURNS
    for agent in ("a", "b"):
        trajectory = trajectory_of_seat(played, played.seats[agent])  # type: ignore[arg-type]
        assert not trajectory.terminated and not trajectory.final_new_row
        assert f"{agent} sees step 3" in runner.chat("player").tokenizer.decode(trajectory.final_prompt_ids)


@pytest.mark.parametrize("least", [None, 4])
@pytest.mark.parametrize("history", ["keep", "window"])
def test_running_out_of_context_truncates_at_the_last_position_that_fits(make_runner, least, history) -> None:
    """No reply is sampled without the room it must have, and the last state is shown from its beginning, as far as the
    context holds it.
    """
    options = {
        "context_length": 150,
        "min_tokens_per_turn": least,
        "format_instructions": False,
        "history": history,
        "history_window": 9,
    }
    runner = make_runner(model=options)
    played = play(runner, ScriptedGame([(("a",), {"a": 1.0})] * 50))
    assert played.stop_reason is StopReason.CONTEXT_OVERFLOW and not played.terminated
    steps = len(played.steps)
    assert 2 <= steps < 50
    seat = played.seats["a"]
    assert len(seat.turns) == seat.numbers.turns == steps and rewards_of(played)["a"] == [1.0] * steps
    client = runner.client("player")
    assert all(150 - len(request.prompt_ids) >= (least or 32) for request in client.requests)
    seen = [*client.requests[-1].prompt_ids, *seat.turns[-1].response_ids.tolist()]
    assert seat.final_prompt.ids[: len(seen)] == seen or history == "window"
    assert 150 - (least or 32) < len(seat.final_prompt.ids) <= 150
    batch = TokenBatch.from_trajectories([trajectory_of_seat(played, seat)], max_row_tokens=150)
    assert batch.truncated_sequences == 0
    (row,) = [row for row in rows_in_batch(batch) if row.needs_bootstrap]
    assert row.input_ids.tolist() == seat.final_prompt.ids
    (end,) = [pack.position_ids[pack.bootstrap_index].tolist() for pack in batch.microbatches(9999)]
    assert end == [len(seat.final_prompt.ids) - 1]


def test_the_bootstrap_value_is_that_of_the_last_position_the_context_holds(make_runner, model_dir) -> None:
    """Against a plain forward pass over all that was seen and said, and the last state, as one sequence cut where the
    context ends.
    """
    import torch

    from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule

    runner = make_runner(model={"context_length": 150, "min_tokens_per_turn": 4, "format_instructions": False})
    space = TEXT_SPACE
    module = LanguageModelRLModule(
        observation_space=space, action_space=space, model_config={"options": {}, "model_dir": str(model_dir)}
    )
    torch.nn.init.normal_(module.value_head.outer.weight)
    beyond = []
    for words in range(1, 9):
        played = play(runner, Talkative(words))
        seat = played.seats["a"]
        client = runner.client("player")
        whole = [*client.requests[-1].prompt_ids, *seat.turns[-1].response_ids.tolist()]
        chat = runner.chat("player")
        last = chat.message(Observation(played.final_observations["a"]))
        whole += chat.continuation_ids(seat.turns[-1].response_ids, last)
        beyond.append(len(whole) - 150)
        batch = TokenBatch.from_trajectories([trajectory_of_seat(played, seat)], max_row_tokens=150)
        (pack,) = batch.microbatches(1000)
        with torch.no_grad():
            found = module.forward_train(pack.to_torch() | {"temperature": 1.0})["bootstrap_values"]
            hidden = module.language_model.model(torch.tensor([whole])).last_hidden_state[0]
            expected = module.value_head(hidden[149])
        assert found.tolist() == pytest.approx([float(expected)], abs=1e-4)
    assert 0 < min(beyond) < 10 < max(beyond)


def test_a_spent_token_budget_is_the_end(make_runner: MakeRunner) -> None:
    reply = len(make_runner().chat("player").reply_ids("Up"))
    for spare in (0, 1):
        runner = make_runner(model={"max_tokens_per_episode": 2 * reply + spare})
        played = play(runner, ScriptedGame([(("a",), {})] * 9))
        assert played.stop_reason is StopReason.TOKEN_BUDGET and not played.terminated
        assert len(played.steps) == 2  # With one token to spare no reply could be well-formed, so none is sampled.
        assert trajectory_of_seat(played, played.seats["a"]).terminated  # type: ignore[arg-type]


@pytest.mark.parametrize("turns_left", [0, 1, None])
def test_the_last_state_never_says_that_no_turn_is_left(make_runner: MakeRunner, turns_left: int | None) -> None:
    """No prompt of a reply does, so the critic has never seen it."""

    class Counting(ScriptedGame):
        def observe(self, agent_id: str) -> Observation:
            left = None if turns_left is None else len(self.script) - len(self.heard) + turns_left
            return Observation("see", turns_left=left)

    runner = make_runner()
    played = play(runner, Counting([(("a",), {})] * 3, truncated=True))
    shown = runner.chat("player").tokenizer.decode(trajectory_of_seat(played, played.seats["a"]).final_prompt_ids)  # type: ignore[arg-type]
    assert ("Turns left: 1" in shown, "Turns left" in shown) == ((False, False) if turns_left is None else (True, True))


def test_a_context_too_small_for_the_first_prompt_ends_the_run_with_the_size_it_needs(make_runner: MakeRunner) -> None:
    result = play_games(make_runner(model={"context_length": 40}), 4)
    assert isinstance(result.error, ConfigError)
    assert "config.language_model.context_length" in str(result.error)
    assert "set context_length to at least" in str(result.error)


def test_format_penalty_and_counts(make_runner: MakeRunner) -> None:
    answers = iter([make_runner().chat("player").encode("what?"), "Up"])
    runner = make_runner(answer=lambda r: next(answers))
    played = play(runner, ScriptedGame([(("a",), {"a": 1.0}), (("a",), {"a": 2.0})]), format_penalty=-0.5)
    assert rewards_of(played)["a"] == [0.5, 2.0]
    assert played.seats["a"].numbers.episode_return == 3.0  # The penalty is a matter of training, not of the game.
    seat = summarize(played).seats[0]
    assert (seat.format_errors, seat.invalid_actions, seat.turns, seat.rows) == (1, 1, 2, 1)
    client = runner.client("player")
    assert "could not be read" in runner.chat("player").tokenizer.decode(client.requests[1].prompt_ids)


def test_a_broken_engine_reply_is_an_engine_error(make_runner: MakeRunner) -> None:
    def generation(logprobs: list[float], reason: StopReason = StopReason.EOS) -> Generation:
        return Generation("r", np.zeros(2, np.int32), np.asarray(logprobs, np.float32), reason, 0, "went away")

    def refuse(request):
        raise TimeoutError("no reply")

    cases = [
        (lambda r: generation([0.0]), "2 tokens and 1 log-probabilities"),
        (lambda r: generation([0.0, float("nan")]), "no finite number"),
        (lambda r: generation([0.0, 0.0], StopReason.ENGINE_ERROR), "went away"),
        (refuse, "TimeoutError: no reply"),
    ]
    for answer, message in cases:
        with pytest.raises(EpisodeFailed, match=message) as failure:
            play(make_runner(answer=answer), ScriptedGame([(("a",), {})]))
        assert failure.value.reason is StopReason.ENGINE_ERROR


def test_seeded_requests_differ_by_turn_and_repeat(make_runner: MakeRunner) -> None:
    seeds = []
    for _ in range(2):
        runner = make_runner()
        play_games(runner, 3, seeded=True)
        client = runner.client("player")
        seeds.append({r.request_id: r.sampling.seed for r in client.requests})
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0].values())) == len(seeds[0])
    runner = make_runner()
    play_games(runner, 3, run_seed=1, seeded=True)
    client = runner.client("player")
    assert not set(seeds[0].values()) & {r.sampling.seed for r in client.requests}


def test_what_cannot_be_read_is_counted_apart_from_what_is_not_allowed(make_runner: MakeRunner) -> None:
    """A model that never writes the tags, and one that writes a word the game does not know: both are invalid."""
    untagged = make_runner(env_config={"max_turns": 2}, answer=lambda request: [5, 6, 7])
    illegal = make_runner(env_config={"max_turns": 2}, answer=lambda request: "Right Up")
    numbers = {
        name: episode_metrics(play_games(runner, 4, keep="nothing").summaries)
        for name, runner in (("untagged", untagged), ("illegal", illegal))
    }
    rates = ("invalid_action_rate", "format_error_rate", "illegal_action_rate")
    assert [numbers["untagged"][rate] for rate in rates] == [1.0, 1.0, 0.0]
    assert [numbers["illegal"][rate] for rate in rates] == [1.0, 0.0, 1.0]
    shown = unread_replies(play_games(untagged, 4, keep="nothing").summaries)
    assert shown == [untagged.chat("player").read(np.array([5, 6, 7]))]
    assert unread_replies(play_games(illegal, 4, keep="nothing").summaries) == []


def prompts_of(runner: TextGameEnvRunner) -> list[str]:
    """What the model was asked, as text."""
    client = runner.client("player")
    return [runner.chat("player").tokenizer.decode(request.prompt_ids) for request in client.requests]


@pytest.mark.parametrize("game", ["lmgame/Sokoban-v0", "lmgame/TicTacToe-v0", "lmgame/StagHunt-v0"])
def test_one_fault_has_one_reason(game: str, make_runner: MakeRunner) -> None:
    """Why a reply could not be read, or why the game refused it; a reply without tags was given both."""
    unread, refused = "Your last reply could not be read", "Invalid action"
    for answer, reminded, said in (
        ([5, 6, 7], True, unread),
        ([5, 6, 7], False, refused),
        ("no such move", True, refused),
    ):
        runner = make_runner(game, lambda request, answer=answer: answer, model={"format_instructions": reminded})
        play_games(runner, 1, keep="nothing")
        last = prompts_of(runner)[-1]
        shown = last[last.rfind("user") :] if "user" in last else last
        assert (shown.count(unread), shown.count(refused)) == ((1, 0) if said is unread else (0, 1)), shown


def test_the_log_holds_what_the_model_saw(make_runner: MakeRunner) -> None:
    """The reminder how to answer and what was wrong with the last reply, too; prompts that grow show what is new."""
    for history in ("keep", "window"):
        answers = iter([[5, 6, 7], "Up"])
        runner = make_runner(answer=lambda request, a=answers: next(a), model={"history": history})
        played = play(runner, ScriptedGame([(("a",), {})] * 2))
        (trajectory,) = episode_record(played)["trajectories"]
        shown, asked = [turn["prompt"] for turn in trajectory["turns"]], prompts_of(runner)
        assert shown[0] == asked[0] and "Write your reply between tags" in shown[0]
        assert "could not be read" in shown[1] and asked[1].endswith(shown[1])
