"""Programs as players: what is recorded of their completions, and what becomes of those that go wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_replies import logprobs_by
from session_play import play_games

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.checking import checker
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.adapted.agent_program import programs
from rllib_lmgame.envs.registry import game_spec, make_game, make_session
from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.rollouts.records import played_parts, trajectory_of

MODEL = {"context_length": 256}


@pytest.fixture
def played(make_runner: Callable[..., Any]) -> Callable[..., Any]:
    """Function ``(program, count, answer, **options)``: runner and result."""

    def play(program: str, count: int = 1, answer: Any = None, **options: Any) -> Any:
        model = {**MODEL, **options.pop("model", {})}
        runner = make_runner(f"agent:agent_programs:{program}", answer, model=model, **options)
        client = runner._clients["player"]
        client.chat = client.chat.for_program()
        result = play_games(runner, count)
        runner.stop()
        return client, result

    return play


def turns_of(result: Any) -> list[Any]:
    return [trajectory_of(part).turns for episode in result.episodes for part in played_parts(episode)]


def test_a_conversation_is_one_row_of_the_sampled_ids(played: Callable[..., Any]) -> None:
    client, result = played("two_turns")
    assert not result.failures
    (turns,) = turns_of(result)
    assert [turn.new_row for turn in turns] == [True, False]
    for turn, request in zip(turns, client.requests, strict=True):
        assert turn.response_ids.tolist() == client.chat.reply_ids("Up")
        assert turn.policy_version == 3 and len(turn.rollout_logprobs) == len(turn.response_ids)
        assert request.prompt_ids[-len(turn.prompt_ids) :] == turn.prompt_ids.tolist()
    first, second = client.requests
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert client.chat.tokenizer.decode(second.prompt_ids).endswith("<|end|><|user|>Again<|end|><|assistant|>")
    (summary,) = result.summaries
    assert (summary.success, summary.seats[0].episode_return, summary.category) == (1.0, 0.5, "two")
    assert summary.seats[0].measures == {"turns": 2.0}
    assert [turn.reward for turn in turns] == [0.0, 0.5]


def rows_of(turns: list[Any]) -> list[list[int]]:
    """The ids of each row."""
    rows: list[list[int]] = []
    for turn in turns:
        if turn.new_row:
            rows.append([])
        rows[-1] += [*turn.prompt_ids.tolist(), *turn.response_ids.tolist()]
    return rows


def test_conversations_branches_and_moved_replies_begin_rows_with_the_same_ids(played: Callable[..., Any]) -> None:
    replies = iter(["Up", "Down", "Left", "Right", "Up || Up"])
    client, result = played("forest", answer=lambda request: next(replies))
    (turns,) = turns_of(result)
    assert [turn.new_row for turn in turns] == [True] * 5, "no two requests in a row go on from each other"
    rows = rows_of(turns)
    prompts = [request.prompt_ids for request in client.requests]
    assert rows == [[*prompt, *turn.response_ids.tolist()] for prompt, turn in zip(prompts, turns, strict=True)]
    up, _, again, branch, moved = prompts
    first = [*up, *turns[0].response_ids.tolist()]
    assert again[: len(first)] == branch[: len(first)] == first, "the ids are those that were sampled"
    tell = client.chat.tokenizer.decode
    assert tell(moved) == "<|user|>Right<|end|><|assistant|>Up<|end|><|user|>on<|end|><|assistant|>"
    assert tell(branch).endswith("Up<|end|><|user|>Left<|end|><|assistant|>")


def test_a_reply_is_never_tokenised_again(played: Callable[..., Any]) -> None:
    def spelt(request: Any) -> list[int]:
        chat = client_chat[0]
        return [*(i for letter in "Up" for i in chat.tokenizer.encode(letter, add_special_tokens=False)), chat.end_id]

    client_chat: list[Any] = []
    runner_chat = played("asynchronous")[0].chat
    client_chat.append(runner_chat)
    assert len(runner_chat.reply_ids("Up")) < len(spelt(None)), "the tokenizer would write it in one token"
    client, result = played("two_turns", answer=spelt)
    (turns,) = turns_of(result)
    assert [turn.new_row for turn in turns] == [True, False]
    assert client.requests[1].prompt_ids[len(client.requests[0].prompt_ids) :][: len(spelt(None))] == spelt(None)


class RealEngine:
    """An engine client whose engine is in this process, and starts when it is first asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engine: Any = None

    async def generate(self, request: Any, key: str | None = None) -> Any:
        if self.engine is None:
            options = InferenceOptions(engine="transformers", max_num_seqs=4)
            self.engine = TransformersEngine(str(self.directory), options, context_length=256, seed=0)
            await self.engine.start()
        return await self.engine.generate(request)

    def forget(self, key: str) -> None: ...

    def close(self) -> None:
        asyncio.run(self.engine.shutdown())


