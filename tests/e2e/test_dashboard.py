"""The dashboard of a run: where a person finds it, and that what the run prints is enough to get in."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.error
import urllib.request

import commands
import pytest
import yaml

from rllib_lmgame.telemetry import gauges


def _get(url: str, token: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_has_its_actors_by_name_and_all_numbers_of_the_grafana_dashboard(rllib, tiny_dict, tmp_path):
    shares = {"num_cpus_per_env_runner": 0.25, "num_cpus_per_learner": 0.25}
    kl = {"training": {"kl": {}}}
    config = tiny_dict(num_env_runners=1, num_learners=1, evaluation_interval=1, **shares, **kl)
    file = tmp_path / "watched.yaml"
    experiment = {"run": "LMGamePPO", "stop": {"rl_iteration": 10_000}, "config": config}
    file.write_text(yaml.safe_dump({"watched": experiment}))
    run = rllib(f"train file {file} --ray-ui --storage-path {tmp_path}")
    run.wait_for("^Metrics for Prometheus")
    (address,) = re.findall(r"^Ray dashboard: (http://\S+)", run.text, re.MULTILINE)
    (metrics,) = re.findall(r"^Metrics for Prometheus: (http://\S+)", run.text, re.MULTILINE)
    (command,) = re.findall(r"which this prints: (.+)\)", run.text)
    key = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    run.wait_for("iter +2 ")
    kinds = (gauges.EPISODE_GAUGES, gauges.EVALUATION_GAUGES, gauges.PROGRESS_GAUGES, gauges.LEARNER_GAUGES)
    asked = {f"ray_lmgame_{name}" for kind in kinds for name in kind}
    deadline = time.monotonic() + commands.PATIENCE_S
    while missing := asked - set(
        re.findall(r"^(ray_lmgame_\w+)\{.*trial=\"LMGamePPO_", _get(metrics)[1], re.MULTILINE)
    ):
        assert time.monotonic() < deadline, missing
        time.sleep(1)
    assert _get(f"{address}/logical/actors")[0] == 401
    seen = " ".join(re.findall(r'"(?:name|reprName|className)": "(.*?)"', _get(f"{address}/logical/actors", key)[1]))
    for name in ("lmgame-player-", "EngineActor", "env runner 1", r"learner(?!\S)"):
        assert re.search(rf"(?<!\S){name}", seen), name
