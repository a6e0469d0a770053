"""``num_threads: auto``: how many threads engines and learners get, and that they have them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, _MockFileSystem

from rllib_lmgame.algorithms.base import LMGameAlgorithm
from rllib_lmgame.algorithms.cluster.threads import (
    THREADS_FILE,
    Places,
    places,
    places_here,
    threads_of,
    with_kept_threads,
)
from rllib_lmgame.base import threads
from rllib_lmgame.base.threads import cores_of_trial, first_environment, openmp_threads, threads_each, usable_cores
from rllib_lmgame.learners.options import learner_threads


@given(st.floats(0, 64), st.integers(1, 9), st.integers(0, 4), st.none() | st.integers(1, 80))
def test_processes_of_a_phase_fill_the_cores_and_no_more(cores, processes, others, most) -> None:
    each = threads_each(cores, processes, others, most)

    def fits(count: int) -> bool:
        return count * processes + others <= cores + 1e-6

    assert 1 <= each <= (most or each)
    assert each == 1 or fits(each)
    assert each == most or not fits(each + 1)


@pytest.mark.parametrize(
    ("usable", "declared", "reserved", "cores"),
    [(2, 2, 2, 2), (16, 16, 2, 2), (2, 3, 3, 2), (2, 4, 2, 1), (8, 4, 4, 4), (2, 0, 0, 0)],
)
def test_a_trial_has_the_share_of_the_cores_that_it_reserved(usable, declared, reserved, cores) -> None:
    assert cores_of_trial(usable, declared, reserved) == pytest.approx(cores)


@pytest.mark.parametrize(
    ("text", "threads"),
    [("4", 4), ("3,2", 3), (" 2 ", 2), ("", None), ("0", None), ("-1", None), ("all", None), ("9" * 5000, None)],
)
def test_openmp_threads_are_read_as_openmp_reads_them(text: str, threads: int | None) -> None:
    assert openmp_threads({"OMP_NUM_THREADS": text}) == threads
    assert openmp_threads({}) is None


@pytest.mark.parametrize(
    ("quota", "cores"), [("150000 100000", 1), ("250000 100000", 2), ("5000 100000", 1), ("max 100000", 3), ("", 3)]
)
def test_a_container_has_the_cores_of_its_quota(quota, cores, tmp_path, monkeypatch) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5}, raising=False)
    assert usable_cores() == cores


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_what_a_process_was_started_with_is_known_whatever_was_set_since() -> None:
    code = (
        "import os; os.environ['OMP_NUM_THREADS'] = '1'; os.environ['LATER'] = 'x'\n"
        "from rllib_lmgame.base.threads import *; e = first_environment(); print(openmp_threads(e), 'LATER' in e)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "7"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["7", "False"]
    assert first_environment().keys() >= {"PATH"}


def test_processes_share_the_machine(make_config, monkeypatch) -> None:
    """Three engines, two learners and two env runners on two nodes: as the fuller one has them."""
    monkeypatch.setattr("rllib_lmgame.algorithms.cluster.threads.FEW_PARAMETERS", 0)
    config = make_config(num_env_runners=2, num_learners=2, inference={"num_engines": 3})
    found = places_here(config, 3, 9.0, {}, nodes=2)
    assert found == Places(9.0, 2, 1, 1)
    assert (found.engine_threads(), found.learner_threads()) == (4, 9)
    assert places_here(make_config(), 1, 2.0, {}).learner_threads() == 2, "in the main process"


def test_openmp_and_small_models_limit_what_auto_takes(make_config, monkeypatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: None)
    monkeypatch.setattr("rllib_lmgame.algorithms.cluster.threads.usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    config = make_config(num_learners=3)
    assert (places(config, 2).engine_threads(), places(config, 2).learner_threads()) == (1, 1), "a tiny model"
    monkeypatch.setattr("rllib_lmgame.algorithms.cluster.threads.FEW_PARAMETERS", 0)
    assert places(config, 2) == Places(8, 2, 3, 0)
    assert (places(config, 2).engine_threads(), places(config, 2).learner_threads()) == (4, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert (places(config, 2).engine_threads(), places(config, 2).learner_threads()) == (3, 2)


def test_what_ray_sets_in_an_actor_limits_nothing(make_config, monkeypatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_actor_id=lambda: "a"))
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: None)
    monkeypatch.setattr("rllib_lmgame.algorithms.cluster.threads.first_environment", dict)
    monkeypatch.setattr("rllib_lmgame.algorithms.cluster.threads.FEW_PARAMETERS", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert places(make_config(), 1).most is None


@pytest.mark.parametrize(
    ("asked", "found", "reserved", "threads"),
    [
        ("auto", 4, "auto", 4),
        ("auto", 4, 2, 4),
        ("auto", None, 2, 2),
        ("auto", None, "auto", None),
        (3, 4, 2, 3),
        (None, 4, 2, 2),
        (None, 4, "auto", None),
    ],
)
def test_an_explicit_number_of_a_learner_wins(asked, found, reserved, threads) -> None:
    run = SimpleNamespace(training=SimpleNamespace(num_threads=asked))
    config = SimpleNamespace(run=run, learner_threads=found, num_cpus_per_learner=reserved)
    assert learner_threads(config) == threads


@pytest.mark.slow
def test_what_tune_reserved_is_read_in_the_trial(ray_cluster, make_config) -> None:
    """One CPU for the algorithm and one for the engine, of all that Ray was told of; what the tests ask of OpenMP is
    told from what Ray sets.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    class Trial:
        def places(self, config) -> Places:
            os.environ["OMP_NUM_THREADS"] = "64"
            return places(config, engines=1)

    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}])
    try:
        strategy = PlacementGroupSchedulingStrategy(group, 0)
        trial = ray.remote(Trial).options(num_cpus=1, scheduling_strategy=strategy).remote()
        large = make_config(language_model={"model": "Qwen/Qwen2.5-0.5B"})
        found = ray.get(trial.places.remote(large), timeout=300)
    finally:
        ray.util.remove_placement_group(group)
    here = ray.get_runtime_context().get_node_id()
    (declared,) = (node["Resources"]["CPU"] for node in ray.nodes() if node["NodeID"] == here)
    cores = cores_of_trial(usable_cores(), declared, 2)
    asked = openmp_threads(os.environ)
    assert found == Places(pytest.approx(cores), 1, 1, 0, asked)


