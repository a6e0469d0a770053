"""Episode logs to learn from are read before anything starts."""

from __future__ import annotations

import json

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks.prompts import check_prompts
from tests.experiments.test_check import GAME, SFT, check


def error_of(text: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_prompts([check(text, *overrides)])
    return caught.value


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
        (record() + record()[:40], "line 2: no JSON"),
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


def test_data_are_read_once_for_a_grid(tmp_path, monkeypatch) -> None:
    from rllib_lmgame.datasets import sft

    log, read = tmp_path / "log.jsonl", []
    log.write_text(record())
    records_of = sft.records_of
    monkeypatch.setattr(sft, "records_of", lambda path: read.append(path) or records_of(path))
    grid = "config.supervised.lr={grid_search: [1e-3, 1e-4, 1e-5]}"
    model = "config.language_model.model=someone/not-on-this-machine"  # The tokenizer of a tiny one is made of it.
    check_prompts([check(SFT, f"config.supervised.data={log}", grid, model)])
    assert read == [log]


ALONE = SFT.replace("  env: lmgame/Sokoban-v0\n", "")


def conversations(*roles: str) -> str:
    said = [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)]
    return json.dumps({"messages": said, "reward": 1}) + "\n"


TALK = conversations("system", "user", "assistant")


def test_conversations_need_no_game(tmp_path) -> None:
    data = tmp_path / "talk.jsonl"
    data.write_text(TALK * 3)
    for text, section in ((ALONE, "supervised"), (SFT, "supervised"), (GAME, "warm_start")):
        (config,) = check(text, f"config.{section}.data={data}", f"config.{section}.validation_share=0").configs
        assert config.run.plays is ("env" in text)
    data.write_text(record())
    error = error_of(ALONE, f"config.supervised.data={data}")
    assert "line 1: a log is played again in its game; set config.env: lmgame/Sokoban-v0" in error.message


@pytest.mark.parametrize(
    ("content", "options", "key", "words"),
    [
        (TALK + conversations("system", "user"), (), "data", "line 2: nothing of it is learnt"),
        (TALK, ("stop_at={success: 0.5}",), "stop_at", "there is no game to play"),
    ],
)
def test_data_that_cannot_be_learnt_is_refused(content, options, key, words, tmp_path) -> None:
    data = tmp_path / "talk.jsonl"
    data.write_text(content)
    error = error_of(ALONE, f"config.supervised.data={data}", *(f"config.supervised.{option}" for option in options))
    assert error.path == f"config.supervised.{key}" and words in error.message


def test_a_conversation_that_the_template_refuses_is_named_before_ray_starts(tmp_path) -> None:
    data = tmp_path / "talk.jsonl"
    data.write_text(TALK * 3 + conversations("user", "user", "assistant"))
    strict = (
        "{% for m in messages %}{% if loop.previtem and loop.previtem.role == m.role %}{{ raise_exception('twice') }}"
        "{% endif %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}"
        "<|im_start|>assistant {% endif %}"
    )
    template = f"config.language_model.chat_template={json.dumps(strict)}"
    checked = check(ALONE, f"config.supervised.data={data}", template)
    with pytest.raises(ConfigError) as caught:
        check_prompts([checked])
    assert caught.value.path == "config.supervised.data"
    assert "line 4: the chat template cannot write it: twice" in caught.value.message
