"""Both engines against a plain float32 forward pass: also mixtures of experts, and contexts on both sides of the length
that a model with long RoPE was trained with.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from inference_reference import (
    CONTEXT,
    SIZES,
    STOP,
    VOCAB,
    gap,
    generate_all,
    learner_module,
    reference_logprobs,
    requests,
    sound,
    state_of,
)
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, Phi3Config

from rllib_lmgame.algorithms.cluster.workers import adapter_arguments
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.inference.engines import vllm_engine as vllm_engine_module
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import (
    GenerationRequest,
    SamplingSpec,
    StopReason,
    WeightUpdateError,
    allowed_tokens,
    decode_generations,
    encode_requests,
)
from rllib_lmgame.inference.serving.actor import EngineActor, EngineSpec, make_engine
from rllib_lmgame.inference.weights import pack_state, state_checksum
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.policies.model.attention import Layout
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.rollouts.records import Trajectory, Turn

SPECS = {
    "plain": SamplingSpec(12, stop_token_ids=(STOP,)),
    "cool": SamplingSpec(12, temperature=0.7, stop_token_ids=(STOP,)),
    "nucleus": SamplingSpec(12, temperature=0.7, top_p=0.9, stop_token_ids=(STOP,)),
    "top_k": SamplingSpec(12, top_k=5, stop_token_ids=(STOP,)),
    "greedy": SamplingSpec(12, temperature=0.0, stop_token_ids=(STOP,)),
}


@pytest.mark.parametrize("name", list(SPECS))
def test_logprobs_are_those_of_a_plain_forward(engine: Any, models: Any, name: str) -> None:
    batch = requests(24, SPECS[name], prefix=name)
    assert sound(models[0], batch, generate_all(engine, batch))


def test_types_lengths_and_stop_reasons(engine: Any) -> None:
    batch = requests(64, SamplingSpec(9, stop_token_ids=(STOP, 7, 8, 9, 10)), prefix="types")
    generations = generate_all(engine, batch)
    assert {g.stop_reason for g in generations} == {StopReason.EOS, StopReason.MAX_TOKENS}
    for request, generation in zip(batch, generations, strict=True):
        ids = generation.response_ids
        assert generation.request_id == request.request_id
        assert (ids.dtype, generation.logprobs.dtype) == (np.int32, np.float32)
        assert len(ids) == len(generation.logprobs) and not set(ids[:-1].tolist()) & {STOP, 7, 8, 9, 10}
        stopped = ids[-1] in (STOP, 7, 8, 9, 10)
        assert generation.stop_reason is (StopReason.EOS if stopped else StopReason.MAX_TOKENS)
        assert stopped or len(ids) == 9


def test_same_seed_same_tokens_whatever_the_batch(engine: Any) -> None:
    spec = SamplingSpec(12, seed=17)
    (request,) = requests(1, spec, prefix="alone")
    alone = generate_all(engine, [request])[0]
    crowd = requests(20, SamplingSpec(12), prefix="crowd", seed=3)
    together = generate_all(
        engine, [*crowd[:10], GenerationRequest("together", request.prompt_ids, spec), *crowd[10:]]
    )[10]
    other = generate_all(engine, [GenerationRequest("other", request.prompt_ids, SamplingSpec(12, seed=18))])[0]
    assert alone.response_ids.tolist() == together.response_ids.tolist()
    assert alone.response_ids.tolist() != other.response_ids.tolist()
    np.testing.assert_allclose(alone.logprobs, together.logprobs, atol=1e-5)


def test_seeded_replies_are_the_same_bit_for_bit(vllm_engine: Any) -> None:
    """Alone, in a crowd of more prompt tokens than one step takes, with the prefix cached, and when they are scored."""

    def batch(prefix: str) -> list[GenerationRequest]:
        return [
            GenerationRequest(f"{prefix}{i}", [3 + (i * 7 + j) % 90 for j in range(120 + i)], SamplingSpec(16, seed=i))
            for i in range(48)
        ]

    alone = [generate_all(vllm_engine, [request])[0] for request in batch("alone")[:12]]
    asyncio.run(vllm_engine.call("reset_prefix_cache"))
    crowds = [generate_all(vllm_engine, batch(prefix)) for prefix in ("crowd", "cached")]
    asked = zip(batch("scored"), crowds[0], strict=True)
    crowds.append(generate_all(vllm_engine, [replace(r, scored=tuple(g.response_ids.tolist())) for r, g in asked]))
    for one, *others in zip(alone, *crowds, strict=False):
        for other in others:
            np.testing.assert_array_equal(one.response_ids, other.response_ids)
            np.testing.assert_array_equal(one.logprobs, other.logprobs)
    assert all(g.error is None for crowd in crowds for g in crowd)


class MemoryOfC(ctypes.Structure):
    """``struct mallinfo2``: the fifth of its numbers is mapped, the eighth in use."""

    _fields_ = [("numbers", ctypes.c_size_t * 10)]


@pytest.mark.slow
def test_nothing_is_kept_of_a_request(engine: Any, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 9,620, as an actor serves them. Rounds are alike: what oneDNN compiles for them is there after the first."""
    monkeypatch.setattr("rllib_lmgame.inference.serving.actor.make_engine", lambda spec: engine)
    actor = EngineActor(EngineSpec("e", "", InferenceOptions(), CONTEXT), restarted=False)
    weights, memory_of_c = pack_state(state_of(models[0]), 0), ctypes.CDLL(None).mallinfo2
    memory_of_c.restype = MemoryOfC
    chosen = SamplingSpec(12, stop_token_ids=(STOP,), seed=2)
    kinds = [(SamplingSpec(3, seed=1), None), (chosen, CHOICES), (SamplingSpec(6, stop_strings=("b",), seed=3), None)]

    async def play(rounds: int) -> list[int]:
        for number in range(rounds):
            parts = [requests(160, spec, prefix=f"{spec}{number}-", choices=choices) for spec, choices in kinds]
            batch = [request for part in parts for request in part]
            await actor.submit("client", encode_requests(batch))
            waiting = {request.request_id for request in batch}
            while waiting:
                replies = decode_generations((await actor.poll("client", 60.0))[2])
                assert not any(reply.error for reply in replies)
                waiting -= {reply.request_id for reply in replies}
            await actor.submit("client", encode_requests(requests(1, SamplingSpec(200, seed=4), prefix="left")))
            await actor.abort("client", ["left0"])
            await actor.update_weights(weights, number)
        gc.collect()
        of_c = memory_of_c().numbers
        return [sys.getallocatedblocks(), of_c[4] + of_c[7]]

    async def kept() -> np.ndarray:
        return -np.subtract(await play(4), await play(20))

    blocks, size = asyncio.run(kept())
    assert blocks < 9620 / 4 and size < 9620 * 200


