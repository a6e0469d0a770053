"""Mixtures of experts: learners send tokens where the engine sent them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from learning import update
from transformers import AutoConfig

from rllib_lmgame.inference.engines.vllm_engine import VLLMCore, VLLMEngine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import (
    GenerationRequest,
    SamplingSpec,
    decode_generations,
    decode_requests,
    encode_generations,
    encode_requests,
)
from rllib_lmgame.inference.serving.actor import EngineSpec, make_engine
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.policies.model.attention import PackedRows
from rllib_lmgame.policies.model.loading import packing_of
from rllib_lmgame.rollouts.records import Trajectory, Turn

QWEN = {"head_dim": 16, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FEW = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 64}
KINDS: dict[str, tuple[dict[str, Any], bool | None]] = {
    "qwen2": ({}, None),
    "qwen3_moe": (QWEN, True),
    "mixtral": ({"num_local_experts": 4, "num_experts_per_tok": 2}, True),
    "olmoe": ({"num_experts": 8, "num_experts_per_tok": 2}, True),
    "gpt_oss": ({"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}, True),
    "qwen3_next": (QWEN | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}, True),
    "deepseek_v3": (
        {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32}
        | {"first_k_dense_replace": 1, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
        | {"num_key_value_heads": 4, "v_head_dim": 24, "q_lora_rank": 32},
        True,
    ),
    "phimoe": ({"num_local_experts": 4, "num_experts_per_tok": 2}, False),  # Chooses one after the other.
}


@pytest.mark.parametrize("kind", KINDS)
def test_for_which_models_it_works(kind: str) -> None:
    fields, works = KINDS[kind]
    assert packing_of(AutoConfig.for_model(kind, **FEW | {"num_key_value_heads": 2} | fields)).replays is works


@pytest.fixture(scope="module")
def mixture(make_model: Any) -> str:
    return make_model("qwen3_moe", **QWEN, hidden_size=64, initializer_range=0.1)


def test_weights_of_given_experts_are_the_learners_own(mixture: str, make_module: Any) -> None:
    block, generator = make_module(mixture).language_model.model.layers[1].mlp, torch.Generator().manual_seed(0)
    x = torch.randn(5, 64, generator=generator)
    given = torch.rand(5, 16, generator=generator).topk(2).indices
    given[4] = 255  # Not known.
    rows = PackedRows(torch.tensor([0, 5]))
    rows.routes = torch.stack([torch.zeros_like(given), given], 1)
    with rows:
        block(x[None]).square().sum().backward()
        out, found = block(x[None])[0], block.gate.weight.grad.clone()
    block.gate.weight.grad = None
    scores = (x @ block.gate.weight.T).softmax(-1)
    given[4] = scores[4].topk(2).indices
    own = scores.gather(1, given)
    gate, up = torch.einsum("td,tkfd->tkf", x, block.experts.gate_up_proj[given]).chunk(2, -1)
    each = torch.einsum("tkf,tkdf->tkd", torch.nn.functional.silu(gate) * up, block.experts.down_proj[given])
    expected = (own[..., None] * each).sum(1)
    torch.testing.assert_close(out, expected)
    expected.square().sum().backward()
    torch.testing.assert_close(found, block.gate.weight.grad)
    assert found.abs().max() > 1e-4


def coded(ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Made-up experts of tokens in two layers, from which the token can be read."""
    ids = np.asarray(ids)
    return np.stack([np.stack([ids % 8, 8 + ids // 8], -1), np.stack([8 + ids // 8, ids % 8], -1)], 1).astype(np.uint8)


def trajectories_of(seed: int, *, truncated: bool = False) -> list[Trajectory]:
    """Eight games of two turns that begin alike, with made-up routes."""
    rng = np.random.default_rng(seed)
    ids = lambda size: rng.integers(0, 64, size).astype(np.int32)  # noqa: E731
    prompt, made = ids(40), []
    for _ in range(8):
        turns = []
        for number in range(2):
            context, reply = prompt if number == 0 else ids(9), ids(6)
            routes = coded(np.concatenate([context, reply]))
            turn = Turn(context, reply, np.full(6, -3, np.float32), float(rng.normal()), new_row=number == 0)
            turn.routed_experts = routes
            turns.append(turn)
        made.append(Trajectory(turns, terminated=not truncated, final_prompt_ids=ids(5) if truncated else None))
    return made


@pytest.mark.parametrize("limit", [128, 30])
@pytest.mark.parametrize("shared", [True, False])
def test_tokens_keep_their_routes_through_rows_and_packs(limit: int, shared: bool) -> None:
    """In windows too, and where prompts are shared."""
    batch = TokenBatch.from_trajectories(trajectories_of(0), max_row_tokens=limit)
    packs = batch.microbatches(150, repeat_cost=0.25 if shared else None)
    assert len(packs) > 1
    for pack in packs:
        np.testing.assert_array_equal(pack.routed_experts, coded(pack.input_ids))
    assert sum(pack.num_tokens for pack in packs) < batch.num_tokens or not (shared and limit == 128)


def test_routes_that_are_not_known_are_no_experts() -> None:
    """Of the last state, and of turns without."""
    some = trajectories_of(1, truncated=True)
    some[0].turns[1].routed_experts = None
    (pack,) = TokenBatch.from_trajectories(some, max_row_tokens=128).microbatches(10_000)
    unknown = (pack.routed_experts == 255).all((1, 2))
    assert unknown.sum() == 8 * 5 + 9 + 6
    np.testing.assert_array_equal(pack.routed_experts[~unknown], coded(pack.input_ids[~unknown]))


def logprobs(module: Any, batch: TokenBatch, tokens: int = 4096, repeat_cost: float | None = None) -> np.ndarray:
    """Of all action tokens under a module."""
    for pack in batch.microbatches(tokens, repeat_cost=repeat_cost):
        with torch.no_grad():
            batch.put(pack, old_logprobs=module(pack.to_torch())["logprobs"].float().numpy())
    return batch.old_logprobs.copy()


def test_packs_shared_prompts_and_recomputed_layers_give_what_single_rows_give(
    mixture: str, make_module: Any, make_learner: Any, as_episode: Any
) -> None:
    played = trajectories_of(2)
    module = make_module(mixture, gradient_checkpointing=True)
    packed = logprobs(module, TokenBatch.from_trajectories(played, max_row_tokens=128), 400, 0.25)
    alone = [logprobs(module, TokenBatch.from_trajectories([each], max_row_tokens=128)) for each in played]
    np.testing.assert_allclose(packed, np.concatenate(alone), atol=1e-5)
    for turn in (turn for each in played for turn in each.turns):
        turn.routed_experts = None
    assert np.abs(packed - logprobs(module, TokenBatch.from_trajectories(played, max_row_tokens=128))).mean() > 0.05
    moved = []
    for options in ({}, {"gradient_checkpointing": True}):
        learner = make_learner(model_dir=mixture, options=options, training={"max_tokens_per_microbatch": 200})
        update(learner, [as_episode(each) for each in trajectories_of(2)])
        moved.append({name: p.detach().clone() for name, p in learner.module["player"].named_parameters()})
    for name, after in moved[0].items():
        torch.testing.assert_close(after, moved[1][name], atol=1e-6, rtol=1e-5)


def games(engine: Any, routes: bool = True) -> list[Trajectory]:
    """What an engine replies to 24 prompts, over the forms in which requests and replies travel."""
    rng = np.random.default_rng(0)
    asked = [
        GenerationRequest(f"{n}", rng.integers(0, 64, 30).tolist(), SamplingSpec(20, seed=n), routes_from=0)
        for n in range(24)
    ]

    async def run() -> list[Any]:
        await engine.start()
        try:
            return await asyncio.gather(*map(engine.generate, decode_requests(encode_requests(asked))))
        finally:
            await engine.shutdown()

    made = []
    for request, reply in zip(asked, decode_generations(encode_generations(asyncio.run(run()))), strict=True):
        assert reply.error is None
        turn = Turn(np.array(request.prompt_ids, np.int32), reply.response_ids, reply.logprobs, new_row=True)
        if routes and reply.routed_experts is not None:
            told = reply.routed_experts
            assert len(told) == len(request.prompt_ids) + len(reply.response_ids) - 1
            turn.routed_experts = np.concatenate([told, np.full_like(told[:1], 255)])
        made.append(Trajectory([turn], terminated=True))
    return made


def difference(module: Any, played: list[Trajectory]) -> float:
    """Mean distance of the learner's log-probabilities from the engine's."""
    batch = TokenBatch.from_trajectories(played, max_row_tokens=128)
    return float(np.abs(logprobs(module, batch, repeat_cost=0.25) - batch.rollout_logprobs).mean())


def compare(make: Any, pair: tuple[str, str], make_module: Any) -> None:
    """Of engines that ``make`` makes of directories: with replay, without, and of a dense model."""
    mixture, dense = pair
    module, played = make_module(mixture), games(make(mixture))
    replayed = difference(module, played)
    for trajectory in played:
        assert trajectory.turns[0].routed_experts is not None
        trajectory.turns[0].routed_experts = None
    free, of_dense = difference(module, played), difference(make_module(dense), games(make(dense), routes=False))
    print(f"replayed {replayed:.4f}, free {free:.4f}, dense {of_dense:.4f}")
    assert replayed < 1.2 * of_dense
    assert free > 1.25 * replayed


@pytest.fixture(scope="module")
def pair(make_model: Any) -> tuple[str, str]:
    """A mixture, deep enough that rounding decides on experts now and then, and a dense model of its kind."""
    shape = {"hidden_size": 64, "head_dim": 32, "num_hidden_layers": 4, "intermediate_size": 64}
    return make_model("qwen3_moe", **QWEN | {"num_experts": 32} | shape), make_model("qwen3", **shape)


def test_the_difference_to_an_engine_in_bfloat16_is_that_of_a_dense_model(
    pair: tuple[str, str], make_module: Any
) -> None:
    def make(directory: str) -> Any:
        return make_engine(EngineSpec("e", directory, InferenceOptions(engine="transformers", dtype="bfloat16"), 128))

    compare(make, pair, make_module)


class TellingCore(VLLMCore):
    """vLLM's CPU build returns no routes, since its present runner needs Triton. What that runner reads them from, the
    capturer in its routers, is here read beside the other runner, and put where the present one puts it.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        from vllm.model_executor.layers.fused_moe import routed_experts_capturer as capturing

        (worker,) = self._client.collective_rpc(lambda worker: worker)
        runner, plain = worker.model_runner, self._client.get_output
        if not runner.model_config.is_moe:
            return
        self._experts = runner.model_config.get_num_experts()
        capturer = capturing.RoutedExpertsCapturer(4096, runner.vllm_config)
        capturing.bind_routed_experts_capturer(runner.get_model(), capturer)

        def get_output() -> Any:
            outputs, ends = plain(), runner.query_start_loc.np
            for number, name in enumerate(runner.input_batch.req_ids):
                told = capturer.device_buffer[ends[number] : ends[number + 1]].numpy().astype(np.uint8)
                for output in outputs.outputs:
                    if output.request_id == name:
                        output.routed_experts = told
            return outputs

        self._client.get_output = get_output


@pytest.mark.slow
def test_the_difference_to_vllm_in_bfloat16_is_that_of_a_dense_model(
    pair: tuple[str, str], make_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    from vllm.distributed.parallel_state import destroy_model_parallel

    monkeypatch.setattr(VLLMEngine, "core_class", TellingCore)

    def make(directory: str) -> Any:
        destroy_model_parallel()  # An engine of a dense model in this process has left no group for experts.
        options = InferenceOptions(dtype="bfloat16", kv_cache_memory_mb=32, enable_prefix_caching=False)
        return make_engine(EngineSpec("e", directory, options, 128))

    compare(make, pair, make_module)
