"""Memory estimates against sums done by hand and against real models."""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

import pytest
import torch
from transformers import AutoConfig

from rllib_lmgame.algorithms.action_values import LMGameILQLConfig
from rllib_lmgame.algorithms.cluster.footprint import AWAY, USABLE, footprint, learner_rooms
from rllib_lmgame.algorithms.cluster.memory import (
    MIB,
    ModelShape,
    engine_mib,
    kv_token_mib,
    learner_mib,
    model_shape,
    published,
    shape_from_name,
    shape_of,
    smallest_card,
    trained_parameters,
)
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks.check import check_experiments
from rllib_lmgame.experiments.checks.dry_run import dry_run_lines, limits, resolved_config
from rllib_lmgame.experiments.checks.resources import cards_of, check_fits, check_memory, request_of, trials_at_once
from rllib_lmgame.experiments.files.reading import load_text
from rllib_lmgame.experiments.spec import SearchOptions, Source, make_spec, make_specs
from rllib_lmgame.learners.advantages import Estimator
from rllib_lmgame.learners.microbatch import Layer
from rllib_lmgame.policies.model.heads import ActionValues


def test_parameters_are_those_of_the_model():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(**sizes, num_key_value_heads=2, intermediate_size=64, tie_word_embeddings=True)
    shape = model_shape(config)
    assert shape.parameters == sum(p.numel() for p in Qwen2ForCausalLM(config).parameters())
    assert (shape.layers, shape.hidden_size, shape.kv_size, shape.vocab_size) == (2, 32, 16, 300)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-Coder-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-3B", 3_085_938_688),
        ("EleutherAI/pythia-160m", 160e6),
        ("meta-llama/Llama-3.1-70B", 70e9),
        ("gpt2", None),
        ("./runs/my-model", None),
    ],
)
def test_sizes_in_names(name, parameters):
    shape = shape_from_name(name)
    assert (shape and shape.parameters) == parameters


SHAPE = ModelShape(
    1_000_000, layers=4, hidden_size=64, kv_size=32, vocab_size=1000, layer=Layer(64, 10 * 64 + 4 * 256, norms=2 * 64)
)


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer", "buffers"),
    [(0, 2, 2, 12, 0), (1, 2, 4, 12 / 4, 2), (2, 2, 4 / 4, 12 / 4, 2 / 4), (3, 2 / 4, 4 / 4, 12 / 4, 2)],
)
def test_zero_divides_what_it_says(stage, weights, gradients, optimizer, buffers):
    """16-bit mixed precision on 4 learners: the ZeRO paper's bytes a parameter, with gradients in float32."""
    parts = learner_mib(SHAPE, mixed_precision=True, zero={"stage": stage, "reduce_bucket_size": 1000}, num_learners=4)
    per_parameter = {name: value * MIB / trained_parameters(SHAPE) for name, value in parts.items()}
    assert per_parameter["weights"] == pytest.approx(weights)
    assert per_parameter["gradients"] == pytest.approx(gradients)
    assert per_parameter["optimizer"] == pytest.approx(optimizer)
    assert per_parameter.get("ZeRO's buffers", 0) == pytest.approx(buffers, abs=0.01)


def test_an_offloaded_optimizer_is_more_in_host_memory():
    """DeepSpeed keeps gradients beside it, and weights, or with stage 3 all gradients: the GPU then has none."""
    for stage, bytes_ in ((2, 18), (3, 20)):
        zero = {"stage": stage, "reduce_bucket_size": 1000, "offload_optimizer": {"device": "cpu"}}
        parts = learner_mib(SHAPE, mixed_precision=True, zero=zero, num_learners=4)
        assert parts["optimizer"] * MIB == pytest.approx(bytes_ / 4 * trained_parameters(SHAPE))
        assert ("gradients" in parts) == (stage == 2)