def test_samples_follow_the_distribution(engine: Any, models: Any) -> None:
    """2,000 first tokens of one prompt: the empirical frequencies pass a chi-square test at 1e-4."""
    import torch
    from scipy.stats import chisquare

    prompt = [5, 6, 7, 8, 9]
    generations = generate_all(
        engine, [GenerationRequest(f"chi{i}", prompt, SamplingSpec(1, temperature=1.5)) for i in range(2000)]
    )
    counts = np.bincount([g.response_ids[0] for g in generations], minlength=VOCAB)
    with torch.no_grad():
        expected = (models[0](torch.tensor([prompt])).logits[0, -1] / 1.5).softmax(-1).double().numpy() * 2000
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    predicted = np.append(expected[common], expected[~common].sum())
    assert chisquare(observed, predicted * observed.sum() / predicted.sum()).pvalue > 1e-4


CHOICES = ((11, 12, STOP), (11, 13, 14, STOP), (20, STOP), (11, 12, 15, 16, STOP))


@pytest.mark.parametrize("name", ["plain", "nucleus", "greedy"])
def test_choices_constrain_tokens_and_logprobs(engine: Any, models: Any, name: str) -> None:
    batch = requests(40, SPECS[name], prefix=f"choice-{name}", choices=CHOICES)
    free = requests(8, SPECS[name], prefix=f"free-{name}", seed=9)
    generations = generate_all(engine, [*batch, *free])
    assert {tuple(g.response_ids.tolist()) for g in generations[:40]} <= set(CHOICES)
    assert all(g.stop_reason is StopReason.EOS for g in generations[:40])
    assert sound(models[0], [*batch, *free], generations)
    if name == "plain":
        assert {tuple(g.response_ids.tolist()) for g in generations[:40]} == set(CHOICES)


OPENINGS = ((11, 12, 30, STOP), (11, 13, 14, 30, STOP), (20, 21, STOP), (11, 12, 15, 16, STOP), (22, 21, STOP))
NEWS = (40, 41, 42)
"""Ids between the first reply and the second."""


