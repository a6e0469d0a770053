"""Messages, weight bundles and choices: pure parts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.inference import protocol
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.serving.actor import EngineSpec
from rllib_lmgame.inference.serving.group import EngineGroup
from rllib_lmgame.inference.weights import (
    SharedBundle,
    check_weights,
    pack_state,
    push_shared,
    state_checksum,
    unpack_state,
)

TOKENS = st.integers(0, 2**31 - 1)
SPECS = st.builds(
    protocol.SamplingSpec,
    max_tokens=st.integers(1, 99),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_p=st.sampled_from([0.9, 1.0]),
    top_k=st.integers(0, 5),
    stop_token_ids=st.lists(TOKENS, max_size=3).map(tuple),
    seed=st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    stop_strings=st.lists(st.text(max_size=4), max_size=2).map(tuple),
    reasoning=st.sampled_from([(), ("<think>", "</think>", "<think>\n")]),
)
CHOICES = st.one_of(
    st.none(), st.lists(st.lists(TOKENS, min_size=1, max_size=4).map(tuple), min_size=1, max_size=3).map(tuple)
)
SCORED = st.one_of(st.none(), st.lists(TOKENS, max_size=4).map(tuple))
REQUESTS = st.builds(
    protocol.GenerationRequest, st.text(), st.lists(st.integers(-5, 2**40), max_size=20), SPECS, CHOICES, SCORED
)


@given(st.lists(REQUESTS, max_size=8))
def test_requests_survive_the_wire(requests: list[protocol.GenerationRequest]) -> None:
    assert protocol.decode_requests(protocol.encode_requests(requests)) == requests


REPLIES = st.tuples(
    st.lists(TOKENS, max_size=9),
    st.sampled_from(protocol.StopReason),
    st.integers(-1, 99),
    st.one_of(st.none(), st.text()),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple),
)


@given(st.lists(REPLIES, max_size=8))
def test_generations_survive_the_wire(replies: list) -> None:
    sent = []
    for i, (ids, *told, later) in enumerate(replies):
        columns = np.array(ids, np.int32), -np.arange(len(ids), dtype=np.float32)
        sent.append(protocol.Generation(f"r{i}", *columns, *told, later_versions=later))
    received = protocol.decode_generations(protocol.encode_generations(sent))
    for a, b in zip(sent, received, strict=True):
        told = [(g.request_id, g.stop_reason, g.policy_version, g.error, g.later_versions) for g in (a, b)]
        assert told[0] == told[1]
        assert b.response_ids.dtype == np.int32 and b.logprobs.dtype == np.float32
        np.testing.assert_array_equal(a.response_ids, b.response_ids)
        np.testing.assert_array_equal(a.logprobs, b.logprobs)


def test_a_bundle_gives_back_every_tensor_bit_for_bit() -> None:
    state = {
        "a": np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32),
        "b": torch.randn(7, dtype=torch.bfloat16),
        "c": torch.tensor(3.5),
        "d": np.zeros((0, 4), np.float32),
        "e": torch.randn(4, 6).T,
    }
    bundle = pack_state(state, 4)
    bundle.buffer.setflags(write=False)
    back = unpack_state(bundle)
    assert bundle.version == 4 and list(back) == list(state)
    for name, value in state.items():
        expected = value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
        assert back[name].dtype == expected.dtype and torch.equal(back[name], expected)
    assert bundle.checksum == state_checksum(back) == state_checksum(dict(reversed(state.items())))


def test_engines_that_loaded_other_weights_than_were_sent_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimpleNamespace(update_weights=SimpleNamespace(remote=lambda reference, version: reference))
    monkeypatch.setattr(
        "rllib_lmgame.inference.weights.gather", lambda calls, *rest: (dict.fromkeys(calls, "sent"), [])
    )
    assert push_shared({"a": engine}, SharedBundle(None, "sent"), 1, 1.0) == []
    with pytest.raises(protocol.WeightUpdateError, match=r"^a loaded other weights than were sent"):
        push_shared({"a": engine}, SharedBundle(None, "other"), 1, 1.0)


@pytest.mark.parametrize("change", ["bit", "name", "shape", "dtype", "missing"])
def test_the_checksum_sees_every_change(change: str) -> None:
    state = {"a": np.arange(6, dtype=np.float32), "b": np.ones(2, np.float32)}
    other = {k: v.copy() for k, v in state.items()}
    if change == "bit":
        other["a"].view(np.uint8)[3] ^= 1
    elif change == "name":
        other["c"] = other.pop("b")
    elif change == "shape":
        other["a"] = other["a"].reshape(2, 3)
    elif change == "dtype":
        other["b"] = other["b"].view(np.int32)
    else:
        del other["b"]
    assert state_checksum(state) == state_checksum({k: v.copy() for k, v in state.items()})
    assert state_checksum(state) != state_checksum(other)


@pytest.mark.parametrize("known", [True, False])
def test_weights_that_do_not_fit_or_are_not_finite_are_refused(known: bool) -> None:
    """Also by an engine that does not say which weights it has."""
    good = {"a": torch.ones(3), "b": torch.zeros(2)}
    expected = {name: tuple(tensor.shape) for name, tensor in good.items()} if known else {}
    check_weights(good, expected, tied_head=False)
    wrong = [({**good, name: tensor * float(bad)}, name) for bad in ("nan", "inf") for name, tensor in good.items()]
    for state, name in [*wrong, *([({"a": good["a"]}, "b"), ({**good, "c": good["a"]}, "c")] if known else [])]:
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            check_weights(state, expected, tied_head=False)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), max_size=6),
)
def test_the_cursor_allows_what_continues_a_choice(choices: list[tuple[int, ...]], reply: list[int]) -> None:
    cursor = protocol.ChoiceCursor(choices)
    for end in range(len(reply) + 1):
        prefix = tuple(reply[:end])
        expected = {c[end] for c in choices if len(c) > end and c[:end] == prefix}
        assert set(cursor.allowed(list(prefix))) == expected
    assert set(cursor.allowed([])) == {c[0] for c in choices}


@pytest.mark.parametrize(("every", "ends"), [(1, 11), (2, 21), (3, None)])
def test_an_engine_that_dies_again_and_again_ends_the_run(every: int, ends: int | None) -> None:
    """Not one that has died now and then, however often in all; two policies share the engines."""
    group = EngineGroup([EngineSpec("e-0", "model", InferenceOptions(), 10)], [{}], 0)
    process, well = 0, {"error": None, "ready": True, "needs_weights": False}
    group._status = lambda name: {**well, "incarnation": process, "log": f"{process}.err"}  # type: ignore[method-assign]
    for version in range(1, 61):
        group.restart_dead()
        if version == ends:
            with pytest.raises(protocol.EngineDeadError, match=r"e-0 died .* 10 of the last 20 .* why: 9\.err"):
                group.note_device_push(version)
            return
        group.note_device_push(version)
        group.note_device_push(version)
        process += version % every == 0
