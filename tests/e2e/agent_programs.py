"""Programs that ask for completions, good ones and bad ones, without a client of others."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def ask(task: Any, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The message of the reply; an error's body is raised as text."""
    body = json.dumps({"model": task.model, "messages": messages, **more}).encode()
    headers = {"Authorization": f"Bearer {task.api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{task.base_url}/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return dict(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        raise RuntimeError(error.read().decode()) from None


def said(task: Any, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return dict(ask(task, messages, **more)["choices"][0]["message"])


def two_turns(task: Any) -> dict[str, Any]:
    """One conversation of two turns."""
    messages = [{"role": "system", "content": "Push."}, {"role": "user", "content": f"seed {task.seed}"}]
    for _ in range(2):
        messages += [said(task, messages), {"role": "user", "content": "Again"}]
    return {"reward": 0.5, "success": True, "measures": {"turns": 2}, "category": "two"}


def forest(task: Any) -> float:
    """Two conversations in turns, then a branch of the first one, and one with a reply that was moved there."""
    up, down = ([{"role": "user", "content": word}] for word in ("Up", "Down"))
    for talk in (up, down, up):
        talk += [said(task, talk), {"role": "user", "content": "on"}]
    branch = [*up[:2], {"role": "user", "content": "Left"}]
    said(task, branch)
    said(task, [{"role": "user", "content": "Right"}, up[1], {"role": "user", "content": "on"}])
    return 1.0


def impatient(task: Any) -> float:
    """Leaves its first request before the reply comes, as a client with a time limit does, and may ask again."""
    talk = [{"role": "user", "content": "Up"}]
    address = urllib.parse.urlsplit(task.base_url)
    assert address.hostname is not None
    client = http.client.HTTPConnection(address.hostname, address.port)
    headers = {"Authorization": f"Bearer {task.api_key}", "Content-Type": "application/json"}
    client.request("POST", f"{address.path}/chat/completions", json.dumps({"messages": talk}), headers)
    while not Path(task.options["asked"]).exists():
        time.sleep(0.01)
    client.close()
    for _ in range(task.options["again"]):
        talk += [said(task, talk), {"role": "user", "content": "on"}]
    return 1.0


def terse(task: Any) -> float:
    """Asks for few tokens."""
    said(task, [{"role": "user", "content": "Up"}], max_tokens=2)
    return 1.0


class Talker:
    """A player of more tokens than that, for supervised learning."""

    def act(self, *_: Any) -> str:
        return "Up || Up || Up"


def at_once(task: Any) -> float:
    """Four requests at the same time."""
    with ThreadPoolExecutor(4) as pool:
        replies = [*pool.map(lambda n: said(task, [{"role": "user", "content": f"{n}"}])["content"], range(4))]
    return float(len(replies))


async def asynchronous(task: Any) -> bool:
    said(task, [{"role": "user", "content": os.environ["OPENAI_BASE_URL"]}])
    return os.environ["OPENAI_API_KEY"] == task.api_key


def refused(task: Any) -> dict[str, Any]:
    """Everything that is refused; the errors' codes by what was asked."""
    hello = [{"role": "user", "content": "Up"}]
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    wrong: dict[str, dict[str, Any]] = {
        "long": {"messages": [{"role": "user", "content": "Up " * 4000}]},
        "tools": {"messages": hello, "tools": [tool]},
        "n": {"messages": hello, "n": 2},
        "picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "role": {"messages": [{"role": "oracle", "content": "Up"}]},
    }
    found = {}
    for name, request in wrong.items():
        try:
            ask(task, **request)
        except RuntimeError as error:
            found[name] = json.loads(str(error))["error"]
    Path(task.options["into"]).write_text(json.dumps(found))
    said(task, hello)
    return {"reward": 1}


def streams(task: Any) -> float:
    body = json.dumps({"messages": [{"role": "user", "content": "Up"}], "stream": True}).encode()
    headers = {"Authorization": f"Bearer {task.api_key}"}
    request = urllib.request.Request(f"{task.base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        lines = [line.decode().strip() for line in answer if line.strip()]
    assert lines[-1] == "data: [DONE]"
    parts = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines[:-1]]
    return float("".join(part.get("content") or "" for part in parts) == "Up")


def hangs(task: Any) -> float:
    leaves_processes(task)
    while True:
        time.sleep(1)


def leaves_processes(task: Any) -> float:
    """Leaves a child, one that has gone into a session of its own, and a thread."""
    said(task, [{"role": "user", "content": "Up"}])
    code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a'), flush=True); time.sleep(1000)"
    Path(task.options["into"]).touch()
    command = [sys.executable, "-c", code, task.options["into"]]
    subprocess.Popen(command)
    subprocess.Popen(["setsid", "--fork", *command])
    while len(Path(task.options["into"]).read_text().split()) < 2:
        time.sleep(0.01)
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return 1.0


def forks(task: Any) -> float:
    """Its fork asks too, and comes back from the program first."""
    fork = os.fork()
    said(task, [{"role": "user", "content": "Up" if fork else "Down"}])
    if fork:
        os.waitpid(fork, 0)
    return 1.0 if fork else 7.0


def dies(task: Any) -> float:
    said(task, [{"role": "user", "content": "Up"}])
    os.kill(os.getpid(), 9)
    return 1.0


def leaves(task: Any) -> float:
    said(task, [{"role": "user", "content": "Up"}])
    os._exit(3)


def raises(task: Any) -> float:
    said(task, [{"role": "user", "content": "Up"}])
    raise KeyError("no such </answer> key")


def returns_nonsense(task: Any) -> Any:
    said(task, [{"role": "user", "content": "Up"}])
    return {"reward": "much"}


def asks_nothing(task: Any) -> float:
    return 1.0


def gives_up(task: Any) -> float:
    """Its only request is refused."""
    try:
        ask(task, [{"role": "user", "content": "Up " * 4000}])
    except RuntimeError:
        return 0.0
    return 1.0


def without_end(task: Any) -> float:
    while True:
        said(task, [{"role": "user", "content": "Up"}])


def of_two(task: Any, more: Any) -> float:
    return 1.0


NUMBER = 3
