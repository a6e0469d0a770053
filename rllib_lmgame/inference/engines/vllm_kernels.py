"""vLLM's C++ kernels where its CPU build would take operations of torch instead.

vLLM 0.32 ships RMS norm in C++ for CPUs but does not pick it; one kernel in place of six operations matters to small
models. Importing this module makes the kernels known to vLLM in this process. Its C++ ``silu_and_mul`` gained nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm import ir
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils

PROVIDER = "cpp_on_cpu"
ENGINE_ARGUMENTS = {
    "compilation_config": {"custom_ops": ["all"]},
    "ir_op_priority": {"rms_norm": [PROVIDER, "native"], "fused_add_rms_norm": [PROVIDER, "native"]},
}
"""Arguments of vLLM's ``EngineArgs`` that choose these kernels."""

current_platform.import_kernels()


def _plain(x: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> bool:
    return variance_size is None and weight is not None and weight.dtype == x.dtype and x.is_contiguous()


def _plain_with_residual(
    x: Any, x_residual: Any, weight: Any, epsilon: float, variance_size: int | None = None
) -> bool:
    return _plain(x, weight, epsilon, variance_size) and x_residual.is_contiguous() and x_residual.dtype == x.dtype


@ir.ops.rms_norm.register_impl(PROVIDER, supports_args=_plain, supported=True)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """``x / rms(x) * weight`` over the last dimension."""
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, epsilon)
    return out


@ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supports_args=_plain_with_residual, supported=True, inplace=True)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """``rms_norm(x + x_residual)`` and the sum, both in place."""
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


_flat_rotary = RotaryEmbedding.forward_cpu


def _rotary(self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Rotary embedding of ``[tokens, heads, head_dim]`` too (LFM2, DeepSeek): the kernel takes its heads for one."""
    flat = [x if x is None or x.dim() < 3 else x.flatten(-2) for x in (query, key)]
    rotated, rotated_key = _flat_rotary(self, positions, *flat)
    return rotated.view(query.shape), None if key is None or rotated_key is None else rotated_key.view(key.shape)


RotaryEmbedding.forward_cpu = _rotary


def _expand(output: Tensor, values: Tensor, ends: Tensor, replaced: int, by: int, *more: Any) -> None:
    """A request's value for each of its proposed tokens, into ``output``: vLLM 0.32's kernel fills a copy of it."""
    output.copy_(values.where(values != replaced, by).repeat_interleave(ends.diff(prepend=ends.new_zeros(1))))


cpu_triton_utils._expand_kernel_impl = _expand