def test_sampler_and_learner_agree_under_constraint(engine: Any, model_dir: str) -> None:
    """Of two turns of a row one is constrained and one free, in either order; the first tokens of a choice differ much
    in probability from those of the vocabulary.
    """
    module, temperature = learner_module(model_dir, CONTEXT), 0.6
    spec = SamplingSpec(9, temperature=temperature, stop_token_ids=(STOP,))
    asked = [*requests(24, spec, prefix="legal-", choices=OPENINGS), *requests(8, spec, prefix="legal-free-", seed=5)]
    trajectories = [Trajectory([], terminated=True) for _ in asked]
    for number in range(2):
        then = []
        for request, generation, played in zip(asked, generate_all(engine, asked), trajectories, strict=True):
            ids = generation.response_ids
            allowed = None if request.choices is None else allowed_tokens(request.choices, tuple(ids.tolist()))
            prompt = np.array(NEWS if number else request.prompt_ids, np.int32)
            played.turns.append(Turn(prompt, ids, generation.logprobs, new_row=not number, allowed=allowed))
            context = [*request.prompt_ids, *ids.tolist(), *NEWS]
            choices = OPENINGS if request.choices is None else None
            then.append(GenerationRequest(f"{request.request_id}-then", context, spec, choices))
        asked = then
    batch = TokenBatch.from_trajectories(trajectories, max_row_tokens=CONTEXT)
    turns = [turn for played in trajectories for turn in played.turns]
    decided = sum(len(t.response_ids) if t.allowed is None else int((t.allowed.counts > 1).sum()) for t in turns)
    assert batch.num_rows == len(trajectories)
    assert batch.num_actions == decided < sum(len(turn.response_ids) for turn in turns)
    for pack in batch.microbatches(100):
        with torch.no_grad():
            out = module.forward_train(pack.to_torch() | {"temperature": temperature, "head_chunks": 3})
        batch.put(pack, old_logprobs=out["logprobs"].numpy())
    np.testing.assert_allclose(batch.old_logprobs, batch.rollout_logprobs, atol=2e-5)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerationRequest("bad", [], SamplingSpec(4)), "is empty"),
        (GenerationRequest("bad", [3, VOCAB], SamplingSpec(4)), "outside the vocabulary"),
        (GenerationRequest("bad", [3, -1], SamplingSpec(4)), "outside the vocabulary"),
        (GenerationRequest("bad", [3] * CONTEXT, SamplingSpec(4)), f"{CONTEXT} tokens"),
        (GenerationRequest("bad", [3], SamplingSpec(0)), "max_tokens"),
        (GenerationRequest("bad", [3], SamplingSpec(4, top_p=0.0)), "impossible sampling"),
        (GenerationRequest("bad", [3], SamplingSpec(4, stop_token_ids=(1,)), ((4, 5),)), "does not end with"),
        (GenerationRequest("bad", [3], SamplingSpec(4, stop_token_ids=(1,)), ((4, 1, 1),)), "before its end"),
        (GenerationRequest("bad", [3], SamplingSpec(1, stop_token_ids=(1,)), ((4, 1),)), "max_tokens is 1"),
        (GenerationRequest("bad", [3], SamplingSpec(4), ()), "is empty"),
        (GenerationRequest("bad", [3], SamplingSpec(4), None, ()), "is empty"),
        (GenerationRequest("bad", [3], SamplingSpec(4), None, (VOCAB,)), "outside the vocabulary"),
        (GenerationRequest("bad", [3] * (CONTEXT - 2), SamplingSpec(4), None, (4, 1)), f"holds {CONTEXT - 1}"),
    ],
)
def test_a_bad_request_fails_alone(engine: Any, request_: GenerationRequest, message: str) -> None:
    good = requests(3, SamplingSpec(4), prefix="good")
    generations = generate_all(engine, [good[0], request_, *good[1:]])
    assert generations[1].stop_reason is StopReason.ENGINE_ERROR
    assert message in generations[1].error and len(generations[1].response_ids) == 0
    assert all(generations[i].stop_reason is not StopReason.ENGINE_ERROR for i in (0, 2, 3))


def test_new_weights_are_the_ones_that_sample(engine: Any, models: Any) -> None:
    """A -> B -> A, each compared with its own forward pass: a head left behind shows only against the new weights."""

    async def update(model: Any, version: int) -> str:
        return await engine.update_weights(state_of(model), version)

    prompts = requests(12, SPECS["plain"], prefix="update")
    try:
        checksum = asyncio.run(update(models[1], 5))
        generations = generate_all(engine, prompts)
        assert sound(models[1], prompts, generations)
        assert gap(models[0], prompts, generations) > 0.1
        assert {g.policy_version for g in generations} == {5} and asyncio.run(engine.version()) == 5
        assert checksum == state_checksum(state_of(models[1]))
    finally:
        asyncio.run(update(models[0], 6))
    assert sound(models[0], prompts, generate_all(engine, prompts))


