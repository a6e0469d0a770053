"""Options of the inference engines."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import REQUIRED, Group, Scheduled, option, tag
from rllib_lmgame.base.numerics import computed_in
from rllib_lmgame.base.plugin import import_path
from rllib_lmgame.base.registry import ENGINES, check_call
from rllib_lmgame.base.threads import AUTO, MOST_THREADS, threads_here

CPU_KV_CACHE_MIB = 256
"""Size of an engine's key-value cache on CPU unless ``kv_cache_memory_mb`` says otherwise."""
ADAPTER_ARGUMENTS = ("enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank", "lora_target_modules")
"""vLLM's arguments that ``adapters: true`` sets."""
BUNDLES = "VLLM_RAY_BUNDLE_INDICES"
"""Variable with the bundles of vLLM's workers in the placement group of an engine that is divided over nodes."""


INSTALL_VLLM = {
    "gpu": "uv pip install -c constraints.txt '.[gpu]'  # in a checkout",
    "cpu": "sh install.sh quickstart  # in a checkout",
}
"""Extra -> command. uv reads in pyproject.toml what pip cannot know."""


class Engine(Group):
    """Describes an engine. A custom engine derives from this class; its fields are options, which the engine reads from
    ``options.engine``.

    Attributes:
        implementation: Import path of the class, a :class:`~rllib_lmgame.inference.engines.threaded.ThreadedEngine`.
        over_devices: It can take weights from GPU to GPU (``weight_transport: nccl`` and ``ipc``).
        serves_adapters: It holds several adapters beside one base (``inference.adapters``).
        reserves_cache: It sets a key-value cache aside when it starts (on a GPU what is left of its share); otherwise
            replies take memory as they are written.
        plays_values: It adds action values to the logits of a policy that has them beside its weights.
        plays_value_backbone: Also values that have a backbone of their own.
        copies_tied_head: It keeps a second copy of a head that is the input embedding, on a CPU.
        outside: Its process is none of the run's, so that it takes no memory of it and keeps its weights.
        process_mib: MiB of its empty process, measured on CPU; CUDA contexts take about as much of the GPU.
    """

    type: str = tag("", "Its name, or `package.module:Class`.")

    implementation: ClassVar[str] = ""
    over_devices: ClassVar[bool] = False
    serves_adapters: ClassVar[bool] = False
    reserves_cache: ClassVar[bool] = False
    plays_values: ClassVar[bool] = False
    plays_value_backbone: ClassVar[bool] = False
    copies_tied_head: ClassVar[bool] = False
    outside: ClassVar[bool] = False
    process_mib: ClassVar[float] = 600.0

    def engine_class(self, key: str = ENGINES.key) -> Any:
        """The class. Raises: ConfigError: ``key``: it cannot be imported, is made otherwise, or is no engine."""
        cls = import_path(self.implementation, key)
        if not hasattr(cls, "core_class"):
            raise ConfigError(key, f"`{self.implementation}` is no ThreadedEngine with a `core_class`")
        made_of = dict.fromkeys(("context_length", "seed", "version", "trust_remote_code", "tokenizer"))
        takes = f"an engine is made as (model_dir, options, *, {', '.join(made_of)})"
        check_call(cls, self.implementation, key, takes, None, None, **made_of)
        return cls

    def returns_routes(self, options: InferenceOptions) -> bool:
        """Whether it tells the experts of each token."""
        return False

    def variables(self, options: InferenceOptions) -> dict[str, str]:
        """Environment of the engine's process, before it imports anything."""
        return {} if options.on_gpu else {"OMP_NUM_THREADS": str(options.threads)}