@pytest.mark.parametrize(("model", "learners", "gib"), [("32B", 8, 26), ("72B", 32, 57)])
def test_zero_3_trains_models_that_are_larger_than_a_card(model, learners, gib):
    """On 80 GB each, 32B with the optimizer in host memory; weights beside modules to save are loaded whole."""
    shape = published(model)
    options = {"microbatch_tokens": 4096, "gradient_checkpointing": True, "critic": False, "copies": 1}
    zero = {"stage": 3, "reduce_bucket_size": 5e8} | (
        {"offload_optimizer": {"device": "cpu"}} if model == "32B" else {}
    )
    how = {"mixed_precision": True, "zero": zero, "num_learners": learners, **options}
    lora = {"adapters": 10**8}
    parts = [learner_mib(shape, **how, **of) for of in ({}, lora, lora | {"loads_whole": True})]
    plain, divided, whole = (sum(of.values()) - of["optimizer"] * (model == "32B") for of in parts)
    assert plain / 1024 == pytest.approx(gib, abs=1)
    assert divided / 1024 == pytest.approx(17.5, abs=0.5)
    assert whole > 2 * shape.parameters / MIB


def test_engine_and_cache():
    assert engine_mib(SHAPE, dtype="bfloat16", split=2, kv_cache_mib=10) == {
        "weights": 1e6 / MIB,
        "kv cache": 10,
        "logits": 0,
    }
    assert "kv cache" not in engine_mib(SHAPE, kv_cache_mib=None)
    assert kv_token_mib(SHAPE, dtype="float32", split=1) * MIB == 2 * 4 * 32 * 4
    assert kv_token_mib(ModelShape(10), dtype="float32", split=1) == 0


@pytest.mark.parametrize(
    ("learner", "states", "engine", "share", "sleeps", "needed"),
    [
        (10, 6, 2, 0.0, False, 10),  # an engine elsewhere
        (0, 0, 9, 0.9, False, 10),  # a learner elsewhere
        (10, 6, 2, 0.5, False, 20),
        (10, 6, 2, 0.5, True, 12),  # the update has the whole card, play has the states and half of the card
        (10, 6, 30, 0.5, False, 60),
    ],
)
def test_the_smallest_card_has_room_for_both(learner, states, engine, share, sleeps, needed):
    assert smallest_card(learner, states, engine, share, sleeps) == pytest.approx(needed)


def test_every_engine_on_a_card_takes_its_share():
    assert smallest_card(10, 6, 2, 0.25, engines=2) == pytest.approx(20)
    assert smallest_card(10, 6, 2, 0.25, sleeps=True, engines=2) == pytest.approx(12)
    assert smallest_card(0, 0, 9, 0.45, engines=2) == pytest.approx(20)
    assert smallest_card(10, 6, 2, 0.6, engines=2) == float("inf")


EXPERIMENT = {
    "run": "LMGamePPO",
    "env": "lmgame/FrozenLake-v0",
    "stop": {"training_iteration": 1},
    "config": {
        "language_model": {"model": "Qwen/Qwen2.5-0.5B"},
        "inference": {"engine": "transformers"},
        "training": {"max_tokens_per_microbatch": 1024, "head_chunk_tokens": 512},
        "num_learners": 1,
        "evaluation_interval": 1,
        "evaluation_config": {"explore": False},
    },
}


@pytest.fixture(scope="module")
def planned():
    return check_experiments([make_spec("big", EXPERIMENT, Source("here"))])[0]


@pytest.mark.parametrize(("bucket", "mib"), [("auto", 4 * 494_838_401 / MIB), (250_000_000, 4 * 250e6 / MIB)])
def test_the_buckets_that_learners_set_are_counted(planned, bucket, mib):
    config = planned.configs[0].copy(copy_frozen=False)
    config.deepspeed(zero_optimization={"stage": 3, "reduce_bucket_size": bucket, "stage3_max_live_parameters": 0})
    assert footprint(config).processes[0].parts["ZeRO's buffers"] == pytest.approx(mib, rel=1e-4)


class WithReference(Estimator):
    needs_reference: ClassVar[bool] = True

    def __call__(self, inputs):
        return inputs.rewards


@pytest.mark.parametrize(
    ("estimator", "kl"), [("gae", True), (f"{__name__}:WithReference", False), (f"{__name__}:WithReference", True)]
)
def test_the_reference_model_is_counted_once(planned, estimator, kl):
    def weights(estimator: str, kl: bool) -> float:
        config = planned.configs[0].copy(copy_frozen=False).training(advantage_estimator=estimator)
        config.use_kl_loss = kl
        return footprint(config).processes[0].parts["weights"]

    assert weights(estimator, kl) - weights("gae", False) == pytest.approx(4 * 494_032_768 / MIB, rel=1e-3)


