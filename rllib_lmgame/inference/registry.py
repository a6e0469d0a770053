"""Engines by name: one entry each says all that others know of one. Importing this loads no engine.

An engine is named by an entry of this package (``vllm``), or by the import path ``package.module:Name`` of an
:class:`EngineEntry` or an engine's class. A class is known by its attribute ``entry``, perhaps inherited; one without
by the defaults.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.plugin import asking, import_path
from rllib_lmgame.inference.protocol import DeviceEngine, InferenceEngine
from rllib_lmgame.settings.plugins import ENGINES, check_call, check_methods
from rllib_lmgame.settings.sections.inference import InferenceOptions

INSTALL_VLLM = {
    "gpu": "uv pip install -c constraints.txt '.[gpu]'  # in a checkout",
    "cpu": "sh install.sh quickstart  # in a checkout",
}
"""Extra -> command. uv reads in pyproject.toml what pip cannot know."""


@dataclass(frozen=True)
class EngineEntry:
    """What others than the engine itself know of it.

    Attributes:
        name: What ``inference.engine`` calls it.
        engine: Import path of the class, which is made as ``(model_dir, options, *, context_length, seed, version,
            trust_remote_code)``, with ``tokenizer`` if it takes that, and is an
            :class:`~rllib_lmgame.inference.protocol.InferenceEngine`.
        over_devices: It can take weights from GPU to GPU (``weight_transport: nccl`` and ``ipc``): it is a
            :class:`~rllib_lmgame.inference.protocol.DeviceEngine`.
        environment: Import path of a function from the options to the variables that its process needs before it
            imports anything; ``None``: only its number of threads.
        serves_adapters: It holds several adapters beside one base (``inference.adapters``): it has
            :meth:`~rllib_lmgame.inference.engines.threaded.ThreadedEngine.update_adapter`.
        reserves_cache: It sets a key-value cache aside when it starts (on a GPU what is left of its share); otherwise
            replies take memory as they are written.
        plays_values: It adds action values to the logits of a policy that has them beside its weights.
        plays_value_backbone: Also values that have a backbone of their own.
        copies_tied_head: It keeps a second copy of a head that is the input embedding, on a CPU.
        process_mib: MiB of its empty process, measured on CPU; CUDA contexts take about as much of the GPU.
    """

    name: str
    engine: str
    over_devices: bool = True
    environment: str | None = None
    serves_adapters: bool = False
    reserves_cache: bool = False
    plays_values: bool = False
    plays_value_backbone: bool = False
    copies_tied_head: bool = False
    process_mib: float = 600.0

    def engine_class(self, key: str = ENGINES.key) -> Any:
        """The class. Raises: ConfigError: ``key``: it cannot be imported, is made otherwise, or lacks a method."""
        cls = import_path(self.engine, key)
        made_of = dict.fromkeys(("context_length", "seed", "version", "trust_remote_code"))
        takes = f"an engine is made as (model_dir, options, *, {', '.join(made_of)})"
        check_call(cls, self.engine, key, takes, None, None, **made_of)
        if isinstance(cls, type):  # Of what a function makes nothing is known yet.
            check_methods(cls, InferenceEngine, self.engine, key)
        return cls

    def check_on_devices(self, key: str) -> None:
        """Check that the class has what ``key`` asks for. Raises: ConfigError: naming the missing methods."""
        check_methods(import_path(self.engine, ENGINES.key), DeviceEngine, self.engine, key)

    def variables(self, options: InferenceOptions) -> dict[str, str]:
        if self.environment is not None:
            return dict(import_path(self.environment, ENGINES.key)(options))
        return {} if options.on_gpu else {"OMP_NUM_THREADS": str(options.threads)}


VLLM = EngineEntry(
    "vllm",
    engine="rllib_lmgame.inference.engines.vllm_engine:VLLMEngine",
    environment="rllib_lmgame.inference.engines.vllm_engine:environment",
    serves_adapters=True,
    reserves_cache=True,
    plays_values=True,
    copies_tied_head=True,
    process_mib=1200.0,
)
TRANSFORMERS = EngineEntry(
    "transformers",
    engine="rllib_lmgame.inference.engines.transformers_engine:TransformersEngine",
    over_devices=False,
    plays_values=True,
    plays_value_backbone=True,
)


def find_engine(name: str, key: str = ENGINES.key) -> EngineEntry:
    """The entry of a name or import path, as ``inference.engine`` has it. Raises: ConfigError: if there is none."""
    found = ENGINES.find(name, key)
    with asking(f"asking `{name}`", key):
        entry = found if isinstance(found, EngineEntry) else getattr(found, "entry", None)
    if not isinstance(entry, EngineEntry):
        return EngineEntry(name, name)
    return entry if entry is found else dataclasses.replace(entry, name=name, engine=name)
