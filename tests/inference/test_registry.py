"""What others know of an engine, by name and by import path; and what its loader is given."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rllib_lmgame.algorithms.cluster.footprint import footprint
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.inference.engines.threaded import Core, ThreadedEngine
from rllib_lmgame.inference.engines.vllm_engine import _checkpoint_shapes, _engine_args, _unused_by_transformers
from rllib_lmgame.inference.options import Engine, InferenceOptions
from rllib_lmgame.inference.serving.actor import EngineSpec, make_engine


class Mine(ThreadedEngine):
    """An engine of somebody's, of which nothing more is known."""

    core_class = Core


class Known(Engine):
    """What somebody says of it, and an option of its own."""

    depth: int = option(3, "An option.", ge=1)
    implementation = f"{__name__}:Mine"
    reserves_cache = True
    process_mib = 50.0

    def variables(self, options: InferenceOptions) -> dict[str, str]:
        return {"MINE": str(options.num_threads)}


class Plain(Engine):
    """Of which nothing more is known."""

    implementation = f"{__name__}:Mine"


MINE, KNOWN = f"{__name__}:Plain", f"{__name__}:Known"


def test_nothing_is_loaded_to_look_an_engine_up() -> None:
    heavy = {"torch", "ray", "vllm", "transformers"}
    code = f"import sys, rllib_lmgame.inference.options; print({heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert ran.stdout.strip() == "set()"


def test_an_engine_of_others_is_known_by_its_group() -> None:
    plain, told = (InferenceOptions(engine=path, num_threads=3) for path in (MINE, {"type": KNOWN, "depth": 5}))
    assert told.engine.depth == 5
    assert plain.engine.engine_class() is told.engine.engine_class() is Mine
    assert plain.engine.variables(plain) == {"OMP_NUM_THREADS": "3"} and told.engine.variables(told) == {"MINE": "3"}
    assert plain.engine.variables(InferenceOptions(num_gpus_per_engine=1)) == {}
    for choice, words in (
        ({"type": KNOWN, "depth": 0}, "depth"),
        ({"type": MINE, "depth": 5}, "depth: unknown key"),
        (f"{__name__}:Mine", "does not derive from Engine"),
    ):
        with pytest.raises(ConfigError, match=words):
            InferenceOptions(engine=choice)


def test_the_estimate_of_memory_asks_the_group(make_config: Any) -> None:
    def engine(name: str) -> Any:
        inference = {"engine": name, "kv_cache_memory_mb": 100}
        return next(p for p in footprint(make_config(inference=inference)).processes if p.name.startswith("engine"))

    plain, told = engine(MINE), engine(KNOWN)
    assert (told.process, plain.process) == (50.0, 600.0)
    assert told.parts["kv cache"] == 100 and "kv cache" not in plain.parts


def test_an_engine_that_takes_no_weights_over_devices_is_not_given_any(make_config: Any) -> None:
    inference = {"engine": KNOWN, "weight_transport": "nccl", "num_gpus_per_engine": 1}
    with pytest.raises(ConfigError, match="Known` takes object_store"):
        make_config(inference=inference, num_gpus_per_learner=1, num_learners=1).validate()


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
        config = SimpleNamespace(_attn_implementation=None, get_text_config=lambda decoder: None)
        monkeypatch.setattr(
            "transformers.AutoConfig.from_pretrained",
            lambda model, trust_remote_code: given.append(trust_remote_code) or config,
        )
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", loader)
    with pytest.raises(RuntimeError, match="loads nothing"):
        start(engine, "nowhere", trusted=trusted)
    assert given == [trusted] * len(given) and given


def start(engine: str, directory: str | Path, *, trusted: bool = False) -> None:
    spec = EngineSpec("e", str(directory), InferenceOptions(engine=engine), 64, trust_remote_code=trusted)
    asyncio.run(make_engine(spec).start())


@pytest.fixture
def folder(tmp_path: Path, tiny_model_dir: str) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "hf"))


def write(folder: Path, file: str, names) -> None:
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


def test_weights_that_are_missing_are_not_made_up(folder: Path) -> None:
    """Transformers itself fills them with noise and says so in a warning."""
    weights = load_file(folder / "model.safetensors")
    for kept in ({"other": np.zeros(3, np.float32)}, {name: weights[name] for name in sorted(weights)[1:]}):
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(Exception, match=r"lacks \d+ weights, among them '"):
            start("transformers", folder)
    larger = np.zeros((5, *weights["model.norm.weight"].shape), np.float32)
    save_file({**weights, "model.norm.weight": larger}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Exception, match=r"has 'model\.norm\.weight' of \[5, \d+\], and its config\.json asks for"):
        start("transformers", folder)


def test_attention_code_from_a_hub_is_not_fetched(folder: Path) -> None:
    """``config.json`` may name some, which Transformers runs without asking for trust."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attn_implementation": "somebody/kernel"}))
    with pytest.raises(Exception, match="attention code from a hub, 'somebody/kernel'"):
        start("transformers", folder)


def test_pickled_weights_are_not_loaded(folder: Path) -> None:
    import torch

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({name: torch.as_tensor(value) for name, value in weights.items()}, folder / "pytorch_model.bin")
    with pytest.raises(Exception, match="safetensors"):
        start("transformers", folder)
    pytest.importorskip("vllm")
    assert _engine_args(str(folder), InferenceOptions(), 64, 0, trust_remote_code=False).load_format == "safetensors"


def test_engines_on_gpus_schedule_ahead_unless_replies_are_constrained(folder: Path) -> None:
    pytest.importorskip("vllm")
    free = InferenceOptions(num_gpus_per_engine=1)
    for options, ahead in ((free, True), (free.constrained(True), False), (InferenceOptions(), False)):
        arguments = _engine_args(str(folder), options, 64, 0, trust_remote_code=False)
        assert (arguments.async_scheduling is not False) is ahead
        assert bool(arguments.logits_processors) is not ahead
        assert ("VLLM_USE_V2_MODEL_RUNNER" in options.engine.variables(options)) is not ahead
