"""What the engines' loaders are given, and what a checkpoint's files say about its weights."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rllib_lmgame.inference.engines.vllm_engine import _checkpoint_shapes, _engine_args, _unused_by_transformers
from rllib_lmgame.inference.serving.actor import EngineSpec, make_engine
from rllib_lmgame.settings.sections.inference import InferenceOptions


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_code_of_a_model_is_run_only_where_it_is_trusted(
    engine: str, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def loader(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs["trust_remote_code"])
        raise RuntimeError("loads nothing")

    if engine == "vllm":
        pytest.importorskip("vllm")
        monkeypatch.setattr("vllm.engine.arg_utils.EngineArgs", loader)
    else:
        config = SimpleNamespace(_attn_implementation=None)
        monkeypatch.setattr(
            "transformers.AutoConfig.from_pretrained",
            lambda model, trust_remote_code: given.append(trust_remote_code) or config,
        )
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", loader)
    made = make_engine(EngineSpec("e", "nowhere", InferenceOptions(engine=engine), 64, trust_remote_code=trusted))
    with pytest.raises(RuntimeError, match="loads nothing"):
        asyncio.run(made.start())
    assert given == [trusted] * len(given) and given


def write(folder: Path, file: str, names: Sequence[str]) -> None:
    save_file({name: np.zeros((2, 3), np.float32) for name in names}, folder / file)


def test_weights_are_those_of_the_index_without_buffers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    assert _checkpoint_shapes(str(tmp_path)) == ({}, False)
    write(tmp_path, "consolidated.safetensors", ["layers.0.attention.wq.weight"])
    write(tmp_path, "model.safetensors", ["a.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"])
    assert _checkpoint_shapes(str(tmp_path)) == ({"a.weight": (2, 3)}, True)
    shards = {"a.weight": "model-1.safetensors", "b.weight": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    write(tmp_path, "model-1.safetensors", ["a.weight"])
    write(tmp_path, "model-2.safetensors", ["b.weight"])
    assert _checkpoint_shapes(str(tmp_path))[0].keys() == shards.keys()


@pytest.mark.parametrize(
    ("model_type", "name", "unused"),
    [
        ("deepseek_v3", "model.layers.61.mlp.experts.0.down_proj.weight", True),
        ("deepseek_v3", "model.layers.60.mlp.experts.0.down_proj.weight", False),
        ("qwen3_next", "mtp.fc.weight", True),
        ("qwen2", "mtp.fc.weight", False),
        ("of_another_package", "mtp.fc.weight", False),
    ],
)
def test_weights_that_learners_do_not_have_are_not_waited_for(model_type: str, name: str, unused: bool) -> None:
    assert _unused_by_transformers(model_type)(name) is unused


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path, tiny_model_dir: str) -> None:
    """Transformers itself fills them with noise and says so in a warning."""
    shutil.copytree(tiny_model_dir, tmp_path / "hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    for kept in ({}, {name: weights[name] for name in sorted(weights)[1:]}):
        save_file(
            kept or {"other": np.zeros(3, np.float32)}, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"}
        )
        made = make_engine(EngineSpec("e", str(tmp_path / "hf"), InferenceOptions(engine="transformers"), 64))
        with pytest.raises(Exception, match=r"lacks \d+ weights, among them '"):
            asyncio.run(made.start())


def test_attention_code_from_a_hub_is_not_fetched(tmp_path: Path, tiny_model_dir: str) -> None:
    """``config.json`` may name some, which Transformers runs without asking for trust."""
    shutil.copytree(tiny_model_dir, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**config, "attn_implementation": "somebody/kernel"}))
    made = make_engine(EngineSpec("e", str(tmp_path / "hf"), InferenceOptions(engine="transformers"), 64))
    with pytest.raises(Exception, match="attention code from a hub, 'somebody/kernel'"):
        asyncio.run(made.start())


def test_pickled_weights_are_not_loaded(tmp_path: Path, tiny_model_dir: str) -> None:
    import torch

    shutil.copytree(tiny_model_dir, tmp_path / "hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    (tmp_path / "hf" / "model.safetensors").unlink()
    torch.save({name: torch.as_tensor(value) for name, value in weights.items()}, tmp_path / "hf" / "pytorch_model.bin")
    made = make_engine(EngineSpec("e", str(tmp_path / "hf"), InferenceOptions(engine="transformers"), 64))
    with pytest.raises(Exception, match="safetensors"):
        asyncio.run(made.start())
    pytest.importorskip("vllm")
    assert _engine_args(str(tmp_path), InferenceOptions(), 64, 0, trust_remote_code=False).load_format == "safetensors"


def test_vllm_may_be_told_otherwise_by_its_own_arguments() -> None:
    pytest.importorskip("vllm")
    options = InferenceOptions(engine_kwargs={"trust_remote_code": True})
    assert _engine_args("nowhere", options, 64, 0, trust_remote_code=False).trust_remote_code