class VLLM(Engine):
    """vLLM's ``AsyncEngineArgs`` may stand in ``inference.engine_kwargs``."""

    type: str = tag("vllm", "Its name.")
    implementation = "rllib_lmgame.inference.engines.vllm_engine:VLLMEngine"
    over_devices = True
    serves_adapters = True
    reserves_cache = True
    plays_values = True
    copies_tied_head = True
    process_mib = 1200.0

    def returns_routes(self, options: InferenceOptions) -> bool:
        """Its present runner does, of what its prefix cache holds, if one worker has all layers."""
        return options.schedules_ahead and options.enable_prefix_caching and not options.over_nodes

    def variables(self, options: InferenceOptions) -> dict[str, str]:
        values = super().variables(options) | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        }
        if not options.schedules_ahead:
            values["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the second runner has another interface for logits processors
        if options.batch_invariant:
            values["VLLM_BATCH_INVARIANT"] = "1"
        if not options.on_gpu:
            values["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            if options.enforce_eager is not False:
                values["TORCHDYNAMO_DISABLE"] = "1"  # the sampler compiles a helper (5 s) even with enforce_eager
        return values


class Transformers(Engine):
    """Plain Transformers."""

    type: str = tag("transformers", "Its name.")
    implementation = "rllib_lmgame.inference.engines.transformers_engine:TransformersEngine"
    plays_values = True
    plays_value_backbone = True

    def returns_routes(self, options: InferenceOptions) -> bool:
        return True


class Server(Engine):
    """A vLLM server outside of the run, which holds the weights of one policy."""

    type: str = tag("server", "Its name.")
    url: str = option(REQUIRED, "Its address, `http://HOST:PORT`.")
    weights_dir: str | None = option(
        None, "Directory that server and engines see: `object_store` writes weights there.", path=True
    )
    implementation = "rllib_lmgame.inference.engines.server_engine:ServerEngine"
    over_devices = True
    outside = True


ONLINE_QUANTIZATION = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")
"""Forms that vLLM makes of plain weights, and so of each push."""


class NGram(Group):
    """Proposes the tokens behind an earlier occurrence of the last tokens; one step checks all of them."""

    num_tokens: int = option(4, "Tokens proposed at once.", ge=1, le=128)
    match: int = option(3, "Last tokens that must have occurred before.", ge=1, le=128)


class InferenceOptions(Group):
    """The ``inference`` section. The same keys serve CPU and GPU."""

    engine: Annotated[Any, ENGINES] = option("vllm", "Engine, with its own options.")
    num_engines: int = option(1, "Engine replicas per trained language model.", ge=1, le=10_000)
    num_cpus_per_engine: float = option(1, "CPUs reserved per engine.", ge=0)
    num_gpus_per_engine: float = option(0, "GPUs reserved per engine: all that it is split over, if above 1.", ge=0)
    tensor_parallel_size: int = option(1, "GPUs of one node that a model is split over.", ge=1, le=1_024)
    pipeline_parallel_size: int = option(1, "Nodes that the layers of a model are divided over.", ge=1, le=1_024)
    dtype: str = option(
        "auto",
        "Numerics of weights and cache; `auto` is what the model is stored in on a GPU, on a CPU as in the learner.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    gpu_memory_utilization: float = option(0.9, "Share of GPU memory the engine may take.", gt=0, le=1)
    kv_cache_memory_mb: int | None = option(
        None, f"MiB of key-value cache; null: {CPU_KV_CACHE_MIB} on CPU, what is free on GPU.", ge=1
    )
    max_num_seqs: int = option(256, "Most sequences generated at once.", ge=1, le=65_536)
    max_num_batched_tokens: int | None = option(None, "Most tokens in one engine step.", ge=1, le=20_000_000)
    enable_prefix_caching: bool = option(True, "Reuse the key-value cache of shared prefixes.")
    async_scheduling: bool | None = option(
        None, "Schedule a step during the one before; null: on GPUs, unless decoding is constrained."
    )
    quantization: str | None = option(
        None,
        "vLLM's quantization of the engine's weights, repeated at each push; the learner keeps its own.",
        choices=(*ONLINE_QUANTIZATION, None),
    )
    speculative: NGram | None = option(None, "Speculative decoding by n-grams; `{}` turns it on.")
    batch_invariant: bool = option(False, "Kernels that give the same bits in any batch, on GPUs; slower.")
    enforce_eager: bool | None = option(None, "No CUDA graphs or compilation; null: true on CPU, false on GPU.")
    num_threads: int | Literal["auto"] = option(
        AUTO, "CPU threads of each engine (on CPU); `auto` divides the trial's cores.", ge=1, le=MOST_THREADS
    )
    sleep_during_update: bool = option(False, "Give GPU memory to a colocated learner while it trains.")
    temperature: Scheduled[float] = option(1.0, "Sampling temperature while training; 0 is greedy.", ge=0)
    top_p: Scheduled[float] = option(
        1.0, "Nucleus sampling; below 1 log-probabilities of the learner differ.", gt=0, le=1
    )
    top_k: Scheduled[int] = option(0, "Sample from the k most likely tokens; 0 is off.", ge=0)
    weight_transport: str = option(
        "object_store", "How new weights reach the engines.", choices=("object_store", "nccl", "ipc")
    )
    router_replay: bool = option(
        True, "Learners send each token of a mixture of experts to the experts of the engine, where it tells them."
    )
    adapters: bool = option(False, "One base in an engine, and an adapter for each policy and league member.")
    request_timeout_s: float = option(600.0, "Longest wait for one reply.", gt=0)
    start_timeout_s: float = option(900.0, "Longest wait for an engine to come up.", gt=0)
    engine_kwargs: dict[str, Any] = option({}, "Passed to the engine: vLLM's `AsyncEngineArgs`.", stranger=False)

    @property
    def on_gpu(self) -> bool:
        """Whether the engines are given GPUs."""
        return self.num_gpus_per_engine > 0

    @property
    def split(self) -> int:
        """GPUs that a model is split over."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def over_nodes(self) -> bool:
        """Whether an engine's workers are actors of Ray's, with a bundle each, on any node."""
        return self.pipeline_parallel_size > 1

    @property
    def schedules_ahead(self) -> bool:
        """Whether vLLM's present runner schedules asynchronously, for which nothing may be constrained."""
        return self.on_gpu and self.async_scheduling is not False

    @property
    def decodes_choices(self) -> bool:
        """Whether replies may be constrained to choices."""
        return not self.schedules_ahead and self.speculative is None

    def constrained(self, constrained: bool) -> InferenceOptions:
        """The options of engines whose replies are ``constrained`` to legal moves, or not."""
        return self.model_copy(update={"async_scheduling": False}) if constrained else self

    @property
    def threads(self) -> int:
        """CPU threads of an engine; with ``auto`` of one that has this machine for itself."""
        return threads_here() if self.num_threads == AUTO else self.num_threads

    @property
    def over_devices(self) -> bool:
        """Whether new weights go from GPU to GPU, past the object store."""
        return self.weight_transport != "object_store"

    def dtype_on(self, gpu: bool, parameters: Callable[[], int]) -> str:
        """The engine's ``dtype`` for so many ``parameters``; ``auto`` stays on a GPU: the checkpoint's own."""
        return self.dtype if gpu else computed_in(self.dtype, parameters)

    @property
    def cache_mib(self) -> int | None:
        """MiB of an engine's key-value cache; ``None``: the engine takes what is left of its GPU."""
        return self.kv_cache_memory_mb or (None if self.on_gpu else CPU_KV_CACHE_MIB)
