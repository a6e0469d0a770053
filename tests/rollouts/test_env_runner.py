"""The env runner on the driver, without Ray: what it plays, what it hands over, what it logs."""

from __future__ import annotations

import errno
import inspect
import logging
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_play import play_games

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.datasets.preferences import alone
from rllib_lmgame.envs.contract.infos import plain_info
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episode_log import EpisodeLog, _without_shared_prefixes, read_log, whole_prompts
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.records import GameConfig, PlayResult, trajectory_of

MakeRunner = Callable[..., TextGameEnvRunner]


def play(runner: TextGameEnvRunner, count: int = 6, *, run_seed: int = 0, **settings) -> PlayResult:
    result = play_games(runner, count, run_seed=run_seed, **settings)
    assert result.error is None and not result.failures
    return result


def test_what_schedules_change_reaches_requests_and_games(make_runner: MakeRunner) -> None:
    runner = make_runner(rollouts={"format_penalty": -1.0}, answer=lambda request: [0])
    games = tuple(GameConfig(env="lmgame/Sokoban-v0", env_config={"max_turns": turns}) for turns in range(1, 7))
    client = runner.client("player")
    for number, game in enumerate(games):
        changed = {
            "rollouts": TextRolloutOptions(format_penalty=-5.0 - number),
            "inference": InferenceOptions(temperature=0.5),
            "language_model": {"max_tokens_per_turn": 3 + number},
        }
        before = len(client.requests)
        result = play_games(runner, 2, games=(game,), **changed)
        assert [seat.turns for episode in result.summaries for seat in episode.seats] == [min(number + 1, 3)] * 2
        rewards = [episode.agent_episodes["player"].get_rewards() for episode in result.episodes]
        assert all(max(of_one) < -5.0 - number for of_one in rewards)
        asked = [request.sampling for request in client.requests[before:]]
        assert {(sampling.temperature, sampling.max_tokens) for sampling in asked} == {(0.5, 3 + number)}
    assert list(runner.hooks.idle) == [game.key for game in games[-4:]], "what is no longer played is closed"
    play_games(runner, 1, games=games[:1])
    last = client.requests[-1].sampling
    assert (last.temperature, last.max_tokens) == (1.0, 32)


def test_what_a_policy_has_of_its_own_comes_before_a_schedule(make_runner: MakeRunner) -> None:
    own = {"own": {"language_model": {"max_tokens_per_turn": 8}}, "other": {}}
    runner = make_runner("lmgame/TicTacToe-v0", players={"policies": own}, answer=lambda request: [0])
    for policy, most in (("own", 8), ("other", 5)):
        assert runner.chat(policy, {"max_tokens_per_turn": 5}).options.max_tokens_per_turn == most


def test_games_of_evaluation_outlive_a_schedule_of_weights(make_runner: MakeRunner) -> None:
    """Each iteration's weights are others, its games are the same."""
    runner = make_runner(answer=lambda request: [0])
    evaluated, *trained = (GameConfig(env="lmgame/Sokoban-v0", env_config={"max_turns": turns}) for turns in (3, 1, 2))
    play_games(runner, 1, games=(evaluated,))
    kept = runner.hooks.idle[evaluated.key][0]
    for number in range(1, 6):
        games = tuple(game.model_copy(update={"weight": number + place}) for place, game in enumerate(trained))
        play_games(runner, 2, games=games)
    assert runner.hooks.idle[evaluated.key][0] is kept


def test_no_method_is_a_coroutine() -> None:
    """Ray would make it an asyncio actor, in which ``sample`` could not run a loop of its own."""
    for cls in TextGameEnvRunner.__mro__:
        for name, member in vars(cls).items():
            function = getattr(member, "__func__", member)
            assert not inspect.iscoroutinefunction(function) and not inspect.isasyncgenfunction(function), name


@pytest.mark.parametrize(
    ("game", "expert"),
    [
        ("lmgame/Sokoban-v0", "solver"),
        ("lmgame/Sokoban-v0", "random"),
        ("lmgame/TicTacToe-v0", "minimax"),
        ("lmgame/KuhnPoker-v0", "random"),
    ],
)
def test_experts_write_replies_that_parse_back_to_what_they_played(make_runner, game, expert) -> None:
    runner = make_runner(game)
    chat = runner.chat("player")
    client = runner.client("player")
    for episode in play(runner, expert=expert).episodes:
        for single in episode.agent_episodes.values():
            trajectory = trajectory_of(single)
            actions = [chat.reply_format.parse(chat.read(turn.response_ids)).action for turn in trajectory.turns]
            assert actions == single.actions.data and all(actions)
            assert all(not turn.rollout_logprobs.any() and turn.policy_version == 0 for turn in trajectory.turns)
    assert not client.requests