@pytest.mark.parametrize("override", ["use_kl_loss", "estimator", "ema_decay"])
def test_what_one_policy_alone_keeps_is_counted(planned, override):
    config = planned.configs[0].copy(copy_frozen=False).players(["player", "other"])
    without = footprint(config)
    update = config.run.training
    overrides = {
        "use_kl_loss": {"training": {"kl": {}}},
        "estimator": {"training": {"advantage_estimator": f"{__name__}:WithReference"}},
        "ema_decay": {"training": update.model_copy(update={"ema_decay": 0.99})},
    }
    config.multi_agent(algorithm_config_overrides_per_module={"other": overrides[override]})
    assert footprint(config).on_host - without.on_host == pytest.approx(4 * 494_032_768 / MIB, rel=1e-3)


@pytest.mark.parametrize(("half", "bytes_"), [(False, 4), (True, 2)])
def test_a_teacher_is_divided_as_the_policy_is(planned, half, bytes_):
    """In the learners' numerics, and also between updates."""
    config = planned.configs[0].copy(copy_frozen=False)
    config.learners(num_learners=2).deepspeed(zero_optimization={"stage": 2})
    config.language_model(dtype="bfloat16" if half else "float32")
    without = footprint(config).processes[0]
    taught = footprint(config.teacher(model="Qwen/Qwen2.5-1.5B")).processes[0]
    assert taught.parts["teacher"] == pytest.approx(bytes_ * 1_543_714_304 / MIB, rel=1e-3)
    assert footprint(config.copy().teacher(model="openai:big@http://127.0.0.1:9/v1")).processes[0] == without
    assert taught.each - without.each == pytest.approx(taught.held - without.held) == taught.parts["teacher"]
    config.deepspeed(bf16={"enabled": True}, zero_optimization={"stage": 3})
    assert footprint(config).processes[0].parts["teacher"] == pytest.approx(1_543_714_304 / MIB, rel=1e-3)


@pytest.mark.parametrize("separate", [False, True])
def test_values_of_tokens_are_counted(separate):
    """Weights, gradients and moments of what is trained, the slow copies, and the values of the tokens of a chunk."""
    config = LMGameILQLConfig().environment("lmgame/Maze-v0")
    config.language_model(model="Qwen/Qwen2.5-0.5B", value_model="separate" if separate else "shared")
    shape = published("0.5B")
    with torch.device("meta"):
        values = ActionValues(
            shape.hidden_size, shape.hidden_size, shape.vocab_size, heads=2, state=True, targets=True, q_init=0.0
        )
    backbone = shape.parameters if separate else 0
    counts = {grad: sum(p.numel() for p in values.parameters() if p.requires_grad == grad) for grad in (True, False)}
    learner, engine = footprint(config).processes[:2]
    chunk = 8 * 2 * min(config.run.training.head_chunk_tokens, footprint(config).microbatches["player"])
    own = 16 * (counts[True] + backbone) + 4 * (counts[False] + backbone) + chunk * shape.vocab_size
    assert learner.parts["action values"] * MIB == pytest.approx(own, rel=1e-6)
    assert engine.parts["action values"] * MIB == pytest.approx(4 * (counts[False] + backbone), rel=1e-6)


def test_averaged_weights_are_counted_once_where_they_are(planned):
    """Float32 in the main memory of the first learner, whatever the learners' numerics and wherever they are."""
    config = planned.configs[0].copy(copy_frozen=False)
    config.learners(num_gpus_per_learner=1, num_learners=4).deepspeed(bf16={"enabled": True})
    without = footprint(config)
    averaging = footprint(config.training(ema_decay=0.99))
    assert averaging.processes[0] == without.processes[0]
    assert averaging.on_host - without.on_host == pytest.approx(4 * 494_032_768 / MIB, rel=1e-3)


@pytest.mark.parametrize("several", ["policies", "league"])
def test_all_that_shares_a_gpu_is_counted(planned, several):
    """Two policies, or a policy and a league, have an engine each; one learner trains all policies."""
    config = planned.configs[0].copy(copy_frozen=False)
    config.num_gpus_per_learner = 0.6
    config.inference(num_gpus_per_engine=0.4, gpu_memory_utilization=0.25)
    ((alone, *_),) = cards_of(config, footprint(config))
    least = re.compile(r"a learner and (an engine|2 engines): learner ([\d.]+) GiB, .* at least ([\d.]+) GiB;")
    _, learner, one = least.search(alone).groups()
    config.inference(num_gpus_per_engine=0.2, gpu_memory_utilization=0.25)
    if several == "league":
        config.league(opponent_engines=1).multi_agent(policy_mapping_fn="league")
    else:
        config.players(["player", "other"])
    taken = footprint(config)
    ((together, *_),) = cards_of(config, taken)
    engines, learners, both = least.search(together).groups()
    states = sum(taken.processes[0].parts[part] for part in ("weights", "optimizer")) / 1024
    more = states if several == "policies" else 0.0
    assert engines == "2 engines" and "each 25% of the card" in together
    assert float(learners) == pytest.approx(float(learner) + more, abs=0.11)
    assert float(both) - float(learners) == pytest.approx(2 * (float(one) - float(learner)), abs=0.31)


