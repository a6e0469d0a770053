"""``rllib push`` against a hub on loopback, and what cards of checkpoints hold."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.cli.main import main

Checkpoint = Callable[..., str]
SECRET = "hf_secret"


class Hub(http.server.ThreadingHTTPServer):
    """Takes what is uploaded: ``files`` of the commits, ``asked`` requests; ``status`` refuses everything.

    ``private``: whether its repository is.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.stored: dict[str, bytes] = {}
        self.asked: list[tuple[str, Any]] = []
        self.status = 200
        self.private = True
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        there = [{"rfilename": name} for name in self.server.files]
        self._send({"id": "me/model", "private": self.server.private, "siblings": there}, self.server.status)

    def do_PUT(self) -> None:
        self.server.stored[self.path.rpartition("/")[2]] = self._body()
        self._send({})

    def do_POST(self) -> None:
        hub, body, path = self.server, self._body(), self.path.split("?")[0]
        if hub.status != 200:
            self._send({"error": "no"}, hub.status)
        elif path == "/api/repos/create":
            hub.asked.append(("create", {**json.loads(body), "token": self.headers.get("authorization")}))
            self._send({"url": f"{hub.url}/me/model"})
        elif "/branch/" in path:
            hub.asked.append(("branch", path))
            self._send({})
        elif "/preupload/" in path:
            modes = [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular"}
                for file in json.loads(body)["files"]
            ]
            self._send({"files": [{**mode, "shouldIgnore": False, "oid": None} for mode in modes]})
        elif path.endswith("/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{hub.url}/store/{each['oid']}", "header": {}}}}
                for each in json.loads(body)["objects"]
            ]
            self._send({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.stored[value["oid"]]
                elif line["key"] == "deletedFile":
                    del hub.files[value["path"]]
                else:
                    hub.asked.append(("commit", {**value, "revision": path.rpartition("/")[2]}))
            self._send({"commitUrl": f"{hub.url}/me/model/commit/1", "commitOid": "1", "success": True})
        else:
            self._send({})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _send(self, content: Any, status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # Another protocol for large files.
    yield server
    server.shutdown()
    server.server_close()


RECORD = {
    "steps": [{"observations": {"player": "``````\n<b>"}, "actions": {"player": "Up"}, "rewards": {"player": 1.0}}],
    "final_observations": {"player": "solved\x1b[2J"},
    "stop_reason": "game_over",
    "trajectories": [{"agent_id": "player", "outcome": None, "success": True, "return": 1.0}],
}


def test_a_policy_is_pushed_with_its_card(hub: Hub, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(checkpoint())
    assert main(["push", str(place), "me/model", "--revision", "try"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == f"{hub.url}/me/model/commit/1" and SECRET not in printed.out + printed.err
    assert hub.files == {file.name: file.read_bytes() for file in (place / "hf").iterdir()}
    asked = dict(hub.asked)
    assert asked["create"]["visibility"] == "private" and asked["create"]["token"] == f"Bearer {SECRET}"
    assert asked["commit"]["revision"] == "try" and asked["branch"].endswith("/branch/try")


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")


def test_weights_of_before_in_other_files_are_not_left_for_loaders(hub: Hub, checkpoint: Checkpoint) -> None:
    others = ("notes.md", "adapter_model.safetensors", "old/model.safetensors")
    hub.files |= dict.fromkeys((*SHARDS, *others), b"of before")
    place = Path(checkpoint())
    assert main(["push", str(place), "me/model"]) == 0
    assert hub.files.keys() == {file.name for file in (place / "hf").iterdir()} | {*others}
    assert main(["push", str(place), "me/model"]) == 0
    assert hub.files["model.safetensors"] == (place / "hf" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("flags", [[], ["--public"]])
def test_a_repository_that_is_public_already_is_told(
    flags: list[str], hub: Hub, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.private = False
    assert main(["push", checkpoint(), "me/model", *flags]) == 0
    assert ("note: me/model is public\n" in capsys.readouterr().err) == (not flags)


def test_a_dry_run_sends_nothing(hub: Hub, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", checkpoint(), "me/model", "--dry-run"]) == 0
    assert "model.safetensors" in capsys.readouterr().out and hub.asked == []


@pytest.mark.parametrize(
    ("status", "repository", "arguments", "words"),
    [
        (401, "me/model", [], "set HF_TOKEN to a token that may write"),
        (400, "me/model", [], "the hub refused it"),
        (200, "me/model", ["--policy", "other"], "name the policy to push"),
        (200, "no/such/name", [], "no/such/name: "),
    ],
)
def test_what_keeps_it_from_being_pushed_is_one_line(
    status: int, repository: str, arguments: list[str], words: str, hub: Hub, checkpoint: Checkpoint, capsys: Any
) -> None:
    hub.status = status
    assert main(["push", checkpoint(), repository, *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and SECRET not in error and not hub.files


def test_a_hub_that_is_not_there_is_told(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert main(["push", checkpoint(), "me/model"]) == 2
    assert capsys.readouterr().err.startswith("error: http://127.0.0.1:1/me/model: ")


def test_a_name_in_an_error_cannot_steer_the_terminal(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "\x1b[31m").mkdir()
    assert main(["push", str(tmp_path / "\x1b[31m"), "me/model"]) == 2
    error = capsys.readouterr().err
    assert "\\x1b[31m holds no checkpoint" in error and "\x1b" not in error
