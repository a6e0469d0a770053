"""Engines by name: one group each is what others know of one, with its own options. Importing this loads no engine.

``inference.engine`` is an engine of this package (``vllm``) or the import path of a class derived from :class:`Engine`.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from rllib_lmgame.base.group import Group, tag
from rllib_lmgame.base.plugin import import_path
from rllib_lmgame.base.registry import ENGINES, check_call, check_methods
from rllib_lmgame.inference.options import InferenceOptions

INSTALL_VLLM = {
    "gpu": "uv pip install -c constraints.txt '.[gpu]'  # in a checkout",
    "cpu": "sh install.sh quickstart  # in a checkout",
}
"""Extra -> command. uv reads in pyproject.toml what pip cannot know."""


class Engine(Group):
    """Describes an engine. A custom engine derives from this class; its fields are options, which the engine reads from
    ``options.engine``.

    Attributes:
        implementation: Import path of the class, which is made as ``(model_dir, options, *, context_length, seed,
            version, trust_remote_code)``, with ``tokenizer`` if it takes that, and is an
            :class:`~rllib_lmgame.inference.protocol.InferenceEngine`.
        over_devices: It can take weights from GPU to GPU (``weight_transport: nccl`` and ``ipc``): it is a
            :class:`~rllib_lmgame.inference.protocol.DeviceEngine`.
        serves_adapters: It holds several adapters beside one base (``inference.adapters``): it has
            :meth:`~rllib_lmgame.inference.engines.threaded.ThreadedEngine.update_adapter`.
        reserves_cache: It sets a key-value cache aside when it starts (on a GPU what is left of its share); otherwise
            replies take memory as they are written.
        plays_values: It adds action values to the logits of a policy that has them beside its weights.
        plays_value_backbone: Also values that have a backbone of their own.
        copies_tied_head: It keeps a second copy of a head that is the input embedding, on a CPU.
        process_mib: MiB of its empty process, measured on CPU; CUDA contexts take about as much of the GPU.
    """

    type: str = tag("", "Its name, or `package.module:Class`.")

    implementation: ClassVar[str] = ""
    over_devices: ClassVar[bool] = True
    serves_adapters: ClassVar[bool] = False
    reserves_cache: ClassVar[bool] = False
    plays_values: ClassVar[bool] = False
    plays_value_backbone: ClassVar[bool] = False
    copies_tied_head: ClassVar[bool] = False
    process_mib: ClassVar[float] = 600.0

    def engine_class(self, key: str = ENGINES.key) -> Any:
        """The class. Raises: ConfigError: ``key``: it cannot be imported, is made otherwise, or lacks a method."""
        from rllib_lmgame.inference.protocol import InferenceEngine

        cls = import_path(self.implementation, key)
        made_of = dict.fromkeys(("context_length", "seed", "version", "trust_remote_code"))
        takes = f"an engine is made as (model_dir, options, *, {', '.join(made_of)})"
        check_call(cls, self.implementation, key, takes, None, None, **made_of)
        if isinstance(cls, type):  # Of what a function makes nothing is known yet.
            check_methods(cls, InferenceEngine, self.implementation, key)
        return cls

    def check_on_devices(self, key: str) -> None:
        """Check that the class has what ``key`` asks for. Raises: ConfigError: naming the missing methods."""
        from rllib_lmgame.inference.protocol import DeviceEngine

        check_methods(self.engine_class(), DeviceEngine, self.implementation, key)

    def variables(self, options: InferenceOptions) -> dict[str, str]:
        """Environment of the engine's process, before it imports anything."""
        return {} if options.on_gpu else {"OMP_NUM_THREADS": str(options.threads)}


class VLLM(Engine):
    """vLLM's ``AsyncEngineArgs`` may stand in ``inference.engine_kwargs``."""

    type: str = tag("vllm", "Its name.")
    implementation = "rllib_lmgame.inference.engines.vllm_engine:VLLMEngine"
    serves_adapters = True
    reserves_cache = True
    plays_values = True
    copies_tied_head = True
    process_mib = 1200.0

    def variables(self, options: InferenceOptions) -> dict[str, str]:
        values = super().variables(options) | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second runner has another interface for logits processors
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        }
        if not options.on_gpu:
            values["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            if options.enforce_eager is not False:
                values["TORCHDYNAMO_DISABLE"] = "1"  # the sampler compiles a helper (5 s) even with enforce_eager
        return values


class Transformers(Engine):
    """Plain Transformers."""

    type: str = tag("transformers", "Its name.")
    implementation = "rllib_lmgame.inference.engines.transformers_engine:TransformersEngine"
    over_devices = False
    plays_values = True
    plays_value_backbone = True
