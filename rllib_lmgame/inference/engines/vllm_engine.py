"""vLLM as an engine: its core runs in this process, stepped by the thread of :class:`ThreadedEngine`.

A core process of its own is slower for small models. With ``tensor_parallel_size`` above 1 vLLM starts its own workers,
which end with this process; with ``pipeline_parallel_size`` above 1 they are actors of Ray's, on any node.

A seed gives the same tokens whatever else is in the batch and in the prefix cache. On CPU in float32 with one thread
log-probabilities are the same bit for bit (tested). GPU kernels may round differently for another batch shape, which
changes a token only where two candidates tie that closely.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.inference.engines.threaded import Core, ThreadedEngine, tied_embeddings
from rllib_lmgame.inference.options import BUNDLES, INSTALL_VLLM, VLLM, InferenceOptions
from rllib_lmgame.inference.protocol import (
    EngineDeadError,
    EngineStats,
    Generation,
    GenerationRequest,
    SamplingSpec,
    StopReason,
)
from rllib_lmgame.inference.weights import PART_BYTES, check_weights, in_file, not_finite, on_nodes, opened, tensors_of
from rllib_lmgame.policies.model.files import ADAPTER_FILES, parameter_count, weight_files
from rllib_lmgame.policies.model.heads import VALUES_FILE, PlayedValues, has_backbone, load_values, split_values
from rllib_lmgame.policies.model.router_replay import route_dtype

logger = logging.getLogger(__name__)

CPU_BLOCK_SIZE = 32
"""Tokens per cache block on CPU: the least vLLM's CPU attention takes, since only whole blocks are shared."""


CPU_STEP_TOKENS = 4096
"""Most tokens in one step on CPU unless ``max_num_batched_tokens`` says otherwise; at least one whole context."""

GPU_STEP_TOKENS = 8192
"""The same on a GPU that others share. For a whole one vLLM chooses by its memory: 8,192 or 16,384."""

NOT_WEIGHTS = (".inv_freq", ".masked_bias")
"""Suffixes of buffers that old checkpoints contain in addition to weights."""


