"""LoRA: adapters learn on frozen weights, and merged, saved or resumed they are the same policy."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft")

from learner_weights import hf_state, set_adam_eps
from learning import difference, in_groups, moved, restored, same, update, weights, zero
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from rllib_lmgame.algorithms.cluster.memory import adapter_parameters, model_shape
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.objectives import SupervisedObjective
from rllib_lmgame.policies.model.adapters import Adapters, check_lora, served_rank
from rllib_lmgame.policies.options import LoraOptions

LORA: dict[str, Any] = {"r": 4, "alpha": 8}
PPO = {
    "max_tokens_per_microbatch": 96,
    "critic": {"lr": 3e-3},
    "weight_decay": 0.01,
    "ema_decay": 0.5,
    "kl": {"reference": {"type": "ema", "decay": 0.5}},
}


@pytest.fixture
def make_lora(make_learner: Any) -> Any:
    """Function that builds a learner with adapters; keyword arguments are those of ``language_model.lora``."""

    def make(learner: dict[str, Any] | None = None, **lora: Any) -> Any:
        given: dict[str, Any] = {"training": PPO, "lr": 1e-2, **(learner or {})}
        options = given.pop("options", {}) | {"lora": LORA | lora}
        return make_learner(options=options, **given)

    return make


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(40).reshape(2, 20)).logits


@pytest.mark.parametrize(
    "lora",
    [{}, {"target_modules": ["q_proj", "v_proj"], "use_rslora": True}, {"modules_to_save": ["model.norm"]}],
    ids=str,
)
def test_merged_weights_and_peft_are_the_policy_that_was_trained(
    lora: Any, make_lora: Any, make_learner: Any, make_episodes: Any, qwen_dir: str, tmp_path: Path
) -> None:
    from peft import PeftModel

    learner = make_lora(**lora)
    module, before = learner.module["player"], weights(learner)
    for seed in range(3):
        update(learner, make_episodes(6, seed=seed))
    changed = moved(learner, before)
    trained = {f"language_model.{name}" for name in module.adapters.trained}
    assert trained <= changed <= trained | {n for n in before if "value_head" in n or ".reference." in n}
    learner.export_hf(tmp_path / "hf", "player", adapter=tmp_path / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    beside = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(qwen_dir), tmp_path / "adapter")
    assert (logits(merged) - logits(beside)).abs().max() < 1e-4
    assert (logits(merged) - logits(AutoModelForCausalLM.from_pretrained(qwen_dir))).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("kind", "shape", "adapted"),
    [
        ("gpt2", {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}, {"c_attn", "c_fc", "c_proj"}),
        ("mixtral", {"num_local_experts": 4}, {"q_proj", "k_proj", "v_proj", "o_proj"}),
        (
            "qwen2_moe",
            {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
            {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "shared_expert_gate"},
        ),
    ],
    ids=["gpt2", "mixtral", "qwen2_moe"],
)
def test_all_linear_layers_of_other_models(kind: str, shape: dict[str, Any], adapted: set[str]) -> None:
    """Experts that lie in one tensor stay frozen; PEFT alone would take layers of the same names for them."""
    common = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    common |= {"num_key_value_heads": 2}
    config = AutoConfig.for_model(kind, vocab_size=64, **({} if kind == "gpt2" else common), **shape)
    model = AutoModelForCausalLM.from_config(config).eval()
    merged = copy.deepcopy(model)
    adapters = Adapters(model, LoraOptions(), model_dir="base", reference=True)
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in adapters.trained} == adapted
    with torch.no_grad():
        for tensor in adapters.state().values():
            tensor.add_(0.1 * torch.randn_like(tensor))
    before, after = logits(merged), logits(model)
    merged.load_state_dict(dict(adapters.merged(model.state_dict())), strict=False)
    assert (logits(merged) - after).abs().max() < 1e-5 < (before - after).abs().max()
    with adapters.as_reference():
        assert torch.equal(logits(model), before)


@pytest.mark.parametrize("whole", [[], ["model.norm", "layers.1.self_attn"], ["lm_head", "embed_tokens"]])
@pytest.mark.parametrize("kind", ["qwen2", "mixtral", "gpt2"])
def test_the_estimate_counts_what_is_trained(kind: str, whole: list[str]) -> None:
    if kind == "gpt2":
        whole = [{"norm": "ln_f", "model.norm": "h.1.ln_1"}.get(name, name) for name in whole[:1] if name != "lm_head"]
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    shape = {} if kind == "gpt2" else {"intermediate_size": 48, "num_key_value_heads": 2, "tie_word_embeddings": False}
    config = AutoConfig.for_model(kind, vocab_size=64, **sizes, **shape)
    targets = "all-linear" if not any("self_attn" in name for name in whole) else ["layers.0.self_attn.q_proj"]
    options = LoraOptions(r=4, target_modules=targets, modules_to_save=whole)
    model = AutoModelForCausalLM.from_config(config)
    adapters = Adapters(model, options, model_dir="base")
    trained = sum(tensor.numel() for tensor in adapters.state().values())
    assert adapter_parameters(model_shape(config), options) == trained


@pytest.mark.parametrize(
    ("lora", "key"),
    [
        ({"target_modules": ["lm_head", "q_proj"]}, "target_modules"),
        ({"modules_to_save": ["norm"]}, "modules_to_save"),
        ({"r": 513}, "r"),
    ],
)
def test_what_an_engine_cannot_hold_beside_its_base_is_refused(lora: dict[str, Any], key: str, tmp_path: Path) -> None:
    """As an option, or as what an adapter's file says."""
    with pytest.raises(ConfigError, match=r"inference\.adapters") as error:
        served_rank(LoraOptions(**lora))
    assert error.value.path == f"language_model.lora.{key}"
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"peft_type": "LORA", "target_modules": ["q_proj"]} | lora))
    (tmp_path / "adapter_model.safetensors").touch()
    with pytest.raises(ConfigError, match=r"inference\.adapters") as error:
        served_rank(LoraOptions(init=str(tmp_path)))
    assert error.value.path == "language_model.lora.init" and error.value.message.startswith(f"{file}: {key}: ")
    assert [served_rank(LoraOptions(r=r)) for r in (1, 8, 9, 257)] == [8, 8, 16, 320]