def test_running_replies_go_on_under_new_weights(engine: Any, models: Any) -> None:
    """Their tokens are those of the new weights over the keys and values of the old ones, from the step named on."""
    batch = requests(8, SamplingSpec(150), prefix="before")
    late = requests(8, SamplingSpec(20), prefix="after", seed=1)

    async def run() -> tuple[list[Any], list[Any]]:
        running = [asyncio.ensure_future(engine.generate(request)) for request in batch]
        while sum(length >= 5 for length in (await engine._call(lambda core: core.lengths())).values()) < len(batch):
            await asyncio.sleep(0)
        await engine.pause(drain=False)
        lengths = await engine._call(lambda core: core.lengths())
        waiting = [asyncio.ensure_future(engine.generate(request)) for request in late]
        await engine.update_weights(state_of(models[1]), base + 1)
        assert lengths == await engine._call(lambda core: core.lengths())
        await engine.resume()
        replies = await asyncio.gather(*running)
        assert [reply.later_versions for reply in replies] == [
            ((lengths[request.request_id], base + 1),) for request in batch
        ]
        return replies, await asyncio.gather(*waiting)

    base = asyncio.run(engine.version())
    try:
        before, after = asyncio.run(run())
    finally:
        asyncio.run(engine.update_weights(state_of(models[0]), base + 2))
    assert {g.policy_version for g in before} == {base} and {g.policy_version for g in after} == {base + 1}
    assert not any(g.later_versions for g in after) and sound(models[1], late, after)
    for request, reply in zip(batch, before, strict=True):
        ((start, _),) = reply.later_versions
        ids = torch.tensor([[*request.prompt_ids, *reply.response_ids.tolist()]])
        cut = len(request.prompt_ids) + start - 1  # The last token of the old weights is read by the new ones.
        with torch.no_grad():
            first = models[0](ids[:, :cut], use_cache=True)
            second = models[1](ids[:, cut:-1], past_key_values=first.past_key_values).logits
        logits = torch.cat([first.logits, second], 1)[0, len(request.prompt_ids) - 1 :]
        expected = logits.log_softmax(-1).gather(1, ids[0, len(request.prompt_ids) :, None])[:, 0]
        np.testing.assert_allclose(reply.logprobs, expected.numpy(), atol=1e-5)
    assert gap(models[0], batch, before) > 0.1 and gap(models[1], batch, before) > 0.1


def broken_states(models: Any) -> dict[str, tuple[dict[str, np.ndarray], str]]:
    good = state_of(models[1])
    first = next(iter(good))
    nan = good[first].copy()
    nan[0] = np.nan
    return {
        "missing": ({n: v for n, v in good.items() if n != "model.norm.weight"}, "model.norm.weight"),
        "unknown": ({**good, "value_head.weight": np.ones(3, np.float32)}, "value_head.weight"),
        "shape": ({**good, first: good[first][:, :-1]}, "shape"),
        "nan": ({**good, first: nan}, "NaN"),
    }


@pytest.mark.parametrize("kind", ["missing", "unknown", "shape", "nan"])
def test_a_bad_update_stops_the_engine_until_a_good_one(engine: Any, models: Any, kind: str) -> None:
    state, message = broken_states(models)[kind]
    batch = requests(4, SPECS["plain"], prefix=f"refused-{kind}")
    try:
        with pytest.raises(WeightUpdateError, match=message):
            asyncio.run(engine.update_weights(state, 99))
        refused = generate_all(engine, batch)
        assert all(g.stop_reason is StopReason.ENGINE_ERROR and "version 99" in g.error for g in refused)
        with pytest.raises(WeightUpdateError):
            asyncio.run(engine.health())
    finally:
        asyncio.run(engine.update_weights(state_of(models[0]), 1))
    asyncio.run(engine.health())
    assert sound(models[0], batch, generate_all(engine, batch))


def test_a_cancelled_request_leaves_the_engine(engine: Any) -> None:
    async def run() -> None:
        task = asyncio.ensure_future(engine.generate(requests(1, SamplingSpec(200), prefix="cancel")[0]))
        await asyncio.sleep(0)
        await engine.stats()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await engine.stats()
        assert (await engine.stats()).running == 0

    asyncio.run(run())


