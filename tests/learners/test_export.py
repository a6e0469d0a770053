"""A Hugging Face directory that was written: whatever its model came with, it is loaded and talked to as trained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.group import build
from rllib_lmgame.evaluation.players.settings import Sections
from rllib_lmgame.learners.engines.torch_engine import save_tensors
from rllib_lmgame.policies.chat.template import PLAIN_CHAT_TEMPLATE, TINY_CHAT_TEMPLATE
from rllib_lmgame.policies.model.export import Played, front_matter, model_card
from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.policies.options import LanguageModelOptions

GAME = ("lmgame/FrozenLake-v0", {"max_turns": 2, "max_actions": 6})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "source", ["Left Right Up Down " * 4, "Turns left: 0 1 2 " * 4])


def module_of(source: Path, **options: Any) -> LanguageModelRLModule:
    space = gym.spaces.Text(4)
    config = {"options": {"model": str(source), **options}, "model_dir": str(source)}
    return LanguageModelRLModule(observation_space=space, action_space=space, inference_only=False, model_config=config)


def edit(file: Path, **entries: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | entries))


@pytest.mark.parametrize(
    ("file", "entries"),
    [
        ("generation_config.json", {"temperature": 0.9, "top_p": 0.6, "max_length": 4096}),  # Llama 2
        ("generation_config.json", {"num_beams": 1, "length_penalty": 0.5, "early_stopping": True}),
        ("config.json", {"temperature": 0.9, "num_beams": 4}),
        ("tokenizer_config.json", {"model_max_length": 1e30, "extra": [1]}),
        ("special_tokens_map.json", {"additional_special_tokens": ["<|user|>"]}),
    ],
)
def test_what_training_does_not_need_makes_no_checkpoint_fail(
    source: Path, tmp_path: Path, file: str, entries: dict[str, Any]
) -> None:
    edit(source / file, **entries)
    module_of(source).save_hf(tmp_path / "hf")
    exported = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    if file == "generation_config.json":
        assert entries.items() <= exported.items()
    AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    again = module_of(tmp_path / "hf")
    again.save_hf(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text()) == exported


@pytest.mark.parametrize("stop_on_answer", [True, False])
def test_a_reply_ends_where_it_ended_in_training(source: Path, tmp_path: Path, stop_on_answer: bool) -> None:
    edit(source / "generation_config.json", eos_token_id=[3, 7])
    module_of(source, stop_on_answer=stop_on_answer).save_hf(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    closing = tokenizer.convert_tokens_to_ids(["</answer>"]) if stop_on_answer else []
    ends = [tokenizer.convert_tokens_to_ids("<|end|>"), *closing, 3, 7]
    assert GenerationConfig.from_pretrained(tmp_path / "hf").eos_token_id == ends
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "hf").generation_config.eos_token_id == ends


@pytest.mark.parametrize("case", ["own", "option", "default"])
def test_the_template_of_the_run_is_exported(source: Path, tmp_path: Path, case: str) -> None:
    option = TINY_CHAT_TEMPLATE.replace("<|end|>", "<|end|>\n")
    if case == "default":
        (source / "chat_template.jinja").unlink()
    module_of(source, chat_template=option if case == "option" else None).save_hf(tmp_path / "hf")
    template = {"own": TINY_CHAT_TEMPLATE, "option": option, "default": PLAIN_CHAT_TEMPLATE}[case]
    assert AutoTokenizer.from_pretrained(tmp_path / "hf").chat_template == template


def test_all_files_follow_the_umask(source: Path, tmp_path: Path) -> None:
    module_of(source).save_hf(tmp_path / "hf", played=Played([GAME]))
    save_tensors({"a": torch.zeros(1)}, tmp_path / "hf" / "learner.safetensors")
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "hf").iterdir()}
    (tmp_path / "plain").touch()
    assert modes == dict.fromkeys(modes, (tmp_path / "plain").stat().st_mode & 0o777)


@pytest.mark.parametrize(
    "file", ["config.json", "model.safetensors", "tokenizer_config.json", "generation_config.json", "README.md"]
)
def test_a_file_that_cannot_be_written_is_named(source: Path, tmp_path: Path, file: str) -> None:
    (tmp_path / "hf" / file).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=rf"^hf/{re.escape(file)} cannot be written: .+$") as error:
        module_of(source).save_hf(tmp_path / "hf", played=Played([GAME]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("tiny", {}),
        (
            "smollm2-135m",
            {
                "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
                "license": "apache-2.0",
                "license_link": "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
            },
        ),
        ("Qwen/Qwen2.5-0.5B-Instruct", {"base_model": "Qwen/Qwen2.5-0.5B-Instruct"}),
        ("{tmp}", {"base_model": "a/base", "license": "mit"}),
        ("models/of--another-machine", {}),
    ],
)
def test_a_card_names_what_was_trained_and_its_licence(model: str, wanted: dict[str, str], tmp_path: Path) -> None:
    """Of a directory, as a checkpoint's, what its own card says; nothing there can add lines."""
    own = "---\nbase_model: a/base\nlicense: mit\nlicense_name: 'x\n\n  y: z'\n---\n# A model\n"
    (tmp_path / "README.md").write_text(own)
    assert front_matter(model_card(LanguageModelOptions(model=model.format(tmp=tmp_path)), Played([GAME]))) == wanted


def test_a_card_names_no_template_of_this_machine() -> None:
    """The exported tokenizer has it."""
    assert "mine.jinja" not in model_card(LanguageModelOptions(chat_template="/home/me/mine.jinja"), Played([GAME]))


def test_nothing_of_a_strangers_settings_is_markdown_or_code_in_the_card() -> None:
    evil = "'''\"\"\"\n```\n# Read me\n</pre><script>\u202e{0}"
    options = LanguageModelOptions(
        system_prompt=evil,
        chat_template_kwargs={evil: [evil, 1, None]},
        reply_prefill=evil,
        answer_tag=evil.replace("\u202e", ""),  # Tags are ASCII.
    )
    played = Played([(evil, {evil: evil, "own": object()})], temperature=0, constrained_decoding=True)
    plain = model_card(LanguageModelOptions(), Played([GAME]))
    card = model_card(options, played)
    assert card.isascii() and "# Read me" in card
    fences = [line for line in card.splitlines() if line.lstrip().startswith(("```", "#", "<"))]
    assert fences == [line for line in plain.splitlines() if line.lstrip().startswith(("```", "#", "<"))]
    settings, games = map(json.loads, re.findall(r"^```json\n(.*?)^```$", card, re.DOTALL | re.MULTILINE))
    sections = build(Sections, settings, "--config")
    assert settings["language_model"]["system_prompt"] == evil and games[0][0] == evil
    assert sections.language_model == options
    assert sections.inference.temperature == 0 and sections.text_rollouts.constrained_decoding
