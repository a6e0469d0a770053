"""What a run keeps of its episodes, and what its updates knew of their tokens."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from episode_parts import collected

from rllib_lmgame.rollouts.episode_log import EpisodeLog, chosen, end_before, read_log, shorten
from rllib_lmgame.rollouts.episodes import summarize
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.viewer.forms import is_forced
from rllib_lmgame.viewer.library import Library, sources_of


def _library(path: Path) -> Library:
    library = Library(sources_of([str(path)]))
    list(library.refresh())
    return library


def _move_learner_from_sampler(algorithm: Any) -> None:
    """Both compute the same model, to a millionth, where nothing moved them apart."""
    with torch.no_grad():
        for module in algorithm.learner_group._learner.module._rl_modules.values():
            for weights in module.parameters():
                weights.mul_(1.05)


@pytest.mark.slow
@pytest.mark.parametrize("constrained", [False, True])
def test_tokens_shown_sum_to_the_metrics_of_their_iteration(start, make_config, constrained):
    options = {"episode_log": "all", "group_size": 4, "constrained_decoding": constrained}
    game = {"env": "lmgame/TicTacToe-v0", "env_config": {}} if constrained else {}
    config = make_config(**game, text_rollouts=options, training={"advantage_estimator": "grpo"})
    algorithm = start(config)
    results = []
    for _ in range(2):
        _move_learner_from_sampler(algorithm)
        results.append(algorithm.train())
    directory = Path(algorithm.trial_directory())
    library = _library(directory)
    assert len(library.rows) == 32 and not library.problems
    forced, sums = 0, {1: np.zeros(4), 2: np.zeros(4)}
    for number in range(len(library.rows)):
        episode = library.episode(number)
        for turn in (turn for seat in episode["seats"] for turn in seat["turns"]):
            for k, old in enumerate(turn["old"]):
                assert (old is None) == is_forced(turn, k)
                forced += is_forced(turn, k)
                if old is not None:
                    gap = abs(old - turn["logprobs"][k])
                    sums[episode["iteration"]] += 1, gap, turn["advantages"][k], turn["entropy"][k]
            assert "".join(turn["pieces"]) == turn["text"]
    assert (forced > 0) == constrained
    for (tokens, gap, advantage, entropy), result in zip(sums.values(), results, strict=True):
        told = result["learners"]["player"]
        assert tokens == told["trained_tokens"]
        assert advantage / tokens == pytest.approx(told["advantage_mean"], abs=1e-4)
        assert entropy / tokens == pytest.approx(told["entropy"], rel=1e-4)
        assert gap / tokens == pytest.approx(told["logprob_diff_mean"], rel=1e-4) and gap / tokens > 0.01
    (log,) = (directory / "episodes").glob("*.tokens")
    kept = log.read_text()
    log.write_text(kept.replace('"rollout_sum": -', '"rollout_sum": -1'))
    assert "old" not in _library(directory).episode(0)["seats"][0]["turns"][0], "of another playing of the iteration"
    log.write_text("")
    library = _library(directory)
    log.write_text(kept + '{"episode_id": "train-0-0"}\n')  # The update comes after the episodes.
    list(library.refresh())
    episodes = [library.episode(number) for number in range(len(library.rows))]
    assert all("old" in turn for episode in episodes for seat in episode["seats"] for turn in seat["turns"])
    assert len(library.problems) == 1 and "no tokens are read from it" in library.problems[0]


def test_a_sample_shows_the_best_and_the_worst_of_every_game():
    games = ("lmgame/FrozenLake-v0", "lmgame/Sokoban-v0")
    players = ("solver", "random")
    played: list[Any] = [
        each for game in games for player in players for each in collected(game, player=player, episodes=10)
    ]
    few = chosen(played, 8)
    assert [each.game_id for each in few] == [game for game in games for _ in range(4)]
    for game in games:
        verdicts = [summarize(each).success for each in few if each.game_id == game]
        assert sorted(verdicts) == [0.0, 0.0, 1.0, 1.0]
    assert chosen(few, 99) == few and chosen([], 3) == [] and len(chosen(played, 7)) == 7


def test_of_a_sample_the_newest_bytes_are_kept(tmp_path):
    log = EpisodeLog(tmp_path / "train-0.jsonl")
    for iteration in range(200):
        log.write([{"episode_id": f"train-{iteration}-{n}", "filling": "x" * 90} for n in range(4)])
        shorten(log.path, 20_000)
        assert log.path.stat().st_size <= 20_000
    names = [record["episode_id"] for record in read_log(log.path)]
    assert len(names) > 60 and names == [f"train-{n // 4}-{n % 4}" for n in range(800)][-len(names) :]
    shorten(tmp_path / "none", 1000)


def test_what_is_played_again_stands_in_no_log_before(tmp_path):
    """Also of refills and further attempts, and where another run had gone on without taking anything out."""
    numbered = {
        iteration: [f"train-{iteration}-0", f"train-{iteration}-1+2", f"train-refill-1-{iteration}-12"]
        for iteration in range(12)
    }
    rest = [{"episode_id": each} for iteration in (*range(12), *range(7, 9)) for each in numbered[iteration]]
    for name in ("train-0.jsonl", "train-1.jsonl", "learner-0.tokens", "report-0.jsonl"):
        EpisodeLog(tmp_path / name).write(rest)
    (tmp_path / "train-1.jsonl").open("a").write('{"episode_id": "train-11-3", "gam')
    end_before(str(tmp_path), 8)
    kept = [each for iteration in (*range(8), 7) for each in numbered[iteration]]
    for path in tmp_path.iterdir():
        found = [record["episode_id"] for record in read_log(path)]
        assert found == ([each["episode_id"] for each in rest] if path.name == "report-0.jsonl" else kept)
    before = (tmp_path / "train-0.jsonl").stat()
    end_before(str(tmp_path), 8)
    assert (tmp_path / "train-0.jsonl").stat() == before
    end_before(None, 0)
    end_before(str(tmp_path / "nowhere"), 0)
    assert len(read_log(tmp_path / "train-0.jsonl")) == len(kept)


@pytest.mark.parametrize(("how", "log", "most"), [("off", None, None), ("sample", "train", 16), ("all", "train", None)])
def test_every_algorithm_that_plays_keeps_what_episode_log_says(how, log, most, monkeypatch):
    from rllib_lmgame.algorithms import agentevol, ppo

    class Played(Exception):
        pass

    def play(plans: Any, settings: Any) -> None:
        raise Played(settings.log, settings.log_most)

    rollouts = TextRolloutOptions(episode_log=how)
    own = SimpleNamespace(
        config=SimpleNamespace(training_games=tuple, run=SimpleNamespace(text_rollouts=rollouts, deterministic=False)),
        engine_groups={},
        timed=lambda _: contextlib.nullcontext(),
        play=play,
        _plans=lambda _: [],
    )
    monkeypatch.setattr(agentevol.workers, "engine_stats", lambda _: {})
    with pytest.raises(Played) as played:
        agentevol.LMGameAgentEvol._explore(own, None)  # type: ignore[arg-type]
    assert played.value.args == (log, most)
    present = SimpleNamespace(games=(), text_rollouts=rollouts, inference=None, present={}, deterministic=False)
    settings = ppo._settings(present)  # type: ignore[arg-type]
    assert (settings.log, settings.log_most) == (log, most)