def test_stats_count(engine: Any) -> None:
    async def run(batch: list[GenerationRequest]) -> tuple[Any, Any, list[Any]]:
        before = await engine.stats()
        generations = await asyncio.gather(*(engine.generate(r) for r in batch))
        return before, await engine.stats(), list(generations)

    batch = requests(10, SamplingSpec(6), prefix="stats", seed=77)
    before, after, generations = asyncio.run(run(batch))
    assert after.requests - before.requests == 10
    assert after.generated_tokens - before.generated_tokens == sum(len(g.response_ids) for g in generations)
    assert after.prompt_tokens - before.prompt_tokens == sum(len(r.prompt_ids) for r in batch)
    assert (
        0 < after.prompt_tokens_computed - before.prompt_tokens_computed <= after.prompt_tokens - before.prompt_tokens
    )
    assert after.steps > before.steps and after.busy_s > before.busy_s and after.running == after.waiting == 0


def test_prefixes_are_shared_and_forgotten(vllm_engine: Any) -> None:
    """Two blocks of a prompt are computed once; after a reset they are computed again."""
    prompt = [3 + i % 60 for i in range(70)]

    async def computed(name: str) -> int:
        before = (await vllm_engine.stats()).prompt_tokens_computed
        await vllm_engine.generate(GenerationRequest(name, prompt, SamplingSpec(2)))
        return (await vllm_engine.stats()).prompt_tokens_computed - before

    asyncio.run(vllm_engine.call("reset_prefix_cache"))
    assert asyncio.run(computed("first")) == 70
    assert asyncio.run(computed("second")) == 70 - 64
    asyncio.run(vllm_engine.call("reset_prefix_cache"))
    assert asyncio.run(computed("third")) == 70


