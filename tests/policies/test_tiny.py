"""The tiny model is an ordinary Hugging Face directory, the same every time."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs import make_session
from rllib_lmgame.policies.chat.corpus import game_corpus
from rllib_lmgame.policies.model.tiny import TinyModelOptions, build_tiny_model, build_tokenizer, wall_tokens

SMALL = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "intermediate_size": 32, "vocab_size": 300}


def test_text_survives_encoding(tiny_tokenizer: Any, sokoban_corpus: list[str]) -> None:
    for text in {*sokoban_corpus, "a  b\n\n ", "日本 <|end|>"}:
        assert tiny_tokenizer.decode(tiny_tokenizer.encode(text, split_special_tokens=True)) == text


def test_model_loads_and_has_the_documented_size(tiny_dir) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_dir)
    documented = float(re.search(r"([\d.]+) M parameters", str(inspect.getdoc(TinyModelOptions))).group(1))  # type: ignore[union-attr]
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(documented, abs=0.005)
    config = json.loads((tiny_dir / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["hidden_size"] // config["num_attention_heads"] == 32  # A head size that every engine knows.
    assert (tiny_dir / "model.safetensors").is_file()


def test_the_same_texts_and_seed_give_the_same_files(tmp_path, sokoban_corpus: list[str]) -> None:
    one, two, other = (
        build_tiny_model(tmp_path / n, sokoban_corpus, {**SMALL, "seed": s}) for n, s in (("a", 0), ("b", 0), ("c", 1))
    )
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_building_leaves_the_random_state_alone(tmp_path, sokoban_corpus: list[str]) -> None:
    import torch

    before = torch.get_rng_state()
    build_tiny_model(tmp_path, sokoban_corpus, SMALL)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"hiden_size": 8}, "hidden_size"),
        ({"num_layers": 0}, "num_layers"),
        ({"num_heads": 5}, "num_heads"),
        ({"num_kv_heads": 2}, "num_kv_heads"),
        ({"vocab_size": 10}, "vocab_size"),
    ],
)
def test_impossible_shapes_name_the_key(tmp_path, overrides: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build_tiny_model(tmp_path, ["x"], overrides)


def test_a_corpus_without_walls_and_an_empty_one() -> None:
    assert wall_tokens(["no walls"]) == []
    halls = ["\n".join("#" * width for width in range(3, 13))]
    assert len(wall_tokens(halls)) == 21
    assert len(build_tokenizer(halls, 272, 64)) == 272, "vocab_size bounds them"
    assert len(build_tokenizer([], 320, 64).encode("Up")) == 2


def test_marks_with_the_number_of_their_cell_are_single_tokens() -> None:
    texts = game_corpus(make_session("lmgame/TicTacToe-v0", {"numbered_marks": True}), episodes=60, seed=0)
    tokenizer = build_tokenizer(texts, 320, 64)
    board = "O1 2 X3\n4 X5 6\nX7 8 O9"
    assert "|".join(tokenizer.tokenize(f"You are X.\n{board}")[-13:]) == "\nO1|Ġ|2| X3|Ċ|4| X5|Ġ|6|\nX7|Ġ|8| O9"
    assert tokenizer.tokenize("<answer>6</answer>")[1] == "6", "of a cell and in a reply alike"
    assert tokenizer.decode(tokenizer.encode(board)) == board
    sokoban = game_corpus(make_session("lmgame/Sokoban-v0", {"numbered_cells": True}), episodes=60, seed=0)
    tokens = build_tokenizer(sokoban, 512, 64).tokenize("P1 _2 X3 √4\n#5 #6 _7 #16")
    assert tokens == ["P1", " _2", " X3", " √4", "\n#5", " #6", " _7", " #16"]
    long = game_corpus(make_session("lmgame/2048-v0", {"numbered_cells": True}), episodes=4, seed=0)
    assert build_tokenizer(long, 640, 64).tokenize("A1 _2 F7 G8") == ["A1", " _2", " F7", " G8"], "of late turns, too"
    assert len(game_corpus(make_session("lmgame/2048-v0"), seed=0)) < 30_000, "of 4,000 turns in all"


def test_corpus_is_a_function_of_the_seed() -> None:
    texts = [game_corpus(make_session("lmgame/TicTacToe-v0", {}), episodes=4, seed=s) for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert all(texts[0])


class Fails(ValueError):
    """What an episode of a test's game fails with."""


def test_a_corpus_leaves_out_the_episodes_that_fail() -> None:
    resets: list[str] = []

    def call(what: str, function: Any, *args: Any) -> Any:
        if what == "reset":
            resets.append(what)
        if len(resets) in failing and what == "step":
            raise Fails("no step")
        return function(*args)

    def texts() -> list[str]:
        return game_corpus(make_session("lmgame/TicTacToe-v0", {}), episodes=4, seed=1, call=call, tolerated=Fails)

    failing: set[int] = set()
    whole = texts()
    resets.clear()
    failing = {2, 3}
    assert 1 < len(texts()) < len(whole)
    failing = {*range(100)}
    with pytest.raises(Fails, match="no step"):
        texts()