def test_recomputed_log_probabilities_are_the_recorded_ones(make_runner: Callable[..., Any], model_dir: Path) -> None:
    runner = make_runner("agent:agent_programs:forest", model={**MODEL, "dtype": "float32", "max_tokens_per_turn": 8})
    runner._clients["player"] = RealEngine(model_dir)
    result = play_games(runner, 1)
    runner.stop()
    (turns,) = turns_of(result)
    assert len(turns) == 5 and any(len(turn.response_ids) > 1 for turn in turns)
    seen: list[int] = []
    for turn in turns:
        seen = [*([] if turn.new_row else seen), *turn.prompt_ids.tolist(), *turn.response_ids.tolist()]
        known = logprobs_by(model_dir, seen, len(turn.response_ids))
        np.testing.assert_allclose(turn.rollout_logprobs, known, atol=1e-4)


def test_requests_at_once_async_programs_and_streams(played: Callable[..., Any]) -> None:
    (turns,) = turns_of(played("at_once")[1])
    assert len(turns) == 4 and turns[-1].reward == 4.0
    (summary,) = played("asynchronous")[1].summaries
    assert summary.seats[0].episode_return == 1.0
    (summary,) = played("streams")[1].summaries
    assert summary.seats[0].episode_return == 1.0


def test_what_cannot_be_replied_to_is_refused_and_is_no_turn(played: Callable[..., Any], tmp_path: Path) -> None:
    into = tmp_path / "refused.json"
    client, result = played("refused", env_config={"options": {"into": str(into)}})
    (turns,) = turns_of(result)
    assert len(turns) == len(client.requests) == 1
    found = json.loads(into.read_text())
    assert found["long"]["code"] == "context_length_exceeded" and "256" in found["long"]["message"]
    assert found["tools"]["param"] == "tools" and "<tool_call>" in found["tools"]["message"]
    assert found["n"]["code"] == "unsupported_parameter"
    assert {error["type"] for error in found.values()} == {"invalid_request_error"} and len(found) == 5


@pytest.mark.parametrize("again", [2, 0])
def test_a_reply_that_the_program_never_got_is_no_turn(played, tmp_path: Path, monkeypatch, again: int) -> None:
    runs: list[programs.Run] = []
    begin = programs.Run.__init__
    monkeypatch.setattr(programs.Run, "__init__", lambda run, *args: (runs.append(run), begin(run, *args))[1])
    replies = iter(["Down", "Left", "Right"])

    async def answer(request: Any) -> str:
        (tmp_path / "asked").touch()
        reply = next(replies)
        asked = runs[-1]._asked
        while reply == "Down" and asked is not None and not asked.reply.done():  # Its client is still there.
            await asyncio.sleep(0.01)
        return reply

    options = {"options": {"asked": str(tmp_path / "asked"), "again": again}}
    client, result = played("impatient", answer=answer, env_config=options)
    if not again:
        (failure,) = result.failures
        assert failure.reason == "env_error" and "its client had gone before the reply" in failure.message
        return
    (turns,) = turns_of(result)
    assert [turn.response_ids.tolist() for turn in turns] == [client.chat.reply_ids(word) for word in ("Left", "Right")]
    assert [turn.new_row for turn in turns] == [True, False] and [turn.reward for turn in turns] == [0.0, 1.0]
    lost, first, second = (request.prompt_ids for request in client.requests)
    assert lost == first and second[: len(first)] == first
    assert result.summaries[0].seats[0].turns == 2


