"""What opening a checkpoint takes from it: plain data, or everything of a trusted one."""

from __future__ import annotations

import asyncio
import codecs
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from rllib_lmgame.algorithms.checkpoints.manifest import write_manifest
from rllib_lmgame.algorithms.checkpoints.paths import MARKER
from rllib_lmgame.algorithms.config import CONFIG_FILE
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.cli import main
from rllib_lmgame.evaluation.players.naming import make_players
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.evaluation.saved_config import of_a_stranger, open_checkpoint, read_config
from rllib_lmgame.policies.model.adapters import Adapters
from rllib_lmgame.policies.options import LoraOptions

BY_PATH = "rllib_lmgame.envs.games.grids.sokoban:Sokoban"
GAME = '{"env": "lmgame/Sokoban-v0"}'
GAME_OF_OURS = json.loads(GAME)
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, tiny_model_dir: str, make_config) -> Write:
    """Function ``(changes, **config)`` that writes a checkpoint."""

    def make(changes=None, **config) -> Path:
        place = tmp_path / "trial" / "checkpoint_000000"
        place.mkdir(parents=True)
        shutil.copytree(tiny_model_dir, place / "hf")
        (place / CONFIG_FILE).write_text(json.dumps({**make_config(**config).run.as_yaml(), **(changes or {})}))
        (place / MARKER).write_text("{}")
        write_manifest(place)
        return place

    return make


def test_a_strangers_checkpoint_runs_no_program(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever game it names: a call of ``subprocess.run`` is a game's constructor as far as the registry can tell."""
    ran = tmp_path / "ran"
    place = write({"env": "subprocess:run", "env_config": {"args": ["touch", str(ran)]}})
    for command in (["evaluate", str(place)], ["play", "--checkpoint", str(place)]):
        assert main(command) == 2
        assert "'subprocess:run' is not taken from a checkpoint" in capsys.readouterr().err
    assert not ran.exists()
    main(["play", "--checkpoint", str(place), "--trust-checkpoint"])
    assert ran.exists(), "the attack itself works where it is let in"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"env": BY_PATH}, "config.env"),
        ({"env": "GymV21Environment-v0"}, "config.env"),
        ({"games": [{"env": BY_PATH}]}, "config.games[0].env"),
        ({"evaluation_config": {"games": [{"env": BY_PATH}]}}, "config.evaluation_config.games[0].env"),
        ({"evaluation_config": {"measures": ["x:Y"]}}, "config.evaluation_config.measures[0]"),
        ({"evaluation_config": {"measures": [{"type": "x:Y"}]}}, "config.evaluation_config.measures[0]"),
        (
            {"evaluation_config": {"measures": [{"type": "against", "player": "x:Y", "name": "y"}]}},
            "config.evaluation_config.measures[0]",
        ),
        ({"env": "lmgame/Chess-v0", "env_config": {"engine_path": "/bin/sh"}}, "config.env_config.engine_path"),
        ({"env": "lmgame/GuessMyCity-v0", "env_config": {"oracle": "os:system"}}, "config.env_config.oracle"),
        ({"env": "lmgame/Debate-v0", "env_config": {"judge": "os:system"}}, "config.env_config.judge"),
        (
            {"env": "lmgame/Debate-v0", "env_config": {"judge": "openai:m@http://h/v1#AWS_SECRET_ACCESS_KEY"}},
            "config.env_config.judge",
        ),
        ({"env": "lmgame/ToolUse-v0", "env_config": {"mcp": ["sh", "-c", "id"]}}, "config.env_config.mcp"),
        ({"env": "lmgame/DeepSearch-v0", "env_config": {"retriever": "http://h"}}, "config.env_config.retriever"),
        ({"env": "agentgym:maze", "env_config": {"url": "http://h"}}, "config.env"),
        ({"env": "lmgame/BIRD-v0", "env_config": {"data": "/etc/passwd"}}, "config.env_config.data"),
        ({"inference": {"engine": "os:system"}}, "config.inference.engine"),
        ({"inference": {"engine_kwargs": {"trust_remote_code": True}}}, "config.inference.engine_kwargs"),
        ({"language_model": {"trust_remote_code": True}}, "config.language_model.trust_remote_code"),
        ({"language_model": {"chat_template": "/etc/passwd.txt"}}, "config.language_model.chat_template"),
        ({"policies": {"player": {}, "b": {"player": "os:system"}}}, "config.policies.b.player"),
        (
            {"policies": {"player": {}, "b": {"trained": False, "language_model": {"model": "/data/m"}}}},
            "config.policies.b.language_model.model",
        ),
        (
            {"policies": {"player": {"language_model": {"trust_remote_code": True}}}},
            "config.policies.player.language_model.trust_remote_code",
        ),
        ({"policies": {"../../../x": {}}}, "config.policies"),
        ({"policy_mapping_fn": "os:system"}, "config.policy_mapping_fn"),
        ({"callbacks_class": "os:system"}, "config.callbacks_class"),
        ({"model_files": {"player": "/x"}}, "config.model_files"),
    ],
)
def test_what_could_run_code_or_read_files_is_not_taken_of_a_stranger(make_config, changes, key: str) -> None:
    with pytest.raises(ConfigError, match="is not taken from a checkpoint") as caught:
        of_a_stranger({**make_config().run.as_yaml(), **changes})
    assert caught.value.path == key


