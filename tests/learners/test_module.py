"""The packed model gives what Transformers gives row by row, and keeps rows apart."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learning import gradients_of
from transformers import AutoModelForCausalLM

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.policies.model.attention import PackedRows, current_rows, resolve_implementation
from rllib_lmgame.policies.model.heads import num_chunks, token_logprobs

VOCABULARY = 64
LENGTHS = (5, 9, 9, 9, 14, 22, 22)


def make_batch(lengths: tuple[int, ...] = LENGTHS, *, seed: int = 0, share: float = 0.3) -> dict[str, Any]:
    """A packed batch in which about ``share`` of the tokens are actions, with bootstrap values on every third row."""
    g = torch.Generator().manual_seed(seed)
    ends = torch.tensor(lengths).cumsum(0)
    starts = ends - torch.tensor(lengths)
    ids = torch.randint(0, VOCABULARY, (int(ends[-1]),), generator=g)
    action = torch.rand(len(ids), generator=g) < share
    action[starts] = False
    targets = action.nonzero().squeeze(-1)
    return {
        "input_ids": ids,
        "position_ids": torch.cat([torch.arange(n) for n in lengths]),
        "cu_seqlens": torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(torch.int32),
        "predict_index": targets - 1,
        "target_ids": ids[targets],
        "bootstrap_index": ends[::3] - 1,
    }


def expected_outputs(module: Any, batch: dict[str, Any], temperature: float = 1.0) -> dict[str, torch.Tensor]:
    """The same by one Transformers forward per row, with its own attention."""
    model = AutoModelForCausalLM.from_pretrained(module.model_dir, attn_implementation="eager", dtype=torch.float32)
    model.load_state_dict(module.language_model.state_dict())
    bounds = batch["cu_seqlens"].tolist()
    rows = [model(batch["input_ids"][a:b][None], output_hidden_states=True) for a, b in pairwise(bounds)]
    logprobs = (torch.cat([row.logits[0] for row in rows]) / temperature).log_softmax(-1)
    values = module.value_head(torch.cat([row.hidden_states[-1][0] for row in rows]))
    at = batch["predict_index"]
    return {
        "logprobs": logprobs[at, batch["target_ids"]],
        "entropy": -(logprobs[at].exp() * logprobs[at]).sum(-1),
        "values": values[at],
        "bootstrap_values": values[batch["bootstrap_index"]],
    }


def wake_value_head(module: Any) -> Any:
    """Give the value head, which starts at zero, something to say."""
    torch.manual_seed(1)
    torch.nn.init.normal_(module.value_head.outer.weight)
    return module


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        ({}, 0.2),
        ({}, 0.9),
        ({"tie_word_embeddings": False, "num_key_value_heads": 4}, 0.2),
        ({"num_key_value_heads": 1}, 0.2),
        ({"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}, 0.2),
        ({"model_type": "mistral", "sliding_window": 6}, 0.2),
        ({"model_type": "mistral", "sliding_window": None}, 0.2),
    ],
    ids=str,
)
def test_packed_forward_equals_transformers_row_by_row(
    shape: dict[str, Any], share: float, make_model: Any, make_module: Any
) -> None:
    module = wake_value_head(make_module(make_model(**shape)))
    batch = make_batch(share=share)
    out = module.forward_train(batch | {"temperature": 0.7})
    expected = expected_outputs(module, batch, 0.7)
    assert out.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(out[name], tensor, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}], ids=["kept", "recomputed"])
def test_pruned_last_layer_has_the_gradients_of_the_whole_one(options: dict[str, Any], make_module: Any) -> None:
    gradients = []
    for prunes in (True, False):
        module = wake_value_head(make_module(**options))
        assert module.prunes
        module.prunes = prunes
        out = module.forward_train(make_batch(share=0.2) | {"entropy_gradient": True})
        (
            out["logprobs"].sum()
            + 0.3 * out["entropy"].sum()
            + (out["values"] ** 2).sum()
            + out["bootstrap_values"].sum()
        ).backward()
        gradients.append(gradients_of(module))
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, atol=1e-5, rtol=1e-4)


def test_attention_never_crosses_rows(make_module: Any) -> None:
    module = wake_value_head(make_module())
    batch = make_batch()
    before = module.forward_train(batch)
    start, end = batch["cu_seqlens"][2:4].tolist()
    changed = batch["input_ids"].clone()
    changed[start:end] = (changed[start:end] + 1) % VOCABULARY
    after = module.forward_train(batch | {"input_ids": changed})
    inside = (batch["predict_index"] >= start) & (batch["predict_index"] < end)
    assert inside.any()
    assert not torch.equal(before["logprobs"][inside], after["logprobs"][inside])
    for name in ("logprobs", "values", "entropy"):
        assert torch.equal(before[name][~inside], after[name][~inside])


def test_gradient_through_logits_of_other_tokens_is_exactly_zero(make_model: Any, make_module: Any) -> None:
    """With an untied head, the only way from the loss to the hidden states is through the selected positions."""
    module = make_module(make_model(tie_word_embeddings=False))
    module.prunes = False
    batch = make_batch(share=0.2)
    seen: list[torch.Tensor] = []

    def keep(_: Any, __: Any, out: Any) -> Any:
        out.last_hidden_state.retain_grad()
        seen.append(out.last_hidden_state)

    handle = module.language_model.base_model.register_forward_hook(keep)
    module.forward_train(batch | {"with_values": False})["logprobs"].sum().backward()
    handle.remove()
    gradient = seen[0].grad[0].abs().sum(-1)
    others = torch.ones(len(gradient), dtype=torch.bool)
    others[batch["predict_index"]] = False
    assert (gradient[batch["predict_index"]] > 0).all()
    assert (gradient[others] == 0).all()


@pytest.mark.parametrize("chunks", [2, 3, 7, 20])
def test_chunked_head_equals_the_whole_one_in_value_and_gradient(chunks: int) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 30)
    hidden = torch.randn(11, 8)
    targets = torch.randint(0, 30, (11,))
    results = []
    for n in (1, chunks):
        head.zero_grad()
        h = hidden.clone().requires_grad_()
        logprobs, entropy = token_logprobs(head, h, targets, chunks=n, temperature=1.3, entropy_gradient=True)
        assert entropy is not None
        (logprobs * torch.arange(11)).sum().add(entropy.pow(2).sum()).backward()
        results.append((logprobs.detach(), entropy.detach(), h.grad, head.weight.grad.clone()))
    for whole, cut in zip(*results, strict=True):
        torch.testing.assert_close(cut, whole, atol=1e-5, rtol=1e-5)


def test_head_is_called_as_often_as_asked_with_no_more_than_a_chunk() -> None:
    sizes: list[int] = []
    head = torch.nn.Linear(4, 9)
    head.register_forward_hook(lambda module, inputs, out: sizes.append(len(out)))
    with torch.no_grad():
        token_logprobs(head, torch.randn(10, 4), torch.zeros(10, dtype=torch.int64), chunks=num_chunks(10, 4))
        assert len(sizes) == 3
        assert max(sizes) <= 4
        sizes.clear()
        logprobs, _ = token_logprobs(head, torch.randn(2, 4), torch.zeros(2, dtype=torch.int64), chunks=5)
    assert len(sizes) == 5
    assert logprobs.shape == (2,)


@pytest.mark.parametrize(
    ("options", "flags", "reaches_policy"),
    [
        ({"value_model": "shared"}, {}, True),
        ({"value_model": "shared"}, {"detach_backbone": True}, False),
        ({"value_model": "shared", "freeze_backbone_for_value": True}, {}, False),
        ({"value_model": "separate"}, {}, False),
        ({"value_model": "separate"}, {"detach_backbone": True}, False),
    ],
    ids=["shared", "critic warm-up", "frozen for value", "separate", "critic warm-up, separate"],
)
def test_where_the_value_loss_goes(
    options: dict[str, Any], flags: dict[str, Any], reaches_policy: bool, make_module: Any
) -> None:
    module = wake_value_head(make_module(**options))
    module.forward_train(make_batch() | flags)["values"].sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in module.language_model.parameters()) == reaches_policy
    assert module.value_head.inner.weight.grad.abs().sum() > 0
    if module.value_backbone is not None:
        assert module.value_backbone.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
        assert (
            module.value_backbone.layers[0].mlp.up_proj.weight
            is not module.language_model.base_model.layers[0].mlp.up_proj.weight
        )


def test_a_batch_with_nothing_to_predict_runs_through_every_layer(make_module: Any) -> None:
    module = make_module()
    none = torch.zeros(0, dtype=torch.int64)
    batch = make_batch((2,)) | {"predict_index": none, "target_ids": none, "bootstrap_index": none, "head_chunks": 3}
    out = module.forward_train(batch)
    assert [len(out[name]) for name in ("logprobs", "entropy", "values", "bootstrap_values")] == [0, 0, 0, 0]
    (out["logprobs"].sum() + out["values"].sum()).backward()
    assert module.language_model.base_model.layers[0].mlp.up_proj.weight.grad is not None


def test_states(make_module: Any) -> None:
    first, second = wake_value_head(make_module()), make_module()
    first.version = 5
    assert first.get_state(inference_only=True) == {"version": 5}
    second.set_state(first.get_state(inference_only=True))
    assert second.version == 5
    assert second.value_head.outer.weight.abs().sum() == 0
    second.set_state(first.get_state())
    batch = make_batch()
    assert torch.equal(first.forward_train(batch)["values"], second.forward_train(batch)["values"])
    with pytest.raises(ValueError, match=r"lacks 1 tensors .* 'value_head\.outer\.bias'"):
        second.set_state({name: value for name, value in first.get_state().items() if name != "value_head.outer.bias"})


def test_inference_only_module_holds_no_weights(qwen_dir: str) -> None:
    import gymnasium as gym

    from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule, ScriptedRLModule

    space = gym.spaces.Text(4)
    module = LanguageModelRLModule(
        observation_space=space, action_space=space, inference_only=True, model_config={"model_dir": "/nowhere"}
    )
    assert list(module.parameters()) == []
    module.set_state({"version": 3})
    assert module.get_state() == {"version": 3}
    scripted = ScriptedRLModule(observation_space=space, action_space=space, inference_only=False, model_config={})
    assert list(scripted.parameters()) == []
    scripted.set_state(scripted.get_state())


def test_bfloat16_weights_give_float32_outputs(make_module: Any) -> None:
    module = make_module(dtype="bfloat16")
    assert {tensor.dtype for tensor in module.forward_train(make_batch()).values()} == {torch.float32}
    assert next(module.parameters()).dtype == torch.bfloat16
    assert all(array.dtype == np.float32 for name, array in module.get_state().items() if name != "version")


def test_attention_choice() -> None:
    assert resolve_implementation("auto", torch.bfloat16, on_gpu=False) == "lmgame_packed"
    assert resolve_implementation("sdpa", torch.float32, on_gpu=True) == "lmgame_packed"
    from transformers.utils import is_flash_attn_2_available

    if not is_flash_attn_2_available():
        with pytest.raises(MissingDependencyError, match=r"rllib-lmgame\[flash\]"):
            resolve_implementation("flash_attention_2", torch.bfloat16, on_gpu=True)


def test_two_threads_enter_the_rows_of_one_pack() -> None:
    """One leaves them while the other is still inside, as recomputed layers may."""
    rows, left = PackedRows(torch.tensor([0, 3])), threading.Event()

    def other() -> PackedRows | None:
        with rows:
            assert left.wait(30)
            return current_rows()

    with ThreadPoolExecutor(1) as pool:
        with rows:
            found = pool.submit(other)
            with rows:
                assert current_rows() is rows
        left.set()
        assert found.result(30) is rows
    with torch.no_grad():
        assert current_rows() is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "as its quantization_config says"),
        ({"intermediate_size": 56}, r"down_proj\.weight' of \[32, 48\], and its config\.json asks for \[32, 56\]"),
        (None, r"lacks 1 weights, among them 'model\.layers\.1\.mlp\.up_proj\.weight'"),
    ],
    ids=str,
)
def test_weights_that_do_not_suit_their_configuration_are_named(
    change: dict[str, Any] | None, said: str, make_model: Any, make_module: Any
) -> None:
    from safetensors.torch import load_file, save_file

    directory = Path(make_model())
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | (change or {})))
    if change is None:
        tensors = load_file(directory / "model.safetensors")
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"language_model\.model: .*{said}"):
        make_module(str(directory))