def test_an_adapter_of_the_head_as_peft_writes_it(make_model: Any, tmp_path: Path) -> None:
    """With the head's own weights beside it."""
    from peft import LoraConfig, get_peft_model

    base = make_model(tie_word_embeddings=False)
    config = LoraConfig(r=4, target_modules=["lm_head", "q_proj"], init_lora_weights=False)
    written = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    written.save_pretrained(tmp_path)
    options, here = LoraOptions(init=str(tmp_path)), AutoConfig.from_pretrained(base)
    check_lora(options, here)
    model = AutoModelForCausalLM.from_pretrained(base)
    trained = sum(tensor.numel() for tensor in Adapters(model, options, model_dir=base).state().values())
    assert adapter_parameters(model_shape(here), options) == trained == written.get_nb_trainable_parameters()[0]
    torch.testing.assert_close(logits(model), logits(written))


def test_a_resumed_run_is_the_run_that_never_stopped(make_lora: Any, make_episodes: Any, tmp_path: Path) -> None:
    """Adapters, dropout, average and reference, bit for bit; and what is saved has no frozen weights."""
    learner = make_lora(dropout=0.2)
    update(learner, make_episodes(6))
    again = restored(make_lora(dropout=0.2), learner, tmp_path)
    for seed in (1, 2):
        results = [update(each, make_episodes(6, seed=seed)) for each in (learner, again)]
        assert results[0]["mean_kl_loss"] == results[1]["mean_kl_loss"] > 0
    assert same(learner.get_state()["rl_module"]["player"], again.get_state()["rl_module"]["player"])
    assert difference(weights(learner), weights(again)) == 0.0
    assert same(learner.averages["player"].tensors, again.averages["player"].tensors)
    saved = learner.get_state()["rl_module"]["player"]
    assert not any("base_layer" in name or "embed_tokens" in name for name in saved)


def test_a_reference_is_the_policy_as_ppo_began(make_lora: Any, make_episodes: Any) -> None:
    """After a supervised stage it is not the model without adapters; no second model is in memory."""
    learner = make_lora({"training": {"kl": {}}})
    update(learner, make_episodes(6), objective=SupervisedObjective(num_minibatches=2, lr=1e-2))
    learner.begin_rl()
    begun = {n: t.clone() for n, t in learner.module["player"].adapters.state().items()}
    assert update(learner, make_episodes(6, seed=1))["mean_kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert update(learner, make_episodes(6, seed=2))["mean_kl_loss"] > 1e-6
    assert learner.reference("player").module is learner.module["player"]
    with learner.references["player"].tensors() as tensors:
        assert same(dict(tensors), begun)


def train(learner: Any, make_episodes: Any, first: int, count: int) -> None:
    for seed in range(first, first + count):
        learner.update(training_data=WholeEpisodes(episodes=make_episodes(9, seed=seed)))


@pytest.mark.parametrize("stage", [2, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 1, 3))])
def test_one_learner_with_deepspeed_equals_a_plain_one(
    stage: int, make_lora: Any, make_episodes: Any, tmp_path: Path
) -> None:
    """Also over a checkpoint, which holds no frozen weights."""
    plain, sharded = make_lora({"lr": 1e-3}), make_lora({"lr": 1e-3, "deepspeed": zero(stage)})
    for learner in (plain, sharded):
        set_adam_eps(learner, 1e-3)
        train(learner, make_episodes, 0, 3)
    assert difference(hf_state(sharded), hf_state(plain)) < 1e-5
    sharded.save_shard(tmp_path)
    for file in tmp_path.rglob("zero-*.safetensors"):
        assert not any("base_layer" in name for name in load_file(file))
    again = make_lora({"lr": 1e-3, "deepspeed": zero(stage)})
    again.load_shard(tmp_path)
    set_adam_eps(again, 1e-3)
    assert difference(hf_state(again), hf_state(sharded)) == 0.0
    for learner in (sharded, again):
        train(learner, make_episodes, 3, 1)
    assert difference(hf_state(again), hf_state(sharded)) < 1e-6