def test_a_prompt_cached_before_weights_came_is_computed_anew_without_a_reset_too(
    vllm_engine: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head that shares the embedding's memory may be named, too, as a learner's state does."""
    from rllib_lmgame.inference.engines.vllm_engine import VLLMCore

    state = state_of(models[1])
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    batch = [GenerationRequest("salted", [4 + i % 60 for i in range(70)], SamplingSpec(8))]
    generate_all(vllm_engine, batch)
    monkeypatch.setattr(VLLMCore, "reset_prefix_cache", lambda core: None)
    try:
        # Averaged weights come under the version of the others.
        asyncio.run(vllm_engine.update_weights(state, asyncio.run(vllm_engine.version())))
        assert sound(models[1], batch, generate_all(vllm_engine, batch))
    finally:
        asyncio.run(vllm_engine.update_weights(state_of(models[0]), 4))
    assert sound(models[0], batch, generate_all(vllm_engine, batch))


def test_replies_are_scored_as_a_plain_forward_scores_them(engine: Any, models: Any) -> None:
    """Long and short ones, in one batch with sampled ones, also where the prefix cache holds their beginning."""
    spec = SamplingSpec(6, stop_token_ids=(STOP,))
    prompts = requests(24, spec, seed=4)
    prompts.append(GenerationRequest("long", [3 + i % 60 for i in range(CONTEXT - 12)], spec))
    generate_all(engine, [replace(r, request_id=f"cache-{r.request_id}") for r in prompts])
    replies = [(3 + i % 50, 7, STOP, 9 + i)[: 1 + i % 4] for i in range(len(prompts))]
    batch = [
        replace(request, request_id=f"score{i}", scored=reply)
        for i, (request, reply) in enumerate(zip(prompts, replies, strict=True))
    ]
    sampled = requests(8, spec, seed=5, prefix="beside-scored")
    answers = generate_all(engine, [*batch[:12], *sampled, *batch[12:]])
    assert sound(models[0], sampled, answers[12:20])
    for request, reply, answer in zip(batch, replies, [*answers[:12], *answers[20:]], strict=True):
        assert (answer.response_ids.tolist(), answer.stop_reason) == (list(reply), StopReason.EOS), answer.error
        expected = reference_logprobs(models[0], request.prompt_ids, reply, SamplingSpec(1))
        np.testing.assert_allclose(answer.logprobs, expected, atol=1e-5)
    # What was computed for scoring is sampled from as before.
    again = requests(24, spec, seed=4, prefix="after-scored")
    assert sound(models[0], again, generate_all(engine, again))


@pytest.mark.slow
def test_replies_of_two_adapters_are_scored_at_once(make_dir: Any, tmp_path: Path) -> None:
    """In a model whose head vLLM would have places for adapters in, too; of one only some layers have adapters."""
    pytest.importorskip("vllm")
    pytest.importorskip("peft")
    from rllib_lmgame.policies.model.adapters import Adapters

    lora = {"a": {"r": 4, "target_modules": ["self_attn.q_proj", "down_proj"]}, "b": {"r": 12}}
    policies = {name: {"language_model": {"lora": own}} for name, own in lora.items()}
    config = LMGamePPOConfig().update_from_dict({"env": "lmgame/TicTacToe-v0", "policies": policies})
    model_dir = make_dir("llama")
    config.model_files = dict.fromkeys(lora, ModelFiles(model_dir))
    arguments = adapter_arguments(config, len(lora))
    assert (arguments["max_loras"], arguments["max_lora_rank"]) == (2, 16)
    options = InferenceOptions(kv_cache_memory_mb=32, adapters=True, engine_kwargs=arguments)
    engine = make_engine(EngineSpec("e", model_dir, options, 64))
    asyncio.run(engine.start())
    try:
        batch, expected = [], []
        for name in lora:
            model = AutoModelForCausalLM.from_pretrained(model_dir).eval()
            adapters = Adapters(model, config.language_model_of(name).lora, model_dir=model_dir)
            for tensor in adapters.state().values():
                torch.nn.init.normal_(tensor, std=0.1)
            adapters.save(tmp_path / name, adapters.state())
            asyncio.run(engine.update_adapter(name, str(tmp_path / name), 1))
            for number, reply in enumerate([(7, 9, 11), (8, 5)]):
                asked = GenerationRequest(f"{name}{number}", [3, 4, 5, 6 + number], SamplingSpec(3))
                batch.append(replace(asked, adapter=name, scored=reply))
                expected.append(reference_logprobs(model, asked.prompt_ids, reply, SamplingSpec(1)))
        for answer, logprobs in zip(generate_all(engine, batch), expected, strict=True):
            assert answer.error is None
            np.testing.assert_allclose(answer.logprobs, logprobs, atol=1e-4)

        async def computed(name: str, number: int) -> int:
            before = (await engine.stats()).prompt_tokens_computed
            asked = GenerationRequest(f"long-{name}{number}", list(range(3, 43)), SamplingSpec(2))
            await engine.generate(replace(asked, adapter=name))
            return (await engine.stats()).prompt_tokens_computed - before

        assert [asyncio.run(computed(name, number)) for number in range(2) for name in lora] == [40, 40, 8, 8]
        asyncio.run(engine.update_adapter("a", str(tmp_path / "a"), 2))
        assert [asyncio.run(computed(name, 2)) for name in lora] == [40, 8], "what the other one has cached stays"
        file = tmp_path / "a" / "adapter_model.safetensors"
        tensors = load_file(file)
        save_file(tensors | {min(tensors): torch.full_like(tensors[min(tensors)], torch.nan)}, file)
        with pytest.raises(WeightUpdateError, match=r"the update of a .* holds NaN or infinity"):
            asyncio.run(engine.update_adapter("a", str(tmp_path / "a"), 3))
        refused = asyncio.run(engine.generate(replace(batch[0], request_id="refused", adapter="a", scored=None)))
        assert refused.error is not None and "holds NaN or infinity" in refused.error
    finally:
        asyncio.run(engine.shutdown())


def test_ranks_that_are_served_are_those_of_vllm() -> None:
    pytest.importorskip("vllm")
    from vllm.config.lora import MaxLoRARanks

    from rllib_lmgame.policies.model.adapters import SERVED_RANKS

    assert get_args(MaxLoRARanks) == (1, *SERVED_RANKS)


MIXTURE = {"intermediate_size": 64, "head_dim": 32, "num_experts_per_tok": 2}
EXPERTS = {"qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32}, "mixtral": {"num_local_experts": 4}}


@pytest.fixture(params=["qwen3_moe", pytest.param("mixtral", marks=pytest.mark.slow)])
def make_mixture(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], tuple[Any, Path]]:
    """Function ``(seed)`` that makes a random mixture of experts, and the directory it is saved in."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    def make(seed: int) -> tuple[Any, Path]:
        torch.manual_seed(seed)
        config = AutoConfig.for_model(request.param, **SIZES, **MIXTURE, **EXPERTS[request.param])
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.15)
        model.save_pretrained(tmp_path / str(seed))
        return model, tmp_path / str(seed)

    return make


@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def test_experts_are_replaced(engine: str, make_mixture: Any) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm")
        from vllm.distributed.parallel_state import destroy_model_parallel

        destroy_model_parallel()  # An engine of a dense model in this process has left no group for experts.
    (first, directory), (second, other) = make_mixture(0), make_mixture(1)
    options = InferenceOptions(engine=engine, kv_cache_memory_mb=32)
    made = make_engine(EngineSpec("e", str(directory), options, CONTEXT))

    def check(model: Any, prefix: str) -> None:
        batch = requests(8, SamplingSpec(12, stop_token_ids=(STOP,)), prefix=prefix)
        assert sound(model, batch, generate_all(made, batch))

    asyncio.run(made.start())
    try:
        check(first, "before")
        asyncio.run(made.update_weights(load_file(other / "model.safetensors"), 1))
        check(second, "after")
    finally:
        asyncio.run(made.shutdown())


