"""Judges and oracles that are language models in the process of their game."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.contract.session import StepResult
from rllib_lmgame.envs.games.talk.debate.game import Debate
from rllib_lmgame.envs.games.words.guessing.guess_my_city import GuessMyCity
from rllib_lmgame.envs.support.asked_models import AskedModel
from rllib_lmgame.policies.model import hf_judge

CHAT = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
WORDS = {"PRO": 0, "CON": 1, "unknown": 2, "system": 3, "user": 4}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_judge, "MAX_TOKENS", 4)


@pytest.fixture
def partisan(tmp_path: Path) -> str:
    """A model to which all words are alike, so that it says the first it knows: PRO."""
    words = Tokenizer(WordLevel(WORDS, unk_token="unknown"))
    words.pre_tokenizer = Whitespace()
    directory = tmp_path / "partisan"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="unknown", chat_template=CHAT)
    tokenizer.save_pretrained(directory)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=512, **shape))
    torch.nn.init.zeros_(model.model.norm.weight)
    model.save_pretrained(directory)
    return f"hf:{directory}"


def with_template(source: str, template: str | None) -> None:
    directory = source.removeprefix("hf:")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.chat_template = template
    (Path(directory) / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(directory)


def one_speech_each(judge: str) -> StepResult:
    session = make_session("lmgame/Debate-v0", {"judge": judge, "speeches": 1})
    session.reset(1)
    session.step({"pro": "Cats are kind because they purr."})
    return session.step({"con": "CON CON CON"})


def test_it_judges_a_debate(partisan: str) -> None:
    assert one_speech_each(partisan).rewards == {"pro": 1.0, "con": -1.0}
    assert "loaded by each process" in Debate(judge=partisan).check_ready()


def test_it_answers_as_an_oracle(partisan: str) -> None:
    city = GuessMyCity(oracle=partisan, split="all")
    city.reset(seed=0)
    assert city.slow_calls and city.step("Where does it lie?")[0].endswith("PRO PRO PRO PRO")


def test_its_reply_is_the_greedy_one(tiny_model_dir: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_model_dir, checkpoint / "hf")
    said = AskedModel(f"hf:{checkpoint}", "key").ask("You judge.", "who is right")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    chat = [{"role": "system", "content": "You judge."}, {"role": "user", "content": "who is right"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    begin = len(tokens)
    while len(tokens) < begin + 4 and tokenizer.eos_token_id not in tokens[begin:]:
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert said == tokenizer.decode(tokens[begin:], skip_special_tokens=True)


def test_it_is_loaded_once_and_asked_in_turn(partisan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, asked = [], []
    load = AutoModelForCausalLM.from_pretrained

    def counted(*args: Any, **kwargs: Any) -> Any:
        loads.append(args)
        model, info = load(*args, **kwargs)
        generate = model.generate

        def alone(**kwargs: Any) -> Any:
            asked.append("begun")
            try:
                return generate(**kwargs)
            finally:
                asked.append("ended")

        model.generate = alone
        return model, info

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", counted)
    models = [AskedModel(partisan, "key") for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(lambda model: model.ask("Judge.", "CON"), models))
    assert replies == ["PRO PRO PRO PRO"] * 4
    assert len(loads) == 1 and asked == ["begun", "ended"] * 4


def test_what_cannot_answer_drops_the_episode(partisan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = AskedModel(partisan, "key")
    with pytest.raises(GameError, match="more than the model takes"):
        model.ask("Judge.", "CON " * 600)
    monkeypatch.setattr(hf_judge, "TIME_LIMIT_S", 0.0)
    with pytest.raises(GameError, match="did not end within"):
        model.ask("Judge.", "CON")


def test_what_is_no_model_is_said_before_a_run(partisan: str, tmp_path: Path) -> None:
    for source, problem in (("hf:", "names no model"), (f"hf:{tmp_path}/none", "no such model directory")):
        with pytest.raises(ConfigError, match=rf"env_config\.judge.*{problem}"):
            Debate(judge=source)
    with_template(partisan, None)
    with pytest.raises(ConfigError, match=r"env_config\.judge.*has no chat template"):
        Debate(judge=partisan).check_ready()
    weights = Path(partisan.removeprefix("hf:")) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ConfigError, match="is no safetensors file"):
        Debate(judge=partisan)