class VLLMCore(Core):
    """One vLLM engine core. Constructing it loads the model."""

    def __init__(
        self, model_dir: str, options: InferenceOptions, context_length: int, seed: int, trust_remote_code: bool
    ) -> None:
        os.environ.update(VLLM().variables(options))
        self._on_cpu = not options.on_gpu
        _check_installed(self._on_cpu)
        from safetensors.torch import load_file
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.core_client import InprocClient
        from vllm.v1.executor import Executor

        arguments = _engine_args(model_dir, options, context_length, seed, trust_remote_code)
        if self._on_cpu and arguments.enable_prefix_caching and arguments.create_model_config().has_inner_state:
            # States of recurrences and convolutions are kept at the ends of chunks, and there are none.
            arguments.enable_prefix_caching = False
            logger.warning("%s: no prefix cache on CPUs, since it has layers with a state", model_dir)
        replays = options.router_replay and options.engine.returns_routes(options)
        if replays and arguments.create_model_config().is_moe:
            arguments.aux_output_config.enable_return_routed_experts = True
        if options.over_nodes:
            _order_bundles(options.tensor_parallel_size)
        config = arguments.create_engine_config(UsageContext.LLM_CLASS)
        self._client: Any = InprocClient(config, Executor.get_class(config), False)
        self._split, self._over_nodes = options.split > 1, options.over_nodes
        self._decodes_choices = options.decodes_choices
        self.context_length = context_length
        self.vocab_size = config.model_config.get_vocab_size()
        self._expected, self._tied = _checkpoint_shapes(model_dir)
        self._unused = _unused_by_transformers(str(config.model_config.hf_config.model_type))
        self._experts = config.aux_output_config.enabled and config.model_config.get_num_experts()
        self._running: dict[str, tuple[list[int], list[float], list[Any], int]] = {}
        self._by_text: dict[str, SamplingSpec] = {}
        self._scored: dict[str, tuple[int, ...]] = {}
        self._computed = 0
        self._valued = False
        self._params = lru_cache(maxsize=4096)(_sampling_params)
        self._adapters: dict[str | None, Any] = {}
        if arguments.load_format == "dummy":
            files = (load_file(file).items() for file in weight_files(Path(model_dir)))
            self.load({name: tensor for items in files for name, tensor in items if not name.endswith(NOT_WEIGHTS)})
        values = load_values(model_dir)
        if has_backbone(values):
            logger.warning("%s: vLLM plays by the policy alone: its values have a backbone of their own", model_dir)
        elif values:
            try:
                self._take_values(values)
            except Exception as error:  # Workers of other processes raise what they like.
                path = Path(model_dir, VALUES_FILE)
                raise ConfigError("language_model.model", f"{path}: {first_line(error)}") from error
        if arguments.enable_lora:  # Beside others, vLLM 0.32's CPU kernels give a request without one that of another.
            self.adapters = self._adapters

    def add(self, request: GenerationRequest) -> None:
        from vllm.v1.engine import EngineCoreRequest

        first = request.routes_from if self._experts else None
        if request.scored is not None:
            from vllm import SamplingParams

            # The log-probability of every token of the prompt, computed anew: the prefix cache holds none.
            params = SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True, detokenize=False)
            self._scored[request.request_id] = request.scored
        else:
            params = self._params(replace(request.sampling, seed=None, stop_strings=(), reasoning=()))
            if request.sampling.seed is not None or request.choices is not None or first is not None:
                params = _personal(params, request)
        ids = [*request.prompt_ids, *(request.scored or ())]
        adapter, salt = self._adapters.get(request.adapter), str(self.loads.get(request.adapter, 0))
        self._client.add_request(
            EngineCoreRequest(request.request_id, ids, None, params, None, 0.0, adapter, salt, None)
        )
        self._running[request.request_id] = ([], [], [], 0 if first is None else len(request.prompt_ids) - first)
        if request.sampling.stop_strings and request.scored is None:
            self._by_text[request.request_id] = request.sampling

    def abort(self, request_ids: Iterable[str]) -> None:
        known = [i for i in request_ids if self._running.pop(i, None) is not None]
        for request_id in known:
            self._scored.pop(request_id, None)
            self._by_text.pop(request_id, None)
        self._client.abort_requests(known)

    def request_error(self, request: GenerationRequest) -> str | None:
        if request.choices is not None and not self._decodes_choices:
            return "constrained decoding needs inference.async_scheduling: false, and no inference.speculative"
        return super().request_error(request)

    def has_work(self) -> bool:
        core = self._client.engine_core  # Its queue has steps that were scheduled ahead.
        return bool(self._running or core.batch_queue) or core.scheduler.has_requests()

    def step(self) -> Sequence[Generation]:
        finished, ended = [], []
        for output in self._client.get_output().outputs:
            reply = self._running.get(output.request_id)
            if reply is None:
                continue
            ids, logprobs, routes, asked = reply
            if output.routed_experts is not None and asked:
                routes.append(output.routed_experts)
            if output.prefill_stats is not None:
                self._computed += output.prefill_stats.num_computed_tokens
            if output.request_id in self._scored:
                scored = self._scored[output.request_id]
                if output.new_prompt_logprobs_tensors is not None:
                    logprobs.extend(output.new_prompt_logprobs_tensors.logprobs[-len(scored) :, 0].tolist())
                    ids.extend(scored)
            elif output.new_token_ids:
                by_text = self._by_text.get(output.request_id)
                sampled = output.new_logprobs.logprobs[:, 0].tolist()
                for token, logprob in zip(output.new_token_ids, sampled, strict=True):
                    ids.append(token)
                    logprobs.append(logprob)
                    if by_text is not None and self.stops(by_text, ids):  # What stands behind it is dropped.
                        ended.append(output.request_id)
                        break
            if output.finish_reason is not None or output.request_id in ended:
                del self._running[output.request_id]
                self._by_text.pop(output.request_id, None)
                was_scored = self._scored.pop(output.request_id, None) is not None
                reason = "stop" if was_scored or output.request_id in ended else str(output.finish_reason)
                if reason not in _STOP_REASONS:
                    raise EngineDeadError(f"vLLM ended request {output.request_id!r} with {reason!r}")
                columns = np.array(ids, np.int32), np.array(logprobs, np.float32)
                told = np.concatenate(routes)[: asked + len(ids) - 1] if routes else None
                told = told if told is None else told.astype(route_dtype(self._experts), copy=False)
                finished.append(Generation(output.request_id, *columns, _STOP_REASONS[reason], routed_experts=told))
        if ended:
            self._client.abort_requests(ended)
        return finished

    def lengths(self) -> Mapping[str, int]:
        requests = self._client.engine_core.scheduler.requests
        running = {name: requests[name] for name in self._running if name in requests}
        # Scheduled ahead, or on its way through a pipeline.
        on_way = {n: max(r.num_output_placeholders, r.num_computed_tokens >= r.num_tokens) for n, r in running.items()}
        return {name: len(ids) + on_way.get(name, 0) for name, (ids, *_) in self._running.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        tensors, values = split_values(tensors_of(state))
        expected = {n: s for n, s in self._expected.items() if n in tensors or not self._unused(n)}
        check_weights(tensors, expected, self._tied)
        parts = [tensors] if not self._split else list(in_parts(tensors))
        for number, part in enumerate(parts, start=1):
            self._send(load_into_worker, part, number == 1, number == len(parts))
        self._take_values(values)

    def _take_values(self, tensors: Mapping[str, Any]) -> None:
        if name := not_finite(tensors):
            raise ValueError(f"{name} holds NaN or infinity")
        if tensors or self._valued:
            self._send(values_into_worker, tensors)
        self._valued = bool(tensors)

    def _send(self, function: Callable[..., None], tensors: Mapping[str, Any], *more: bool) -> None:
        """Call a function of this module with tensors, and ``more``, on every worker.

        Where workers are processes of their own they map one file in memory, or, on several nodes, one object of
        Ray's, instead of each receiving a copy.
        """
        if not self._split:
            self._client.collective_rpc(function, args=(tensors, *more))
            return
        if self._over_nodes:
            with on_nodes(tensors) as reference:
                self._client.collective_rpc(function, args=(reference, *more))
            return

        needed = sum(tensor.nbytes for tensor in tensors.values())
        in_memory = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > needed
        folder = "/dev/shm" if in_memory else None  # Containers have little there; a file on disk is slower.
        with in_file(tensors, folder) as place:
            self._client.collective_rpc(function, args=(place, *more))

    def load_adapter(self, name: str, directory: str) -> None:
        """Load an adapter in PEFT's form in place of the one of this name. Raises: ValueError: it holds NaN."""
        from safetensors.torch import load_file
        from vllm.lora.request import LoRARequest

        if bad := not_finite(load_file(Path(directory) / ADAPTER_FILES[1])):
            raise ValueError(f"{bad} holds NaN or infinity")
        number = list(self._adapters).index(name) + 1 if name in self._adapters else len(self._adapters) + 1
        if not self._client.add_lora(LoRARequest(name, number, directory, load_inplace=True)):
            raise RuntimeError(f"vLLM did not load {name}")
        # What is loaded stays: there is room for all. Its files are not read again.
        self._adapters[name] = LoRARequest(name, number, directory)

    def reset_prefix_cache(self) -> None:
        if not self._client.reset_prefix_cache():
            raise EngineDeadError("vLLM did not reset its prefix cache")

    def fill_stats(self, stats: EngineStats) -> None:
        stats.prompt_tokens_computed = self._computed
        stats.running, stats.waiting = self._client.engine_core.scheduler.get_request_counts()

    def close(self) -> None:
        self._client.shutdown()

    # --- operations reached through ``ThreadedEngine.call``

    def sleep(self, level: int) -> None:
        """Free the cache, and move the weights to host memory or, at ``level`` 2, drop them (GPU only)."""
        if not self._on_cpu:
            self._client.sleep(level)

    def wake_up(self, part: str) -> None:
        if not self._on_cpu:
            self._client.wake_up([part])

    def worker_call(self, method: str, **kwargs: Any) -> list[Any]:
        """Call ``method`` on every vLLM worker: its weight-transfer operations."""
        return self._client.collective_rpc(transfer_in_worker, args=(method, kwargs))


class VLLMEngine(ThreadedEngine):
    core_class = VLLMCore


def _order_bundles(stage: int) -> None:
    """Let the workers of each pipeline stage be neighbours: vLLM ranks them in the order of their bundles."""
    import ray

    nodes = ray.util.placement_group_table(ray.util.get_current_placement_group())["bundles_to_node_id"]
    here = ray.get_runtime_context().get_node_id()
    bundles = sorted(map(int, os.environ[BUNDLES].split(",")), key=lambda i: (nodes[i] != here, nodes[i], i))
    os.environ[BUNDLES] = ",".join(map(str, bundles))
    if any(len({nodes[i] for i in bundles[at : at + stage]}) > 1 for at in range(0, len(bundles), stage)):
        logger.warning("a pipeline stage of tensor_parallel_size=%d lies on several nodes, which is slow", stage)


def in_parts(tensors: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The tensors in their order, by parts of :data:`~rllib_lmgame.inference.weights.PART_BYTES` or one tensor."""
    part, size = dict[str, Any](), 0
    for name, tensor in tensors.items():
        if part and size + tensor.nbytes > PART_BYTES:
            yield part
            part, size = {}, 0
        part[name], size = tensor, size + tensor.nbytes
    yield part


def load_into_worker(worker: Any, source: Any, first: bool = True, last: bool = True) -> None:
    """Load tensors (:func:`opened`) into one vLLM worker's model: an update's ``first`` part, others, ``last``.

    What is both is loaded by vLLM's own reload, which takes all at once; parts as its transfers over devices are.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    on_cpu, model = worker.device.type == "cpu", worker.model_runner.get_model()
    tensors = iter(opened(source).items())
    if first and on_cpu:
        _forget_expert_kernels(model)
    with _copies_loaded(model):
        if first and last:
            worker.reload_weights(weights_iterator=tensors)
        else:
            with set_current_vllm_config(worker.vllm_config):
                if first:
                    initialize_layerwise_reload(model)
                model.load_weights(tensors)
                if last:
                    finalize_layerwise_reload(model, worker.model_config)
                    worker.model_runner.reset_lora_state()
    if last and on_cpu:
        _repack_for_cpu(model)


def transfer_in_worker(worker: Any, method: str, arguments: Mapping[str, Any]) -> Any:
    """Call one of a vLLM worker's weight-transfer operations, which also reload its model."""
    with _copies_loaded(worker.model_runner.get_model()):
        return getattr(worker, method)(**arguments)


def values_into_worker(worker: Any, source: Any) -> None:
    """Let one vLLM worker's model add these action values to its logits; nothing where there are none.

    Its logits are of the hidden states behind the last norm, as those of the values are. Raises: ValueError: they do
    not fit the model, or have a backbone of their own.
    """
    source, model, config = opened(source), worker.model_runner.get_model(), worker.model_config
    model.__dict__.pop("compute_logits", None)
    if not source:
        return
    if has_backbone(source):
        raise ValueError("the action values have a backbone of their own, which vLLM does not hold")
    played = PlayedValues(source, (config.get_vocab_size(), config.get_hidden_size()), worker.device)
    plain = model.compute_logits

    def valued(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        logits = plain(hidden, *args, **kwargs)
        return logits if logits is None else played.added_to(logits, hidden)  # None: others have the logits.

    model.__dict__["compute_logits"] = valued


def _copies_loaded(model: Any) -> AbstractContextManager[Any]:
    """Inside it a reload of vLLM 0.32 keeps what gpt-oss copies into its parameters: its experts and sinks.

    A reload empties parameters and waits for what their loaders are given. Copies into empty ones are lost, without a
    word: replies would have the old experts.
    """
    if type(model).__name__ != "GptOssForCausalLM":
        return nullcontext()
    from torch import Tensor
    from torch.overrides import TorchFunctionMode
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    for module in model.modules():
        for name, empty in get_layerwise_info(module).restore_metadata[0].items():
            if name in _COPIED and not getattr(empty, "is_copied", False):  # Once: vLLM wraps the loader.
                empty.weight_loader, empty.is_copied = default_weight_loader, True

    class Copies(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # A handler runs outside of the mode, so the copies that a loader makes are copies.
            if args and isinstance(args[0], Tensor) and args[0].is_meta and getattr(args[0], "is_copied", False):
                if function == Tensor.data.__get__:  # Made anew each time.
                    return args[0]
                if function is Tensor.copy_:
                    args[0].weight_loader(args[0], args[1])
                    return args[0]
            return function(*args, **(kwargs or {}))

    return Copies()


_COPIED = {"w13_weight", "w13_bias", "w2_weight", "w2_bias", "sinks"}


def _forget_expert_kernels(model: Any) -> None:
    """vLLM 0.32's CPU kernel packs experts when it is made, so a reload must make it anew to read them as packed."""
    for module in model.modules():
        if getattr(module, "quant_method", None) is not None and hasattr(module.quant_method, "moe_kernel"):
            module.quant_method.moe_kernel = None


def _repack_for_cpu(model: Any) -> None:
    """A tied head keeps a packed copy, which vLLM 0.32's reload leaves as it was: replies would have the old head."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.ndim == 2 and weight.numel():
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def _engine_args(
    model_dir: str, options: InferenceOptions, context_length: int, seed: int, trust_remote_code: bool
) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    values: dict[str, Any] = {
        "model": str(model_dir),
        "skip_tokenizer_init": True,
        # Other nodes need no files: what is here is pushed.
        "load_format": "dummy" if options.over_nodes and _checkpoint_shapes(model_dir)[0] else "safetensors",
        "trust_remote_code": trust_remote_code,
        "dtype": options.dtype_on(options.on_gpu, lambda: parameter_count(str(model_dir))),
        "max_model_len": context_length,
        "max_num_seqs": options.max_num_seqs,
        "enable_prefix_caching": options.enable_prefix_caching,
        "enforce_eager": not options.on_gpu if options.enforce_eager is None else options.enforce_eager,
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "distributed_executor_backend": "ray" if options.over_nodes else "mp" if options.split > 1 else "uni",
        "logprobs_mode": "processed_logprobs",
        "async_scheduling": None if options.schedules_ahead else False,  # None: where vLLM can
        "quantization": options.quantization,
        "generation_config": "vllm",
        "disable_log_stats": True,
        "seed": seed,
    }
    if options.decodes_choices:  # They need every token before the next one is sampled.
        from rllib_lmgame.inference.engines.vllm_choices import ChoicesLogitsProcessor

        values["logits_processors"] = [f"{ChoicesLogitsProcessor.__module__}:{ChoicesLogitsProcessor.__name__}"]
    if (ngram := options.speculative) is not None:
        found = {"prompt_lookup_min": ngram.match, "prompt_lookup_max": ngram.match}
        values["speculative_config"] = {"method": "ngram", "num_speculative_tokens": ngram.num_tokens, **found}
    if options.cache_mib is not None:
        values["kv_cache_memory_bytes"] = options.cache_mib << 20
    if options.over_devices:
        from vllm.config import WeightTransferConfig

        values["weight_transfer_config"] = WeightTransferConfig(backend=options.weight_transport)
    values |= _device_args(options, context_length)
    try:
        return EngineArgs(**{**values, **options.engine_kwargs})
    except TypeError as error:
        raise ConfigError("inference.engine_kwargs", f"not an argument of vLLM's EngineArgs: {error}") from None


def _device_args(options: InferenceOptions, context_length: int) -> dict[str, Any]:
    if options.on_gpu:
        most = None if options.num_gpus_per_engine >= 1 else max(GPU_STEP_TOKENS, options.max_num_seqs)
        return {
            "gpu_memory_utilization": options.gpu_memory_utilization,
            "enable_sleep_mode": options.sleep_during_update,
            "max_num_batched_tokens": options.max_num_batched_tokens or most,
        }
    values: dict[str, Any] = {
        "block_size": CPU_BLOCK_SIZE,
        # After a partial prefill vLLM winds a request's own generator back, which CPU generators cannot do.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(options.max_num_batched_tokens or CPU_STEP_TOKENS, context_length),
    }
    if options.split == 1:
        from rllib_lmgame.inference.engines.vllm_kernels import ENGINE_ARGUMENTS

        values |= ENGINE_ARGUMENTS
    if options.speculative is not None:
        from llvmlite.binding import ffi

        # vLLM's next engine asks all that is loaded for `__dict__`, which llvmlite takes for a C function's name.
        ffi.lib._fntab["__dict__"] = {}
    return values


def _check_installed(on_cpu: bool) -> None:
    command = INSTALL_VLLM["cpu" if on_cpu else "gpu"]
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise MissingDependencyError(
            f"vLLM is not usable here ({error}): {command}, or set inference.engine: transformers"
        ) from error
    if on_cpu != current_platform.is_cpu():
        says, built = ("is 0", "GPUs") if on_cpu else ("asks for GPUs", "CPUs")
        why = f"{says}, but the installed vLLM is built for {built}; `pip uninstall vllm` and {command}"
        raise ConfigError("inference.num_gpus_per_engine", why)


def _checkpoint_shapes(model_dir: str) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Parameter shapes of a safetensors directory, and whether its head is tied. Empty for a hub id."""
    files = weight_files(Path(model_dir))
    if not all(file.is_file() for file in files):
        return {}, False
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with safe_open(str(file), framework="np") as tensors:
            weights = [name for name in tensors.keys() if not name.endswith(NOT_WEIGHTS)]  # noqa: SIM118
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in weights}
    return shapes, tied_embeddings(json.loads((Path(model_dir) / "config.json").read_text()))


def _unused_by_transformers(model_type: str) -> Callable[[str], bool]:
    """Whether Transformers' models of a type, and so learners, lack a weight (of layers for further tokens, say)."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    model = getattr(transformers, str(CLASSES.get(model_type)), None)
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return lambda name: any(re.search(pattern, name) for pattern in patterns)


def _sampling_params(spec: SamplingSpec) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=spec.temperature,
        top_p=spec.top_p,
        top_k=spec.top_k,
        max_tokens=spec.max_tokens,
        stop_token_ids=list(spec.stop_token_ids),
        ignore_eos=True,  # the caller names what ends a reply
        logprobs=0,
        detokenize=False,
    )


def _personal(params: Any, request: GenerationRequest) -> Any:
    own = copy.copy(params)
    first = request.routes_from
    own.routed_experts_prompt_start = len(request.prompt_ids) if first is None else first
    if request.sampling.seed is not None and request.sampling.temperature > 0:
        own.seed = request.sampling.seed & (2**63 - 1)
    if request.choices is not None:
        from rllib_lmgame.inference.engines.vllm_choices import EXTRA_ARG

        own.extra_args = {EXTRA_ARG: request.choices}
    return own


_STOP_REASONS = {"stop": StopReason.EOS, "length": StopReason.MAX_TOKENS}
