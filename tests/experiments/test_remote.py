"""Experiment files from the network, against servers in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.files import read_experiments
from rllib_lmgame.experiments.loader import MAX_BYTES, load_text
from rllib_lmgame.experiments.remote import fetch, refuse_code

FILE = "a:\n  run: PPO\n  env: CartPole-v1\n  stop: {training_iteration: 1}\n  config: {lr: 1e-3}\n"
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, Answer]], str]]:
    """Function that serves ``path -> (status, headers, content)`` and returns the address."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: dict[str, Answer]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, content = answers[self.path]
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_file_is_fetched_also_after_a_redirection(serve: Callable[[dict[str, Answer]], str]) -> None:
    address = serve({"/x.yaml": (200, {"Content-Type": "text/plain"}, FILE.encode()), "/old": (302, {"Location": "/x.yaml"}, b"")})
    for path in ("/x.yaml", "/old"):
        (spec,) = read_experiments(address + path, ["config.gamma=0.9"])
        assert (spec.name, spec.options.run, spec.config["lr"], spec.config["gamma"]) == ("a", "PPO", 1e-3, 0.9)


def test_errors_name_address_and_line(serve: Callable[[dict[str, Answer]], str]) -> None:
    address = serve({"/x.yaml": (200, {}, FILE.replace("stop:", "stopp:").encode())})
    with pytest.raises(ConfigError, match=rf"{address}/x.yaml:4: .*stopp"):
        read_experiments(f"{address}/x.yaml")


def test_what_is_not_taken(serve: Callable[[dict[str, Answer]], str]) -> None:
    address = serve(
        {
            "/none.yaml": (404, {}, b""),
            "/page.yaml": (200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>"),
            "/large.yaml": (200, {}, b"a: " + b"x" * MAX_BYTES),
            "/cut.yaml": (200, {"Content-Length": "500"}, FILE.encode()),
            "/ftp.yaml": (302, {"Location": "ftp://127.0.0.1/x.yaml"}, b""),
            "/circle.yaml": (302, {"Location": "/circle.yaml"}, b""),
        }
    )
    for path, words in {
        "/none.yaml": "answers 404 Not Found",
        "/page.yaml": "web page",
        "/large.yaml": r"more than 1,000,000 bytes",
        "/cut.yaml": "broke off",
        "/ftp.yaml": "not followed",
        "/circle.yaml": "answers 302",
        "/x.py": "Python is not run from the network",
    }.items():
        with pytest.raises(ConfigError, match=words):
            read_experiments(address + path)


def test_servers_that_are_not_there_or_say_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConfigError, match=r"no answer within 0.2 s"):
            fetch(f"http://127.0.0.1:{port}/x.yaml", 100, timeout_s=0.2)
    for url, words in {
        f"http://127.0.0.1:{port}/x.yaml": "refused",
        "http://127.0.0.1:port/x.yaml": "cannot fetch",
        "http://": "cannot fetch",
    }.items():
        with pytest.raises(ConfigError, match=words):
            fetch(url, 100)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a:\n  callbacks:\n  - type: subprocess:Popen\n    args: id\n", "a.callbacks[0].type"),
        ("a:\n  report: {type: 'my_package.reports:run'}\n", "a.report.type"),
        ("a:\n  env: subprocess.Popen\n", "a.env"),
        ("a:\n  config: {language_model: {trust_remote_code: true}}\n", "a.config.language_model.trust_remote_code"),
        ("a:\n  config: {env_config: {seed: {eval: '1 + 1'}}}\n", "a.config.env_config.seed.eval"),
        ("a:\n  restore: s3://bucket/checkpoint\n", "a.restore"),
    ],
)
def test_code_is_not_named_from_the_network(text: str, key: str) -> None:
    value, source = load_text(text, "http://host/x.yaml")
    with pytest.raises(ConfigError, match=r"http://host/x.yaml:\d: .*run it from disk") as caught:
        refuse_code(value, source)
    assert caught.value.path == key


def test_data_that_looks_a_little_like_code_is_taken() -> None:
    text = (
        "a:\n  report: {type: 'rllib_lmgame.algorithms.report:learning_report'}\n  storage_path: s3://bucket/runs\n"
        "  config: {model: Qwen/Qwen2.5-0.5B, data: held_out_levels.jsonl, language_model: {trust_remote_code: false}, note: 'at 10:30'}\n"
    )
    refuse_code(*load_text(text, "http://host/x.yaml"))
