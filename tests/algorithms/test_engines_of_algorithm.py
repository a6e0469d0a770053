"""Engines and weights from GPU to GPU as configuration, algorithm and learner see them; no GPU is needed to refuse or
to hand over.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray
import torch
from learner_weights import hf_state
from ray.rllib.algorithms.ppo import PPO

from rllib_lmgame.algorithms.cluster import workers
from rllib_lmgame.algorithms.ppo import LMGamePPO, LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import EngineDeadError
from rllib_lmgame.inference.serving.group import EngineGroup
from rllib_lmgame.inference.serving.interruption import InterruptedWaitError
from rllib_lmgame.inference.weights import state_checksum, unpack_state
from rllib_lmgame.learners.learner import LMGameLearner
from rllib_lmgame.learners.options import WeightUse
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.policies.model.network import CheckpointTensors, parts_of
from rllib_lmgame.rollouts.records import PlaySettings


@pytest.mark.parametrize(
    "assignments",
    [
        {"policies": {"one": {}, "two": {}, "frozen": {"trained": False}}, "policy_mapping_fn": "random_seat"},
        {"policy_mapping_fn": "league", "league": {"opponent_engines": 2}},
    ],
)
def test_no_two_engines_draw_the_same_numbers(make_config, assignments) -> None:
    config = make_config(env="lmgame/KuhnPoker-v0", env_config={}, seed=7, inference={"num_engines": 2}, **assignments)
    sets = workers.engine_sets(config)
    seeds = [workers.engine_seed(config, engines) + number for engines in sets for number in range(engines.count)]
    assert len(sets) == 3 and len(set(seeds)) == len(seeds)
    assert seeds[0] == 7, "a run of one policy draws what its seed says"


class Learner:
    """What :meth:`LMGameLearner.push_on_device` needs of a learner."""

    push_on_device = LMGameLearner.push_on_device
    weights_for = LMGameLearner.weights_for
    _device = torch.device("cpu")

    def __init__(self, ranks: ProcessGroup) -> None:
        self.ranks = ranks
        self.weights = {"w": torch.ones(2, dtype=torch.bfloat16)}
        self.engines = {"player": self}
        model = SimpleNamespace(_weight_conversions=[], config=None)
        parts = parts_of(model, self.weights)
        made = partial(CheckpointTensors, model, parts)
        self.module = {"player": SimpleNamespace(as_checkpoint=made, like_checkpoint=made)}
        self._device_pushes: dict[str, Any] = {}
        self.averages = {"player": SimpleNamespace(tensors={"w": torch.full((2,), 3.0)})}

    @contextmanager
    def full_state(self, trained, others, everyone):
        yield self.weights | {name: tensor.to(torch.bfloat16) for name, tensor in others.items()}


@pytest.mark.parametrize(("use", "value"), [(WeightUse.TRAINING, 1.0), (WeightUse.EVALUATION, 3.0)])
def test_the_averaged_weights_are_pushed_where_they_are_asked_for(use: WeightUse, value: float) -> None:
    pushed = []

    class Push:
        options = InferenceOptions(weight_transport="nccl")

        def __call__(self, state: dict[str, torch.Tensor], like: Any, version: int, rank: int, device: Any) -> None:
            pushed.append((state, version))

    learners = SimpleNamespace(is_local=True, _learner=Learner(ProcessGroup()))
    group = SimpleNamespace(learner_push=Push, note_device_push=pushed.append)
    workers.push_from_learners(learners, group, "player", 7, use)
    (state, version), noted = pushed
    assert version == noted == 7
    assert state["w"].tolist() == [value, value] and state["w"].dtype == torch.bfloat16


def test_an_algorithm_that_was_stopped_plays_no_more() -> None:
    stopped: Any = SimpleNamespace(config=SimpleNamespace(engine_names={"player": ["one"]}), engine_groups={})
    with pytest.raises(ConfigError, match="was stopped"):
        LMGamePPO.play(stopped, [], stopped)


@pytest.mark.parametrize("count", [1, 2])
def test_learners_that_may_wait_for_each_other_end_when_a_push_fails(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr("rllib_lmgame.algorithms.cluster.workers.ray.kill", killed.append)

    def fails(group: Any, function: Any) -> None:
        raise RuntimeError("no engine")

    monkeypatch.setattr("rllib_lmgame.algorithms.cluster.workers.foreach_learner", fails)
    learners = SimpleNamespace(is_local=False, _workers=list(range(count)))
    group = SimpleNamespace(learner_push=lambda: SimpleNamespace(options=InferenceOptions(weight_transport="ipc")))
    with pytest.raises(RuntimeError, match="no engine"):
        workers.push_from_learners(learners, group, "player", 1, WeightUse.TRAINING)
    assert killed == ([0, 1] if count == 2 else [])


def test_the_first_push_and_every_sixteenth_are_compared() -> None:
    learner: Any = Learner(ProcessGroup())
    learner._packed, learner.module["player"].like_checkpoint = {}, lambda weights: weights
    checksums = [LMGameLearner.pack_weights(learner, "player", version).checksum for version in range(33)]
    assert [version for version, checksum in enumerate(checksums) if checksum] == [0, 16, 32]


@pytest.mark.slow
def test_pushed_weights_outlive_the_learner_that_packed_them(make_config, ray_cluster) -> None:
    """An engine that starts again after its learner died still gets them."""
    config = make_config(num_learners=2)
    learners = config.build_learner_group(rl_module_spec=config.rl_module_spec)
    try:
        shared = workers.share_weights(learners, "player", 3, WeightUse.TRAINING)  # The first has a checksum.
        expected = next(state for state in workers.foreach_learner(learners, hf_state) if state is not None)
        for worker in learners._workers:
            ray.kill(worker)
            with pytest.raises(ray.exceptions.RayActorError):
                while True:  # It may answer once more before it dies.
                    ray.get(worker.__ray_ready__.remote(), timeout=60)
    finally:
        learners.shutdown()
    bundle = ray.get(shared.reference, timeout=60)
    state = unpack_state(bundle)
    assert bundle.version == 3
    assert state_checksum(state) == bundle.checksum == shared.checksum
    assert state.keys() == expected.keys()
    assert all((tensor.numpy() == expected[name]).all() for name, tensor in state.items())


class Turns(LMGamePPO):
    """Notes what it tells the engines of two policies, one of which learns, and learners."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, offloads: bool) -> None:
        self._seen: list[tuple[Any, ...]] = []
        see = lambda *what: self._seen.append(what)  # noqa: E731
        self.engine_groups = {name: SimpleNamespace(call=partial(see, name)) for name in ("learns", "frozen")}
        training, inference = {"offload_during_rollout": offloads}, InferenceOptions(sleep_during_update=True)
        self.config: Any = MagicMock(engine_names={}, trained_policies=lambda: ["learns"])
        self.config.run = MagicMock(training=SimpleNamespace(**training), inference=inference)
        learner = SimpleNamespace(**{name: partial(see, name) for name in ("offload", "reload")})
        self.learner_group: Any = SimpleNamespace(is_local=True, _learner=learner)
        self.env_runner_group = self.agent_mapper = None  # type: ignore[assignment]
        self._policy_version = 0
        monkeypatch.setattr("rllib_lmgame.algorithms.base.push_from_learners", lambda *args: see("push", args[2]))
        monkeypatch.setattr("rllib_lmgame.algorithms.base.play_all", lambda *args: see("play"))

    def seen(self) -> list[tuple[Any, ...]]:
        seen, self._seen = self._seen, []
        return seen


