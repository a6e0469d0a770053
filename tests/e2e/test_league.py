"""A league end to end: members on disk, in opponent engines and in checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import signal

import numpy as np
import pytest
from engine_replies import logprobs_by, reply_of
from learner_weights import hf_state

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.league.files import read_member
from rllib_lmgame.rollouts.records import played_parts
from rllib_lmgame.telemetry.metrics import LEAGUE_NAMES

pytestmark = pytest.mark.slow

ITERATIONS = 4
LEAGUE = {
    "env": "lmgame/KuhnPoker-v0",
    "env_config": {},
    "league": {
        "snapshot_every": 1,
        "max_members": 3,
        "opponent_engines": 2,
        "self_play_share": 0.25,
        "matchmaking": "uniform",
    },
    "text_rollouts": {"episodes_per_iteration": 32, "constrained_decoding": True},
    "lr": 3.0e-3,
}


def content(directory) -> dict[str, str]:
    """File name -> digest."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def trained(ray_cluster, make_config):
    """A league's algorithm after some iterations, its results, and what the files of a member were at first."""
    algorithm = make_config(**LEAGUE).build_algo()
    results = [algorithm.train()]
    algorithm.train()
    before = content(algorithm.trial_directory() / "league" / "player-1")
    results += [algorithm.train() for _ in range(ITERATIONS - 2)]
    yield algorithm, results, before
    algorithm.stop()


def test_members_come_and_go_and_never_change(trained) -> None:
    algorithm, results, before = trained
    directory = algorithm.trial_directory() / "league"
    members = algorithm._league.league.members
    assert [member.name for member in members] == [f"player-{i}" for i in range(1, ITERATIONS)]
    assert {path.name for path in directory.iterdir()} == {*(member.name for member in members), "league.json"}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(before)
    assert content(directory / "player-1") == before
    assert len({member.checksum for member in members}) == 3
    assert [member["name"] for member in json.loads((directory / "league.json").read_text())["members"]] == [
        member.name for member in members
    ]
    numbers = results[-1]["league"]
    assert numbers["size"] == 3 and set(numbers["win_rate"]["player"]) <= {member.name for member in members}
    assert 2 <= numbers["swaps"] <= 2 * ITERATIONS
    assert set(numbers) == set(LEAGUE_NAMES)


def test_nothing_of_a_member_is_trained_on(trained) -> None:
    """Its tokens are older than the learner's and of other weights, so either number would show them."""
    algorithm, results, _ = trained
    for result in results:
        assert result["learners"]["player"]["staleness"] == 0
        assert result["learners"]["player"]["logprob_diff"] <= 1e-4
    algorithm._league.prepare(ITERATIONS)
    batch = algorithm.play_batch()
    seats = [seat for summary in batch.summaries for seat in summary.seats]
    learning = sum(seat.trained for seat in seats)
    assert learning == 8 * 2 + 24 and len(seats) == 64
    assert sum(1 for episode in batch.episodes for _ in played_parts(episode, ["player"])) == learning
    past = [seat for seat in seats if not seat.trained]
    assert {seat.role for seat in past} == {seat.role for seat in seats}
    met = {table.member.version for table in algorithm._league.league.tables(ITERATIONS)}
    assert {seat.min_policy_version for seat in past} == met != {algorithm.policy_version}


def check_held(algorithm) -> None:
    """Every opponent engine samples from its member's files, under the version of the snapshot."""
    play = algorithm._league
    members = {member.name: member for member in play.league.members}
    for group, name in zip(play._groups, play._held, strict=True):
        assert group._last[None][0].checksum == members[name].checksum  # an engine refuses what does not arrive as this
        ids, logprobs, version = reply_of(group)
        assert version == members[name].version
        assert np.abs(logprobs_by(play.directory / name, ids, len(logprobs)) - logprobs).max() <= 1e-4
        other = next(member for member in reversed(play.league.members) if member.name != name)
        assert np.abs(logprobs_by(play.directory / other.name, ids, len(logprobs)) - logprobs).max() > 1e-3


def test_an_engine_that_dies_in_the_middle_of_a_match_has_its_members_weights_afterwards(trained, monkeypatch) -> None:
    """It dies with the first reply of an iteration; what else it was asked for is lost."""
    import ray

    from rllib_lmgame.inference.serving.client import EngineClient

    algorithm, _, _ = trained
    play = algorithm._league
    play.prepare(ITERATIONS)
    check_held(algorithm)
    (name,) = play._groups[0].names
    pid = ray.get(ray.get_actor(name).status.remote())["pid"]
    killed: list[int] = []
    generate = EngineClient.generate

    async def generate_and_kill(client: EngineClient, *args, **kwargs):
        reply = await generate(client, *args, **kwargs)
        if name in [link.name for link in client._links] and not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)
        return reply

    monkeypatch.setattr(EngineClient, "generate", generate_and_kill)
    result = algorithm.play_batch()
    assert killed and len(result.summaries) == 32
    assert ray.get(ray.get_actor(name).status.remote())["pid"] != pid
    check_held(algorithm)


def test_a_damaged_member_is_named_and_not_played(trained) -> None:
    algorithm, _, _ = trained
    play = algorithm._league
    member = play.league.members[0]
    file = play.directory / member.name / "model.safetensors"
    sound = file.read_bytes()
    try:
        for damaged, words in (
            (sound[:-8] + b"\1\2\3\4\5\6\7\10", "does not hold the weights of the league's member any more"),
            (sound[: len(sound) // 2], "cannot be read"),
            (None, "is missing"),
        ):
            file.unlink(missing_ok=True)
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=rf"{member.name}.*{words}"):
                read_member(play.directory, member)
    finally:
        file.write_bytes(sound)
    assert read_member(play.directory, member).checksum == member.checksum


def test_members_are_the_same_after_more_updates(trained) -> None:
    """Of the policy whose snapshots they are."""
    algorithm, _, _ = trained
    play = algorithm._league
    play.prepare(ITERATIONS)
    batch = algorithm.play_batch()
    before = {member.name: content(play.directory / member.name) for member in play.league.members}
    weights = hf_state(algorithm.learner_group._learner)
    for _ in range(10):
        algorithm.after_update(algorithm.update(batch))
    algorithm.push_weights()
    assert any(
        not np.array_equal(weights[name], tensor) for name, tensor in hf_state(algorithm.learner_group._learner).items()
    )
    assert {name: content(play.directory / name) for name in before} == before
    for member in play.league.members:
        assert read_member(play.directory, member).checksum == member.checksum
