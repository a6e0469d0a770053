"""vLLM's executor of Ray actors on CPUs: their platform names no resource, and no profiling makes a stage's buffers."""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform
from vllm.v1.executor import ray_executor_v2

CpuPlatform.ray_device_key = "GPU"


class Worker(ray_executor_v2.RayWorkerProc):
    def initialize_worker(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_worker(*args, **kwargs)
        runner = self.worker.model_runner
        empty = runner.model.make_empty_intermediate_tensors
        runner.intermediate_tensors = empty(runner.max_num_tokens, runner.dtype, runner.device)


class Executor(ray_executor_v2.RayExecutorV2):
    def _init_executor(self) -> None:
        ray_executor_v2.RayWorkerProc = Worker
        super()._init_executor()
