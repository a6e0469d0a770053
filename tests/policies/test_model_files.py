"""What a Hugging Face directory is looked at for before anything is loaded from it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from rllib_lmgame.algorithms.cluster.memory import model_shape
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.algorithms.validation import check_on_hub, check_teacher
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.policies.model.files import (
    INDEX_FILE,
    TOKENIZER_FILES,
    check_model,
    code_problem,
    fetched,
    load_tokenizer,
    local_config,
    model_directory,
    model_problem,
    parameter_count,
    vocabulary_problem,
)
from rllib_lmgame.policies.options import LanguageModelOptions


@pytest.fixture
def folder(tmp_path: Path, tiny_model_dir: str) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "hf"))


def index(*files: object) -> Callable[[Path], object]:
    table = {"weight_map": {f"w{i}": file for i, file in enumerate(files)}}
    return lambda folder: (folder / INDEX_FILE).write_text(json.dumps(table))


WEIGHTS = "model.safetensors"


def pipe(name: str) -> Callable[[Path], None]:
    """Damage: a pipe in the place of a file. Nothing ever comes through it."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / WEIGHTS).write_bytes(b""), f"{WEIGHTS} is no safetensors file"),
        (lambda folder: os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 1), "is no safetensors file"),
        (lambda folder: save_file({}, folder / WEIGHTS), f"{WEIGHTS} holds no weights"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
        (lambda folder: (folder / INDEX_FILE).write_text("{}"), "has no weight_map"),
        (index("../other.safetensors"), "no safetensors file beside it"),
        (index(WEIGHTS, "none.safetensors"), "none.safetensors"),
        (lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "would put an adapter on the model"),
        (pipe(WEIGHTS), f"{WEIGHTS} is no file"),
        (pipe("config.json"), "config.json is damaged: it is no file"),
    ],
)
def test_a_damaged_directory_is_named_before_anything_starts(
    folder: Path, damage: Callable[[Path], object], said: str
) -> None:
    assert model_problem(folder) is None
    damage(folder)
    assert said in str(model_problem(folder))
    with pytest.raises(ConfigError, match=r"config\.language_model\.model"):
        check_model(str(folder))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "tomorrows"}, "has model type `tomorrows` but Transformers does not recognize"),
        ({"num_hidden_layers": 7}, r"`num_hidden_layers` \(7\) must be equal to the number of `layer_types`"),
    ],
)
def test_a_configuration_that_transformers_cannot_read_is_told_before_anything_starts(
    changed: dict[str, object], said: str, folder: Path
) -> None:
    """And not called a fault of the tokenizer, whose class is looked up in the same file."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    run = LMGamePPOConfig().environment("lmgame/Sokoban-v0").language_model(model=str(folder))
    with pytest.raises(
        ConfigError, match=r"config\.language_model\.model: the config.json of .* cannot be read: "
    ) as told:
        run.validate()
    assert re.search(said, str(told.value)) and "\n" not in str(told.value)


def test_an_adapter_in_the_place_of_a_model_is_told_where_it_belongs(tmp_path: Path) -> None:
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is an adapter, and no model; language_model\.lora\.init takes adapters"):
        check_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modeling_own.py", "x = 1"),
        ("pytorch_model.bin", "x"),
        ("below/weights.bin", "x"),
        ("pytorch_model.bin.index.json", "{}"),
        ("config.json", json.dumps({"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}})),
        ("config.json", json.dumps({"text_config": {"attn_implementation": "somebody/kernel"}})),
        ("tokenizer_config.json", json.dumps({"auto_map": {"AutoTokenizer": ["tok.Own", None]}})),
        ("config.json", json.dumps({"speculators_config": {"verifier": {"name_or_path": "somebody/model"}}})),
        ("tokenizer_config.json", "{"),
        ("generation_config.json", "[" * 100_000),
    ],
)
def test_what_could_run_code_is_named(folder: Path, name: str, content: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    assert code_problem(folder) is None
    (folder / name).write_text(content)
    assert str(folder / name) in str(code_problem(folder))


def test_links_are_no_data(folder: Path) -> None:
    (folder / "extra.json").symlink_to(folder / "config.json")
    assert "extra.json" in str(code_problem(folder))


def test_shards_are_fine(folder: Path) -> None:
    save_file({"w": np.zeros(3, np.float32)}, folder / "model-2.safetensors")
    index(WEIGHTS, "model-2.safetensors")(folder)
    assert model_problem(folder) is None is code_problem(folder)


def test_a_checkpoint_stands_for_the_model_in_it(folder: Path) -> None:
    """``folder`` is called hf, as in a checkpoint."""
    assert model_directory(str(folder.parent)) == model_directory(str(folder)) == str(folder)
    check_model(str(folder.parent))
    assert load_tokenizer(str(folder.parent), LanguageModelOptions()).vocab_size
    several = folder.parent / "several"
    shutil.copytree(folder, several / "hf" / "first")
    shutil.copytree(folder, several / "hf" / "second")
    with pytest.raises(ConfigError, match=r"of several policies; name .* several/hf/first, several/hf/second"):
        check_model(str(several))
    check_model(str(several / "hf" / "first"))
    with pytest.raises(ConfigError, match="no such model directory"):
        check_model(str(folder / "nowhere"))
    check_model("Qwen/Qwen2.5-0.5B-Instruct")
    assert model_directory("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"


def test_a_tokenizer_of_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert vocabulary_problem(str(folder), str(folder)) is None
    assert vocabulary_problem("Qwen/Qwen2.5-0.5B-Instruct", str(folder)) is None
    small = Path(shutil.copytree(folder, tmp_path / "small"))
    (small / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    problem = vocabulary_problem(str(small), str(folder))
    assert problem is not None and re.search(r"ids up to \d+, but the model in .*small knows 100 only", problem)
    (small / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 100}}))
    assert "knows 100 only" in str(vocabulary_problem(str(small), str(folder)))
    (small / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    bare = Path(shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*token*", "vocab*")))
    assert "there is no tokenizer in" in str(vocabulary_problem(str(bare), str(bare)))
    config_of = LMGamePPOConfig().environment("lmgame/TicTacToe-v0").language_model(model=str(folder))
    config_of.players({"player": {}, "rival": {"trained": False, "language_model": {"model": str(small)}}}, "versus")
    with pytest.raises(ConfigError, match=r"config.policies.rival.language_model.model: the tokenizer in .* gives ids"):
        config_of.validate()
    rival = {"trained": False, "language_model": {"model": str(folder.parent)}}
    config_of.players({"player": {}, "rival": rival}, "versus").validate()


def test_a_damaged_tokenizer_is_blamed_at_its_key(folder: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    (damaged / "tokenizer.json").write_text('{"model": {"vocab": {"a": Infinity}}}')
    assert vocabulary_problem(str(folder), str(damaged)) is None  # Who loads it says what is wrong.
    (damaged / "tokenizer.json").write_text("{")
    config = LMGamePPOConfig().environment("lmgame/TicTacToe-v0")
    for options in ({"model": str(damaged)}, {"model": str(folder), "tokenizer": str(damaged)}):
        with pytest.raises(ConfigError, match=rf"language_model\.{[*options][-1]}: no tokenizer at .*/damaged'"):
            config.copy(copy_frozen=False).language_model(**options).validate()


def test_a_tokenizer_of_other_texts_is_refused(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    content = json.loads((other / "tokenizer.json").read_text())
    content["added_tokens"][0]["content"] = "<|added|>"  # One's own control tokens may be others.
    (other / "tokenizer.json").write_text(json.dumps(content))
    assert vocabulary_problem(str(folder), str(other)) is None
    first, second, *_ = vocabulary = content["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(content))
    config = LMGamePPOConfig().environment("lmgame/TicTacToe-v0")
    config.language_model(model=str(folder), tokenizer=str(other))
    message = rf"config.language_model.tokenizer: token \d+ of the tokenizer in {other} is .* to the model in {folder}"
    with pytest.raises(ConfigError, match=message):
        config.validate()


def without_vocabulary(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def rewritten(name: str, change) -> Callable[[Path], None]:
    """Damage: a JSON file with something else in it."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        change(content)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")

    return damage


