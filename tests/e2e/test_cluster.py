"""Several Ray nodes: engines, runners and learners spread out; nodes lost, another one added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys
import ray
from ray.cluster_utils import Cluster

settings = json.load(open(sys.argv[1]))
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=2) for _ in range(3)]
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False)
from ray.util.state import list_actors
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

algorithm = LMGamePPOConfig().update_from_dict(settings).build_algo()
results = [algorithm.train() for _ in range(2)]


def node_of(actor):
    return ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))


def runner_nodes():
    group = algorithm.env_runner_group
    return group.foreach_env_runner(lambda runner: ray.get_runtime_context().get_node_id(), local_env_runner=False)


(engine,) = [ray.get_actor(name) for name in algorithm.engine_groups["player"].names]
engine_node = node_of(engine)
learner_nodes = [r.get() for r in algorithm.learner_group.foreach_learner(\
lambda learner: ray.get_runtime_context().get_node_id())]
here = ray.get_runtime_context().get_node_id()
needed = {here, engine_node, *learner_nodes}
spread = sorted({engine_node, *learner_nodes, *runner_nodes()})
lost = next((node for node in nodes if node.node_id in set(runner_nodes()) - needed), None)
if lost is not None:
    cluster.remove_node(lost, allow_graceful=False)
    cluster.add_node(num_cpus=2)
results += [algorithm.train() for _ in range(2)]
while len(runner_nodes()) < 3 and len(results) < 100:  # The lost runner's process takes some seconds to come up.
    results.append(algorithm.train())
report = {
    "nodes": len(spread),
    "lost": lost is not None,
    "episodes": [r["env_runners"]["num_episodes"] for r in results],
    "gaps": [r["learners"]["player"]["logprob_diff"] for r in results],
    "runners": len(runner_nodes()),
}
json.dump(report, open(sys.argv[2], "w"))
algorithm.stop()
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_run_over_several_nodes_survives_the_loss_of_one(make_config, tiny_dict, tmp_path) -> None:
    settings = tiny_dict(num_env_runners=3, num_learners=2)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    arguments = [
        sys.executable,
        str(tmp_path / "script.py"),
        str(tmp_path / "settings.json"),
        str(tmp_path / "report.json"),
    ]
    done = subprocess.run(arguments, env=dict(os.environ), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["nodes"] >= 3
    assert report["lost"]
    assert set(report["episodes"]) == {16}
    assert max(report["gaps"]) <= 1e-4
    assert report["runners"] == 3


LOSS_SCRIPT = '''
import json, os, sys
import ray
from ray import tune
from ray.cluster_utils import Cluster

settings, out, lost, storage = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3], sys.argv[4]
# One CPU each: the algorithm, its learner and its engine are on three nodes, the fourth is to spare.
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(4)]
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False)
import faulty_games


def remove(node_id):
    cluster.remove_node(next(node for node in nodes if node.node_id == node_id), allow_graceful=False)


faulty_games.remove_node = remove  # Not among the callback's own names: Tune pickles it with those.
report = {"nodes": [], "results": []}


class LosesANode(tune.Callback):
    """Takes away a node after the second iteration."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        where = json.load(open(os.environ["NODES_FILE"]))
        report["nodes"].append(where)
        learner = result["learners"]["player"]
        report["results"].append(\
[result["rl_iteration"], result["env_runners"]["num_episodes"], learner["logprob_diff"], learner["staleness"]])
        if len(report["results"]) == 2:
            faulty_games.remove_node(where[lost])


tuner = tune.Tuner(
    faulty_games.TellsNodes,
    param_space=settings,
    run_config=tune.RunConfig(
        name="run",
        storage_path=storage,
        stop={"rl_iteration": 4},
        failure_config=tune.FailureConfig(max_failures=int(lost == "learner")),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        callbacks=[LosesANode()],
        verbose=0,
    ),
)
(result,) = tuner.fit()
report["error"] = None if result.error is None else str(result.error)
report["path"] = result.path
json.dump(report, open(out, "w"))
ray.shutdown()
cluster.shutdown()
'''


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["engine", "learner"])
def test_the_node_of_an_engine_or_a_learner_is_lost(tiny_dict, tmp_path, lost) -> None:
    """Without its engine's node a run goes on; without its learner's the trial ends, says why, and begins again at its
    checkpoint.
    """
    (tmp_path / "script.py").write_text(LOSS_SCRIPT)
    (tmp_path / "settings.json").write_text(json.dumps(tiny_dict(num_learners=1)))
    files = [str(tmp_path / name) for name in ("script.py", "settings.json", "report.json")]
    environment = os.environ | {"NODES_FILE": str(tmp_path / "nodes.json")}
    done = subprocess.run(
        [sys.executable, *files, lost, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["error"] is None
    assert report["nodes"][1][lost] != report["nodes"][-1][lost]
    iterations = [iteration for iteration, *_ in report["results"]]
    # Where the learner went before it had saved, the last iteration is played again.
    assert iterations == sorted(iterations) and sorted(set(iterations)) == [1, 2, 3, 4]
    assert len(iterations) == 4 or lost == "learner"
    assert all(episodes == 16 and gap <= 1e-4 and staleness == 0 for _, episodes, gap, staleness in report["results"])
    errors = Path(report["path"]) / "error.txt"
    assert errors.exists() == (lost == "learner")
    if lost == "learner":
        assert "learner 0 of 1 died" in errors.read_text()
