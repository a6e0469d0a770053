"""Several Ray nodes: engines, runners and learners spread out; a node lost, another one added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = '''
import json, os, sys
import ray
from ray.cluster_utils import Cluster

settings = json.load(open(sys.argv[1]))
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=2) for _ in range(3)]
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False)
from ray.util.state import list_actors
from rllib_lmgame.algorithms.config import LMGamePPOConfig

algorithm = LMGamePPOConfig().update_from_dict(settings).build_algo()
results = [algorithm.train() for _ in range(2)]


def node_of(actor):
    return ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))


def runner_nodes():
    group = algorithm.env_runner_group
    return group.foreach_env_runner(lambda runner: ray.get_runtime_context().get_node_id(), local_env_runner=False)


(engine,) = [ray.get_actor(name) for name in algorithm.engine_groups["player"].names]
engine_node = node_of(engine)
learner_nodes = [r.get() for r in algorithm.learner_group.foreach_learner(lambda learner: ray.get_runtime_context().get_node_id())]
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
    "gaps": [r["learners"]["player"]["logprob_gap"] for r in results],
    "runners": len(runner_nodes()),
}
json.dump(report, open(sys.argv[2], "w"))
algorithm.stop()
ray.shutdown()
cluster.shutdown()
'''


@pytest.mark.slow
def test_a_run_over_several_nodes_survives_the_loss_of_one(make_config: Any, tiny_dict: Any, tmp_path: Path) -> None:
    settings = tiny_dict(num_env_runners=3, num_learners=2)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    arguments = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "settings.json"), str(tmp_path / "report.json")]
    done = subprocess.run(arguments, env=dict(os.environ), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["nodes"] >= 3
    assert report["lost"]
    assert set(report["episodes"]) == {16}
    assert max(report["gaps"]) <= 1e-4
    assert report["runners"] == 3
