"""``rllib serve --policy``: vLLM's own server for OpenAI's clients."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from commands import PATIENCE_S, Command

from rllib_lmgame.base.http_server import check_free
from rllib_lmgame.cli.main import main
from rllib_lmgame.evaluation.players.vllm_server import Guard, run_server

Checkpoint = Callable[..., str]


@pytest.mark.slow
def test_a_policy_is_served_by_vllms_own_server(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Its parser knows every option; ours come first, so that those after ``--`` win."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    started: list[tuple[Any, ...]] = []
    place = f"hf:{checkpoint()}/hf"
    own = ["serve", "--policy", place, "--port", "0", "--temperature", "0.5"]
    own += ["--config", "{language_model: {reply_prefill: '<answer>', chat_template_kwargs: {enable_thinking: false}}}"]

    def run_server(*asked: Any) -> int:
        started.append(asked)
        return 0

    monkeypatch.setattr("rllib_lmgame.evaluation.players.vllm_server.run_server", run_server)
    main([*own, "--", "--max-num-seqs", "64", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"])
    ((command, environment, _, _, line),) = started
    address, key = re.findall(r" at (\S+), api_key (\S+)$", line)[0]
    asked = make_arg_parser(FlexibleArgumentParser()).parse_args(command[3:])
    assert environment["VLLM_API_KEY"] == key and address == f"http://127.0.0.1:{asked.port}/v1"
    assert asked.model == place.removeprefix("hf:") and asked.served_model_name == [place] and asked.max_num_seqs == 64
    assert asked.override_generation_config["temperature"] == 0.5 and asked.dtype == "float32"
    assert asked.default_chat_template_kwargs == {"enable_thinking": False}
    assert "began with '<answer>': send this beginning as the last message" in capsys.readouterr().err
    assert asked.middleware == ["rllib_lmgame.evaluation.players.vllm_server.Guard"]


@pytest.mark.parametrize(
    ("key", "path", "headers", "status"),
    [
        ("secret", "/invocations", {}, 401),
        ("secret", "/tokenize", {"authorization": "Bearer other"}, 401),
        ("secret", "/v1/models", {"authorization": "Bearer secret"}, 200),
        ("secret", "/health", {}, 200),
        (None, "/v1/models", {"host": "localhost:80"}, 200),
        (None, "/v1/models", {"host": "leads.here.example:80"}, 403),
        (None, "/v1/models", {"host": "127.0.0.1", "origin": "https://a.example"}, 403),
    ],
)
def test_vllms_own_server_asks_for_the_key_everywhere_and_answers_no_page(
    key: str | None, path: str, headers: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("VLLM_API_KEY", key)
    app = Starlette(routes=[Route(path, lambda request: PlainTextResponse("reply"))])
    app.add_middleware(Guard)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asked = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "query_string": b"", "headers": asked}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == status


def test_a_server_is_told_of_once_it_listens_and_leaves_nothing_behind(tmp_path: Path, capfd: Any) -> None:
    """One whose engine goes on when it is killed, as vLLM's does; and one that dies before it listens."""
    port, engine = check_free("127.0.0.1", 0), tmp_path / "engine"
    code = f"""
import os, pathlib, socket, subprocess, sys
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
pathlib.Path({str(engine)!r}).write_text(str(engine.pid))
print("loading", flush=True)
socket.create_server(("127.0.0.1", {port})).accept()
os.kill(os.getpid(), 9)
"""
    assert run_server([sys.executable, "-c", code], {}, "127.0.0.1", port, "served") == 1
    said = capfd.readouterr()
    assert said.out == "loading\nserved\n" and "ended with status -9" in said.err
    with contextlib.suppress(psutil.NoSuchProcess):  # Nobody may reap it.
        killed = psutil.Process(int(engine.read_text()))
        while killed.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.1)
    assert run_server([sys.executable, "-c", "raise SystemExit('no room')"], {}, "127.0.0.1", port, "served") == 1
    said = capfd.readouterr()
    assert not said.out and re.search(r"no room\n.*ended with status 1; why stands above", said.err)


@pytest.mark.slow
def test_a_server_ends_with_a_command_that_is_killed() -> None:
    module = "rllib_lmgame.evaluation.players.vllm_server"
    server = "import time; print('up', flush=True); time.sleep(1000)"
    asked = ([sys.executable, "-c", server], {}, "127.0.0.1", check_free("127.0.0.1", 0), "served")
    command = [sys.executable, "-c", f"from {module} import run_server; run_server(*{asked!r})"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "up\n"
        killed.kill()
        assert killed.stdout.read() == ""  # Both are gone.


@pytest.mark.slow
def test_vllms_own_server_replies_once_its_address_is_printed_and_ends_with_the_command(
    tmp_path: Path, rllib: Callable[..., Command]
) -> None:
    """A model too large for the Transformers engine, by the requests of OpenAI's client and of evaluation harnesses."""
    from rllib_lmgame.policies.model.tiny import build_tiny_model

    shape = {"hidden_size": 384, "num_layers": 6, "num_heads": 6, "intermediate_size": 1024}
    model = build_tiny_model(tmp_path / "model", ["push left or right"], shape)
    served = rllib(f"serve --policy hf:{model} --port 0", VLLM_CPU_KVCACHE_SPACE="1")
    served.wait_for(r"^hf:\S+ at http://127\.0\.0\.1:")
    address, key = re.findall(r"^hf:\S+ at (\S+), api_key (\S+)$", served.text, re.MULTILINE)[0]
    with openai.OpenAI(base_url=address, api_key=key, max_retries=0) as client:
        (name,) = [found.id for found in client.models.list()]
        assert name == f"hf:{model}"
        limits: dict[str, Any] = {
            "model": name,
            "max_tokens": 4,
            "n": 2,
            "stop": ["zz"],
            "extra_body": {"top_k": 5, "ignore_eos": True},
        }
        talk = client.chat.completions.create(
            messages=[{"role": "user", "content": "push"}], logprobs=True, top_logprobs=1, **limits
        )
        assert [len(choice.logprobs.content) for choice in talk.choices if choice.logprobs] == [4, 4]
        text = client.completions.create(prompt="push left", logprobs=1, **limits)
        assert [len(choice.logprobs.tokens) for choice in text.choices if choice.logprobs] == [4, 4]
    root = address.removesuffix("/v1")
    with httpx.Client(base_url=root, timeout=100) as stranger:
        paths = stranger.get("/openapi.json", headers={"Authorization": f"Bearer {key}"}).json()["paths"]
        assert {"/invocations", "/tokenize", "/v1/completions", "/ping"} <= set(paths)
        asked = [stranger.request(method, path) for path, methods in paths.items() for method in methods]
        assert {reply.url.path for reply in asked if reply.status_code != 401} == {"/health"}
    started = psutil.Process(served.process.pid).children(recursive=True)
    assert any("EngineCore" in process.name() or "EngineCore" in " ".join(process.cmdline()) for process in started)
    served.process.terminate()
    served.finish(128 + signal.SIGTERM)
    assert not psutil.wait_procs(started, timeout=PATIENCE_S)[1]
