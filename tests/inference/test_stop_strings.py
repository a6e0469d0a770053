"""Replies that end at a text, however the vocabulary spells it: the sampled ids, cut behind the token that ends it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from inference_reference import STOP, generate_all, requests, sound, tokenizer_of
from transformers import AutoTokenizer

from rllib_lmgame.inference.engines.stop_strings import StopStrings
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, StopReason

TAG = "</answer>"


def cut_of(tokenizer: Any, ids: list[int], text: str) -> int | None:
    """Tokens up to the one with which ``text`` is there, by the definition."""
    return next((n for n in range(1, len(ids) + 1) if text in tokenizer.decode(ids[:n])), None)


@cache
def spelled_by_bytes(kind: str) -> tuple[Any, list[str]]:
    """A vocabulary of pieces and bytes, joined as GPT's decoder joins them or Llama's; and the pieces of all bytes."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    if kind == "byte_level":
        single, blank, decoder = [bytes_to_unicode()[byte] for byte in range(256)], "\u0120", decoders.ByteLevel()
    else:
        single, blank = [f"<0x{byte:02X}>" for byte in range(256)], "\u2581"
        steps = [decoders.Replace(blank, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        decoder = decoders.Sequence(steps)
    pieces = dict.fromkeys([*single, *PARTS, f"{blank}an", f"{blank}<"])
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=single[0]))
    backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend), single


NO_TOKEN = 600
PARTS = ["</", "answer", "answer>", "swer>", ">."]
LETTERS = ["\xe9", "\u4e2d", "\U0001f600"]


@pytest.mark.parametrize("kind", ["byte_level", "fallback"])
@settings(deadline=None)
@given(
    draws=st.lists(
        st.sampled_from([*PARTS, *LETTERS, TAG, " an", " <"]) | st.integers(0, 255) | st.just(NO_TOKEN), max_size=60
    )
)
@example(["</", *[NO_TOKEN] * 3, "answer>"])
@example([*["\xe9"] * 20, TAG])
@example(["<", "/", " an"])
def test_the_end_of_a_reply_says_what_the_whole_says(kind: str, draws: list[str | int]) -> None:
    """With parts of characters, bytes that are none, and ids that have no token."""
    tokenizer, single = spelled_by_bytes(kind)
    known, ids = tokenizer.get_vocab(), []
    for draw in draws:
        if isinstance(draw, int):
            ids += [NO_TOKEN] * 9 if draw == NO_TOKEN else [known[single[draw]]]
        else:
            ids += [known[draw]] if draw in known else [known[single[byte]] for byte in draw.encode()]
    ends = StopStrings("nowhere")
    ends.__dict__["tokenizer"] = tokenizer
    for text in (TAG, "/ "):
        found = next((n for n in range(1, len(ids) + 1) if ends.ended(ids[:n], (text,))), None)
        assert found == cut_of(tokenizer, ids, text)


def test_a_long_reply_is_not_decoded_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    from rllib_lmgame.inference.engines import stop_strings

    ends, decoded, whole = StopStrings("nowhere"), [], stop_strings.text_of
    ends.__dict__["tokenizer"] = tokenizer_of(["a>", "b"])
    monkeypatch.setattr(
        stop_strings, "text_of", lambda tokenizer, ids: decoded.append(len(ids)) or whole(tokenizer, ids)
    )
    assert not ends.ended([3, 4] * 2000 + [3], (TAG,))
    assert sum(decoded) < 50


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_an_engine_cuts_what_it_would_have_said(engine: Any, model_dir: str, models: Any, temperature: float) -> None:
    tokenizer, text = AutoTokenizer.from_pretrained(model_dir), "a>"
    plain = SamplingSpec(24, temperature, stop_token_ids=(STOP,))
    batch = [replace(r, sampling=replace(plain, seed=i)) for i, r in enumerate(requests(48, plain, prefix="plain"))]
    ended = [
        replace(r, request_id=f"ended{i}", sampling=replace(r.sampling, stop_strings=("never>", text)))
        for i, r in enumerate(batch)
    ]
    before, after = generate_all(engine, batch), generate_all(engine, ended)
    cut = 0
    for whole, reply in zip(before, after, strict=True):
        ids = whole.response_ids.tolist()
        length = cut_of(tokenizer, ids, text)
        cut += length is not None and length < len(ids)
        assert reply.response_ids.tolist() == ids[:length]
        np.testing.assert_allclose(reply.logprobs, whole.logprobs[:length], atol=1e-5)
        assert reply.stop_reason is (whole.stop_reason if length is None else StopReason.EOS)
    assert cut >= 3 or temperature == 0
    assert sound(models[0], ended, after)


def test_legal_replies_end_at_the_text_that_they_all_end_with(engine: Any, model_dir: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    choices = tuple(
        tuple(tokenizer.convert_tokens_to_ids(tokens)) for tokens in (["b", "</", "a>"], ["b", "/", "</", "a", ">"])
    )
    batch = requests(
        12, SamplingSpec(9, stop_token_ids=(STOP,), stop_strings=("</a>",)), prefix="legal", choices=choices
    )
    said = {tuple(g.response_ids.tolist()) for g in generate_all(engine, batch)}
    assert said <= set(choices) and len(said) == 2


def test_an_engine_without_a_tokenizer_says_so(model_dir: str, tmp_path: Path) -> None:
    import asyncio

    from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
    from rllib_lmgame.inference.options import InferenceOptions

    options, missing = InferenceOptions(engine="transformers"), str(tmp_path / "none")
    engine = TransformersEngine(model_dir, options, context_length=64, tokenizer=missing)
    asyncio.run(engine.start())
    try:
        spec = SamplingSpec(4, stop_strings=("</a>",))
        bad, good = generate_all(
            engine, [GenerationRequest("bad", [5], spec), GenerationRequest("good", [5], SamplingSpec(4))]
        )
    finally:
        asyncio.run(engine.shutdown())
    assert bad.stop_reason is StopReason.ENGINE_ERROR and "no tokenizer at" in str(bad.error)
    assert good.error is None and len(good.response_ids) == 4
