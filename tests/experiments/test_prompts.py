"""A context that is too small for a game's first prompt is found before anything starts."""

from __future__ import annotations

import time

import pytest

from rllib_lmgame.algorithms.models import initial_model
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli import main
from rllib_lmgame.experiments.checks.prompts import check_prompts
from rllib_lmgame.policies.chat.reply_formats import ParsedReply, ReplyFormat
from tests.experiments.test_check import check

GAME = "a:\n  run: LMGamePPO\n  env: lmgame/FrozenLake-v0\n  stop: {rl_iteration: 1}\n  config: {num_learners: 1}\n"
LARGE = "config.language_model={context_length: 4096, max_tokens_per_turn: 64}"
SMALL = "config.language_model={context_length: 80, max_tokens_per_turn: 16}"


def refusal(text: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_prompts([check(text, *overrides)])
    return caught.value


def least(error: ConfigError) -> int:
    return int(error.message.rpartition(" ")[2])


def test_a_context_that_does_not_hold_the_first_prompt_is_refused_with_one_that_does() -> None:
    error = refusal(GAME, SMALL)
    assert error.path == "config.language_model.context_length" and error.source == f"--set {SMALL}"
    assert "the first prompt of lmgame/FrozenLake-v0 has" in error.message
    check_prompts([check(GAME, context(least(error)))])
    check_prompts([check(GAME, LARGE)])


def test_the_command_refuses_it(tmp_path, capsys) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(GAME)
    for more in (["--dry-run"], []):
        assert main(["train", "file", str(file), "--set", SMALL, "--set", f"storage_path={tmp_path}", *more]) == 2
        assert "set context_length to at least" in capsys.readouterr().err


def context(length: int) -> str:
    return f"config.language_model={{context_length: {length}, max_tokens_per_turn: 16}}"


def test_every_game_that_is_played_is_looked_at() -> None:
    games = "config.games=[{env: lmgame/KuhnPoker-v0}, {env: lmgame/FrozenLake-v0}]"
    text = GAME.replace("  env: lmgame/FrozenLake-v0\n", "")
    error = refusal(text, games, SMALL)
    assert "KuhnPoker" in error.message
    assert "FrozenLake" in refusal(text, games, context(least(error))).message

    kuhn = GAME.replace("FrozenLake", "KuhnPoker")
    enough = context(least(refusal(kuhn, SMALL)))
    played = "config.evaluation_config={games: [{env: lmgame/FrozenLake-v0}]}"
    check_prompts([check(kuhn, enough, played)])
    assert "FrozenLake" in refusal(kuhn, enough, played, "config.evaluation_interval=1").message


def test_demonstrations_that_the_context_does_not_hold_are_told() -> None:
    def shown(context: int, count: int = 3) -> str:
        return f"config.language_model={{context_length: {context}, max_tokens_per_turn: 16, demonstrations: {count}}}"

    error, without = refusal(GAME, shown(120)), refusal(GAME, shown(120, count=0))
    assert error.path == "config.language_model.demonstrations" and "3 demonstrations" in error.message
    assert least(error) > least(without)
    assert refusal(GAME, shown(least(error) - 1)).path == error.path
    check_prompts([check(GAME, shown(least(error)))])


def test_policies_have_contexts_of_their_own() -> None:
    kuhn = GAME.replace("FrozenLake", "KuhnPoker")
    policies = "config.policies={a: {}, b: {language_model: {context_length: 40, max_tokens_per_turn: 8}}}"
    assert "holds 40" in refusal(kuhn, policies, "config.policy_mapping_fn={player_0: b, player_1: a}").message


def test_the_experts_first_reply_fits_too() -> None:
    tokens = "config.language_model={context_length: 2048, max_tokens_per_turn: 3}"
    error = refusal(GAME, tokens, "config.warm_start.max_steps=4")
    assert error.path == "config.language_model.max_tokens_per_turn" and "3 are allowed" in error.message
    check_prompts([check(GAME, tokens)])


@pytest.mark.parametrize("legal", [False, True])
def test_a_limit_below_every_legal_reply_is_refused(legal: bool) -> None:
    tokens, only = "config.language_model={context_length: 2048, max_tokens_per_turn: %d}", f"{legal}".lower()
    error = refusal(GAME, tokens % 2, f"config.text_rollouts.constrained_decoding={only}")
    assert error.path == "config.language_model.max_tokens_per_turn" and "3 tokens or more; 2 are" in error.message
    check_prompts([check(GAME, tokens % 3, f"config.text_rollouts.constrained_decoding={only}")])


def test_a_program_that_cannot_be_imported_is_refused_by_a_dry_run_too(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_program.py").write_text("import not_installed_anywhere\n\n\ndef go(task): return 1.0\n")
    (tmp_path / "a.yaml").write_text(GAME.replace("lmgame/FrozenLake-v0", "agent:broken_program:go"))
    assert main(["train", "file", "a.yaml", "--dry-run"]) == 2
    assert "config.env: agent:broken_program:go: cannot import 'broken_program'" in capsys.readouterr().err


def test_a_model_here_counts_with_its_own_tokenizer_and_one_elsewhere_is_left_alone(tmp_path, monkeypatch) -> None:
    files = initial_model(LMGamePPOConfig().environment("lmgame/KuhnPoker-v0"), "player").directory()
    of_itself, of_other = (
        least(refusal(GAME, SMALL)),
        least(refusal(GAME, SMALL, f"config.language_model.model={files}")),
    )
    assert of_other > of_itself  # Words of another game are spelt out.
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    check_prompts([check(GAME, SMALL, "config.language_model.model=nobody/has-such-a-model")])


def test_slow_games_are_not_played_for_a_tiny_models_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    from rllib_lmgame.envs.games.grids.frozen_lake import FrozenLake
    from rllib_lmgame.experiments.checks import prompts

    played: list[object] = []
    monkeypatch.setattr(prompts, "_check_game", lambda *args: played.append(args))
    monkeypatch.setattr(FrozenLake, "slow_calls", True)
    monkeypatch.setattr("rllib_lmgame.algorithms.models.tiny_corpus", lambda config: played.append(config))
    check_prompts([check(GAME, SMALL)])
    assert not played


def test_a_game_of_others_that_never_begins_is_refused_for_a_tiny_model_too(monkeypatch) -> None:
    text = GAME.replace("lmgame/FrozenLake-v0", "tests.envs.author_games:Hanging")
    error = refusal(text, "config.env_config={where: reset(), how: system exit}")
    assert error.path == "config.env" and "SystemExit" in error.message
    fails, of = iter("four"), "tests.envs.author_games.Hanging.misbehave"  # Some of its levels do not begin.
    monkeypatch.setattr(of, lambda game, where: where == "reset()" and next(fails, "") and 1 / 0)
    check_prompts([check(text)])


def test_there_is_a_limit_to_the_time_of_all_games_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from rllib_lmgame.experiments.checks import prompts

    files = initial_model(LMGamePPOConfig().environment("lmgame/KuhnPoker-v0"), "player").directory()
    monkeypatch.setattr(prompts, "BUDGET_S", 0.5)
    hangs, model = "tests.envs.author_games:Hanging", f"config.language_model.model={files}"
    text = GAME.replace("lmgame/FrozenLake-v0", hangs)
    began = time.monotonic()
    check_prompts([check(text, model, "config.env_config={where: reset()}"), check(GAME, SMALL, model)])
    assert time.monotonic() - began < 30


class Mute(ReplyFormat):
    """A format of one's own in which no action can be said."""

    def form(self) -> str:
        return "Say nothing."

    def read(self, text: str) -> ParsedReply:
        return ParsedReply(None, None, "nothing is read")

    def say(self, action: str, thought: str | None) -> str:
        return action


def test_a_form_of_replies_can_say_the_moves_of_the_game() -> None:
    form = "config.language_model={reply_format: %s, context_length: 2048, max_tokens_per_turn: 64}"
    check_prompts([check(GAME, form % "boxed")])
    mute = f"{__name__}:Mute"
    error = refusal(GAME, form % mute)
    assert error.path == "config.language_model.reply_format"
    assert f"`{mute}` can say none of the legal actions of lmgame/FrozenLake-v0" in error.message
