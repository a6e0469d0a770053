"""A prompt that several rows begin with is computed once, and nothing else changes: 6 s for all architectures."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_weights import set_adam_eps
from learning import TIMES, difference, gradients_of, one_prompt_each, update, weights
from test_batching import Row, batch_of, make_row, read_of

from rllib_lmgame.learners.data import rows as prompts
from rllib_lmgame.learners.data.batching import PackedBatch, TokenBatch
from rllib_lmgame.learners.objectives.base import UpdateLoop
from rllib_lmgame.policies.model import attention, loading, prefix_tree_attention
from rllib_lmgame.policies.model.attention import (
    Layout,
    PackedRows,
    packed_attention,
    packed_flash_attention,
    packed_varlen_attention,
)

VOCABULARY = 64
READ = ("logprobs", "entropy", "values", "bootstrap_values")


def tree_of_rows(rng: np.random.Generator, count: int = 8, letters: int = 2, longest: int = 14) -> list[Row]:
    """Rows of ids of few letters, so that they begin alike; some within others, some without a sampled token: these are
    the last state of the trajectory of the row before.
    """
    rows: list[Row] = []
    for number in range(count):
        ids = rng.integers(1, 1 + letters, int(rng.integers(2, longest))).astype(np.int32)
        if rows and rng.random() < 0.5:  # Continues another one, from anywhere.
            other = rows[int(rng.integers(len(rows)))].input_ids
            ids = np.concatenate([other[: int(rng.integers(1, len(other) + 1))], ids])
        first = int(rng.integers(1, len(ids)))
        sampled = [first, *(np.flatnonzero(rng.random(len(ids) - first - 1) < 0.5) + first + 1).tolist()]
        bootstrap = bool(rng.random() < 0.4)
        alone = bootstrap and rng.random() < 0.3 and bool(rows) and not rows[-1].needs_bootstrap
        owner = rows[-1].trajectory if alone else number
        rows.append(make_row(len(ids), [] if alone else sampled, owner, bootstrap=bootstrap, ids=ids))
    return rows


def rows_of(pack: PackedBatch) -> list[np.ndarray]:
    """The ids of whole rows, put together by hand."""
    bounds, parents = pack.cu_seqlens.tolist(), pack.parents.tolist() or [-1] * (len(pack.cu_seqlens) - 1)
    found = []
    for row in set(range(len(parents))) - set(parents):
        ids = np.zeros(0, np.int64)
        while row >= 0:
            ids, row = np.concatenate([pack.input_ids[bounds[row] : bounds[row + 1]], ids]), parents[row]
        found.append(ids)
    return found


def before(pack: PackedBatch, position: int) -> list[int]:
    """The ids up to a position of a pack, along its row and those it continues."""
    bounds, parents = pack.cu_seqlens.tolist(), pack.parents.tolist() or [-1] * (len(pack.cu_seqlens) - 1)
    row = int(np.searchsorted(pack.cu_seqlens, position, side="right")) - 1
    ids = pack.input_ids[bounds[row] : position + 1].tolist()
    while (row := parents[row]) >= 0:
        ids = pack.input_ids[bounds[row] : bounds[row + 1]].tolist() + ids
    return ids


@pytest.fixture(autouse=True)
def _short_prompts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "LEAST_SAVED", 2)


@given(st.integers(0, 2**32 - 1), st.integers(2, 80), st.sampled_from([0.0, 0.25]))
def test_packs_of_shared_prompts_hold_every_row_once_within_budget(seed: int, budget: int, repeat_cost: float) -> None:
    rows = tree_of_rows(np.random.default_rng(seed))
    batch = batch_of(rows)
    packs = batch.microbatches(budget, repeat_cost=repeat_cost)
    ends = [(n, at) for n, row in enumerate(rows) for at in np.flatnonzero(row.loss_mask).tolist()]
    found = sorted(ids.tolist() for pack in packs for ids in rows_of(pack))
    assert found == sorted(read_of(row).tolist() for row in rows)
    assert sum(pack.given_tokens for pack in packs) == sum(len(read_of(row)) for row in rows)
    slots = np.concatenate([pack.token_slot for pack in packs])
    assert sorted(slots.tolist()) == list(range(batch.num_actions))
    for pack in packs:
        assert pack.num_tokens + repeat_cost * pack.repeated_tokens <= budget or len(rows_of(pack)) == 1
        assert pack.num_tokens <= pack.given_tokens
        parents, lengths = pack.parents.tolist(), np.diff(pack.cu_seqlens)
        assert all(parents.count(row) > 1 for row in parents if row >= 0), "one row alone continues a stretch"
        assert (lengths > 0).all() and (np.diff(lengths) >= 0).all()
        # Each action token and bootstrap value is read behind all that the row has before it.
        for position, target, slot in zip(pack.predict_index, pack.target_ids, pack.token_slot, strict=True):
            row, at = ends[slot]
            assert before(pack, position) == rows[row].input_ids[:at].tolist()
            assert target == rows[row].input_ids[at]
        for position, slot in zip(pack.bootstrap_index, pack.bootstrap_slot, strict=True):
            own = [row for row in rows if row.trajectory == batch.trajectory_ids[slot]]
            assert before(pack, position) == own[-1].input_ids.tolist()
        for position in range(pack.num_tokens):
            assert pack.position_ids[position] == len(before(pack, position)) - 1


@given(st.integers(0, 2**32 - 1))
def test_what_is_computed_lies_between_all_prefixes_and_all_tokens(seed: int) -> None:
    rows = tree_of_rows(np.random.default_rng(seed))
    (pack,) = batch_of(rows).microbatches(10**6, repeat_cost=0.0)
    prefixes = {tuple(row.input_ids[: i + 1]) for row in rows for i in range(shareable(row))}
    least = len(prefixes) + sum(len(read_of(row)) - shareable(row) for row in rows)
    # Each node of the tree of all prefixes that is left out costs less than what a node must save.
    assert least <= pack.num_tokens <= least + len(rows) * prompts.LEAST_SAVED


def shareable(row: Row) -> int:
    return len(read_of(row)) - 1


def test_what_nothing_shares_is_packed_as_before() -> None:
    rng = np.random.default_rng(0)
    rows = [make_row(int(rng.integers(3, 12)), [2], n, first_id=100 * n, bootstrap=n % 3 == 0) for n in range(20)]
    batch = batch_of(rows)
    for found, expected in zip(batch.microbatches(40, repeat_cost=0.0), batch.microbatches(40), strict=True):
        for name in PackedBatch.__slots__:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_a_group_and_the_rules_of_all_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "LEAST_SAVED", 32)
    rules, rows = np.arange(100, 160), []
    for group in range(3):
        for reply in range(8):
            ids = np.concatenate([rules, np.full(20, group), np.full(4, 50 + reply)]).astype(np.int32)
            rows.append(make_row(60 + 20 + 4, [80, 81, 82, 83], 8 * group + reply, ids=ids))
    (pack,) = batch_of(rows).microbatches(10**6, repeat_cost=0.0)
    assert pack.num_tokens == 60 + 3 * (20 + 8 * 3)
    assert pack.given_tokens == 24 * 83
    halves = batch_of(rows).microbatches(60 + 20 + 8 * 3, repeat_cost=0.0)
    assert [half.num_tokens for half in halves] == [60 + 20 + 8 * 3] * 3


ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gemma2": ("gemma2", {"head_dim": 16, "attn_logit_softcapping": 5.0, "sliding_window": 6}),
    "gpt_oss": ("gpt_oss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}),
    "mistral": ("mistral", {"sliding_window": 5}),
}


def outputs_and_gradients(module: Any, batch: TokenBatch, repeat_cost: float | None, weights: Any) -> tuple[Any, Any]:
    """By slot, what is read; and the gradients of a weighted sum of it."""
    module.zero_grad()
    found = {name: torch.zeros(len(weights[name])) for name in READ}
    for pack in batch.microbatches(10**6, repeat_cost=repeat_cost):
        out = module.forward_train(pack.to_torch() | {"entropy_gradient": True})
        for name in READ:
            slot = torch.from_numpy(pack.bootstrap_slot if name == "bootstrap_values" else pack.token_slot)
            found[name] = found[name].index_put((slot,), out[name])
    sum((found[name] * weights[name]).sum() for name in READ).backward()
    return {name: value.detach() for name, value in found.items()}, gradients_of(module)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("options", [{}, {"value_model": "separate", "gradient_checkpointing": True}], ids=["", "two"])
def test_outputs_and_gradients_are_those_of_rows_with_prompts_of_their_own(
    name: str, options: dict[str, Any], make_model: Any, make_module: Any
) -> None:
    model_type, shape = ARCHITECTURES[name]
    torch.manual_seed(0)
    module = make_module(make_model(model_type, **shape), **options)
    assert module.shares
    torch.nn.init.normal_(module.value_head.outer.weight)
    shared = []

    @settings(max_examples=8, deadline=None)
    @given(st.integers(0, 2**32 - 1), st.sampled_from([4, 24, 60]))
    def check(seed: int, longest: int) -> None:
        batch = batch_of(tree_of_rows(np.random.default_rng(seed), longest=longest))
        generator = torch.Generator().manual_seed(seed)
        sizes = [batch.num_actions] * 3 + [len(batch.needs_bootstrap)]
        weights = {name: torch.randn(size, generator=generator) for name, size in zip(READ, sizes, strict=True)}
        expected, expected_gradients = outputs_and_gradients(module, batch, None, weights)
        found, gradients = outputs_and_gradients(module, batch, 0.0, weights)
        for key in READ:
            torch.testing.assert_close(found[key], expected[key], atol=1e-5, rtol=1e-5)
        assert gradients.keys() == expected_gradients.keys()
        whole = torch.stack([gradient.norm() for gradient in expected_gradients.values()]).norm()
        for key, gradient in gradients.items():
            difference = (gradient - expected_gradients[key]).norm()
            # What cancels out is compared with what it is a sum of.
            assert difference <= 1e-4 * expected_gradients[key].norm() + 1e-6 * whole, key
        shared.append(sum(pack.num_tokens for pack in batch.microbatches(10**6, repeat_cost=0.0)) < batch.num_tokens)

    check()
    assert any(shared)


def test_flash_attention_is_told_where_longer_keys_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a kernel that does what flash attention documents: row by row, the last query at the last key."""

    def flash(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        of_queries, of_keys = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
        assert of_queries.dtype == of_keys.dtype == torch.int32
        assert kwargs["max_length_q"] == of_queries.diff().max()
        assert kwargs["max_length_k"] == of_keys.diff().max()
        assert of_keys[-1] == key.shape[2] == value.shape[2]
        out = []
        for (a, b), (c, d) in zip(pairwise(of_queries.tolist()), pairwise(of_keys.tolist()), strict=True):
            seen = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - (b - a))
            out.append(
                torch.nn.functional.scaled_dot_product_attention(
                    query[:, :, a:b], key[:, :, c:d], value[:, :, c:d], attn_mask=seen
                )
            )
        return torch.cat(out, 2).transpose(1, 2), None

    monkeypatch.setattr("transformers.integrations.flash_attention.flash_attention_forward", flash)
    generator = torch.Generator().manual_seed(0)

    @given(st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        batch = batch_of(tree_of_rows(np.random.default_rng(seed)))
        tables = [torch.randn(VOCABULARY, 60, 2, 8, generator=generator) for _ in range(3)]
        results = []
        for repeat_cost in (None, 0.0):
            (pack,) = batch.microbatches(10**6, repeat_cost=repeat_cost)
            ids, positions = torch.from_numpy(pack.input_ids), torch.from_numpy(pack.position_ids)
            q, k, v = (table[ids, positions].transpose(0, 1)[None] for table in tables)
            with PackedRows(torch.from_numpy(pack.cu_seqlens), torch.from_numpy(pack.parents)):
                out = packed_flash_attention(torch.nn.Module(), q, k, v, None)[0][0]
            read = torch.zeros(batch.num_actions, 2, 8)
            read[pack.token_slot] = out[pack.predict_index]
            results.append(read)
        torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)

    check()


