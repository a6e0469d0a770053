"""Adapters through the whole path: play, update, merged weights to the engines, checkpoint, and on from it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from engine_replies import logprobs_by, reply_of
from learner_weights import weights_of

from rllib_lmgame.algorithms.checkpoints.learner_files import check_models
from rllib_lmgame.algorithms.cluster.workers import each_group
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.evaluation.players.naming import make_players
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec
from rllib_lmgame.learners.options import WeightUse
from rllib_lmgame.policies.model.network import merged_checkpoint

pytest.importorskip("peft")

LORA: dict[str, Any] = {"lora": {"r": 4, "alpha": 16}}
RUN = {
    "text_rollouts": {"deterministic": True},
    "training": {"kl": {}, "num_minibatches": 2},
    "warm_start": {"max_steps": 1, "steps_per_iteration": 1, "episodes_per_step": 8, "lr": 1e-2},
    "lr": 1e-2,
}


def bytes_of(shared: Any) -> int:
    return sum(len(content) for _, content in ray.get(shared.reference).files)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def test_what_learns_is_what_plays_and_what_is_saved(engine: str, start: Any, make_config: Any, tmp_path: Path) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def make(**own: Any) -> Any:
        return start(make_config(language_model=LORA, inference={"engine": engine}, **RUN, **own))

    algorithm = make()
    begun = weights_of(algorithm)
    for number in range(3):
        result = algorithm.train()
        if number:
            assert result["learners"]["player"]["logprob_diff"] <= 1e-4
    algorithm.save_to_path(str(tmp_path))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    for name, weight in weights_of(algorithm, use=WeightUse.EXPORT).items():
        assert np.array_equal(merged.state_dict()[name].numpy(), weight)
        assert np.array_equal(begun[name], weight) == ("_proj.weight" not in name), name
    base = algorithm.config.model_files["player"].directory()
    beside = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    ids = merged.dummy_inputs["input_ids"]
    assert (beside(ids).logits - merged(ids).logits).abs().max() < 1e-4
    losses = [algorithm.train()["learners"]["player"]["policy_loss"] for _ in range(2)]
    after = weights_of(algorithm)
    algorithm.stop()
    for lora, said in ((None, "adapters there and all weights here"), ({"r": 4, "alpha": 8}, "alpha 16 there")):
        other = make_config(language_model={"lora": lora}, inference={"engine": engine}, **RUN)
        other.model_files = algorithm.config.model_files
        with pytest.raises(CheckpointError, match=said):
            check_models(tmp_path, other)
    file = tmp_path / "adapter" / "adapter_config.json"
    whole = file.read_text()
    file.write_text(whole[:-9])
    with pytest.raises(CheckpointError, match=r"adapter_config.json is damaged"):
        check_models(tmp_path, other)
    file.write_text(whole)
    again = make()
    again.restore_from_path(str(tmp_path))
    on = [again.train()["learners"]["player"]["policy_loss"] for _ in range(2)]
    assert on == pytest.approx(losses, abs=1e-6)  # Bit for bit in one learner, not in engines that batch.
    assert all(np.abs(after[name] - weight).max() <= 1e-6 for name, weight in weights_of(again).items())
    if engine == "transformers":
        model = {"lora": {"init": str(tmp_path / "adapter")}}
        other = start(make_config(language_model=model, inference={"engine": engine}))
        saved = {name: tensor.numpy() for name, tensor in merged.state_dict().items()}
        assert all(np.array_equal(saved[name], weight) for name, weight in weights_of(other).items())
        assert other.train()["learners"]["player"]["logprob_diff"] <= 1e-4


LEAGUE: dict[str, Any] = {
    "env": "lmgame/KuhnPoker-v0",
    "env_config": {},
    "language_model": LORA,
    "league": {"snapshot_every": 1, "opponent_engines": 1, "self_play_share": 0.5, "max_members": 3},
    "text_rollouts": {"episodes_per_iteration": 16, "constrained_decoding": True, "deterministic": True},
    "training": {"kl": {}, "ema_decay": 0.5},
    "lr": 1e-2,
}


@pytest.mark.slow
def test_members_of_a_league_are_adapters(start: Any, make_config: Any, tmp_path: Path) -> None:
    """On disk, on the way to an engine, in a checkpoint and as players; a resumed league goes on bit for bit."""
    algorithm = start(make_config(**LEAGUE))
    play, base = algorithm._league, algorithm.config.model_files["player"].directory()
    were = {}
    for iteration in range(4):
        were[f"player-{iteration}"] = weights_of(algorithm)
        algorithm.train()
    assert [member.name for member in play.league.members] == ["player-1", "player-2", "player-3"]
    for member in play.league.members:
        directory = play.directory / member.name
        assert {path.name for path in directory.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
        state = merged_checkpoint(directory, base)
        assert state.keys() == were[member.name].keys()
        assert all(np.array_equal(state[name].numpy(), weight) for name, weight in were[member.name].items())
    (group,), (held,) = play._groups, play._held
    shared, version = group._last[None]
    assert bytes_of(shared) < 0.2 * sum(weight.nbytes for weight in were[held].values())
    os.kill(ray.get(ray.get_actor(group.names[0]).status.remote())["pid"], signal.SIGKILL)
    assert group.restart_dead() or ray.get(ray.get_actor(group.names[0]).status.remote())["error"] is None
    ids, logprobs, replied = reply_of(group)
    assert replied == version == int(held.removeprefix("player-"))
    assert np.abs(logprobs_by(play.directory / held, ids, len(logprobs)) - logprobs).max() <= 1e-4
    assert np.abs(logprobs_by(Path(base), ids, len(logprobs)) - logprobs).max() > 1e-3

    checkpoint = tmp_path / "checkpoint"
    algorithm.save_to_path(str(checkpoint))
    on = [algorithm.train()["learners"]["player"]["policy_loss"] for _ in range(2)]
    known, weights = play.league.state(), weights_of(algorithm)
    algorithm.stop()
    again = start(make_config(**LEAGUE))
    again.restore_from_path(str(checkpoint))
    assert [again.train()["learners"]["player"]["policy_loss"] for _ in range(2)] == on
    assert again._league.league.state() == known
    assert all(np.array_equal(weight, weights[name]) for name, weight in weights_of(again).items())

    source = f"{checkpoint}:player-2"
    assert (
        np.abs(reply_of_player(source, ids, len(logprobs)) - logprobs_of(checkpoint, ids, len(logprobs))).max() < 1e-4
    )
    with pytest.raises(ConfigError, match=r"no policy or league member of the checkpoint; did you mean 'player-3'"):
        make_players([f"{checkpoint}:player-9"], PlayerSettings())


@pytest.mark.slow
def test_one_engine_holds_the_base_and_an_adapter_for_everybody(start: Any, make_config: Any, tmp_path: Path) -> None:
    """Two policies and two members reply from one engine, each with its own weights, also after the engine died."""
    pytest.importorskip("vllm")
    policies = ["first", "second"]
    changes = {
        "policies": policies,
        "league": {**LEAGUE["league"], "opponent_engines": 2},
        "inference": {"engine": "vllm", "adapters": True},
        # Its log-probabilities are the same up to rounding only: here they stay out of the loss.
        "training": {**LEAGUE["training"], "importance_sampling": None},
    }
    algorithm = start(make_config(**LEAGUE | changes))
    for _ in range(3):
        learners = algorithm.train()["learners"]
        for policy in policies:
            assert learners[policy]["logprob_diff"] <= 1e-4 and learners[policy]["staleness"] == 0
    groups, play = algorithm.engine_groups, algorithm._league
    base = algorithm.config.model_files["first"].directory()
    assert groups.keys() == {*policies, "league:0", "league:1"} and len(each_group(groups)) == 1
    checkpoint = tmp_path / "checkpoint"
    algorithm.save_to_path(str(checkpoint))
    passes = []
    for _ in range(2):
        passes.append([algorithm.train()["learners"][policy]["policy_loss"] for policy in policies])
        algorithm.restore_from_path(str(checkpoint))
    assert passes[0] == passes[1]

    play.prepare(3)
    members = {member.name: member for member in play.league.members}
    whose = {
        f"league:{number}": (play.directory / name, members[name].version) for number, name in enumerate(play._held)
    }
    whose |= {policy: (checkpoint / "hf_last" / policy, algorithm.policy_version) for policy in policies}

    def check() -> None:
        for key, (directory, version) in whose.items():
            ids, logprobs, replied = reply_of(groups[key])
            assert replied == version
            assert np.abs(logprobs_by(directory, ids, len(logprobs)) - logprobs).max() <= 1e-4
            assert np.abs(logprobs_by(Path(base), ids, len(logprobs)) - logprobs).max() > 1e-3

    check()
    (group,) = each_group(groups)
    sizes = [bytes_of(shared) for shared, _ in group._last.values()]
    assert len(sizes) == 4 and max(sizes) < 100_000
    os.kill(ray.get(ray.get_actor(group.names[0]).status.remote())["pid"], signal.SIGKILL)
    group.restart_dead()
    check()


def logprobs_of(checkpoint: Path, ids: list[int], count: int) -> np.ndarray:
    return logprobs_by(checkpoint / "league" / "player-2", ids, count)


def reply_of_player(source: str, ids: list[int], count: int) -> np.ndarray:
    """Log-probabilities that a player's engine gives the last ``count`` of ``ids``."""
    (player,) = make_players([source], PlayerSettings(trust=True)).values()

    async def ask() -> Any:
        async with player:
            scored = tuple(ids[-count:])
            request = GenerationRequest("a/0", ids[:-count], SamplingSpec(max_tokens=count), scored=scored)
            return await player._engine.generate(request)

    return asyncio.run(ask()).logprobs