def test_what_is_kept(make_runner: MakeRunner) -> None:
    runner = make_runner(
        "lmgame/TicTacToe-v0",
        players={
            "policies": {"player": {}, "best": {"player": "minimax"}},
            "policy_mapping_fn": {"X": "player", "O": "best"},
        },
    )
    kept = {keep: play(runner, keep=keep, expert="random") for keep in ("episodes", "nothing")}
    assert [len(k.episodes) for k in kept.values()] == [6, 0]
    assert kept["episodes"].summaries == kept["nothing"].summaries
    assert {seat.module_id for s in kept["nothing"].summaries for seat in s.seats} == {"player", "best"}


def test_sampling_settings_reach_the_engine(make_runner: MakeRunner) -> None:
    runner = make_runner()
    runner.config.inference(temperature=0.7, top_p=0.9, top_k=5)
    client = runner.client("player")
    play(runner, 1)
    play(runner, 1, temperature=0.0, seeded=True)
    train, greedy = client.requests[0].sampling, client.requests[-1].sampling
    assert (train.temperature, train.top_p, train.top_k, train.seed) == (0.7, 0.9, 5, None)
    assert (greedy.temperature, greedy.top_p, greedy.top_k) == (0.0, 1.0, 0) and greedy.seed is not None
    assert train.stop_token_ids == runner.chat("player").stop_token_ids and train.max_tokens == 32
    assert len({request.request_id for request in client.requests[:-1]}) > 1
    assert set(client.forgotten) == set(client.keys) == {"t-1-0"}


def test_legal_moves_that_are_longer_than_a_reply_may_be(make_runner: MakeRunner) -> None:
    runner = make_runner("lmgame/TicTacToe-v0", rollouts={"constrained_decoding": True})
    runner._chats.clear()
    runner.config.language_model(max_tokens_per_turn=1)
    result = play_games(runner, 1)
    assert isinstance(result.error, ConfigError) and "max_tokens_per_turn" in str(result.error)


def test_sample_is_rllibs_entry_point(make_runner: MakeRunner) -> None:
    runner = make_runner(rollouts={"episodes_per_iteration": 5})
    first, second = runner.sample(), runner.sample(num_episodes=3)
    assert (len(first), len(second)) == (5, 3)
    assert not {e.id_ for e in first} & {e.id_ for e in second}
    assert all(episode.is_done for episode in first)
    state = runner.get_state()
    other = make_runner()
    other.set_state(state)
    assert other.get_state() == state == {"sampled": 2}


def test_stop_closes_everything(make_runner: MakeRunner) -> None:
    runner = make_runner()
    client = runner.client("player")
    play(runner, 2)
    runner.stop()
    assert client.closed and not runner.hooks.idle and not runner._clients


# -- episode log -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", ["keep", "window"])
def test_the_log_holds_all_there_is_to_a_trajectory(make_runner, tmp_path, history) -> None:
    model = {"max_tokens_per_episode": 40, "history": history}
    runner = make_runner(
        "lmgame/TicTacToe-v0", lambda request: "5", episode_log_dir=str(tmp_path / "logs"), model=model
    )
    result = play(runner, log="train")
    records = read_log(tmp_path / "logs" / "train-0.jsonl")
    assert [record["episode_id"] for record in records] == [episode.id_ for episode in result.episodes]
    for record, episode, summary in zip(records, result.episodes, result.summaries, strict=True):
        assert (record["game"], record["seed"]) == (summary.game_id, summary.seed)
        assert (record["terminated"], record["stop_reason"]) == (summary.terminated, summary.stop_reason)
        assert len(record["steps"]) == summary.steps and record["instructions"]
        for entry in record["trajectories"]:
            trajectory = trajectory_of(episode.agent_episodes[entry["agent_id"]])
            assert (entry["role"], entry["module_id"]) == (trajectory.role, "player")
            assert ("final_prompt_ids" in entry) == (trajectory.final_prompt_ids is not None)
            final = [] if trajectory.final_prompt_ids is None else [trajectory.final_prompt_ids]
            assert whole_prompts(entry) == [
                ids.tolist() for ids in (*(turn.prompt_ids for turn in trajectory.turns), *final)
            ]
            for logged, turn in zip(entry["turns"], trajectory.turns, strict=True):
                assert logged["response_ids"] == turn.response_ids.tolist()
                np.testing.assert_array_equal(np.asarray(logged["rollout_logprobs"], np.float32), turn.rollout_logprobs)
                assert (logged["reward"], logged["policy_version"]) == (turn.reward, 3)
                assert (logged["new_row"], logged["stop_reason"]) == (turn.new_row, "eos")
                assert logged["text"] == "<answer>5</answer>"


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), max_size=6)), min_size=1, max_size=8))
def test_prompts_come_back_whole(prompts: list[tuple[bool, list[int]]]) -> None:
    prompts = [(True, prompts[0][1]), *prompts[1:]]
    written = [
        {"new_row": new_row, **entry}
        for (new_row, _), entry in zip(prompts, _without_shared_prefixes(prompts), strict=True)
    ]
    assert whole_prompts({"turns": written}) == [ids for _, ids in prompts]


