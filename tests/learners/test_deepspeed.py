"""DeepSpeed in RLlib's learners gives the weights one plain learner gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("deepspeed")

from learner_weights import hf_state, set_adam_eps
from learning import difference, marked, one_prompt_each, same, update, zero
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_lmgame.algorithms.cluster.workers import measured_losses
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.engines.deepspeed_engine import deepspeed_config, shares_of, with_bucket_sizes
from rllib_lmgame.learners.engines.shards import GatheredTensors
from rllib_lmgame.learners.objectives import SupervisedObjective
from rllib_lmgame.learners.options import WeightUse, half_precision, optimizer_is_guarded

PPO = {
    "max_tokens_per_microbatch": 96,
    "head_chunk_tokens": 8,
    "critic": {"lr": 3e-3},
    "weight_decay": 0.01,
    "kl": {"reference": {"type": "ema", "decay": 0.5}},
}
UPDATES = 3
EPS = 1e-3
"""Of Adam where weights are compared that were not computed in the same way."""


def train(group: Any, make_episodes: Any, first: int, count: int) -> list[Any]:
    """``count`` updates on the episodes number ``first`` and on; the results of the last one."""
    results: list[Any] = []
    for i in range(first, first + count):
        results = group.update(training_data=WholeEpisodes(episodes=make_episodes(9, seed=i)))
    results = results if isinstance(results, list) else [results]
    return [MetricsLogger.peek_results(result)["player"] for result in results]


@pytest.fixture(scope="module")
def plain(make_learner: Any, make_episodes: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Weights and last metrics of one plain learner after three updates."""
    learner = make_learner(training=PPO, use_kl_loss=True)
    set_adam_eps(learner, EPS)
    (metrics,) = train(learner, make_episodes, 0, UPDATES)
    metrics["reference"] = {name: t.numpy() for name, t in learner.reference("player").module.hf_state().items()}
    return hf_state(learner), metrics


@pytest.fixture
def make_group(make_config: Any, ray_cluster: Any) -> Iterator[Callable[..., LearnerGroup]]:
    """Function that starts RLlib's learner group; stopped at the end of the test."""
    groups: list[LearnerGroup] = []

    def make(**kwargs: Any) -> LearnerGroup:
        config = make_config(**({"training": PPO, "use_kl_loss": True} | kwargs))
        groups.append(LearnerGroup(config=config, module_spec=config.rl_module_spec))
        return groups[-1]

    yield make
    for group in groups:
        group.shutdown()


def gathered(group: LearnerGroup) -> dict[str, np.ndarray]:
    states = [result.get() for result in group.foreach_learner(hf_state)]
    (state,) = [state for state in states if state is not None]
    return state


def references(group: LearnerGroup) -> list[dict[str, np.ndarray]]:
    """Every learner's reference model; with ZeRO 3 put together."""

    def state(learner: Any) -> dict[str, np.ndarray]:
        module, tensors = learner.reference("player").module, learner.reference("player")._parameters()
        if learner.engines["player"].divides_copies:
            tensors = GatheredTensors(tensors, shares_of(module)[1], learner.ranks)
        return {name: t.numpy() for name, t in tensors.items()}

    return [result.get() for result in group.foreach_learner(state)]


def assert_close(state: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-4) -> None:
    assert difference(state, expected) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3])
def test_two_learners_equal_one_plain_learner(
    stage: int | None, plain: Any, make_group: Any, make_episodes: Any
) -> None:
    expected, metrics = plain
    group = make_group(num_learners=2, deepspeed=zero(stage))
    [r.get() for r in group.foreach_learner(lambda learner: set_adam_eps(learner, EPS))]
    results = train(group, make_episodes, 0, UPDATES)
    assert_close(gathered(group), expected)
    for result in results:
        names = "policy_loss vf_loss mean_kl_loss entropy grad_norm vf_explained_var logprob_diff trained_tokens"
        for name in names.split():
            assert result[name] == pytest.approx(metrics[name], abs=1e-4), name
    for reference in references(group):
        assert_close(reference, metrics["reference"])


