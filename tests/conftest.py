"""Shared expensive things: one Ray, one tiny model, and a factory of tiny configurations."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

gc.disable()  # Until all tests are collected.
# Every worker and every process that a test starts would compile all of the package, and each worker all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ |= {"RAY_memory_monitor_refresh_ms": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}.items():
    os.environ.setdefault(name, value)

GAMES_OF_TESTS = str(Path(__file__).parent / "e2e")
sys.path.insert(0, GAMES_OF_TESTS)
sys.path.insert(0, str(Path(__file__).parent))
# For Ray's workers.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (GAMES_OF_TESTS, os.environ.get("PYTHONPATH"))))

# What a shell starts in the background ignores SIGINT, or under nohup SIGHUP, and so would the commands of tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Ray reads its settings when it is imported.
import own_home  # noqa: E402, F401
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from rllib_lmgame.base import numerics  # noqa: E402
from rllib_lmgame.envs.games.web.browser.program import NAMES as CHROMIUM  # noqa: E402

numerics.has_bfloat16_units = lambda: False  # What `dtype: auto` is must not depend on the machine.

# How long an example takes says how busy the machine is. `make test-slow` runs these tests again, with `thorough`.
SETTINGS: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=25, **SETTINGS)
settings.register_profile("thorough", max_examples=300, **SETTINGS)
settings.load_profile("quick")

SOKOBAN = {"split": "train", "max_turns": 4, "max_actions": 20}

TINY_CONFIG: dict[str, Any] = {
    "env": "lmgame/Sokoban-v0",
    "env_config": SOKOBAN,
    "language_model": {
        "system_prompt": "",
        "format_instructions": False,
        "turn_suffix": "{turns_left}",
        "reply_prefill": "<answer>",
        "history": "window",
        "max_tokens_per_turn": 16,
        "context_length": 128,
        "dtype": "float32",
    },
    "inference": {
        "engine": "transformers",
        "max_num_seqs": 64,
        "kv_cache_memory_mb": 32,
        "start_timeout_s": 180.0,
        "request_timeout_s": 120.0,
    },
    "text_rollouts": {"episodes_per_iteration": 16, "format_penalty": -1.0, "reward_scale": 0.1},
    "training": {"num_minibatches": 2, "critic": {"target": "monte_carlo"}},
    "num_env_runners": 0,
    "num_envs_per_env_runner": 16,
    "evaluation_duration": 8,
    "lr": 3.0e-4,
}
"""Trains in about a second per iteration."""


LEFT_OUT = {
    "needs Java 8 or later, and there is no program": lambda: shutil.which("java") is None,
    "needs Chromium, and there is no program": lambda: not any(map(shutil.which, CHROMIUM)),
    "No module named 'reasoning_gym'": lambda: find_spec("reasoning_gym") is None,
    "No module named 'textworld'": lambda: find_spec("textworld") is None,
    "alfworld]'": lambda: find_spec("alfworld") is None,
}
"""How a test fails that needs what `make test` leaves out without Java, a browser or a compiler; whether that is so."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that need Ray come first: one of pytest-xdist's workers starts it, and no test of seconds comes last."""
    on_ray = {item.path for item in items if "ray_cluster" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in on_ray)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: full collections, of which DeepSpeed asks for many, then pass over them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Skip tests (of examples, say) that got as far as what is not installed."""
    report = yield
    if report.failed:
        errors = "\n".join(line for line in report.longreprtext.splitlines() if line.startswith("E "))
        lacking = [sign for sign, is_left_out in LEFT_OUT.items() if sign in errors and is_left_out()]
        if lacking:
            report.outcome, report.longrepr = "skipped", (str(item.path), None, f"Skipped: {lacking[0]}")
    return report


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A local Ray; it over-declares its CPUs, since most processes wait most of the time."""
    import ray

    if ray.is_initialized():  # An algorithm that a test before built without this fixture started one.
        ray.shutdown()
    ray.init(address="local", num_cpus=16, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Qwen2 model with a tokenizer for the games of the tests."""
    from rllib_lmgame.envs.registry import make_session
    from rllib_lmgame.policies.chat.corpus import game_corpus
    from rllib_lmgame.policies.model.tiny import build_tiny_model

    corpus = [str(n) for n in range(10)] * 2
    for env, options in (("lmgame/Sokoban-v0", SOKOBAN), ("lmgame/TicTacToe-v0", {}), ("lmgame/KuhnPoker-v0", {})):
        session = make_session(env, dict(options))
        corpus += game_corpus(session, episodes=16)
        session.close()
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 96}
    return str(build_tiny_model(tmp_path_factory.mktemp("tiny"), corpus, shape))


def merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """``overrides`` on top of ``base``, section by section."""
    result = dict(base)
    for key, value in overrides.items():
        section = isinstance(value, dict) and isinstance(result.get(key), dict) and key != "env_config"
        result[key] = merged(result[key], value) if section else value
    return result


@pytest.fixture(scope="session")
def tiny_dict(tiny_model_dir: str) -> Callable[..., dict[str, Any]]:
    """Function ``(**overrides)`` that gives a tiny configuration as it would stand in YAML; sections are merged."""

    def make(**overrides: Any) -> dict[str, Any]:
        of_ppo = ("lr", "training") if {"supervised", "agentevol"} & overrides.keys() else ()
        values = {key: value for key, value in TINY_CONFIG.items() if key not in of_ppo}
        return merged(merged(values, {"language_model": {"model": tiny_model_dir}}), overrides)

    return make


@pytest.fixture(scope="session")
def make_config(tiny_dict: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Function ``(**overrides)`` that builds an ``LMGamePPOConfig``."""

    def make(**overrides: Any) -> Any:
        from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

        return LMGamePPOConfig().update_from_dict(tiny_dict(**overrides))

    return make


@pytest.fixture(scope="session")
def tiny_algorithm(ray_cluster: Any, make_config: Callable[..., Any]) -> Iterator[Any]:
    """An algorithm after an iteration, with its ``results``, for tests that leave its weights as they are."""
    # A busy machine may take seconds for a sound call of a game.
    algorithm = make_config(text_rollouts={"env_step_timeout_s": 5.0, "max_failed_rounds": 8}).build_algo()
    algorithm.results = [algorithm.train()]
    yield algorithm
    algorithm.stop()


@pytest.fixture
def start(ray_cluster: Any) -> Iterator[Callable[..., Any]]:
    """Function that builds an algorithm; what is built is stopped after the test."""
    started: list[Any] = []

    def build(config: Any) -> Any:
        started.append(config.build_algo())
        return started[-1]

    yield build
    for algorithm in started:
        algorithm.stop()


@pytest.fixture
def rllib() -> Iterator[Callable[..., Any]]:
    """Function that starts ``rllib`` with a line of arguments, see ``commands``."""
    from commands import Command

    started: list[Command] = []

    def run(line: str, **environment: str) -> Command:
        started.append(Command(line, **environment))
        return started[-1]

    yield run
    for command in started:
        command.end()


@pytest.fixture
def endpoint() -> Iterator[Any]:
    """An endpoint in this process, see ``endpoint_server``."""
    from endpoint_server import Endpoint, listening

    with listening(Endpoint()) as server:
        yield server


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A hub on loopback, see ``hub_server``, that data sets are fetched from into a folder of the test's own."""
    from endpoint_server import listening
    from hub_server import HubServer
    from huggingface_hub import file_download

    server = HubServer()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("RLLIB_LMGAME_DATA", str(tmp_path / "data"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda seconds: None))
    with listening(server):
        yield server
