"""Engines play by a policy's logits and action values together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from inference_reference import CONTEXT, STOP, generate_all, requests

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, WeightUpdateError
from rllib_lmgame.inference.weights import pack_state, unpack_state
from rllib_lmgame.policies.model.heads import PREFIX, VALUES_FILE, Layers, PlayedValues, load_values
from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule

BETA = 3.0


def module_of(model_dir: str, value_model: str = "shared", beta: float = BETA) -> LanguageModelRLModule:
    """A policy whose values, and the backbone of their own, are random."""
    space = gym.spaces.Text(16)
    values = {"heads": 2, "state": True, "targets": True, "q_init": 0.0, "beta": beta}
    config = {
        "options": {"context_length": CONTEXT, "value_model": value_model},
        "model_dir": model_dir,
        "critic": False,
        "action_values": values,
    }
    module = LanguageModelRLModule(
        observation_space=space, action_space=space, model_config=config, inference_only=False
    )
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.startswith("language_model"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return module


@torch.no_grad()
def expected(module: LanguageModelRLModule, prompt: list[int], reply: list[int]) -> np.ndarray:
    """Log-probabilities of a reply's tokens, of a plain pass of fresh copies of the backbones."""
    from transformers import AutoModel, AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(module.model_dir, dtype=torch.float32).eval()
    ids = torch.tensor([[*prompt, *reply]])
    hidden = policy.model(ids, use_cache=False).last_hidden_state[0]
    logits = policy.lm_head(hidden)
    if module.value_backbone is not None:
        own = AutoModel.from_config(policy.config).eval()
        own.load_state_dict(module.value_backbone.state_dict())
        hidden = own(ids, use_cache=False).last_hidden_state[0]
    assert module.action_values is not None
    q = torch.stack([head.outer(torch.relu(head.inner(hidden))) for head in module.action_values.q]).amin(0)
    logprobs = (logits + BETA * q).log_softmax(-1)[len(prompt) - 1 : -1]
    return logprobs[torch.arange(len(reply)), torch.tensor(reply)].numpy()


@pytest.fixture
def start_engine() -> Iterator[Callable[[str], TransformersEngine]]:
    started: list[TransformersEngine] = []

    def start(directory: str) -> TransformersEngine:
        options = InferenceOptions(engine="transformers")
        engine = TransformersEngine(directory, options, context_length=CONTEXT, seed=0)
        started.append(engine)
        asyncio.run(engine.start())
        return engine

    yield start
    for engine in started:
        asyncio.run(engine.shutdown())


def check(engine: Any, module: LanguageModelRLModule, prefix: str, atol: float = 2e-5) -> None:
    """What is sampled has the log-probabilities of logits and values together, and so has what is scored."""
    batch = requests(8, SamplingSpec(6, stop_token_ids=(STOP,)), prefix=prefix)
    replies = generate_all(engine, batch)
    scored = [
        replace(request, request_id=f"{prefix}-scored-{n}", scored=tuple(reply.response_ids.tolist()))
        for n, (request, reply) in enumerate(zip(batch, replies, strict=True))
    ]
    for request, reply, again in zip(batch, replies, generate_all(engine, scored), strict=True):
        wanted = expected(module, request.prompt_ids, reply.response_ids.tolist())
        np.testing.assert_allclose(reply.logprobs, wanted, atol=atol)
        np.testing.assert_allclose(again.logprobs, wanted, atol=atol)


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_pushed_and_saved_values_are_played_by(
    value_model: str, model_dir: str, start_engine: Any, tmp_path: Path
) -> None:
    module = module_of(model_dir, value_model)
    bundle = pack_state(module.as_checkpoint(module.hf_state()), 1, module.like_checkpoint(module.hf_state()))
    engine = start_engine(model_dir)
    asyncio.run(engine.update_weights(unpack_state(bundle), version=1))
    check(engine, module, "pushed")
    module.save_hf(tmp_path / "hf")
    assert (tmp_path / "hf" / VALUES_FILE).is_file()
    check(start_engine(str(tmp_path / "hf")), module, "saved")
    allowed = ((7, STOP), (9, 11, STOP))
    request = GenerationRequest("choice", [3, 4, 5], SamplingSpec(6, 0.0, stop_token_ids=(STOP,)), choices=allowed)
    (reply,) = generate_all(engine, [request])
    assert tuple(reply.response_ids.tolist()) in allowed
    plain = {name: each for name, each in unpack_state(bundle).items() if not name.startswith(PREFIX)}
    asyncio.run(engine.update_weights(plain, version=2))
    batch = requests(1, SamplingSpec(6, stop_token_ids=(STOP,)), prefix="plain")
    (alone,) = generate_all(engine, batch)
    gap = np.abs(alone.logprobs - expected(module, batch[0].prompt_ids, alone.response_ids.tolist())).max()
    assert gap > 1e-2, "without values the policy plays alone"