@pytest.mark.parametrize(("gpus", "device", "threads"), [(0, "none", 8), (1, "none", None), (1, "cpu", 8)])
def test_an_offloaded_optimizer_has_the_threads_of_a_learner_on_cpus(make_config, gpus, device, threads) -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": device}}
    config = make_config(num_gpus_per_learner=gpus)
    config.deepspeed(zero_optimization=zero)
    assert threads_of(config, Places(8, 1, 1, 0))[1] == threads


@pytest.mark.parametrize("files", [LocalFileSystem(), _MockFileSystem()])
def test_a_run_keeps_the_threads_of_its_first_start_on_a_machine_of_other_cores(files, tmp_path) -> None:
    """The second file system stands for storage that is no directory, such as S3."""
    trial = str(tmp_path / "trial")

    def start(cores: int) -> tuple[int, int]:
        kept = with_kept_threads(files, trial, Places(cores, 1, 2, 0))
        return kept.engine_threads(), kept.learner_threads()

    assert [start(8), start(2)] == [(8, 4), (8, 4)]
    with files.open_output_stream(f"{trial}/{THREADS_FILE}") as file:
        file.write(b"{")
    assert [start(2), start(8)] == [(2, 1), (2, 1)]


def test_what_a_resumed_trial_needs_lies_in_the_storage_of_the_run() -> None:
    remote = SimpleNamespace(storage_filesystem=_MockFileSystem(), trial_fs_path="bucket/run/trial")
    algorithm = SimpleNamespace(_storage=remote, logdir="/of/this/node")
    assert LMGameAlgorithm._results_place(algorithm) == (remote.storage_filesystem, "bucket/run/trial")


@pytest.mark.parametrize(
    ("settings", "repeats"),
    [
        ({}, True),
        ({"text_rollouts": {"deterministic": False}}, False),
        ({"inference": {"num_gpus_per_engine": 1}}, False),
        ({"num_gpus_per_learner": 1}, False),
        ({"inference": {"num_gpus_per_engine": 1}, "text_rollouts": {"deterministic": True}}, True),
        ({"data_selection": {"oversample": 2}}, False),
        ({"num_env_runners": 1, "async_rollouts": {"max_staleness": 1}}, False),
    ],
)
def test_a_run_on_cpus_repeats_where_nothing_contradicts_it(make_config, settings, repeats) -> None:
    assert make_config(**settings).run.deterministic is repeats