@pytest.mark.slow
def test_layers_are_gathered_in_step_though_one_learner_has_more_actions(
    make_learner: Any, make_group: Any, one_turn_episode: Any
) -> None:
    """Short replies in one episode, long ones in the other, and no weight small enough to be kept whole."""
    episodes = [one_turn_episode(prompt, 60 - prompt) for prompt in (9, 51)]
    section = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    group, alone = make_group(num_learners=2, deepspeed=section), make_learner(training=PPO, use_kl_loss=True)
    for learner in (group, alone):
        for _ in range(2):
            learner.update(training_data=WholeEpisodes(episodes=episodes))
    assert_close(gathered(group), hf_state(alone))


DATA: dict[str, tuple[dict[str, Any], Callable[..., WholeEpisodes]]] = {
    "recorded in the passes of one step": (
        {"training": {"advantage_estimator": "reinforce", "max_tokens_per_microbatch": 32}, "critic": False},
        lambda make, seed: WholeEpisodes(episodes=make(9, seed=seed)),
    ),
    "constrained": ({}, lambda make, seed: WholeEpisodes(episodes=make(7, seed=seed, constrained=True))),
    "shared prompts": ({}, lambda make, seed: one_prompt_each([make(4, seed=10 * seed + i) for i in range(3)])),
    "the game's text": (  # One of the updates has none of it anywhere.
        {"training": PPO | {"env_token_loss_weight": 0.5, "head_chunk_tokens": 5}},
        lambda make, seed: WholeEpisodes(
            episodes=marked(make(7, seed=seed), seed) if seed != 1 else make(7, seed=seed)
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", [None, 2, 3])
@pytest.mark.parametrize("case", DATA)
def test_two_learners_of_which_one_has_more_passes_equal_one(
    case: str, stage: int | None, make_learner: Any, make_group: Any, make_episodes: Any
) -> None:
    options, data = DATA[case]
    group = make_group(num_learners=2, deepspeed=zero(stage), **options)
    alone = make_learner(**{"training": PPO, "use_kl_loss": True} | options)
    [r.get() for r in group.foreach_learner(lambda learner: set_adam_eps(learner, EPS))]
    set_adam_eps(alone, EPS)
    for seed in range(3):
        for learner in (group, alone):
            learner.update(training_data=data(make_episodes, seed))
    assert_close(gathered(group), hf_state(alone))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3])
def test_two_learners_measure_the_loss_that_one_does(
    stage: int | None, make_learner: Any, make_group: Any, make_episodes: Any
) -> None:
    """Of what is held out, also where one of them has nothing of it, before an update and after; and learn nothing."""
    alone, objective = make_learner(training=PPO, use_kl_loss=True), SupervisedObjective(1, lr=1e-2)
    group = make_group(num_learners=2, deepspeed=zero(stage))
    [r.get() for r in group.foreach_learner(lambda learner: set_adam_eps(learner, EPS))]
    set_adam_eps(alone, EPS)
    for update_number in range(2):
        before = gathered(group)
        for count in (7, 1, 0):
            episodes = make_episodes(count, seed=99)
            expected, found = alone.measured_losses(episodes, objective), measured_losses(group, episodes, objective)
            assert found == pytest.approx(expected, rel=1e-4, nan_ok=True) and math.isnan(found["player"]) == (
                not count
            )
        assert same(gathered(group), before)
        for learner in (group, alone):
            data = WholeEpisodes(episodes=make_episodes(9, seed=update_number))
            learner.update(training_data=data, objective=objective)


@pytest.mark.slow
def test_a_full_disk_of_one_learner_leaves_no_other_waiting(
    make_group: Any, make_episodes: Any, tmp_path: Path
) -> None:
    def fill_the_disk_of_the_second(learner: Any) -> None:  # Here, since learners cannot import this file.
        from rllib_lmgame.learners.engines import shards

        def no_space(*args: Any, **kwargs: Any) -> None:
            raise OSError(28, "No space left on device")

        if learner.ranks.rank == 1:
            shards.save_file = no_space

    group = make_group(num_learners=2, deepspeed=zero(2))
    train(group, make_episodes, 0, 1)
    directory = str(tmp_path / "shards")
    group.foreach_learner(fill_the_disk_of_the_second)
    results = list(group.foreach_learner(lambda learner: learner.save_shard(directory)))
    errors = {type(result.get()).__name__: str(result.get()) for result in results if not result.ok}
    assert len(errors) == 2
    assert any("No space left" in text for text in errors.values())
    assert any("1 of 2 learners failed" in text for text in errors.values())
    train(group, make_episodes, 1, 1)


@pytest.mark.parametrize("stage", [0, 2])
def test_a_local_learner_with_deepspeed_equals_a_plain_one(
    stage: int, plain: Any, make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    expected, metrics = plain
    learner = make_learner(training=PPO, use_kl_loss=True, deepspeed=zero(stage))
    set_adam_eps(learner, EPS)
    (result,) = train(learner, make_episodes, 0, UPDATES)
    assert_close(hf_state(learner), expected, 1e-5)
    assert result["grad_norm"] == pytest.approx(metrics["grad_norm"], abs=1e-5)
    state = learner.get_state()
    assert not any(isinstance(value, np.ndarray) for value in state["rl_module"]["player"].values())
    assert state["optimizer"] == {}
    learner.save_shard(tmp_path)
    (tmp_path / "player" / "zero-00000-of-00001-000.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="player/zero"):
        learner.load_shard(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 0)])
def test_reference_and_average_load_with_another_stage(
    before: int, now: int, make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    training = {**PPO, "kl": {}, "ema_decay": 0.5}
    saved = make_learner(training=training, use_kl_loss=True, deepspeed=zero(before))
    train(saved, make_episodes, 0, 2)
    saved.save_shard(tmp_path)
    loaded = make_learner(training=training, use_kl_loss=True, deepspeed=zero(now))
    loaded.load_shard(tmp_path)
    with saved.references["player"].tensors() as expected, loaded.references["player"].tensors() as found:
        for mine, others in ((found, expected), (loaded.averages["player"].tensors, saved.averages["player"].tensors)):
            assert mine.keys() == others.keys()
            assert all(torch.equal(mine[name].flatten(), others[name].flatten()) for name in others)


@pytest.mark.parametrize(
    ("stage", "dtype"),
    [
        (1, "auto"),
        (2, "bfloat16"),
        pytest.param(1, "bfloat16", marks=pytest.mark.slow),
        pytest.param(3, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_bfloat16_weights_with_float32_masters_learn(
    stage: int, dtype: str, make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    """And can be saved, loaded and exported. Most steps are smaller than a bfloat16 weight of 0.2 can change.

    With ZeRO gradients are summed in float32. Takes 5 s: it takes many steps to learn.
    """
    from transformers import AutoModelForCausalLM

    section = {"bf16": {"enabled": True}, **zero(stage)}

    def make() -> Any:
        return make_learner(options={"dtype": dtype}, training={"max_tokens_per_microbatch": 9999}, deepspeed=section)

    learner, episodes = make(), make_episodes(6)
    objective = SupervisedObjective(num_minibatches=6, lr=1e-4)
    losses = []
    for _ in range(10):
        losses.append(update(learner, episodes, objective=objective)["policy_loss"])
    assert {p.dtype for p in learner.module["player"].parameters()} == {torch.bfloat16}
    assert losses[-1] < losses[0] - 0.02
    assert learner.engines["player"].engine.get_data_types() == (torch.bfloat16, torch.float32)
    learner.begin_rl()
    (metrics,) = train(learner, make_episodes, 0, 1)
    assert metrics["nan_steps"] == 0
    learner.save_shard(tmp_path / "shard")
    again = make()
    again.load_shard(tmp_path / "shard")
    for trained in (learner, again):
        train(trained, make_episodes, 1, 1)
    assert_close(hf_state(again), hf_state(learner), 1e-12)
    learner.export_hf(tmp_path / "hf", "player")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert exported.dtype == torch.bfloat16
    expected = hf_state(learner)
    assert all(np.array_equal(p.detach().float().numpy(), expected[name]) for name, p in exported.named_parameters())


CRITIC = {"critic": {"warmup": {"iterations": 1}}}


def value_outputs(learner: Any) -> list[np.ndarray]:
    """The last layer of the value head: as passes read it, and the optimizer's own copy."""
    import deepspeed

    outer = learner.module["player"].value_head.outer
    with deepspeed.zero.GatheredParameters([p for p in outer.parameters() if hasattr(p, "ds_id")], modifier_rank=None):
        read = [p.detach().float().numpy().copy() for p in (outer.weight, outer.bias)]
    return read + [t.numpy() for t in learner.engines["player"].value_output()]


@pytest.mark.parametrize("stage", [0, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_value_head_is_fitted_as_in_a_plain_learner(stage: int, make_learner: Any, make_episodes: Any) -> None:
    """What is set, a step goes on from."""
    learners = [make_learner(training=PPO | CRITIC, deepspeed=section) for section in (None, zero(stage))]
    for i in range(3):
        found, expected = (train(learner, make_episodes, i, 1)[0] for learner in reversed(learners))
        assert found["vf_loss"] == pytest.approx(expected["vf_loss"], abs=1e-4)
        for array, exact in zip(value_outputs(learners[1]), value_outputs(learners[0]), strict=True):
            np.testing.assert_allclose(array, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stage", [None, 0, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_policy_rests_while_the_critic_warms_up(stage: int | None, make_learner: Any, make_episodes: Any) -> None:
    """After a supervised stage, whose momentum would go on under ZeRO, where no gradient counts as a gradient of
    zero.
    """
    learner = make_learner(
        training=PPO | {"critic": {"warmup": {"iterations": 2, "type": "gradient"}}}, deepspeed=zero(stage)
    )
    for i in range(2):
        update(learner, make_episodes(9, seed=i), objective=SupervisedObjective(1, lr=1e-2))
    learner.begin_rl()
    before = hf_state(learner)
    train(learner, make_episodes, 2, 2)
    assert_close(hf_state(learner), before, 1e-30)
    train(learner, make_episodes, 4, 1)
    assert not same(hf_state(learner), before)


@pytest.mark.parametrize("stage", [None, 0, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_ppo_begins_without_the_momentum_of_a_supervised_stage(
    stage: int | None, make_learner: Any, make_episodes: Any
) -> None:
    learner = make_learner(training=PPO, deepspeed=zero(stage))
    update(learner, make_episodes(9, seed=5), objective=SupervisedObjective(1, lr=1e-2))
    fresh = make_learner(training=PPO)
    fresh.module["player"].load_hf_state(hf_state(learner))
    learner.begin_rl()
    for trained in (learner, fresh):
        set_adam_eps(trained, EPS)
        train(trained, make_episodes, 0, 2)
    assert_close(hf_state(learner), hf_state(fresh), 1e-5)


@pytest.mark.parametrize("stage", [None, 2, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 3))])
def test_a_policy_that_begins_again_is_what_it_was_when_ppo_began(
    stage: int | None, make_learner: Any, make_episodes: Any, tmp_path: Path
) -> None:
    """Weights, value function, moments, reference, average, KL coefficient: bit for bit; no other
    policy's.
    """
    learner = make_learner(
        modules=("player", "other"),
        training=PPO | {"ema_decay": 0.5, "lr_warmup_steps": 3},
        use_kl_loss=True,
        kl_target=1e-4,
        deepspeed=zero(stage),
    )
    update(learner, make_episodes(9, seed=5), objective=SupervisedObjective(1, lr=1e-2))
    learner.begin_rl()
    learner.save_policy(tmp_path / "player", "player")
    begun, version = hf_state(learner), learner._weights_seq_no

    def trained() -> tuple[Any, ...]:
        """What follows from two updates with the minibatches they would have now."""
        learner._weights_seq_no = version
        (metrics,) = train(learner, make_episodes, 0, 2)
        weights = hf_state(learner), hf_state(learner, use=WeightUse.EVALUATION)
        return *weights, *(metrics[name] for name in ("vf_loss", "mean_kl_loss", "curr_kl_coeff"))

    first = trained()
    update(learner, make_episodes(9, seed=8, module="other"), module=None)
    others = hf_state(learner, "other")
    learner.begin_again(tmp_path / "player", "player")
    assert learner.module["player"].version == learner._weights_seq_no
    assert same(hf_state(learner), begun)
    for ours, theirs in zip(trained(), first, strict=True):
        assert same(ours, theirs) if isinstance(ours, dict) else ours == theirs
    assert same(hf_state(learner, "other"), others)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_that_are_not_finite_are_skipped_under_zero(
    stage: int, make_learner: Any, make_episodes: Any
) -> None:
    learner = make_learner(training={"max_tokens_per_microbatch": 9999}, deepspeed=zero(stage))
    engine = learner.engines["player"]
    before = hf_state(learner)
    plain_backward = engine.backward
    engine.backward = lambda loss: plain_backward(loss * torch.tensor(float("inf")))
    (result,) = train(learner, make_episodes, 0, 1)
    assert result["nan_steps"] == 1
    assert_close(hf_state(learner), before, 1e-12)
    engine.backward = plain_backward
    (result,) = train(learner, make_episodes, 1, 1)
    assert result["nan_steps"] == 0
    assert not same(hf_state(learner), before)


def test_what_the_learner_decides_is_set_and_the_rest_is_passed_on() -> None:
    config = deepspeed_config(
        {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "gradient_clipping": "auto"}, grad_clip=0.5
    )
    assert config["zero_optimization"] == {"stage": 2}
    assert config["bf16"] == {"enabled": True}
    assert config["gradient_clipping"] == 0.5
    assert config["managed_gradient_accumulation"] is False
    assert deepspeed_config({}, grad_clip=0.5)["gradient_clipping"] == 0.0
    assert optimizer_is_guarded({})
    assert not optimizer_is_guarded({"zero_optimization": {"stage": 1}})
    assert half_precision({"bf16": {"enabled": True}}) and not half_precision({"bf16": {"enabled": False}})


@pytest.mark.parametrize(
    ("section", "stage", "sums"),
    [
        ({"bf16": {"enabled": True}}, 1, "fp32"),
        ({"fp16": {"enabled": True}, **zero(2)}, 2, "fp32"),
        ({"bf16": {"enabled": True}, **zero(3), "data_types": {"grad_accum_dtype": "bf16"}}, 3, "bf16"),
        (zero(2), 2, None),
        ({}, 0, None),
    ],
)
def test_half_precision_sums_gradients_in_float32(section: dict[str, Any], stage: int, sums: str | None) -> None:
    config = deepspeed_config(section)
    assert config["zero_optimization"]["stage"] == stage
    assert config.get("data_types", {}).get("grad_accum_dtype") == sums


def test_buckets_are_no_larger_than_the_model_unless_the_user_sets_them() -> None:
    sizes = {7: 7, 10**10: 500_000_000}
    for stage in (1, 2, 3):
        config = deepspeed_config(zero(stage))
        assert {n: with_bucket_sizes(config, n)["zero_optimization"]["reduce_bucket_size"] for n in sizes} == sizes
    assert config["zero_optimization"] == {"stage": 3}
    chosen = deepspeed_config({"zero_optimization": {"stage": 2, "reduce_bucket_size": 999}})
    assert with_bucket_sizes(chosen, 7) == chosen
    assert with_bucket_sizes(deepspeed_config({}), 7)["zero_optimization"] == {"stage": 0}