def test_a_run_that_cannot_fit_is_refused(planned):
    needed = footprint(planned.configs[0]).on_host
    check_memory([planned], needed / USABLE + 1)
    with pytest.raises(
        ConfigError, match=r"big: a trial would take about .*max_tokens_per_microbatch.*--no-memory-check"
    ):
        check_memory([planned], needed / USABLE - 1)


@pytest.mark.parametrize(
    ("model_type", "sizes", "kv_size"),
    [
        ("mamba", {"hidden_size": 64}, 0),
        ("gemma4_text", {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}, 2 * 32),
        ("nemotron", {}, None),
    ],
    ids=["no attention", "heads by layer", "no such model can be made"],
)
def test_a_configuration_that_lacks_a_number_is_no_error(planned, tmp_path, model_type, sizes, kv_size):
    AutoConfig.for_model(model_type, num_hidden_layers=2, **sizes).save_pretrained(tmp_path)
    shape = shape_of(planned.configs[0].copy(copy_frozen=False).language_model(model=str(tmp_path)), "player")
    assert (shape and shape.kv_size) == kv_size
    assert shape is None or (shape.layers == 2 and shape.layer.values > 0)


def test_where_nothing_is_played_no_key_value_cache_is_told_of(tmp_path):
    (tmp_path / "talks.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}\n'
    )
    text = "a:\n  run: LMGameSFT\n  config:\n    supervised: {data: %s}\n" % (tmp_path / "talks.jsonl")
    told = "\n".join(dry_run_lines(check_experiments(make_specs(*load_text(text, "x.yaml")))[0]))
    assert "learner of player" in told and "engine of" not in told and "key-value cache" not in told


@pytest.mark.parametrize(
    ("kind", "engine", "says"),
    [("qwen3_moe", "vllm", "router_replay"), ("qwen3_moe", "transformers", ""), ("phimoe", "transformers", "routers")],
)
def test_the_dry_run_warns_of_experts_and_long_rows(kind, engine, says, planned, tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_experts_per_tok": 2, "num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 32}
    AutoConfig.for_model(kind, vocab_size=64, num_key_value_heads=2, **sizes, **experts).save_pretrained(tmp_path)
    config = planned.configs[0].copy(copy_frozen=False).language_model(model=str(tmp_path), context_length=40_000)
    config.inference(engine=engine, num_gpus_per_engine=0)
    long, *others = limits(config)
    assert "up to 40,000 tokens; config.tr" in long and len(others) == bool(says) and all(says in x for x in others)


def test_the_dry_run_says_what_is_taken_and_evaluated(planned):
    text = "\n".join(dry_run_lines(planned))
    assert "494.84 M parameters" in text and "key-value cache" not in text and "not known" not in text
    assert resolved_config(planned)["evaluation_config"]["temperature"] == 0.0
    assert resolved_config(planned)["evaluation_config"]["games"][0]["env_config"]["split"] == "validation"
    assert resolved_config(planned)["gamma"] == planned.configs[0].gamma


