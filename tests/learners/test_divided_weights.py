"""ZeRO 3 without whole weights: what learners over gloo hold, and that they train as one plain learner does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM

pytest.importorskip("deepspeed")

from learning import difference, same

from rllib_lmgame.algorithms.cluster.memory import MIB, learner_mib, model_shape
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.learners.engines.shards import SavedShares, parts_of_shares, save_shares
from rllib_lmgame.learners.process import ProcessGroup

MEASURE = Path(__file__).with_name("measure_ranks.py")
TRAINING = {
    "max_tokens_per_microbatch": 96,
    "head_chunk_tokens": 8,
    "critic": {"lr": 3e-3},
    "weight_decay": 0.01,
    "kl": {"reference": {"type": "ema", "decay": 0.5}},
    "ema_decay": 0.5,
}
ZERO = {"stage": 3, "reduce_bucket_size": 2000, "stage3_param_persistence_threshold": 200}
OFFLOADED = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}


@pytest.fixture(scope="module")
def runs(make_model: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, dict[str, Any]]:
    """The model, where the learners of each case have written, and what they have counted."""
    model, out = make_model(num_hidden_layers=3), tmp_path_factory.mktemp("ranks")
    plain = {"world": 1, "model": model, "section": None, "training": TRAINING, "options": {}, "updates": 2}
    two = plain | {"world": 2, "section": {"zero_optimization": ZERO}}
    two_later = two | {"first": 2, "updates": 1, "load": str(out / "two" / "shards")}
    one_update = two | {"section": {"zero_optimization": ZERO | {"stage": 2}}, "updates": 1}
    later = one_update | {"first": 2, "load": str(out / "second" / "shards")}
    recomputed = {"gradient_checkpointing": True}
    teacher = make_model(num_hidden_layers=4, initializer_range=0.4)
    distilled = {"options": {"lora": {"r": 4}}, "teacher": teacher}
    cases = {
        "plain": plain,
        "two": two,
        "two-two": two_later,
        "two-three": two_later | {"world": 3},
        "second": one_update,
        "second-second": later,
        "second-one": later | {"world": 1},
        "four": two | {"world": 4},
        "offloaded": two | {"section": {"zero_optimization": ZERO | OFFLOADED}, "options": recomputed},
        "plain-lora": plain | distilled,
        "two-lora": two | distilled,
        "second-lora": two | distilled | {"section": {"zero_optimization": ZERO | {"stage": 2}}},
    }
    given = json.dumps([case | {"out": str(out / name)} for name, case in cases.items()])
    done = subprocess.run([sys.executable, str(MEASURE), given], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return model, out, dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["two", "four", "offloaded"])
def test_learners_that_share_weights_train_as_one_that_holds_them(case: str, runs: Any) -> None:
    """With more passes on one of them, shared prompts, a moving reference, an average; recomputed and offloaded."""
    _, out, _ = runs
    for file in ("after-0.safetensors", "after-1.safetensors", "average.safetensors"):
        assert difference(load_file(out / case / file), load_file(out / "plain" / file)) < 1e-6
    exported = AutoModelForCausalLM.from_pretrained(out / case / "hf").state_dict()
    averaged = load_file(out / case / "average.safetensors")
    assert all(np.array_equal(tensor, exported[name].numpy()) for name, tensor in averaged.items())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["two", "four"])
def test_no_learner_holds_more_than_its_share_and_one_part(case: str, runs: Any) -> None:
    model, _, counted = runs
    shape, world = model_shape(AutoConfig.from_pretrained(model)), len(counted[case])
    share, part = 4 * shape.parameters / world, 4 * shape.largest
    section = {key: value for key, value in ZERO.items() if key != "stage3_param_persistence_threshold"}
    estimated = learner_mib(shape, zero=section, num_learners=world, copies=1)
    for found in counted[case]:
        assert found["share"] == pytest.approx(share, rel=0.01)
        assert found["share"] + found["reference"] == pytest.approx(estimated["weights"] * MIB, rel=0.06)  # And values.
        assert found["moments"] == pytest.approx(estimated["optimizer"] * MIB, rel=0.02)
        assert found["load"] < share + 2 * part
        assert found["push"] < 2 * part
        assert found["average"] + found["save"] < share + part
        assert found["whole"] < 0.1 * share  # Norms and biases, which DeepSpeed keeps whole.


@pytest.mark.slow
def test_what_is_offloaded_is_counted(runs: Any) -> None:
    """Masters, moments, and float32 gradients twice; the GPU has no gradients then."""
    model, _, counted = runs
    shape = model_shape(AutoConfig.from_pretrained(model))
    estimated = learner_mib(shape, zero={"stage": 3, "reduce_bucket_size": 2000} | OFFLOADED, num_learners=2)
    assert "gradients" not in estimated
    for found in counted["offloaded"]:
        assert found["offloaded"] == pytest.approx(estimated["optimizer"] * MIB, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["two-lora", "second-lora"])
def test_adapters_that_a_teacher_judges_are_learnt_as_by_one_learner(case: str, runs: Any) -> None:
    """Adapters, and what comes of them in pushes."""
    _, out, _ = runs
    for file in ("after-0", "after-1", "average", "adapter/adapter_model", "hf/model"):
        found, expected = (load_file(out / each / f"{file}.safetensors") for each in (case, "plain-lora"))
        assert difference(found, expected) < 1e-6
    assert not same(expected, load_file(out / case / "after-0.safetensors"))


@pytest.mark.slow
def test_the_base_of_adapters_and_a_teacher_are_divided_too(runs: Any) -> None:
    model, _, counted = runs
    (whole,), part = counted["plain-lora"], 4 * model_shape(AutoConfig.from_pretrained(model)).largest
    for found in counted["two-lora"]:
        for network, load in (("base", "load"), ("player", "load_teacher")):
            share = found[f"frozen {network}"]
            assert share == pytest.approx(whole[f"frozen {network}"] / 2, rel=0.02)
            assert found[load] < share + 2 * part
        assert found["push"] < found["frozen base"]


@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 2), (1, 4), (4, 1)])
def test_any_number_of_learners_reads_shares(before: int, now: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Also in several files, of tensors that no number divides, and of one that some have nothing of."""
    monkeypatch.setattr("rllib_lmgame.learners.engines.shards.MAX_FILE_BYTES", 8)
    tensors = {"a": torch.arange(7.0), "b": torch.arange(2.0).bfloat16(), "whole": torch.arange(3)}
    like = {name: torch.empty_like(tensors[name], device="meta") for name in "ab"}

    def shares(world: int, rank: int) -> dict[str, torch.Tensor]:
        def padded(tensor: torch.Tensor) -> torch.Tensor:
            length = -(-len(tensor) // world)
            return torch.nn.functional.pad(tensor, (0, length * world - len(tensor)))[length * rank :][:length]

        return {name: padded(tensor) if name in like else tensor for name, tensor in tensors.items()}

    for rank in range(before):
        ranks, own = ProcessGroup(before, rank), shares(before, rank)
        parts = parts_of_shares(own, like, ranks)
        save_shares(((name, begin, own[name][:size]) for name, begin, size in parts), tmp_path / "x", ranks, {"n": 1})
    saved = SavedShares(tmp_path / "x")
    assert saved.about == {"n": 1}
    for rank in range(now):
        own = shares(now, rank)
        for name, begin, size in parts_of_shares(own, like, ProcessGroup(now, rank)):
            assert torch.equal(saved.read(name, begin, size).to(own[name].dtype), own[name][:size])
    with pytest.raises(CheckpointError, match="lacks entries of a"):
        saved.read("a", 0, 8)


@pytest.mark.slow
def test_a_checkpoint_loads_with_another_number_of_learners(runs: Any) -> None:
    """Weights, moments, reference and average: the next update is that of as many learners as before."""
    _, out, _ = runs
    for file in ("after-2.safetensors", "average.safetensors"):
        for same_number, other in (("two-two", "two-three"), ("second-second", "second-one")):
            found, expected = load_file(out / other / file), load_file(out / same_number / file)
            assert difference(found, expected) < 1e-6
            assert not same(found, load_file(out / same_number.partition("-")[0] / "after-0.safetensors"))
