"""The dashboard of a run: where a person finds it, and that what the run prints is enough to get in."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
import urllib.error
import urllib.request

import browser
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


ASKED = "Authentication Token Required"


async def _seen(address: str, token: str, part: str) -> str:
    """What a person who types the token sees of a part of the page, once something there is alive."""

    async def enter(page: browser.Page) -> None:
        await page.evaluate("document.querySelector('[role=dialog] input')?.focus()")
        await page.command("Input.insertText", text=token)
        await page.evaluate("[...document.querySelectorAll('[role=dialog] button')].at(-1)?.click()")

    async with browser.open_page(address) as page:
        await page.until(ASKED)
        await enter(page)
        await page.until("Cluster utilization")  # a page that needs the token; its jobs come when they come
        await page.command("Page.navigate", url=f"{address}/#/{part}")
        if ASKED in await page.until("ALIVE", 240):  # nodes, too, come when they come
            await enter(page)  # a late answer to what was asked before the token asks for it again
        return await page.without(ASKED)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed")
def test_a_run_has_its_actors_by_name_and_all_numbers_of_the_grafana_dashboard(rllib, tiny_dict, tmp_path):
    shares = {"num_cpus_per_env_runner": 0.25, "num_cpus_per_learner": 0.25}
    kl = {"token_ppo": {"kl": {}}}
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
    seen = asyncio.run(_seen(address, key, "actors"))
    for name in ("lmgame-player-", "EngineActor", "env runner 1", r"learner(?!\S)"):
        assert re.search(rf"(?<!\S){name}", seen), name