@pytest.mark.parametrize("gpus", [0, 1])
def test_members_with_adapters_are_counted_as_adapters(planned, gpus):
    """Three members are met, of 494 million weights with 8.8 million in adapters: merged, and beside one base."""

    def taken(lora, served=False):
        config = planned.configs[0].copy(copy_frozen=False)
        config.update_from_dict(
            {
                "env": "lmgame/KuhnPoker-v0",
                "league": {"opponent_engines": 3},
                "language_model": {"lora": lora},
                "inference": {"num_gpus_per_engine": gpus, "engine": "vllm", "adapters": served},
            }
        )
        found = footprint(config)
        return found.object_store, [p for p in found.processes if p.name.startswith("engine")]

    weights, adapter = 494_032_768 * 4 / MIB, 8_798_208 * 4 / MIB
    (whole, before), (adapters, after), (served, (one,)) = taken(None), taken({"r": 16}), taken({"r": 16}, served=True)
    assert whole == pytest.approx(4 * weights)
    assert adapters == pytest.approx(2 * weights + 3 * adapter)  # One more while the first is packed.
    assert served == pytest.approx(5 * adapter)
    assert len(before) == len(after) == 4
    for engine, other in zip(before, after, strict=True):
        assert other.each == engine.each
        assert other.on_host - engine.on_host == pytest.approx(2 * weights if "league" in other.name else 0)
    held = pytest.approx(4 * adapter / (1 + gpus))  # In bfloat16 on a GPU.
    assert one.each - before[0].each == one.parts["adapters"] == held


def test_modules_that_are_trained_whole_take_a_copy_a_gradient_and_moments(planned):
    """Others' copies lie in the reference, too."""

    def taken(*names):
        model = {"model": "Qwen/Qwen2.5-7B-Instruct", "lora": {"modules_to_save": [*names]}}
        config = planned.configs[0].copy(copy_frozen=False)
        config.update_from_dict({"language_model": model, "training": {"kl": {}}})
        return footprint(config).processes[0].parts

    before, after, of_norms = taken(), taken("lm_head"), taken("norm")
    head = 152_064 * 3584 * 4 / MIB
    differ = {name: after[name] - before[name] for name in before if after[name] != before[name]}
    assert differ == pytest.approx({"weights": 2 * head, "gradients": head, "optimizer": 2 * head})
    assert of_norms["gradients"] - before["gradients"] == pytest.approx((2 * 28 + 1) * 3584 * 4 / MIB)


def test_layers_that_a_published_model_has_not_are_an_error(planned):
    config = planned.configs[0].copy(copy_frozen=False)
    lora = {"target_modules": ["q_prj"]}
    config.update_from_dict({"language_model": {"model": "Qwen/Qwen2.5-7B-Instruct", "lora": lora}})
    with pytest.raises(ConfigError, match=r"the model has no module 'q_prj'; there are .*q_proj"):
        footprint(config)


@pytest.mark.parametrize("sleeps", [False, True])
def test_micro_batches_follow_what_an_engine_leaves_of_a_card(planned, sleeps):
    config = planned.configs[0].copy(copy_frozen=False).training(max_tokens_per_microbatch="auto")
    config.num_gpus_per_learner = 0.6
    config.inference(num_gpus_per_engine=0.4, gpu_memory_utilization=0.25, sleep_during_update=sleeps)
    room = learner_rooms(config)["player"]
    (learner,) = [p for p in footprint(config).processes if p.name == "learner of player"]
    others = (learner.each - learner.parts["activations"]) * MIB
    card = 80 * 2**30
    assert room.activations(card) == pytest.approx(0.9 * ((1.0 if sleeps else 0.75) * card - others))
    assert room.activations(2**30) == 0


def test_trials_at_once(planned):
    """As many as were asked for, as fit, and as there are."""

    def count(trials: int, most: int | None, cpus: float) -> int:
        told = planned.spec.options.model_copy(update={"search": SearchOptions(max_concurrent_trials=most)})
        spec = dataclasses.replace(planned.spec, options=told)
        return trials_at_once(dataclasses.replace(planned, spec=spec, num_trials=trials), {"CPU": cpus})

    asked = request_of(planned).required_resources["CPU"]
    cases = ((1, None, 64), (8, 3, 64), (8, None, 2 * asked + 1), (8, None, 1))
    assert [count(*case) for case in cases] == [1, 3, 2, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"language_model": {"model": "Qwen/Qwen2.5-7B", "context_length": 8192}},
            r"config\.inference\.kv_cache_memory_mb: 256 MiB hold less than one context .* \(8,192 tokens\): .* 896,",
        ),
        (
            {"num_learners": 1, "num_gpus_per_learner": 1},
            r"config\.inference\.num_gpus_per_engine: is 0, but config\.num_gpus_per_learner is not",
        ),
        (
            {
                "language_model": {"model": "Qwen/Qwen2.5-72B"},
                "inference": {"engine": "vllm", "num_gpus_per_engine": 8, "tensor_parallel_size": 8},
                "num_learners": 2,
                "num_gpus_per_learner": 1,
                "deepspeed": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}},
            },
            r"each GPU with a learner: learner \d{3}\.\d GiB, .* no card of 192 GB or less fits",
        ),
    ],
    ids=["cache", "engines on CPUs", "no card"],
)
def test_what_fits_nowhere_is_refused_before_anything_starts(changes, message):
    config = EXPERIMENT["config"] | {"inference": {"engine": "vllm"}} | changes
    specs = make_specs({"big": EXPERIMENT | {"config": config}}, Source("here"))
    with pytest.raises(ConfigError, match=message):
        check_fits(check_experiments(specs))