ORIGINAL = 32
SCALING = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 16,
    "long_factor": [4.0 + n for n in range(16)],
    "original_max_position_embeddings": ORIGINAL,
}


@pytest.fixture(scope="module")
def phi3_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = Phi3Config(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=4 * ORIGINAL,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters=SCALING,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    directory = tmp_path_factory.mktemp("phi3")
    model.save_pretrained(directory)
    return str(directory)


ENGINES = pytest.mark.parametrize("kind", ["transformers", pytest.param("vllm", marks=pytest.mark.slow)])


@pytest.mark.parametrize("context", [ORIGINAL, 3 * ORIGINAL])
@ENGINES
def test_sampler_and_learner_agree(kind: str, context: int, phi3_dir: str) -> None:
    check_agreement(kind, context, phi3_dir)


WINDOWS: dict[str, dict[str, Any]] = {
    "gemma2": {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 32},
    "gemma3_text": {"query_pre_attn_scalar": 32, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mistral": {},  # All of its layers have the window, and none says so.
}


@pytest.fixture(scope="module")
def make_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Function that writes a random model of two layers."""

    def make(model_type: str, **fields: Any) -> str:
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32, "vocab_size": 96}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256}
        tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **(sizes | heads | tokens | fields)))
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        directory = tmp_path_factory.mktemp(model_type)
        model.save_pretrained(directory)
        return str(directory)

    return make


@ENGINES
@pytest.mark.parametrize("model_type", WINDOWS)
def test_sampler_and_learner_agree_on_sliding_windows(kind: str, model_type: str, make_dir: Any) -> None:
    """Capped scores and sinks, too; the longest rows are four windows."""
    check_agreement(kind, 64, make_dir(model_type, sliding_window=16, **WINDOWS[model_type]))


def test_layers_that_the_transformers_engine_does_not_serve_are_named(make_dir: Any) -> None:
    fields = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_ssm": 128, "mamba_n_groups": 1, "mamba_d_state": 16}
    spec = EngineSpec("e", make_dir("falcon_h1", **fields), InferenceOptions(engine="transformers"), 64)
    with pytest.raises(ConfigError, match=r"inference\.engine: .* falcon_h1 model has layers .* \(hybrid\)"):
        asyncio.run(make_engine(spec).start())


VLLM_ALONE: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_dim": 64, "conv_dim_out": 64, "block_dim": 64}
    | {"block_ff_dim": 96, "block_auto_adjust_ff_dim": False},
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_ssm": 128, "mamba_n_groups": 1, "mamba_d_state": 16},
    # Its router's correction is a buffer.
    "deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1, "q_lora_rank": 32}
    | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "head_dim": 64}
    | {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32}
    | {"first_k_dense_replace": 1},
}
"""What real models of these types say beside what Transformers asks for."""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", VLLM_ALONE)
def test_vllm_and_learner_agree_on_states_and_narrow_values(model_type: str, make_dir: Any) -> None:
    check_agreement("vllm", 64, make_dir(model_type, **VLLM_ALONE[model_type]))


@ENGINES
def test_an_engine_in_bfloat16_is_as_near_as_it_rounds(kind: str, make_dir: Any) -> None:
    """To a learner in float32, whose weights it rounds as they come.

    Rounding comes to 0.03 to 0.07, by the weights that are drawn; weights of before differ by 1.4 to 3.6.
    """
    check_agreement(kind, 64, make_dir("llama"), dtype="bfloat16", bounds=(1e-3, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "bounds"),
    [
        ({"quantization": "fp8_per_channel", "dtype": "bfloat16"}, (1e-3, 1.0)),
        ({"speculative": {"match": 1}}, (0, 1e-4)),
    ],
)
def test_pushes_reach_engines_that_quantize_or_propose_tokens(own: Any, bounds: Any, make_dir: Any) -> None:
    """Rounding came to 0.4 and 0.54, weights of before to 2.8. The CPU build has no kernel for fp8_per_tensor."""
    check_agreement("vllm", 64, make_dir("llama"), bounds, **own)


@pytest.mark.slow
def test_replies_of_an_engine_that_schedules_ahead_are_exact(make_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs; vLLM's runner for CPUs can do it, if it is told after its configuration is made."""
    core_client = pytest.importorskip("vllm.v1.engine.core_client")
    queues = []

    class Ahead(core_client.InprocClient):
        def __init__(self, config: Any, *rest: Any) -> None:
            config.scheduler_config.async_scheduling = True
            super().__init__(config, *rest)
            queues.append(self.engine_core.batch_queue)

    monkeypatch.setattr(core_client, "InprocClient", Ahead)
    check_agreement("vllm", 64, make_dir("llama"))
    assert [queue.maxlen for queue in queues] == [2]


def check_agreement(
    kind: str, context: int, model_dir: str, bounds: tuple[float, float] = (0.0, 1e-4), **own: Any
) -> None:
    """Log-probabilities of an engine's replies are those of the learner, also after a push of other weights.

    ``bounds``: what they may differ by, at least and at most.
    """
    if kind == "vllm":
        pytest.importorskip("vllm")
    options = InferenceOptions(engine=kind, kv_cache_memory_mb=32, **own)
    engine = make_engine(EngineSpec("e", model_dir, options, context))
    module = learner_module(model_dir, context)
    torch.manual_seed(0)
    asyncio.run(engine.start())
    try:
        assert bounds[0] <= largest_gap(engine, module, context) < bounds[1]
        with torch.no_grad():
            for tensor in module.hf_state().values():
                tensor.add_(0.05 * torch.randn(tensor.shape))
        asyncio.run(engine.update_weights(dict(module.as_checkpoint(module.hf_state())), 1))
        assert bounds[0] <= largest_gap(engine, module, context) < bounds[1]
    finally:
        asyncio.run(engine.shutdown())


class Transfer:
    """Reloads a worker's model as vLLM's NCCL and IPC receivers do, from tensors that are here."""

    reset_weight_update_target = shutdown = staticmethod(lambda: None)

    def __init__(self, worker: Any, state: dict[str, torch.Tensor]) -> None:
        self.model, self.config, self.state = worker.model_runner.get_model(), worker.model_config, state

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        vllm_engine_module._forget_expert_kernels(self.model)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, list[str]]) -> None:
        for name in update_info["names"]:
            self.model.load_weights([(name, self.state[name])])

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.config)
        vllm_engine_module._repack_for_cpu(self.model)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gpt_oss", "llama"])