@pytest.mark.parametrize(
    ("lora", "key", "said"),
    [
        ({"target_modules": ["q_projection"]}, "target_modules", "there are down_proj, gate_proj, k_proj"),
        ({"target_modules": ["lm_head"]}, "target_modules", "shares its weights"),
        ({"modules_to_save": ["mlp"]}, "modules_to_save", "trained twice"),
        ({"init": "nowhere"}, "init", "has no adapter_config.json"),
    ],
    ids=lambda value: str(value),
)
def test_what_cannot_be_is_refused_before_anything_starts(lora: Any, key: str, said: str, make_config: Any) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        make_config(language_model={"lora": lora}).validate()
    assert error.value.path == f"config.language_model.lora.{key}"


def test_an_adapter_for_another_base_is_refused(make_config: Any, tmp_path: Path, qwen_like: Any) -> None:
    """By its shapes; by its base, though shapes are the same; and with options that are not its own."""
    from transformers import AutoModelForCausalLM

    from rllib_lmgame.policies.model.adapters import Adapters
    from rllib_lmgame.policies.options import LoraOptions

    base, other, wider = qwen_like(seed=0), qwen_like(seed=1), qwen_like(hidden_size=192)
    model = AutoModelForCausalLM.from_pretrained(base)
    adapters = Adapters(model, LoraOptions(r=4), model_dir=base)
    adapters.save(tmp_path / "adapter", adapters.state())
    lora = {"init": str(tmp_path / "adapter")}

    def refused(model: str, **more: Any) -> ConfigError:
        with pytest.raises(ConfigError) as error:
            make_config(language_model={"model": model, "lora": lora | more}).validate()
        return error.value

    make_config(language_model={"model": base, "lora": lora}).validate()
    with pytest.raises(ConfigError, match="for other weights"):
        Adapters(AutoModelForCausalLM.from_pretrained(other), LoraOptions(**lora), model_dir=other)
    assert "for another model" in refused(wider).message
    assert refused(base, r=8).path == "config.language_model.lora.r"
    assert "a checkpoint has it in adapter/" in refused(base, init=str(tmp_path)).message
    file = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(file.read_text())
    for changed, said in (
        ({"use_dora": True}, "use_dora: True"),
        ({"of_tomorrow": 1}, "of_tomorrow"),
        ({"r": 10**9}, "r: must be less than or equal to 4096"),
        ({"target_modules": ".*(q|v)_proj"}, f"{file}: target_modules: expected all-linear or a list"),
        ({"rank_pattern": {"x": 4}}, "rank_pattern"),
    ):
        file.write_text(json.dumps(config | changed))
        error = refused(base)
        assert error.path == "config.language_model.lora.init" and said in error.message


@pytest.fixture
def qwen_like(tmp_path: Path) -> Any:
    """Function that writes a tiny model with a tokenizer of the game's texts and returns its directory."""
    from rllib_lmgame.policies.model.tiny import build_tiny_model

    def make(**shape: Any) -> str:
        directory = tmp_path / "-".join(f"{name}{value}" for name, value in shape.items())
        return str(build_tiny_model(directory, ["<answer>up</answer> left right down"] * 9, shape))

    return make