@pytest.mark.parametrize("stage", [None, 0, 2])
def test_policies_on_one_base_hold_it_once(
    stage: int | None, make_lora: Any, make_episodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each learns what it learns with a base of its own."""
    states: list[dict[str, dict[str, torch.Tensor]]] = []
    for once in (True, False):
        if not once:
            monkeypatch.setattr(Adapters, "held_once", lambda self, moved: moved)
        torch.manual_seed(0)
        deepspeed = None if stage is None else zero(stage)
        learner = make_lora({"modules": ("player", "other"), "deepspeed": deepspeed})
        learner.begin_rl()
        for seed in range(2):
            episodes = [e for module in ("player", "other") for e in make_episodes(6, seed=seed, module=module)]
            learner.update(training_data=WholeEpisodes(episodes=episodes))
        models = {name: learner.module[name].adapters for name in ("player", "other")}
        held = [{name: p.data_ptr() for name, p in each.frozen()} for each in models.values()]
        assert len(held[0]) > 10 and all((held[0][name] == held[1][name]) == once for name in held[0])
        for name in models:  # As to another device.
            learner.module[name]._apply(lambda tensor: tensor.detach().double())
        held += [{name: p.data_ptr() for name, p in each.frozen()} for each in models.values()]
        assert all((held[2][name] == held[3][name]) == once and held[2][name] != held[0][name] for name in held[0])
        states.append({name: {n: t.float().clone() for n, t in each.state().items()} for name, each in models.items()})
    shared, apart = states
    assert all(same(shared[name], apart[name]) for name in shared)
    assert not same(*shared.values())


def test_a_state_of_whole_weights_or_of_another_base_is_refused(
    make_lora: Any, make_learner: Any, make_model: Any
) -> None:
    learner = make_lora()
    for other, said in (
        (make_learner(), "whole weights"),
        (make_lora({"model_dir": make_model(initializer_range=0.1)}), "other weights"),
        (make_lora(r=1), "in the state"),
        (make_lora(modules_to_save=["norm"]), "norm.* is in the state and is not trained here"),
    ):
        with pytest.raises(CheckpointError, match=said):
            learner.module["player"].set_state(other.module["player"].get_state())


@pytest.mark.parametrize("microbatch", [9999, 64])
def test_log_probabilities_are_recorded_without_dropout(microbatch: int, make_lora: Any, make_episodes: Any) -> None:
    """Also in an update of one step, whose passes would record them otherwise: two updates find the same."""
    ppo = {"advantage_estimator": "grpo", "max_tokens_per_microbatch": microbatch}
    learner = make_lora({"critic": False, "lr": 1e-30, "training": ppo}, dropout=0.5)
    for tensor in learner.module["player"].adapters.state().values():
        torch.nn.init.normal_(tensor, std=0.1)
    first, second = (update(learner, in_groups(make_episodes(8, seed=0), 3)) for _ in range(2))
    assert first["num_steps"] == 1 and first["logprob_diff"] == second["logprob_diff"]
    assert first["policy_loss"] != second["policy_loss"]


def test_adapters_in_float32_learn_beside_weights_in_bfloat16(make_lora: Any, make_episodes: Any) -> None:
    """Steps that weights of 0.2 in bfloat16 could not hold; the merged weights are rounded once."""
    learner = make_lora({"options": {"dtype": "bfloat16"}, "lr": 1e-4})
    before = weights(learner)
    update(learner, make_episodes(6))
    module = learner.module["player"]
    for name, tensor in module.adapters.state().items():
        assert tensor.dtype == torch.float32
        assert not torch.equal(tensor, before[f"language_model.{name}"])
    name = "model.layers.0.self_attn.q_proj"
    down, up = (module.adapters.state()[f"{name}.lora_{which}.default.weight"] for which in "AB")
    exact = module.hf_state()[f"{name}.base_layer.weight"].float() + 2.0 * up @ down
    assert torch.equal(module.as_checkpoint(module.hf_state())[f"{name}.weight"], exact.bfloat16())
