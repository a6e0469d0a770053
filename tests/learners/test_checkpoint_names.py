"""Mixtures of experts, which Transformers holds fused in memory and vLLM knows by their names on disk: what learners
send and write has the names, shapes and values of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_architectures import PACKED, SIZES
from transformers import AutoModelForCausalLM

from rllib_lmgame.inference.weights import unpack_state
from rllib_lmgame.policies.model.checkpoint_names import CheckpointTensors, load_checkpoint_tensors, parts_of

EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": PACKED["deepseek_v3"],
}


@pytest.fixture(params=EXPERTS)
def directory(request: pytest.FixtureRequest, make_model: Callable[..., str]) -> str:
    """A random mixture of experts."""
    sizes = SIZES | EXPERTS[request.param] | {"num_hidden_layers": 2, "tie_word_embeddings": False}
    return make_model(request.param, **sizes)


def same(found: Any, expected: Any) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_push_has_the_checkpoints_names(directory: str, make_learner: Callable[..., Any]) -> None:
    learner = make_learner(model_dir=directory)
    files = load_file(Path(directory) / "model.safetensors")
    assert not files.keys() <= learner.module["player"].hf_state().keys()  # Or nothing is tested here.
    assert same(unpack_state(learner.pack_weights("player", 1)), files)
    sent: dict[str, torch.Tensor] = {}
    learner.push_on_device("player", lambda state, version: sent.update(state), 1)
    assert same(sent, files)


def test_the_exported_directory_loads_elsewhere(
    directory: str, make_module: Callable[..., Any], tmp_path: Path
) -> None:
    module = make_module(directory)
    with torch.no_grad():
        for parameter in module.language_model.parameters():
            parameter.mul_(1.5)
    module.save_hf(tmp_path / "hf")
    assert same(module.as_checkpoint(module.hf_state()), load_file(tmp_path / "hf" / "model.safetensors"))
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert same(loaded.state_dict(), module.language_model.state_dict())


def test_one_tensor_in_memory_is_taken_apart_at_a_time(directory: str, make_module: Callable[..., Any]) -> None:
    module, read = make_module(directory), []

    class State(dict[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            read.append(name)
            return super().__getitem__(name)

    names = len([read[-1] for _ in module.as_checkpoint(State(module.hf_state())).values()])
    assert sorted(read) == sorted(module.hf_state()) and len(read) < names


class Fused:
    """Stands for a model whose checkpoint has queries, keys and values in one."""

    def __init__(self) -> None:
        from transformers.core_model_loading import Chunk, WeightConverter

        self.config = None
        self._weight_conversions = [WeightConverter(["qkv"], ["q", "k", "v"], [Chunk(dim=0)])]


def test_tensors_that_are_one_in_the_checkpoint_go_together() -> None:
    state = {f"{layer}.{part}": torch.randn(2, 3) for layer in "01" for part in ("k", "norm", "q", "v")}
    parts = parts_of(Fused(), state)
    assert sorted(sorted(part.names) for part in parts) == [
        ["0.k", "0.q", "0.v"],
        ["0.norm"],
        ["1.k", "1.q", "1.v"],
        ["1.norm"],
    ]
    files = dict(CheckpointTensors(Fused(), parts, state))
    assert torch.equal(files["1.qkv"], torch.cat([state["1.q"], state["1.k"], state["1.v"]]))
    own = {name: torch.zeros(2, 3) for name in state}
    load_checkpoint_tensors(Fused(), parts, own, files)
    assert same(own, state)
