"""Judges and oracles that are policies of the run: asked on the engines that play."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from session_play import play_games

from rllib_lmgame.algorithms.models import tiny_corpus
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli.main import main
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.talk.debate.game import Debate
from rllib_lmgame.envs.support.asked_models import AskedModel, Policies, policies_of_run
from rllib_lmgame.evaluation.evaluate import engines_for
from rllib_lmgame.inference.protocol import failed
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.rollouts import engine_judge
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.game_calls import run_to_end
from rllib_lmgame.rollouts.records import PlayResult

MakeRunner = Callable[..., TextGameEnvRunner]
DEBATE: dict[str, Any] = {"judge": "policy:judge", "speeches": 1}
PLAYERS = {"policies": {"player": {}, "judge": {"trained": False}}, "policy_mapping_fn": {"*": "player"}}
ONLY = {"player": "solver"}


def debates(make_runner: MakeRunner, verdict: Any, **model: Any) -> tuple[Any, PlayResult]:
    """The judge's client, and what became of four debates of experts; ``verdict`` is a text or a reply of its own."""
    model = {"context_length": 2048, "reply_prefill": "<answer>", **model}
    runner = make_runner("lmgame/Debate-v0", env_config=DEBATE, model=model, players=PLAYERS)
    judge: Any = runner.client("judge")
    ids = [*judge.chat.encode(verdict), judge.chat.end_id] if isinstance(verdict, str) else None
    judge.answer = verdict if ids is None else lambda request: ids
    result = play_games(runner, 4, players=ONLY)
    assert result.error is None and not runner.client("player").requests  # type: ignore[attr-defined]
    return judge, result


def test_a_policy_judges_the_debates_that_its_engines_play(make_runner: MakeRunner) -> None:
    judge, result = debates(make_runner, "CON")
    assert [{seat.role: seat.episode_return for seat in one.seats} for one in result.summaries] == [
        {"pro": -1.0, "con": 1.0}
    ] * 4
    assert len({request.request_id for request in judge.requests}) == 4
    for request in judge.requests:
        asked = judge.chat.decode(request.prompt_ids)
        assert "[PRO] I say so because" in asked and "one word: PRO, CON or DRAW." in asked
        assert not asked.endswith("<answer>") and request.sampling.temperature == 0.0 and request.choices is None


def test_a_policy_without_a_verdict_or_an_answer_drops_the_episode(make_runner: MakeRunner) -> None:
    for verdict, reason, words in (
        ("who knows", "env_error", "policy 'judge' gave no verdict"),
        (lambda request: failed(request.request_id, "out of order", -1), "env_busy", "policy 'judge': out of order"),
    ):
        _, result = debates(make_runner, verdict)
        assert not result.summaries and [failure.reason for failure in result.failures] == [reason] * 4
        assert words in result.failures[0].message
    judge, result = debates(make_runner, "PRO", context_length=64)
    assert "more than its context_length of 64" in result.failures[0].message and not judge.requests


def test_engines_that_never_answer_are_given_up(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_judge, "SLACK_S", -2 * 600.0 + 0.1)  # 600 s is the limit of a request.
    _, result = debates(make_runner, lambda request: asyncio.Event().wait())
    assert {failure.reason for failure in result.failures} == {"env_busy"}
    assert "policy 'judge' gave no answer" in result.failures[0].message


@pytest.mark.slow
def test_an_engine_of_the_run_answers(
    make_config: Callable[..., Any], tiny_model_dir: str, ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_judge, "MAX_TOKENS", 12)
    options = {"oracle": "policy:player", "split": "all", "max_turns": 3}
    config = make_config(env="lmgame/GuessMyCity-v0", env_config=options, language_model={"context_length": 1024})
    config.model_files = {"player": ModelFiles(tiny_model_dir)}
    question = ("You judge.", "who is right?")

    async def asked() -> str:
        return await asyncio.to_thread(AskedModel("policy:player", "k").ask, *question)

    with engines_for(config, None) as loaded:
        said = run_to_end(loaded.runner._with_policies(asked()))
        result = loaded.play(config.training_games(), 2, players=ONLY)
    assert said
    assert len(result.summaries) + len(result.failures) == 2
    assert not [failure.message for failure in result.failures if "gave no answer" not in failure.message]


def test_a_policy_is_asked_only_by_games_of_its_run(make_config: Callable[..., Any]) -> None:
    game = Debate(judge="policy:judge")
    with pytest.raises(ConfigError, match=r"env_config\.judge: policy 'judge' is asked on the engines of a run, and"):
        game.check_ready()
    with pytest.raises(GameError, match="here is none; name a model as openai:MODEL@URL"):
        AskedModel("policy:judge", "k").ask("You judge.", "")
    with policies_of_run(Policies(("player", "jduge"))):
        with pytest.raises(ConfigError, match=r"no language model 'judge' among its policies; .*'jduge'"):
            game.check_ready()
    with policies_of_run(Policies(("judge",))):
        assert game.check_ready() == "asks policy 'judge' of the run"
    with pytest.raises(ConfigError, match="names no policy; write policy:NAME"):
        Debate(judge="policy:")
    asked = make_config(env="lmgame/Debate-v0", env_config={"judge": "policy:player"})
    assert any("The debate is a draw." in text for text in tiny_corpus(asked)), "games are looked at without engines"


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ({"player": {}, "judge": {"trained": False}}, None),
        ({"player": {}, "judge": {"player": "random"}}, "no language model 'judge' among its policies"),
        ({"player": {}}, "no language model 'judge' among its policies"),
    ],
)
def test_a_run_looks_for_its_judge_before_it_begins(
    policies: dict[str, Any],
    said: str | None,
    tiny_dict: Callable[..., dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tiny_dict(policies=policies, policy_mapping_fn={"*": "player"}, language_model={"context_length": 1024})
    experiment = {"run": "LMGamePPO", "env": "lmgame/Debate-v0", "config": {**config, "env_config": DEBATE}}
    del experiment["config"]["env"]
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"debates": experiment}))
    flags = ["--dry-run"] if said is None else ["--storage-path", str(tmp_path / "runs")]
    assert main(["train", "file", str(tmp_path / "a.yaml"), *flags]) == (0 if said is None else 2)
    told = capsys.readouterr()
    if said is None:
        assert "#   lmgame/Debate-v0 asks policy 'judge' of the run" in told.out
    else:
        assert "config.env_config.judge" in told.err and said in told.err