@pytest.mark.parametrize(
    "changes",
    [
        {"inference_": {"engine_kwargs": {"trust_remote_code": True}}},
        {"language_model__": {"trust_remote_code": True}},
        {"policies_": {"player": {"language_model": {"trust_remote_code": True}}}},
    ],
)
def test_a_strangers_section_has_one_name(make_config, changes) -> None:
    """Another form of it would pass as a number of RLlib's."""
    with pytest.raises(ConfigError, match="unknown key"):
        make_config().copy(copy_frozen=False).update_from_dict(of_a_stranger({**GAME_OF_OURS, **changes}))


def test_what_only_training_reads_does_not_matter(make_config) -> None:
    """Where the stranger's model, tokenizer, data and expert were is of no use: the model stands in ``hf/``."""
    config = make_config(
        language_model={"model": "/data/model", "tokenizer": "/data/tokenizer"},
        warm_start={"expert": "their_module:Player", "data": "/data/log.jsonl"},
        policies={"player": {"language_model": {"tokenizer": "/data/other"}}},
    )
    taken = of_a_stranger({**config.run.as_yaml(), "training": {"advantage_estimator": "their_module:f"}})
    assert taken["language_model"]["tokenizer"] is None is taken["policies"]["player"]["language_model"]["tokenizer"]


def test_a_plain_checkpoint_of_a_stranger_plays(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "--checkpoint", str(write()), "--no-pause"]) == 0
    assert "lmgame/Sokoban-v0" in capsys.readouterr().out


def test_code_beside_a_strangers_weights_is_refused(write: Write) -> None:
    place = write()
    (place / "hf" / "modeling_own.py").write_text("x = 1\n")
    write_manifest(place)
    with pytest.raises(CheckpointError, match=r"modeling_own\.py is no data file .* --trust-checkpoint"):
        open_checkpoint(place)
    open_checkpoint(place, trust=True)


def test_a_member_of_a_strangers_league_is_looked_at(write: Write) -> None:
    """Its files could run code, and an adapter is for whatever model the checkpoint names."""
    place = write(env="lmgame/KuhnPoker-v0", env_config={}, league={})
    league = place / "league"
    shutil.copytree(place / "hf", league / "player-1")

    def named(trust: bool = False) -> Any:
        (league / "league.json").write_text(json.dumps({"members": [{"name": "player-1", "policy": "player"}]}))
        write_manifest(place)
        return make_players([f"one={place}:player-1"], PlayerSettings(trust=trust))

    assert named().keys() == {"one"}
    (league / "player-1" / "modeling_own.py").write_text("x = 1")
    with pytest.raises(CheckpointError, match=r"modeling_own\.py is no data file .* --trust-checkpoint"):
        named()
    (league / "player-1" / "modeling_own.py").unlink()
    (league / "player-1" / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"player-1: it is an adapter for a model .* --trust-checkpoint"):
        named()
    assert named(trust=True).keys() == {"one"}