def test_an_experts_reply_that_is_longer_than_the_program_asks_for_is_blamed_on_that(make_runner) -> None:
    runner = make_runner("agent:agent_programs:terse", model=MODEL)
    result = play_games(runner, 1, expert="agent_programs:Talker")
    runner.stop()
    assert isinstance(result.error, ConfigError) and result.error.path == "config.env"
    assert result.error.message.endswith("tokens or more; max_tokens of the program's request is 2")


@pytest.mark.parametrize(
    ("program", "reason", "words"),
    [
        ("dies", "env_error", "it was ended by SIGKILL"),
        ("leaves", "env_error", "it ended itself, with status 3"),
        ("raises", "env_error", "KeyError: 'no such </answer> key' (agent_programs.py:"),
        ("returns_nonsense", "env_error", "it must return a number"),
        ("asks_nothing", "env_error", "it ended without a completion"),
        ("gives_up", "env_error", "its requests were refused: the messages have"),
        ("of_two", "env_error", "must take one argument"),
    ],
)
def test_what_goes_wrong_drops_the_episode(played: Callable[..., Any], program: str, reason: str, words: str) -> None:
    _, result = played(program)
    (failure,) = result.failures
    assert failure.reason == reason and words in failure.message and not result.episodes


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def are_gone(pids: list[int]) -> bool:
    return not [pid for pid in pids if alive(pid)]


def test_nothing_of_a_program_that_ends_is_left(played: Callable[..., Any], tmp_path: Path) -> None:
    into = tmp_path / "pids"
    _, result = played("leaves_processes", env_config={"options": {"into": str(into)}})
    pids = [*map(int, into.read_text().split())]
    assert not result.failures and len(pids) == 2 and are_gone(pids)


def test_what_a_fork_of_a_program_returns_is_not_its_reward(played: Callable[..., Any]) -> None:
    _, result = played("forks")
    assert not result.failures
    (turns,) = turns_of(result)
    assert len(turns) == 2 and turns[-1].reward == 1.0


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    into = tmp_path / "pids"
    session = make_session("agent:agent_programs:hangs", {"options": {"into": str(into)}})
    session.reset(0)
    assert session.observe("player").text == "Up"
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(session.step, {"player": "Up"})
        while not into.exists() or len(into.read_text().split()) < 2:
            assert not step.done()
        session.close()  # As is done with a game that takes longer than its limit.
        assert are_gone([*map(int, into.read_text().split())])
        with pytest.raises(GameError, match="it was ended"):
            step.result()


def test_a_program_that_asks_for_too_much_is_cut_short(played: Callable[..., Any]) -> None:
    client, result = played("without_end", env_config={"max_turns": 3}, rollouts={"bootstrap_turn_limit": True})
    (episode,) = result.episodes
    (part,) = played_parts(episode)
    trajectory = trajectory_of(part)
    assert len(trajectory.turns) == 3 and not trajectory.terminated
    assert client.chat.tokenizer.decode(trajectory.final_prompt_ids) == "<|user|>", "where the next message would be"
    assert result.summaries[0].stop_reason == "max_turns"


def test_programs_that_cannot_be_used_are_refused() -> None:
    def problem(path: str) -> str:
        with pytest.raises(ConfigError) as error:
            make_game(f"agent:{path}").check_ready()
        return str(error.value)

    assert "cannot import 'no_such_module': ModuleNotFoundError" in problem("no_such_module:play")
    assert "has no 'plays'" in problem("agent_programs:plays")
    assert "it must be a function" in problem("agent_programs:NUMBER")
    assert "must take one argument" in problem("agent_programs:of_two")
    assert "write agent:package.module:function" in problem("agent_programs.py")
    assert game_spec("agent:a.b:c").defaults == {"program": "a.b:c"}


def test_a_program_needs_no_rules_and_takes_any_reply() -> None:
    session = make_session("agent:agent_programs:two_turns", {})
    assert not checker._description("two_turns", {}, session)
    assert make_game("agent:agent_programs:two_turns", {}).unwrapped.read_move("a\udc80") == "a?"