def setting(**fields) -> Callable[[Path], None]:
    return rewritten("tokenizer_config.json", lambda content: content.update(fields))


UNUSABLE = [
    (without_vocabulary, r"cannot spell a text of a game: 'You stand .*' becomes '' .*has none of tokenizer\.json"),
    (rewritten("tokenizer.json", lambda c: c["model"].update(vocab={}, merges=[])), "cannot spell a text of a game"),
    (setting(model_max_length="abc"), "it fails on a text of a game: '>' not"),
    (setting(model_input_names=3), "it fails on a text of a game: argument of type 'int'"),
    (setting(eos_token=["<|end|>"]), "eos_token has to be either str or AddedToken"),
]


@pytest.mark.parametrize(("damage", "said"), UNUSABLE)
def test_a_tokenizer_that_cannot_spell_is_refused_before_anything_starts(
    folder: Path, damage: Callable[[Path], None], said: str
) -> None:
    """Whoever opens it, and wherever its model is named."""
    damage(folder)
    with pytest.raises(ConfigError, match=rf"^config\.language_model\.tokenizer: no tokenizer .*{said}") as error:
        load_tokenizer(str(folder), LanguageModelOptions())
    assert "\n" not in str(error.value)
    config = LMGamePPOConfig().environment("lmgame/TicTacToe-v0")
    with pytest.raises(ConfigError, match=said):
        config.copy(copy_frozen=False).language_model(model=str(folder)).validate()
    rival = {"trained": False, "language_model": {"model": str(folder)}}
    with pytest.raises(ConfigError, match=rf"^config\.policies\.rival\.language_model\.model: no tokenizer .*{said}"):
        config.players({"player": {}, "rival": rival}, "versus").validate()


