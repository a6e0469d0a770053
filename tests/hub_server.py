"""A Hugging Face hub on loopback, and any other site: it serves bytes, in parts if asked, and breaks off where told."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import io
import json
import urllib.parse
import zipfile
from dataclasses import dataclass, field
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from rllib_lmgame.downloads import table

COMMIT = "c0ffee" * 6 + "abcd"


@dataclass
class Asked:
    """A request: its path, and its headers."""

    path: str
    headers: dict[str, str] = field(default_factory=dict)


class HubServer(http.server.ThreadingHTTPServer):
    """``repositories``: name -> path -> content; ``pages``: path -> content of other addresses.

    ``break_after``: bytes after which each answer with a file breaks off; ``status``: what every request is answered
    with; ``elsewhere``: another server, to which files of repositories are redirected; ``listed``: what the list of
    files says in place of the truth.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.pages: dict[str, bytes] = {}
        self.asked: list[Asked] = []
        self.break_after: int | None = None
        self.breaks_left = 10**9
        self.status: int | None = None
        self.elsewhere: HubServer | None = None
        self.listed: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files_asked(self) -> list[Asked]:
        return [each for each in self.asked if not each.path.startswith("/api/")]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        server, path = self.server, urllib.parse.unquote(self.path.split("?")[0])
        server.asked.append(Asked(path, {name.title(): value for name, value in self.headers.items()}))
        if server.status is not None:
            self._send(server.status, b"no")
        elif path.startswith("/api/") and path not in server.pages:
            self._list(path)
        elif (content := self._content(path)) is None:
            self._send(404, b"none")
        elif server.elsewhere is not None:
            server.elsewhere.pages[path] = content
            self.send_response(302)
            self.send_header("Location", server.elsewhere.url + path)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._file(content)

    def _content(self, path: str) -> bytes | None:
        if path in self.server.pages:
            return self.server.pages[path]
        repository, found, rest = path.removeprefix("/").partition("/resolve/")
        return self.server.repositories.get(repository, {}).get(rest.partition("/")[2]) if found else None

    def _list(self, path: str) -> None:
        name = path.removeprefix("/api/").removeprefix("models/").rpartition("/revision/")[0]
        files = self.server.repositories.get(name)
        if files is None:
            self._send(404, b"{}")
            return
        listed = []
        for file, content in files.items():
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            large = {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}}
            kind = large if file.endswith((".parquet", ".zip")) else {}
            listed.append({"rfilename": file, "size": len(content), "blobId": blob, **kind, **self.server.listed})
        self._send(200, json.dumps({"id": name, "sha": COMMIT, "siblings": listed}).encode(), "application/json")

    def _file(self, content: bytes) -> None:
        server = self.server
        tag = '"' + hashlib.md5(content).hexdigest() + '"'
        start = 0
        asked = self.headers.get("Range")
        if asked:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return self._send(416, b"")
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", tag)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        rest = content[start:]
        if server.break_after is not None and len(rest) > server.break_after and server.breaks_left > 0:
            server.breaks_left -= 1
            self.wfile.write(rest[: server.break_after])
            self.close_connection = True
        else:
            self.wfile.write(rest)

    def _send(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def quiet(line: str) -> None:
    """A report nobody reads."""


def zipped(files: dict[str, bytes | zipfile.ZipInfo]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(
                content if isinstance(content, zipfile.ZipInfo) else name,
                b"x" if isinstance(content, zipfile.ZipInfo) else content,
            )
    return held.getvalue()


def serve_bird(hub: HubServer, monkeypatch: pytest.MonkeyPatch, dev: bytes, train: bytes = zipped({})) -> None:
    """BIRD's two halves, the second from the hub's own machine and without its hash."""
    hub.repositories["datasets/Yuxuan13/bird_train"] = {"train_with_schema.json": b"[]", "train_databases.zip": train}
    hub.pages["/dev.zip"] = dev
    bird = table.SETS["bird"]
    sources = (*bird.sources[:-1], dataclasses.replace(bird.sources[-1], origin=hub.url, sha256={}))
    monkeypatch.setitem(table.SETS, "bird", dataclasses.replace(bird, sources=sources))  # type: ignore[arg-type]


def parquet_of(records: list[dict[str, Any]]) -> bytes:
    held = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(records), held)
    return held.getvalue()


def word_problems(split: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "question": f"{split}: {n} nuts and one more?",
            "answer": f"Add.\n{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}",
        }
        for n in range(count)
    ]


def serve_gsm8k(hub: HubServer, test: bytes | None = None) -> None:
    hub.repositories["datasets/openai/gsm8k"] = {
        "main/train-00000-of-00001.parquet": parquet_of(word_problems("train", 60)),
        "main/test-00000-of-00001.parquet": parquet_of(word_problems("test", 9)) if test is None else test,
    }
