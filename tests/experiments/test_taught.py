"""Episode logs to learn from are read before anything starts."""

from __future__ import annotations

import json

import pytest

from tests.experiments.test_check import GAME, SFT, check, error_of

KUHN = SFT.replace("Sokoban", "KuhnPoker")


def record(game: str = "lmgame/Sokoban-v0", agent: str = "agent_0", **changes) -> str:
    step = {"observations": {agent: "room"}, "actions": {agent: "up"}, "rewards": {agent: 1.0}}
    whole = {
        "game": game,
        "seed": 3,
        "terminated": True,
        "final_observations": {agent: "over"},
        "steps": [step],
        "trajectories": [{"agent_id": agent, "role": agent}],
    }
    return json.dumps(whole | changes) + "\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no episodes"),
        ("\n\n", "holds no episodes"),
        (record() + record()[:40], "line 2: no JSON"),
        (record() + "[1]\n", "line 2: a record must be a mapping, not list"),
        (record() + record(steps=[]), "line 2: not an episode record (ValueError: it has no steps)"),
        (record() + record("lmgame/KuhnPoker-v0"), "line 2: an episode of lmgame/KuhnPoker-v0, but lmgame/Sokoban-v0"),
    ],
)
@pytest.mark.parametrize(("text", "section"), [(SFT, "supervised"), (GAME, "warm_start")])
def test_a_log_that_cannot_be_learnt_from_is_refused(content, words, text, section, tmp_path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(content)
    error = error_of(text, f"config.{section}.data={log}")
    assert error.path == f"config.{section}.data" and words in error.message and str(log) in error.message


SEATS = "config.policy_mapping_fn={player_0: a, player_1: b}"


def test_a_log_with_a_seat_that_nobody_takes_is_refused(tmp_path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(record("lmgame/KuhnPoker-v0", agent="stranger"))
    error = error_of(KUHN, f"config.supervised.data={log}", "config.policies={a: {}, b: {}}", SEATS)
    assert error.path == "config.supervised.data" and "line 1" in error.message and "stranger" in error.message


def test_a_log_is_read_once_for_a_grid(tmp_path, monkeypatch) -> None:
    from rllib_lmgame.rollouts.taught import source

    log, read = tmp_path / "log.jsonl", []
    log.write_text(record())
    records_of = source.records_of
    monkeypatch.setattr(source, "records_of", lambda path: read.append(path) or records_of(path))
    check(SFT, f"config.supervised.data={log}", "config.supervised.lr={grid_search: [1e-3, 1e-4, 1e-5]}")
    assert read == [log]