def test_a_chat_template_is_tried_before_anything_starts(folder: Path) -> None:
    config = LMGamePPOConfig().environment("lmgame/TicTacToe-v0")
    config.language_model(model=str(folder), chat_template="{{ raise_exception('not this one') }}")
    with pytest.raises(ConfigError, match=r"^config\.language_model\.chat_template: .* not this one"):
        config.validate()


@pytest.fixture
def on_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Function ``(repository, **files)`` that puts texts on a hub, on which there is nothing else."""
    from huggingface_hub.errors import EntryNotFoundError

    cache, commit = tmp_path / "hub", "c0ffee" * 6 + "abcd"

    def place(repository: str) -> Path:
        return cache / f"models--{repository.replace('/', '--')}"

    def put(repository: str, files: dict[str, str]) -> None:
        for name, text in {
            "refs/main": commit,
            **{f"snapshots/{commit}/{name}": files[name] for name in files},
        }.items():
            (place(repository) / name).parent.mkdir(parents=True, exist_ok=True)
            (place(repository) / name).write_text(text)

    def download(repository: str, name: str, **options: object) -> str:
        file = place(repository) / "snapshots" / commit / name
        if not file.is_file():
            raise EntryNotFoundError(f"404: there is no {name}")
        return str(file)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: False)
    monkeypatch.setattr("transformers.utils.hub.hf_hub_download", download)
    monkeypatch.setattr("rllib_lmgame.downloads.hub.silence", lambda repository: None)
    return put


def test_what_the_hub_has_without_a_configuration_is_no_model(on_hub: Callable[..., None]) -> None:
    """Such as a repository of GGUF files."""
    on_hub("some/quantized", {"model-q4.gguf": ""})
    with pytest.raises(ConfigError, match=r"KEY: 'some/quantized' is no directory .*: it has no config\.json"):
        fetched("some/quantized", "KEY")


def test_a_hub_that_does_not_answer_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the cache of its library is taken from there."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: pytest.fail("it is asked again"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"127\.0\.0\.1:9 does not answer \(.*refused.*\), and this machine has no copy"
    ):
        fetched("some/model", "KEY")
    place, commit = tmp_path / "models--some--model", "c0ffee" * 6 + "abcd"
    for name, text in {"refs/main": commit, f"snapshots/{commit}/config.json": "{}"}.items():
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text(text)
    assert fetched("some/model", "KEY") == str(place / "snapshots" / commit)


@pytest.mark.parametrize("file", TOKENIZER_FILES[:2])
def test_a_tokenizer_on_the_hub_needs_one_of_its_files_and_no_model(
    file: str, on_hub: Callable[..., None], folder: Path
) -> None:
    on_hub("some/words", {file: "{}"})
    config = LMGamePPOConfig().environment("lmgame/FrozenLake-v0")
    config.language_model(model=str(folder), tokenizer="some/words")
    check_on_hub(config)


def test_a_tiny_models_other_vocabulary_is_told_with_the_cure(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "scratch" / "player"
    made.mkdir(parents=True)
    (made / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
    config = LMGamePPOConfig().environment("lmgame/FrozenLake-v0").teacher(model=str(folder))
    config.language_model(model="tiny")
    with pytest.raises(ConfigError, match=r"token 0 is 'a' in .*, and") as caught:
        check_teacher(config, {"player": str(made)})
    assert caught.value.message.endswith("; set language_model.tokenizer to the teacher's")


def test_counting_parameters_changes_no_numerics_of_other_threads(folder: Path, monkeypatch: Any) -> None:
    """Transformers makes a model in its own ones by setting PyTorch's default."""
    config, seen, before = folder / "config.json", list[torch.dtype](), parameter_count(str(folder))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "bfloat16"}))
    monkeypatch.setattr(torch, "set_default_dtype", seen.append)
    assert parameter_count(str(folder)) == before > 0 and {*seen} <= {torch.float32}


def test_to_count_weights_no_code_of_a_model_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers would ask on the terminal whether the code may run."""
    about = {"model_type": "clip_text_model", "auto_map": {"AutoModelForCausalLM": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    (tmp_path / "own.py").write_text("")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "n")
    assert parameter_count(str(tmp_path)) == 0 and not asked
    with pytest.raises(ValueError, match="trust_remote_code"):
        model_shape(local_config(str(tmp_path)))
    assert not asked