def test_a_member_that_cannot_be_loaded_is_named(write: Write, tiny_model_dir: str) -> None:
    """And not the model that its adapter is for."""
    pytest.importorskip("peft")
    from safetensors.torch import load_file, save_file

    place = write(env="lmgame/KuhnPoker-v0", env_config={}, league={}, language_model={"lora": {"r": 4}})
    member = place / "league" / "player-1"
    weights = member / "adapter_model.safetensors"
    adapters = Adapters(AutoModelForCausalLM.from_pretrained(tiny_model_dir), LoraOptions(r=4), model_dir="base")
    adapters.save(member, adapters.state())
    whole = weights.read_bytes()
    (member.parent / "league.json").write_text('{"members": [{"name": "player-1", "policy": "player"}]}')

    def loaded() -> None:
        write_manifest(place)

        async def enter() -> None:
            async with make_players([f"one={place}:player-1"], PlayerSettings(trust=True))["one"]:
                pass

        asyncio.run(enter())

    loaded()
    save_file({name: tensor * float("nan") for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(ConfigError, match=f"^player 'one': {member}: .* holds NaN"):
        loaded()
    weights.write_bytes(whole[:-40])
    with pytest.raises(ConfigError, match=f"^player 'one': {member}: {weights} cannot be read: "):
        loaded()
    shutil.rmtree(member)
    member.mkdir()
    with pytest.raises(CheckpointError, match=f"{member}/config.json is missing"):
        loaded()


def test_a_number_that_is_too_large_for_any_is_named(write: Write) -> None:
    place = write()
    content = json.loads((place / CONFIG_FILE).read_text())
    (place / CONFIG_FILE).write_text(
        json.dumps({**content, "gamma": 10**400, "text_rollouts": {"format_penalty": -(10**400)}})
    )
    write_manifest(place)
    with pytest.raises(ConfigError, match="format_penalty: must be"):
        open_checkpoint(place)


def test_damaged_weights_are_named(write: Write) -> None:
    place = write()
    (place / "hf" / "model.safetensors").write_bytes(b"\xff" * 100)
    write_manifest(place)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is no safetensors file"):
        open_checkpoint(place)


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "{}", "null", "[1]", '"x"', "[" * 100_000, "9" * 5_000, '{"env": ' * 2_000),
        '{"x": "' + "y" * 1_000_000 + '"}',
        *(codecs.BOM_UTF8 + GAME.encode(), GAME.encode("utf-16"), GAME.encode("utf-16-le"), GAME.encode("utf-32")),
    ],
)
def test_a_damaged_configuration_is_named(write: Write, content: str | bytes) -> None:
    place = write()
    (place / CONFIG_FILE).write_bytes(content.encode() if isinstance(content, str) else content)
    write_manifest(place)
    with pytest.raises(CheckpointError, match=f"{CONFIG_FILE} is damaged"):
        open_checkpoint(place)


KEYS = [
    *("env", "env_config", "games", "evaluation_config", "language_model", "inference", "text_rollouts", "policies"),
    *("policy_mapping_fn", "seed", "num_envs_per_env_runner", "evaluation_duration", "gamma", "lambda", "player"),
    *("trained", "temperature", "model", "split", "callbacks", "run"),
]
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["lmgame/Sokoban-v0", "LMGameSFT", "x:y", "\x00", "\ud800", "", "*"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), json_values, max_size=5))
@example({"algorithm_config_overrides_per_module": None})
@example({"algorithm_config_overrides_per_module": {"player": {"training": 5}}})
@example({"training": None})
def test_no_configuration_ends_in_a_stack_trace(tmp_path: Path, values) -> None:
    """It is read, or refused with a message."""
    (tmp_path / CONFIG_FILE).write_text(json.dumps(values))
    for trust in (False, True):
        try:
            assert read_config(tmp_path, trust=trust).run.averages in (True, False)
        except (ConfigError, CheckpointError) as error:
            assert str(error)
