"""Replies that end at a text, however the vocabulary spells it: the sampled ids, cut behind the token that ends it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_reference import STOP, VOCAB, generate_all, requests, sound, tokenizer_of
from transformers import AutoTokenizer

from rllib_lmgame.inference.engines.text_ends import TextEnds
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec, StopReason

TAG = "</answer>"


def cut_of(tokenizer: Any, ids: list[int], text: str) -> int | None:
    """Tokens up to the one with which ``text`` is there, by the definition."""
    return next((n for n in range(1, len(ids) + 1) if text in tokenizer.decode(ids[:n])), None)


@settings(deadline=None, max_examples=60)
@given(
    cuts=st.sets(st.integers(1, len(TAG) - 1), max_size=4),
    behind=st.sampled_from(["", "\n", " and more"]),
    before=st.sampled_from(["", "12", "<"]),
    draws=st.lists(st.integers(0, 30), max_size=40),
)
def test_any_vocabulary_ends_a_reply_with_the_token_that_completes_the_tag(
    cuts: set[int], behind: str, before: str, draws: list[int]
) -> None:
    """A tag of one to five tokens, with other characters before and behind it in its first and last."""
    bounds = [0, *sorted(cuts), len(TAG)]
    spelt = [TAG[a:b] for a, b in itertools.pairwise(bounds)]
    spelt[0], spelt[-1] = before + spelt[0], spelt[-1] + behind
    tokenizer = tokenizer_of([*spelt, *TAG, "an", "swer>", ">", "x"])
    ends = TextEnds("nowhere")
    ends.__dict__["tokenizer"] = tokenizer
    whole = tokenizer.convert_tokens_to_ids(spelt)
    ids = [3 + draw % (VOCAB - 3) for draw in draws]
    for reply in ([*ids, *whole, *ids], [*ids, *tokenizer.convert_tokens_to_ids([*TAG])], ids, [*ids, *whole[:-1]]):
        found = next((n for n in range(1, len(reply) + 1) if ends.ended(reply[:n], (TAG,))), None)
        assert found == cut_of(tokenizer, reply, TAG)
    assert found is None or found <= len(ids) + len(whole)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_an_engine_cuts_what_it_would_have_said(engine: Any, model_dir: str, models: Any, temperature: float) -> None:
    tokenizer, text = AutoTokenizer.from_pretrained(model_dir), "a>"
    plain = SamplingSpec(24, temperature, stop_token_ids=(STOP,))
    batch = [replace(r, sampling=replace(plain, seed=i)) for i, r in enumerate(requests(48, plain, prefix="plain"))]
    ended = [
        replace(r, request_id=f"ended{i}", sampling=replace(r.sampling, stop_texts=("never>", text)))
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
    batch = requests(12, SamplingSpec(9, stop_token_ids=(STOP,), stop_texts=("</a>",)), prefix="legal", choices=choices)
    said = {tuple(g.response_ids.tolist()) for g in generate_all(engine, batch)}
    assert said <= set(choices) and len(said) == 2


def test_an_engine_without_a_tokenizer_says_so(model_dir: str, tmp_path: Path) -> None:
    import asyncio

    from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
    from rllib_lmgame.settings.sections.inference import InferenceOptions

    options, missing = InferenceOptions(engine="transformers"), str(tmp_path / "none")
    engine = TransformersEngine(model_dir, options, context_length=64, tokenizer=missing)
    asyncio.run(engine.start())
    try:
        spec = SamplingSpec(4, stop_texts=("</a>",))
        bad, good = generate_all(
            engine, [GenerationRequest("bad", [5], spec), GenerationRequest("good", [5], SamplingSpec(4))]
        )
    finally:
        asyncio.run(engine.shutdown())
    assert bad.stop_reason is StopReason.ENGINE_ERROR and "no tokenizer at" in str(bad.error)
    assert good.error is None and len(good.response_ids) == 4