@pytest.mark.parametrize(("most", "least", "here"), [(8192, 48, 45), ("auto", 16, 15), (1024, 24, 20), (0, 48, 45)])
def test_a_run_is_refused_where_a_card_of_this_machine_is_too_small(most, least, here):
    """An L40 of 48 GB has 45, and there are cards of 20. Where nothing must repeat, ``auto`` may be few tokens."""
    on_gpu = {"num_gpus_per_engine": 0.4, "gpu_memory_utilization": 0.3, "dtype": "bfloat16"}
    config = EXPERIMENT["config"] | {"inference": on_gpu, "num_learners": 1, "num_gpus_per_learner": 0.6}
    config |= {"training": {"max_tokens_per_microbatch": most or "auto"}, "text_rollouts": {"deterministic": not most}}
    checked = check_experiments(make_specs({"big": EXPERIMENT | {"config": config}}, Source("here")))
    check_fits(checked, here)
    with pytest.raises(ConfigError, match=rf"that fits has {least} GB, and the largest here has \d+; lower config"):
        check_fits(checked, 0.6 * least)


@pytest.mark.parametrize("nothing", [{"inference": {"num_cpus_per_engine": 0}}, {"num_cpus_per_env_runner": 0}])
def test_processes_that_ask_for_nothing_are_refused(nothing):
    config = EXPERIMENT["config"] | {"num_env_runners": 1} | nothing
    specs = make_specs({"big": EXPERIMENT | {"config": config}}, Source("here"))
    with pytest.raises(ConfigError, match=r"asks for nothing; inference\.num_cpus_per_engine, .* above 0"):
        request_of(check_experiments(specs)[0])


def test_shared_memory_of_engines_with_tensor_parallelism_is_counted(planned):
    """Ray's copy, the packed one and two parts for each engine, of which one is the largest tensor: 7 B on two."""
    config = planned.configs[0].copy(copy_frozen=False)
    config.language_model(model="Qwen/Qwen2.5-7B", dtype="bfloat16")
    config.num_gpus_per_learner, config.num_learners = 1, 4
    config.deepspeed(bf16={"enabled": True}, zero_optimization={"stage": 2})
    config.inference(engine="vllm", num_engines=2, num_gpus_per_engine=2, tensor_parallel_size=1)
    without = footprint(config)
    config.inference(tensor_parallel_size=2)
    taken, parts = footprint(config), 512 + 2 * 152_064 * 3584 / MIB
    assert without.shared_memory == 0
    assert taken.shared_memory - taken.object_store == pytest.approx(2 * parts)
    assert taken.on_host - without.on_host == pytest.approx(2 * parts)


def test_a_learner_that_leaves_the_card_meets_engines_in_a_push_alone(planned):
    """What it holds is counted in host memory, with the power of two that page-locked memory takes (vLLM by tensor)."""
    config = planned.configs[0].copy(copy_frozen=False)
    config.language_model(model="Qwen/Qwen2.5-7B")
    config.num_gpus_per_learner, config.num_learners = 0.6, 1
    config.inference(engine="vllm", num_gpus_per_engine=0.4, gpu_memory_utilization=0.85, sleep_during_update=True)
    config.deepspeed(bf16={"enabled": True}, zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}})
    (text, stays, _), before = cards_of(config, footprint(config))[0], footprint(config)
    config.training(offload_during_rollout=True)
    (asleep, leaves, _), after = cards_of(config, footprint(config))[0], footprint(config)
    assert (stays, leaves) == (None, 80), text
    assert float(asleep.split("in all at least ")[1].split()[0]) <= 80, asleep
    learner, engine = after.processes[:2]
    assert learner.held <= learner.parts[AWAY] < 2 * learner.held
    assert after.on_host - before.on_host == pytest.approx(learner.parts[AWAY] + 2 * engine.parts["weights"])