def varlen_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What PyTorch documents of ``varlen_attn``: row by row, the last query at the last key."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32 and window_size[1] == 0
    assert (max_q, max_k) == (cu_seq_q.diff().max(), cu_seq_k.diff().max())
    assert enable_gqa or query.shape[1] == key.shape[1]
    out = []
    for (a, b), (c, d) in zip(pairwise(cu_seq_q.tolist()), pairwise(cu_seq_k.tolist()), strict=True):
        distance = torch.arange(d - c - (b - a), d - c)[:, None] - torch.arange(d - c)
        seen = (distance >= 0) & ((distance <= window_size[0]) | (window_size[0] < 0))
        q, k, v = (x.transpose(0, 1) for x in (query[a:b], key[c:d], value[c:d]))
        out.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=enable_gqa))
    return torch.cat(out, 1).transpose(0, 1)


@pytest.mark.parametrize(
    ("size", "kwargs"),
    [(8, {}), (8, {"sliding_window": 3, "scaling": 0.3}), (6, {}), (8, {"softcap": 2.0})],
    ids=["plain", "window", "head size", "capped"],
)
def test_varlen_attention_is_packed_attention(
    size: int, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows with and without shared prompts, grouped queries; what the kernel does not take goes row by row."""
    from torch.nn.attention import varlen

    known = inspect.signature(varlen.varlen_attn).parameters
    assert set(inspect.signature(varlen_reference).parameters) <= set(known)
    calls = []
    monkeypatch.setattr(varlen, "varlen_attn", lambda *a, **k: calls.append(1) or varlen_reference(*a, **k))
    monkeypatch.setattr(attention, "_half_dtype", lambda x: x.dtype)
    shapes = ((1, 4, 11, size), (1, 2, 11, size), (1, 2, 11, size))
    query, key, value = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes)
    for parents in (None, torch.tensor([-1, 0, 0])):
        with PackedRows(torch.tensor([0, 5, 8, 11]), parents):
            expected = packed_attention(torch.nn.Module(), query, key, value, None, **kwargs)[0]
            found = packed_varlen_attention(torch.nn.Module(), query, key, value, None, **kwargs)[0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        expected = packed_attention(torch.nn.Module(), query, key, value, None, **kwargs)[0]
        found = packed_varlen_attention(torch.nn.Module(), query, key, value, None, **kwargs)[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert len(calls) == 3 * (size == 8 and "softcap" not in kwargs)


@pytest.mark.parametrize(
    "how",
    [
        {"training": {"max_tokens_per_microbatch": 128, "num_minibatches": 2}, "use_kl_loss": True},
        {"training": {"max_tokens_per_microbatch": 512}, "options": {"value_model": "separate"}},
        {"training": {"advantage_estimator": "grpo"}, "critic": False, "options": {"gradient_checkpointing": True}},
    ],
    ids=["minibatches", "one pass", "grpo"],
)
def test_an_update_is_that_with_prompts_of_their_own(
    how: dict[str, Any], make_learner: Any, make_episodes: Any
) -> None:
    """Reference, values, advantages, losses and steps."""
    shared, alone = (
        make_learner(**how | {"training": how["training"] | {"share_prompts": share}}) for share in (True, False)
    )
    for learner in (shared, alone):
        set_adam_eps(learner, 1e-3)
    for seed in range(2):
        found, expected = (
            update(learner, one_prompt_each([make_episodes(4, seed=10 * seed + i, version=seed) for i in range(3)]))
            for learner in (shared, alone)
        )
        assert found["num_row_tokens"] == expected["num_row_tokens"] > expected["num_computed_tokens"]
        assert found["num_computed_tokens"] < 0.8 * expected["num_computed_tokens"]
        for name in found.keys() - TIMES - {"num_computed_tokens"}:
            assert found[name] == pytest.approx(expected[name], abs=2e-5, nan_ok=True), name
    assert difference(weights(shared), weights(alone)) < 1e-5  # An update moves them by 1e-3.


@pytest.mark.parametrize(("window", "one_pass"), [(None, True), (5, False)])
def test_all_rows_go_at_once_only_if_repeated_keys_fit_too(
    window: int | None,
    one_pass: bool,
    make_learner: Any,
    make_model: Any,
    one_turn_episode: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of eight rows with one prompt of 90 tokens few are computed, but a window repeats the prompt's keys for each."""
    model_dir = make_model("mistral", sliding_window=window)
    learner = make_learner(model_dir=model_dir, training={"max_tokens_per_microbatch": 256, "num_minibatches": 1})
    seen: list[bool] = []
    step = UpdateLoop._step
    monkeypatch.setattr(UpdateLoop, "_step", lambda *given: seen.append(given[-1]) or step(*given))
    update(learner, [one_turn_episode(90, 3) for _ in range(8)])
    assert seen == [one_pass]


def test_what_does_not_fit_shares_nothing(make_model: Any, make_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that looks at where a pack's tokens stand does not know whom a row continues."""
    monkeypatch.setattr(prefix_tree_attention, "merged_attention", lambda q, k, v, parts, scaling: torch.zeros_like(q))
    monkeypatch.setattr(attention, "merged_attention", prefix_tree_attention.merged_attention)
    monkeypatch.setattr(loading, "_FOUND", {})
    said: list[str] = []
    monkeypatch.setattr(loading.logger, "warning", lambda text, *words: said.append(text % words))
    module = make_module(make_model())
    assert module.layout is Layout.PACKED and not module.shares
    assert "computed for each: rows that continue others come out differently" in said[-1]