@pytest.mark.slow
def test_vllm_plays_by_values_that_read_the_policys_states(model_dir: str, tmp_path: Path) -> None:
    """Saved, pushed and taken away again; among all tokens and among few. With another backbone they are refused."""
    pytest.importorskip("vllm")
    from rllib_lmgame.inference.engines.vllm_engine import VLLMEngine

    module, other = module_of(model_dir), module_of(model_dir, "separate")
    module.save_hf(tmp_path / "hf")
    engine = VLLMEngine(str(tmp_path / "hf"), InferenceOptions(kv_cache_memory_mb=32), context_length=CONTEXT, seed=0)

    def pushed(module: LanguageModelRLModule) -> dict[str, Any]:
        return dict(unpack_state(pack_state(module.as_checkpoint(module.hf_state()), 1)))

    asyncio.run(engine.start())
    try:
        check(engine, module, "saved", 1e-4)
        own = expected(module, [3, 4, 5], [7])[0] - expected(module, [3, 4, 5], [9])[0]
        allowed, sampling = ((7, STOP), (9, STOP)), SamplingSpec(6, stop_token_ids=(STOP,))
        batch = [GenerationRequest(f"choice-{n}", [3, 4, 5], sampling, choices=allowed) for n in range(8)]
        for reply in generate_all(engine, batch):
            assert tuple(reply.response_ids.tolist()) in allowed
            gap = own if reply.response_ids[0] == 7 else -own
            assert reply.logprobs.tolist() == pytest.approx([-np.logaddexp(0, -gap), 0.0], abs=1e-4)
        with torch.no_grad():
            for parameter in module.action_values.parameters():  # type: ignore[union-attr]
                parameter.mul_(-0.5)
        state = pushed(module)
        asyncio.run(engine.update_weights(state, version=1))
        check(engine, module, "pushed", 1e-4)
        for bad in (state | {PREFIX + "q.0.outer.bias": torch.zeros(3)}, pushed(other)):
            with pytest.raises(WeightUpdateError, match="action values"):
                asyncio.run(engine.update_weights(bad, version=2))
        plain = {name: each for name, each in state.items() if not name.startswith(PREFIX)}
        asyncio.run(engine.update_weights(plain, version=3))
        (request,) = requests(1, SamplingSpec(6, stop_token_ids=(STOP,)), prefix="plain")
        (alone,) = generate_all(engine, [request])
        gaps = np.abs(alone.logprobs - expected(module, request.prompt_ids, alone.response_ids.tolist()))
        assert gaps.max() > 1e-2, "without values the policy plays alone"
    finally:
        asyncio.run(engine.shutdown())


def test_values_that_count_nothing_go_nowhere(model_dir: str, tmp_path: Path) -> None:
    module = module_of(model_dir, beta=0.0)
    assert not any(name.startswith(PREFIX) for name in module.as_checkpoint(module.hf_state()))
    module.save_hf(tmp_path)
    assert not (tmp_path / VALUES_FILE).exists()


def test_damaged_values_are_refused(model_dir: str, start_engine: Any, tmp_path: Path) -> None:
    module = module_of(model_dir)
    module.save_hf(tmp_path)
    state = dict(module.as_checkpoint(module.hf_state()))
    engine = start_engine(model_dir)
    for name, value in (
        ("q.0.outer.bias", torch.zeros(3)),
        ("q.0.outer.weight", state[PREFIX + "q.0.outer.weight"] * float("nan")),
    ):
        with pytest.raises(WeightUpdateError, match=r"action values|action_values"):
            asyncio.run(engine.update_weights(state | {PREFIX + name: value}, version=1))


UNFIT = {
    "cannot be read": None,
    "holds NaN": {"q.0.outer.weight": lambda tensor: tensor * float("nan")},
    "used: 'beta'": {"beta": None},
    "size mismatch for 1.outer.bias": {"q.1.outer.bias": lambda tensor: tensor[:3]},
    "Missing key": {"q.1.inner.bias": None},
    "numbers of a state": {f"q.{n}.inner.weight": lambda tensor: tensor[:, 1:] for n in range(2)},
    "tokens and": {f"q.{n}.outer.{part}": lambda tensor: tensor[1:] for n in range(2) for part in ("weight", "bias")},
    "Unexpected key": {"backbone.more": lambda tensor: torch.ones(3)},
}


@pytest.mark.parametrize("problem", UNFIT)
def test_saved_values_that_are_damaged_or_do_not_fit_are_refused_with_their_file(
    problem: str, model_dir: str, start_engine: Any, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    module_of(model_dir, "separate").save_hf(tmp_path)
    file, changes = tmp_path / VALUES_FILE, UNFIT[problem]
    if changes is None:
        file.write_bytes(file.read_bytes()[:1000])
    else:
        tensors = load_file(file)
        for name, change in changes.items():
            tensor = tensors.pop(PREFIX + name, None)
            if change is not None:
                tensors[PREFIX + name] = change(tensor).contiguous()
        save_file(tensors, file)
    with pytest.raises(ConfigError) as raised:
        start_engine(str(tmp_path))
    assert str(file) in str(raised.value) and problem in str(raised.value)


def test_values_that_are_no_file_are_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / VALUES_FILE).parent.mkdir()
    assert load_values(tmp_path) == {}
    (tmp_path / VALUES_FILE).symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"values\.safetensors cannot be read"):
        load_values(tmp_path)


def test_values_of_rows_that_are_no_tokens_are_left_out() -> None:
    """A head may have more rows than there are tokens (Inkling's)."""
    layers = Layers(4, 4, 8, -1.0)
    tensors = {f"{PREFIX}q.0.{name}": each for name, each in layers.state_dict().items()}
    tensors[f"{PREFIX}beta"] = torch.tensor([2.0])
    played = PlayedValues(tensors, (8, 4), torch.device("cpu"), lambda: layers)
    assert played.added_to(torch.zeros(3, 6), torch.zeros(3, 4)).tolist() == [[-2.0] * 6] * 3
