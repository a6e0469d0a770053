"""A run that begins with a GGUF file: training, a checkpoint that needs the file no more, and the file as a player."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllib_lmgame.algorithms.cluster.memory import shape_of
from rllib_lmgame.cli.main import main
from rllib_lmgame.evaluation.evaluate import evaluate_checkpoint
from rllib_lmgame.policies.model import gguf_files
from rllib_lmgame.policies.model.files import code_problem, model_directory
from tests.policies.gguf_models import llama, write_gguf


@pytest.mark.slow
def test_a_gguf_file_trains_and_plays(
    start, make_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    monkeypatch.setenv(gguf_files.CACHE, str(tmp_path / "cache"))
    model = llama()
    file = write_gguf(tmp_path / "small.gguf", model)
    options = {"model": str(file), "context_length": 512}
    config = make_config(language_model=options)
    assert shape_of(config, "player").parameters == model.num_parameters()
    algorithm = start(config)
    learner = algorithm.train()["learners"]["player"]
    assert learner["logprob_diff"] <= 1e-4 and learner["nan_steps"] == 0
    checkpoint = tmp_path / "checkpoint"
    algorithm.save_to_path(checkpoint)

    player = json.dumps({"language_model": {"context_length": 700}, "inference": {"engine": "transformers"}})
    game = ["--env", "lmgame/TicTacToe-v0", "--against", f"X=hf:{file}", "--episodes", "2"]
    assert main(["evaluate", str(file), *game, "--config", player]) == 0
    assert main(["play", "lmgame/TicTacToe-v0", "--players", f"X={file}", "O=random"]) == 2
    assert f"is a model: write hf:{file}" in capsys.readouterr().err

    tokens = AutoTokenizer.from_pretrained(model_directory(str(file))).get_vocab()
    before = AutoModelForCausalLM.from_pretrained(model_directory(str(file))).state_dict()
    shutil.rmtree(tmp_path / "cache")
    file.unlink()
    export = checkpoint / "hf"
    assert code_problem(export) is None
    config_file = json.loads((export / "config.json").read_text())
    assert config_file["dtype"] == "float32" and "quantization_config" not in config_file
    after = AutoModelForCausalLM.from_pretrained(export).state_dict()
    assert before.keys() == after.keys()
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert AutoTokenizer.from_pretrained(export).get_vocab() == tokens
    assert evaluate_checkpoint(checkpoint, num_episodes=2)["num_episodes"] == 2
