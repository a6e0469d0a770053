"""What writes a player's replies: vLLM, in a process of its own as in training, or the Transformers engine in this one.

vLLM is taken where it is installed and the model's engine, unless the model is small (:data:`FEW_PARAMETERS`): then the
Transformers engine has replied before vLLM is up.
"""

from __future__ import annotations

import asyncio
import importlib.util
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.threads import AUTO, FEW_PARAMETERS, threads_here
from rllib_lmgame.policies.model.files import parameter_count
from rllib_lmgame.policies.model.heads import VALUES_FILE

if TYPE_CHECKING:
    from rllib_lmgame.inference.options import InferenceOptions
    from rllib_lmgame.inference.protocol import Generation, GenerationRequest


def replies_by_vllm(directory: str, options: InferenceOptions) -> bool:
    """Whether the model in ``directory`` replies by vLLM."""
    if options.engine.type != "vllm" or is_small(directory) or Path(directory, VALUES_FILE).exists():
        return False
    return importlib.util.find_spec("vllm") is not None


def is_small(directory: str) -> bool:
    """Whether the model is one that a second thread makes no faster, as far as its files tell."""
    return Path(directory).is_dir() and parameter_count(directory) < FEW_PARAMETERS


def with_threads(options: InferenceOptions, directory: str, models: int) -> InferenceOptions:
    """``num_threads: auto`` as a number: so many ``models`` share the cores; a small one has one thread."""
    threads = 1 if is_small(directory) else threads_here(models)
    return options.model_copy(update={"num_threads": threads}) if options.num_threads == AUTO else options


class VLLMReplies:
    """The vLLM engines of a player, as actors of Ray's, which is started if nobody has.

    They reserve no CPU: more models may play than there are cores, and none would wait for another.
    """

    def __init__(self, directory: str, options: InferenceOptions, **more: Any) -> None:
        self._directory = directory
        self._options = options.model_copy(update={"num_cpus_per_engine": 0})
        self._more = more
        self._group: Any = None
        self._client: Any = None

    async def start(self) -> None:
        """Return once it is up. Raises: what :meth:`EngineGroup.create` raises."""
        from rllib_lmgame.algorithms.cluster.ray_cluster import be_connected
        from rllib_lmgame.inference.serving.client import EngineClient
        from rllib_lmgame.inference.serving.group import EngineGroup

        be_connected(num_cpus=1)  # In this thread: Ray installs handlers of signals.
        name = f"player-{uuid.uuid4().hex[:12]}"
        self._group = await asyncio.to_thread(EngineGroup.create, name, self._directory, self._options, **self._more)
        self._client = EngineClient(self._group.names)

    async def generate(self, request: GenerationRequest) -> Generation:
        """A reply to any prompt."""
        reply: Generation = await self._client.generate(request)
        return reply

    async def shutdown(self) -> None:
        """End the actors; doing it again changes nothing."""
        if self._client is not None:
            self._client.close()
        if self._group is not None:
            await asyncio.to_thread(self._group.shutdown)
        self._client = self._group = None