def test_a_transfer_over_devices_replaces_every_weight(model_type: str, make_dir: Any) -> None:
    pytest.importorskip("vllm")
    model_dir = make_dir(model_type, **WINDOWS.get(model_type, {}))
    engine = make_engine(EngineSpec("e", model_dir, InferenceOptions(engine="vllm", kv_cache_memory_mb=32), 64))
    module = learner_module(model_dir, 64)
    asyncio.run(engine.start())
    try:
        with torch.no_grad():
            for tensor in module.hf_state().values():
                tensor.add_(0.05 * torch.randn(tensor.shape))
        state = dict(module.as_checkpoint(module.hf_state()))
        asyncio.run(engine.pause())
        engine._core._client.collective_rpc(lambda w: setattr(w.worker, "weight_transfer_engine", Transfer(w, state)))
        for method, arguments in (("start", {}), ("update", {"update_info": {"names": list(state)}}), ("finish", {})):
            name = f"{method}_weight{'s' if method == 'update' else '_update'}"
            asyncio.run(engine.call("worker_call", name, **arguments))
        asyncio.run(engine.call("reset_prefix_cache"))
        asyncio.run(engine.resume())
        assert largest_gap(engine, module, 64) < 1e-4
    finally:
        asyncio.run(engine.shutdown())


def largest_gap(engine: Any, module: Any, context: int) -> float:
    rng = np.random.default_rng(0)
    spec = SamplingSpec(8, temperature=1.0)
    lengths = [5, 11, context - 9] * 2
    asked = [GenerationRequest(f"r{n}", rng.integers(3, 96, length).tolist(), spec) for n, length in enumerate(lengths)]
    replies = generate_all(engine, asked)
    turns = [
        Turn(np.array(request.prompt_ids, np.int32), reply.response_ids, reply.logprobs, new_row=True)
        for request, reply in zip(asked, replies, strict=True)
    ]
    played = [Trajectory([turn], terminated=True) for turn in turns]
    batch = TokenBatch.from_trajectories(played, max_row_tokens=context)
    for pack in batch.microbatches(1000, batched=module.layout is Layout.BATCHED):
        with torch.no_grad():
            batch.put(pack, old_logprobs=module.forward_train(pack.to_torch())["logprobs"].numpy())
    return float(np.abs(batch.old_logprobs - batch.rollout_logprobs).max())
