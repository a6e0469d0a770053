"""Attention over packed rows and shared prompts: flash attention and SDPA, beside exact attention in float32."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rllib_lmgame.experiments.acceptance.learner_side import language_model_module, made_up_rows, model_directory_of
from rllib_lmgame.experiments.acceptance.measured import Measured, Setting

GROUPS, ROWS, PROMPT, REPLY = 3, 4, 160, 48


def sdpa(setting: Setting) -> list[Measured]:
    """Row-wise SDPA."""
    return _agreement(setting, "sdpa")


def flash(setting: Setting) -> list[Measured]:
    """One kernel for rows of all lengths: flash-attn's where it is installed, else PyTorch's."""
    return _agreement(setting, "auto")


def _agreement(setting: Setting, kernel: str) -> list[Measured]:
    """Log-probabilities and gradients, prompts shared and not, beside exact ones."""
    import torch

    directory = model_directory_of(setting)
    batch = made_up_rows(directory, groups=GROUPS, rows=ROWS, prompt=PROMPT, reply=REPLY)
    exact, exact_gradient, _ = _pass(_module(directory, setting, "eager", "float32"), batch, None)
    module = _module(directory, setting, kernel, "bfloat16" if setting.half else "float32")
    found = []
    for how, repeat_cost in (("packed rows", None), ("shared prompts", 0.0)):
        logprobs, gradient, seconds = _pass(module, batch, repeat_cost)
        away = float((gradient - exact_gradient).norm() / exact_gradient.norm())
        found += [
            Measured(f"{how}: log-probability", float(np.abs(logprobs - exact).mean()), "nats", high=setting.gap),
            Measured(f"{how}: gradient", away, "relative", high=0.2 if setting.half else 1e-3),
            Measured(f"{how}: forward and backward", batch.num_tokens / seconds, "tokens/s"),
        ]
    if setting.gpus:
        found.append(Measured("peak memory", torch.cuda.max_memory_allocated() / 2**30, "GiB"))
    return found


def _module(directory: str, setting: Setting, kernel: str, dtype: str) -> Any:
    options = {"attn_implementation": kernel, "dtype": dtype}
    return language_model_module(directory, options, gpu=setting.gpus > 0)


def _pass(module: Any, batch: Any, repeat_cost: float | None) -> tuple[np.ndarray, Any, float]:
    """Log-probabilities float ``[A]``, the gradient of their mean as one float32 vector, and the seconds of a second
    pass, forward and backward alone.
    """
    import torch

    device = next(module.parameters()).device
    for _ in range(2):
        module.zero_grad()
        logprobs, began = np.zeros(batch.num_actions, np.float32), time.perf_counter()
        for pack in batch.microbatches(10**6, repeat_cost=repeat_cost):
            out = module(pack.to_torch(device))["logprobs"].float()
            (out.sum() / batch.num_actions).backward()
            logprobs[pack.token_slot] = out.detach().cpu().numpy()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
        gradient = torch.cat([p.grad.float().flatten().cpu() for p in module.parameters() if p.grad is not None])
    return logprobs, gradient, seconds
