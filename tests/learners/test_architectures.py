"""Other architectures than the tiny model's: rows are read as Transformers reads them one by one, several in a pack
where the architecture keeps them apart; 4 s for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learning import same, update
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.inference.weights import unpack_state
from rllib_lmgame.policies.model import loading
from rllib_lmgame.policies.model.attention import Layout
from rllib_lmgame.policies.model.loading import UnfitModelError, packing_of
from rllib_lmgame.policies.model.network import CheckpointTensors, load_checkpoint_tensors, parts_of

VOCABULARY = 64
LENGTHS = (7, 7, 12)
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_ssm": 128, "mamba_n_groups": 1, "mamba_d_state": 16}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
}
PACKED: dict[str, dict[str, Any]] = {
    "stablelm": {},
    "nemotron": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    "granite": {"logits_scaling": 8.0},
    "hyperclovax": {"logits_scaling": 0.125},
    "minicpm3": LATENT,
    "deepseek_v3": LATENT
    | {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    | {"moe_intermediate_size": 32, "first_k_dense_replace": 1},
}
BATCHED: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "conv"]},
    "qwen3_next": LINEAR | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "qwen3_5_text": LINEAR | {"head_dim": 16},
    "falcon_h1": MAMBA | {"lm_head_multiplier": 0.04},
    "gptj": {"n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8},
    "falcon": {"num_kv_heads": 2},
    "bloom": {"n_layer": 2, "n_head": 4},
    "xlstm": {"num_heads": 2, "num_blocks": 4, "output_logit_soft_cap": 1.0},
    # Its head has rows of no token, and divides.
    "inkling_text": {"head_dim": 16, "swa_head_dim": 16, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2}
    | {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32, "d_rel": 8}
    | {
        "rel_extent": 8,
        "sliding_window_size": 4,
        "logits_mup_width_multiplier": 0.5,
        "mlp_layer_types": ["dense", *["sparse"] * 3],
    }
    | {"vocab_size": VOCABULARY + 16, "unpadded_vocab_size": VOCABULARY},
    # Its rows stay apart, but its attention in chunks needs a mask that packed rows do not have.
    "llama4_text": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 96}
    | {"attention_chunk_size": 4},
}
ARCHITECTURES = PACKED | BATCHED


@pytest.fixture
def make_architecture(tmp_path: Path) -> Callable[..., str]:
    """Function that writes a random model of a type and returns its directory."""

    def make(model_type: str, **fields: Any) -> str:
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**SIZES, **fields}))
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        model.save_pretrained(tmp_path / model_type)
        return str(tmp_path / model_type)

    return make


def batch_of(rows: list[torch.Tensor]) -> dict[str, Any]:
    """A packed batch of these rows in which every token behind the first is an action."""
    lengths = torch.tensor([len(row) for row in rows])
    ends, ids = lengths.cumsum(0), torch.cat(rows)
    targets = torch.ones(len(ids), dtype=torch.bool)
    targets[ends - lengths] = False
    at = targets.nonzero().squeeze(-1)
    return {
        "input_ids": ids,
        "position_ids": torch.cat([torch.arange(n) for n in lengths.tolist()]),
        "cu_seqlens": torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(torch.int32),
        "predict_index": at - 1,
        "target_ids": ids[at],
        "bootstrap_index": ends - 1,
    }


def some_rows() -> list[torch.Tensor]:
    ids = torch.randint(1, VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(5))
    return list(ids.split(LENGTHS))


def expected(directory: str, rows: list[torch.Tensor]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Log-probabilities of each row's tokens behind the first by Transformers, row by row, and the squares' slopes."""
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32).eval()
    found = []
    for row in rows:
        logprobs = model(row[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        found.append(logprobs.gather(1, row[1:, None]).squeeze(1))
        (found[-1] ** 2).sum().backward()
    return [row.detach() for row in found], slopes(model)


def slopes(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_rows_of_one_pass_are_read_as_alone(model_type: str, make_architecture: Any, make_module: Any) -> None:
    directory, rows = make_architecture(model_type, **ARCHITECTURES[model_type]), some_rows()
    module = make_module(directory)
    assert module.layout is (Layout.PACKED if model_type in PACKED else Layout.BATCHED)
    found = module.forward_train(batch_of(rows))["logprobs"]
    logprobs, gradients = expected(directory, rows)
    torch.testing.assert_close(found, torch.cat(logprobs), atol=1e-4, rtol=1e-4)
    (found**2).sum().backward()
    assert slopes(module.language_model).keys() == gradients.keys()
    for name, gradient in slopes(module.language_model).items():
        scale = float(gradients[name].abs().max())
        torch.testing.assert_close(gradient, gradients[name], atol=1e-3 * scale, rtol=0.0)


def test_rows_that_share_more_than_a_pass_go_one_by_one(
    make_architecture: Any, make_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, rows = make_architecture("gptj", **ARCHITECTURES["gptj"]), some_rows()

    def mixing(self: Any, ids: torch.Tensor) -> torch.Tensor:
        """As a router whose experts take a share of all tokens of a pass, and no more."""
        return torch.nn.functional.embedding(ids, self.weight) * (1 + len(ids))

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Embedding, "forward", mixing)
        patch.setattr(loading, "_FOUND", {})
        module = make_module(directory)
    assert module.layout is Layout.ALONE
    for row, logprobs in zip(rows, expected(directory, rows)[0], strict=True):
        torch.testing.assert_close(module.forward_train(batch_of([row]))["logprobs"], logprobs, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="takes one row a pass, not 3"):
        module.forward_train(batch_of(rows))


def test_a_published_models_noise_in_training_is_off(make_architecture: Any, make_module: Any) -> None:
    """Phi-3.5-MoE's multiplies what experts and router read; the ratio of a first step would not be 1."""
    noise = {"input_jitter_noise": 0.01, "router_jitter_noise": 0.01}
    module = make_module(make_architecture("phimoe", num_local_experts=4, num_experts_per_tok=2, **noise))
    module.train()
    first, again = (module.forward_train(batch_of(some_rows()))["logprobs"] for _ in range(2))
    assert torch.equal(first, again)


def test_a_model_that_is_not_causal_is_refused(make_architecture: Any, make_module: Any) -> None:
    with pytest.raises(ConfigError, match=r"language_model\.model: bert models cannot be trained here: its tokens see"):
        make_module(make_architecture("bert"))
    with pytest.raises(UnfitModelError, match="head does more"):
        packing_of(AutoConfig.for_model("modernbert-decoder"))


@pytest.mark.parametrize("layout", [Layout.BATCHED, Layout.ALONE])
def test_an_update_lays_rows_out_as_the_model_takes_them(
    layout: Layout, make_architecture: Any, make_learner: Any, make_episodes: Any
) -> None:
    learner = make_learner(model_dir=make_architecture("lfm2", **BATCHED["lfm2"]))
    widths: list[int] = []
    module = learner.module["player"]
    assert module.layout is Layout.BATCHED
    module.layout = layout
    forward = module.forward_train
    module.forward_train = lambda batch: widths.append(len(batch["cu_seqlens"]) - 1) or forward(batch)  # type: ignore[func-returns-value]
    waste = update(learner, make_episodes(6))["padding_waste"]
    assert (max(widths) > 1, 0 < waste <= 1 / 9) == ((layout is Layout.BATCHED,) * 2)
    assert sum(widths) % 6 == 0


EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": PACKED["deepseek_v3"],
}


@pytest.fixture(params=EXPERTS)
def directory(request: pytest.FixtureRequest, make_model: Any) -> str:
    """A random mixture of experts."""
    sizes = SIZES | EXPERTS[request.param] | {"num_hidden_layers": 2, "tie_word_embeddings": False}
    return make_model(request.param, **sizes)


def test_a_push_has_the_checkpoints_names(directory: str, make_learner: Any) -> None:
    learner = make_learner(model_dir=directory)
    files = load_file(Path(directory) / "model.safetensors")
    assert not files.keys() <= learner.module["player"].hf_state().keys()  # Or nothing is tested here.
    assert same(unpack_state(learner.pack_weights("player", 1)), files)
    sent: dict[str, torch.Tensor] = {}
    learner.push_on_device("player", lambda state, *rest: sent.update(state), 1)
    assert same(sent, files)


class Fused:
    """Stands for a model whose checkpoint has queries, keys and values in one."""

    def __init__(self) -> None:
        from transformers.core_model_loading import Chunk, WeightConverter

        self.config = None
        self._weight_conversions = [WeightConverter(["qkv"], ["q", "k", "v"], [Chunk(dim=0)])]


def test_tensors_that_are_one_in_the_checkpoint_go_together() -> None:
    state = {f"{layer}.{part}": torch.randn(2, 3) for layer in "01" for part in ("k", "norm", "q", "v")}
    parts = parts_of(Fused(), state)
    assert sorted(sorted(part.names) for part in parts) == [
        ["0.k", "0.q", "0.v"],
        ["0.norm"],
        ["1.k", "1.q", "1.v"],
        ["1.norm"],
    ]
    files = dict(CheckpointTensors(Fused(), parts, state))
    assert torch.equal(files["1.qkv"], torch.cat([state["1.q"], state["1.k"], state["1.v"]]))
    own = {name: torch.zeros(2, 3) for name in state}
    load_checkpoint_tensors(Fused(), parts, own, files)
    assert same(own, state)