def test_of_a_sample_learners_know_what_is_logged(make_runner, tmp_path) -> None:
    result = play(make_runner(episode_log_dir=str(tmp_path)), log="train", log_most=2)
    logged = [record["episode_id"] for record in read_log(tmp_path / "train-0.jsonl")]
    assert len(result.episodes) == 6 and len(logged) == 2
    told = {e.id_: {trajectory_of(part).logged for part in e.agent_episodes.values()} for e in result.episodes}
    assert told == {episode.id_: {episode.id_ in logged} for episode in result.episodes}
    one = next(episode for episode in result.episodes if episode.id_ in logged)
    again = [alone(part, "kept-0") for part in one.agent_episodes.values()]
    names = [trajectory_of(part).logged for episode in again for part in episode.agent_episodes.values()]
    assert names == [False], "the log does not know that name"


def test_a_full_disk_is_reported_and_does_not_end_the_run(make_runner, tmp_path, monkeypatch, caplog) -> None:
    def full(self: EpisodeLog, records) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(EpisodeLog, "write", full)
    with caplog.at_level(logging.ERROR):
        result = play(make_runner(episode_log_dir=str(tmp_path)), 2, log="train")
    assert len(result.episodes) == 2
    assert "No space left on device" in caplog.text and str(tmp_path) in caplog.text


def test_a_disk_that_fills_up_while_writing_leaves_no_half_records(tmp_path) -> None:
    """Beyond its size limit a file takes part of a write, then none: as on a full disk."""
    import resource
    import signal

    log = EpisodeLog(tmp_path / "log.jsonl")
    log.write([{"n": 1}])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(OSError):
            log.write([{"n": 2}, {"text": "x" * 5000}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    log.write([{"n": 3}])
    assert read_log(log.path) == [{"n": 1}, {"n": 3}]


def test_a_line_that_was_cut_off_costs_no_other(tmp_path) -> None:
    log = EpisodeLog(tmp_path / "log.jsonl")
    log.path.write_text('{"n": 1}\n{"n"')  # Killed while it wrote.
    log.write([{"n": 2}])
    log.write([{"n": 3}])
    assert log.path.read_text().splitlines() == ['{"n": 1}', '{"n"', '{"n": 2}', '{"n": 3}']


def test_odd_infos_become_plain_data() -> None:
    numbers = {"array": np.arange(3), "number": np.float32(0.5), "success": np.bool_(True), "tuple": (1, None)}
    odd = {("a", 1): {2: threading.Lock}, "set": {1}, "surrogate": "a\ud800", "line": "\u2028\n"}
    info = plain_info(numbers | odd)
    assert {key: info[key] for key in numbers} == {
        "array": [0, 1, 2],
        "number": 0.5,
        "success": True,
        "tuple": [1, None],
    }
    assert info["set"] == "{1}" and "('a', 1)" in info
    assert pickle.loads(pickle.dumps(info)) == info


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"measures": {"rate": float("nan")}}, "gives rate no finite number"),
        ({"measures": {"rate": 10**400}}, "gives rate no finite number"),
        ({"measures": {"rate": "0.5"}}, "gives rate no finite number"),
        ({"measures": {"a/b": 1.0}}, "names 'a/b'"),
        ({"measures": [0.5]}, "must be a mapping"),
        ({"measures": {f"n{i}": 0.0 for i in range(65)}}, "at most 64 names"),
        *(
            ({"result": value}, "`result` is not a finite number")
            for value in (float("nan"), np.float32("inf"), np.longdouble("nan"), 10**5000)
        ),
    ],
    ids=range(10),
)
def test_numbers_no_metric_can_hold_are_refused(info, said) -> None:
    with pytest.raises(ValueError, match=said):
        plain_info(info)