DROPPED = [("learns", "sleep", 2), ("frozen", "sleep", 1)]
KEPT = [("learns", "sleep", 1), ("frozen", "sleep", 1)]
PUSH, AWAKE = ("push", "learns"), [("learns", "wake_up"), ("frozen", "wake_up")]


@pytest.mark.parametrize("offloads", [False, True])
def test_engines_and_learners_take_turns(offloads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines drop weights only where a push follows; after it learners leave before caches wake."""
    algorithm, come, leave = Turns(monkeypatch, offloads), [("reload",)] * offloads, [("offload",)] * offloads
    with algorithm.engines_asleep(pushed=True), algorithm.engines_asleep():
        assert algorithm.seen() == DROPPED + come
    assert algorithm.seen() == []
    algorithm.push_weights()
    assert algorithm.seen() == [PUSH, *leave, *AWAKE]
    turn = [*KEPT, *come, *leave, *AWAKE]
    for asks, expected in ((algorithm.engines_asleep, turn), (algorithm.learners_present, turn * offloads)):
        with asks():
            pass
        assert algorithm.seen() == expected
    algorithm.push_weights(WeightUse.EVALUATION)
    assert algorithm.seen() == ([*DROPPED, *come, PUSH, *leave, *AWAKE] if offloads else [PUSH])


def test_engines_that_a_failed_update_left_asleep_get_weights_before_games(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = Turns(monkeypatch, offloads=True)
    with pytest.raises(ValueError), algorithm.engines_asleep(pushed=True):
        raise ValueError
    assert algorithm.seen() == [*DROPPED, ("reload",)]
    for _ in range(2):
        algorithm.play([], PlaySettings(()))
    assert algorithm.seen() == [PUSH, ("offload",), *AWAKE, ("play",), ("play",)]


@pytest.mark.parametrize("call", ["sleep", "wake_up"])
def test_learners_come_back_where_engines_failed_in_between(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are away would be read as whatever lies there."""

    def fails(*what: Any) -> None:
        frozen.call = see
        raise RuntimeError

    algorithm = Turns(monkeypatch, offloads=True)
    algorithm.push_weights()
    frozen = algorithm.engine_groups["frozen"]
    see, frozen.call = frozen.call, lambda *what: fails() if what[0] == call else see(*what)
    with pytest.raises(RuntimeError):
        algorithm.push_weights()
    algorithm.seen()
    algorithm.play([], PlaySettings(()))
    assert algorithm.seen() == [*DROPPED, ("reload",), PUSH, ("offload",), *AWAKE, ("play",)]


def test_whoever_asks_for_weights_gets_them_from_learners_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = Turns(monkeypatch, offloads=True)
    for name, given in (("get_weights", {}), ("save_to_path", {"state": {}})):
        monkeypatch.setattr(PPO, name, lambda self, *args, name=name, **more: self._seen.append((name,)))
        getattr(algorithm, name)(**given)
        assert algorithm.seen() == [*KEPT, ("reload",), (name,), ("offload",), *AWAKE]


def test_engines_are_told_whether_code_of_the_model_is_trusted(make_config, monkeypatch) -> None:
    told = []

    def create(*args: Any, trust_remote_code: bool, **kwargs: Any) -> Any:
        told.append(trust_remote_code)
        return SimpleNamespace(wait_until_ready=lambda: None)

    monkeypatch.setattr("rllib_lmgame.algorithms.cluster.workers.EngineGroup.create", create)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: None)  # It would start Ray.
    for trusted in (False, True):
        config = make_config(language_model={"trust_remote_code": trusted})
        config.model_files = dict.fromkeys(config.language_model_policies(), "nowhere")
        workers.start_engines(config)
    assert told == [False, True]


@pytest.mark.parametrize("error", [EngineDeadError("one died"), InterruptedWaitError("stopped"), TimeoutError("late")])
def test_an_engine_that_died_or_is_late_is_not_blamed_on_the_model(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise error

    group = SimpleNamespace(wait_until_ready=fails, shutdown=lambda: None)
    monkeypatch.setattr(EngineGroup, "create", lambda *_, **__: group)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: None)  # It would start Ray.
    config = LMGamePPOConfig().environment("lmgame/Sokoban-v0").language_model(model="org/none")
    config.model_files = {"player": ModelFiles("org/none")}
    with pytest.raises(type(error), match=str(error)):
        workers.start_engines(config)
