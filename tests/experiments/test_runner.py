"""How a cluster is joined or started, and what a failing callback says, without one."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import ray
from ray.tune import PlacementGroupFactory

from rllib_lmgame.algorithms.cluster import ray_cluster
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments import runner
from rllib_lmgame.experiments.checks import resources
from rllib_lmgame.experiments.results.outcome import TrialSummary
from rllib_lmgame.experiments.run import cluster
from rllib_lmgame.experiments.run.callbacks import INTERRUPTION, handled_signals
from rllib_lmgame.experiments.run.cluster import RunOptions
from rllib_lmgame.experiments.spec import Source


@pytest.fixture
def no_ray(monkeypatch):
    """No Ray is connected to or started."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)


JOIN = """
import os, sys
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.run.cluster import join_or_start

for address in ("foo", "host:notaport"):
    os.environ.pop("RAY_ADDRESS", None)
    for named in (True, False):
        try:
            join_or_start(address if named else None, 0)
        except ConfigError as error:
            print(error)
        os.environ["RAY_ADDRESS"] = address
"""


@pytest.mark.slow
def test_what_is_no_address_is_named():
    """In a process of its own: the tests' own Ray may be up here."""
    done = subprocess.run([sys.executable, "-c", JOIN], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    said = [
        line.partition(": no Ray cluster answers there")[0]
        for line in done.stdout.splitlines()
        if "no Ray cluster answers there" in line
    ]
    assert said == ["--ray-address foo", "RAY_ADDRESS=foo", "--ray-address host:notaport", "RAY_ADDRESS=host:notaport"]


def test_a_gpu_that_is_not_there_is_refused_before_ray_starts(no_ray, monkeypatch, tmp_path):
    class Started(Exception):
        """Ray would have been started."""

    def start(*args, **kwargs):
        raise Started

    monkeypatch.setattr("ray.init", start)
    for name in ("RAY_ADDRESS", "RAY_OVERRIDE_RESOURCES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cluster, "join_existing", lambda **arguments: False)
    asked = PlacementGroupFactory([{"CPU": 1.0, "GPU": 1.0}])
    monkeypatch.setattr(resources, "request_of", lambda experiment: asked)
    spec = SimpleNamespace(name="mine", options=SimpleNamespace(storage_path=str(tmp_path), env_vars={}))
    config = SimpleNamespace(num_gpus_per_learner=1, run=SimpleNamespace(inference=None))
    experiment = SimpleNamespace(spec=spec, configs=[config], algorithm=SimpleNamespace(own=False))
    with pytest.raises(
        ConfigError, match=r"mine: a trial asks for 1 GPU, there are 0 \(config\.num_gpus_per_learner: 1\)"
    ):
        runner.run_experiments([experiment], RunOptions(num_gpus=0))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen, cards = [], [SimpleNamespace(memory=gib) for gib in (8, 22.5)]
    monkeypatch.setattr(cluster.UsableGpus, "look", lambda: SimpleNamespace(cards=cards))
    monkeypatch.setattr(resources, "check_fits", lambda checked, here: seen.append(here))
    for check in (True, False):
        with pytest.raises(Started):
            runner.run_experiments([experiment], RunOptions(num_gpus=1, memory_check=check))
    assert seen == [22.5]


def test_what_a_killed_cluster_left_behind_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: "127.0.0.1:1")
    monkeypatch.setattr(ray, "init", lambda **arguments: pytest.fail("Ray would wait for minutes"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert not ray_cluster.join_existing()


TOKENS = "ray._private.authentication.authentication_token_setup"


def test_the_cluster_of_this_machine_is_joined_with_this_users_token(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        steps: list[str] = []
        monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: f"127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(f"{TOKENS}.maybe_enable_token_auth_if_token_available", lambda **how: steps.append("token"))
        monkeypatch.setattr(ray, "init", lambda **arguments: steps.append("join"))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        assert ray_cluster.join_existing() and steps == ["token", "join"]


@pytest.mark.parametrize("named", [True, False], ids=["RAY_ADDRESS", "this machine's"])
def test_a_cluster_of_another_version_is_told_in_a_line(named, monkeypatch):
    def init(**arguments):
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: address)
        monkeypatch.setattr(ray, "init", init)
        monkeypatch.setenv("RAY_ADDRESS", address) if named else monkeypatch.delenv("RAY_ADDRESS", raising=False)
        with pytest.raises(ConfigError, match=rf"{address}.* cannot be joined.*Ray: 2.9.0 Python: 3.10.1"):
            ray_cluster.join_existing()


def test_a_place_that_takes_no_results_is_refused_before_ray_starts(no_ray, monkeypatch, tmp_path):
    monkeypatch.setattr(ray, "init", lambda **arguments: pytest.fail("nothing could be written"))
    (tmp_path / "file").touch()
    spec = SimpleNamespace(name="mine", options=SimpleNamespace(storage_path=str(tmp_path / "file")))
    with pytest.raises(ConfigError, match=r"file/mine cannot be written: Not a directory; .* --storage-path"):
        runner.run_experiments([SimpleNamespace(spec=spec)], RunOptions())


@pytest.fixture
def mine():
    """The test's own handler of SIGTERM."""
    before = signal.signal(signal.SIGTERM, handler := lambda number, frame: None)
    yield handler
    signal.signal(signal.SIGTERM, before)


def test_a_cluster_starts_apart_with_patience_and_leaves_the_handlers(monkeypatch, mine):
    from ray._private import services

    asked: list[str] = []

    def get_node(address: str, node: str) -> dict:
        asked.append(node)
        if len(asked) < 3:
            raise RuntimeError("not there yet")
        return {"node": node}

    # As Ray: a handler of its own, a process, and one question that it would not repeat after 30 s.
    def init(**arguments) -> None:
        assert services.ConsolePopen is not popen and arguments["address"] == "local"
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert services.get_node("a", "b") == {"node": "b"}
        assert services.ray_constants.RAY_DASHBOARD_STARTUP_TIMEOUT_S >= ray_cluster.START_WAIT_S

    popen = services.ConsolePopen
    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv(ray_cluster.PATIENCE, raising=False)
    ray_cluster.start_local()
    assert len(asked) == 3 and services.get_node is get_node and services.ConsolePopen is popen
    assert signal.getsignal(signal.SIGTERM) is mine
    assert float(os.environ[ray_cluster.PATIENCE]) == ray_cluster.START_WAIT_S


@pytest.mark.parametrize(
    ("limit", "waited", "longer"), [(None, "120", "300"), ("400", "400", "1000"), ("0", "30", "75")]
)
def test_a_cluster_that_does_not_start_in_time_is_told_in_a_line(limit, waited, longer, monkeypatch):
    def init(**arguments) -> None:
        raise Exception("The current node timed out during startup. This could happen because some of the raylet ...")

    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.delenv(ray_cluster.PATIENCE, raising=False)
    if limit is not None:
        monkeypatch.setenv(ray_cluster.PATIENCE, limit)
    monkeypatch.setattr(ray, "init", init)
    says = rf"^Ray did not start within {waited} s, .*; {ray_cluster.PATIENCE}={longer} waits longer$"
    with pytest.raises(ConfigError, match=says):
        ray_cluster.start_local()


def test_an_algorithm_starts_ray_if_nobody_has(no_ray, monkeypatch, tiny_dict):
    from rllib_lmgame.algorithms import base
    from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

    class Asked(Exception):
        pass

    def be_connected(num_cpus: int) -> None:
        raise Asked(num_cpus)

    monkeypatch.setattr(base, "be_connected", be_connected)
    config = LMGamePPOConfig().update_from_dict(tiny_dict())
    with pytest.raises(Asked) as asked:
        config.build_algo()
    needed = config.algo_class.default_resource_request(config).required_resources["CPU"]
    assert asked.value.args[0] >= needed > 1


def test_a_callback_that_fails_has_its_line(monkeypatch, tmp_path):
    def fail(*args):
        raise ConfigError("callbacks[0]", "cannot be made")

    monkeypatch.setattr(runner, "running_cluster", lambda checked, options: nullcontext())
    monkeypatch.setattr(runner, "_run_one", fail)
    monkeypatch.setattr(runner, "tell_sandbox", lambda checked: None)
    options = SimpleNamespace(storage_path=str(tmp_path))
    experiment = SimpleNamespace(
        spec=SimpleNamespace(name="a", options=options, source=Source("x.yaml", {"callbacks": "x.yaml:4"}))
    )
    with pytest.raises(ConfigError, match=r"x\.yaml:4: callbacks\[0\]: cannot be made"):
        runner.run_experiments([experiment], RunOptions())


@pytest.mark.parametrize("full", [True, False])
def test_what_has_run_is_told_of_when_a_later_experiment_cannot_be_run(monkeypatch, tmp_path, capsys, full):
    def run(experiment, *args):
        if experiment.spec.name == "a":
            return [TrialSummary("a", "7", str(tmp_path), None, {"training_iteration": 3})]
        # As Tune passes it on.
        raise RuntimeError(f"Traceback ...\n{OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))}" if full else "no luck")

    monkeypatch.setattr(runner, "running_cluster", lambda *arguments: nullcontext())
    monkeypatch.setattr(runner, "_run_one", run)
    monkeypatch.setattr(runner, "tell_sandbox", lambda checked: None)
    options = SimpleNamespace(storage_path=str(tmp_path))
    experiments = [
        SimpleNamespace(spec=SimpleNamespace(name=name, options=options, source=Source("x.yaml"))) for name in "abc"
    ]
    with pytest.raises(ConfigError if full else RuntimeError, match="disk is full.*--resume" if full else "no luck"):
        runner.run_experiments(experiments, RunOptions())
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["a: experiment 1 of 3", "b: experiment 2 of 3", "a 7: done after 3 iterations"]


@pytest.mark.parametrize("checkpoint", [None, "/runs/checkpoint_000001"])
def test_an_interrupted_run_says_whether_anything_was_saved(checkpoint, monkeypatch, tmp_path, capsys):
    def run(experiment, *args):
        INTERRUPTION.signal = signal.SIGUSR1
        return [TrialSummary("a", "7", str(tmp_path), checkpoint, finished=False)]

    monkeypatch.setattr(runner, "running_cluster", lambda *arguments: nullcontext())
    monkeypatch.setattr(runner, "_run_one", run)
    monkeypatch.setattr(runner, "tell_sandbox", lambda checked: None)
    spec = SimpleNamespace(name="a", options=SimpleNamespace(storage_path=str(tmp_path)), source=Source("x.yaml"))
    assert runner.run_experiments([SimpleNamespace(spec=spec)], RunOptions()) == 128 + signal.SIGUSR1
    said = capsys.readouterr()
    assert said.out.endswith(f"  checkpoint  {checkpoint or 'none yet; --resume begins it anew'}\n")
    way_on = "Go on with" if checkpoint else "Nothing was saved yet. Begin anew with"
    assert said.err.startswith(f"Interrupted. {way_on} ")


def test_a_wrong_configuration_ends_its_own_experiment_alone(monkeypatch, tmp_path):
    ran = []

    def run(experiment, *args):
        ran.append((experiment.spec.name, INTERRUPTION.ending, INTERRUPTION.stopped.is_set()))
        INTERRUPTION.misconfigured = True
        INTERRUPTION.stopped.set()
        return []

    monkeypatch.setattr(runner, "_run_one", run)
    experiments = [SimpleNamespace(spec=SimpleNamespace(name=name, source=Source("x.yaml"))) for name in "ab"]
    with handled_signals():
        runner._run_each(experiments, RunOptions(), [])
    assert ran == [("a", False, False), ("b", False, False)]
