"""A policy's module as a learner holds it, by itself: attention over packed rows, beside exact attention in float32."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_lmgame.experiments.selftest.checks import Measured, Setting

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


CONTEXT = 1024
CHANGED = 0.5
"""Deviation of a change of weights, in deviations of each tensor."""
LEAST_SPREAD = 0.02
"""Of tensors whose numbers are all the same, in place of their deviation."""


def model_directory_of(setting: Setting) -> str:
    """The model's directory; one with random weights is made, if no check has made it yet."""
    from rllib_lmgame.policies.model.files import model_directory
    from rllib_lmgame.policies.model.tiny import build_tiny_model

    if setting.model is not None:
        return model_directory(setting.model, "--model")
    directory = (setting.shared or setting.directory) / "model"
    if not directory.exists():
        begun = setting.directory / "begun"
        build_tiny_model(begun, ["up down left right"], setting.language_model["tiny"])
        begun.rename(directory)  # Never half of one, if this check is ended meanwhile.
    return str(directory)


def vocabulary_of(directory: str) -> int:
    """Tokens of a model."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(directory).get_text_config().vocab_size)


def language_model_module(directory: str, options: dict[str, Any], *, gpu: bool) -> Any:
    """The policy's module, on the device that a learner would have it on."""
    from rllib_lmgame.base.group import build
    from rllib_lmgame.policies.model.network import PolicyNetwork
    from rllib_lmgame.policies.options import LanguageModelOptions

    language_model = build(LanguageModelOptions, options | {"context_length": CONTEXT}, "language_model")
    module = PolicyNetwork(language_model, directory, on_gpu=gpu, critic=False)
    return module.to("cuda") if gpu else module


def batch_of(prompts: Sequence[Sequence[int]], replies: Sequence[np.ndarray]) -> Any:
    """One row of each prompt with its reply, as an update has them."""
    from rllib_lmgame.learners.data.batching import TokenBatch
    from rllib_lmgame.rollouts.records import Trajectory, Turn

    trajectories = []
    for prompt, reply in zip(prompts, replies, strict=True):
        ids, logprobs = np.asarray(prompt, np.int32), np.zeros(len(reply), np.float32)
        turn = Turn(ids, np.asarray(reply, np.int32), logprobs, reward=0.0, policy_version=0, new_row=True)
        trajectories.append(Trajectory([turn], terminated=True))
    return TokenBatch.from_trajectories(trajectories, max_row_tokens=CONTEXT)


def made_up_rows(directory: str, *, groups: int, rows: int, prompt: int, reply: int) -> Any:
    """Rows of random ids; the rows of a group have one prompt, and all prompts begin alike."""
    rng, most = np.random.default_rng(0), vocabulary_of(directory)
    rules = rng.integers(3, most, prompt // 2)
    prompts = [np.concatenate([rules, rng.integers(3, most, prompt // 2 + 8 * n)]) for n in range(groups)]
    asked = [prompts[number // rows].tolist() for number in range(groups * rows)]
    return batch_of(asked, [rng.integers(3, most, reply + number) for number in range(groups * rows)])


class LearnerSide:
    """Meant for ``ray.remote``: the learner's end of a push."""

    def __init__(self, directory: str, gpu: bool, dtype: str) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._module = language_model_module(directory, {"dtype": dtype}, gpu=gpu)
        self._device = next(self._module.parameters()).device

    def change(self, seed: int) -> None:
        """Move every weight at random, so far that replies differ; half precision rounds it."""
        import torch

        generator = torch.Generator(self._device).manual_seed(seed)
        with torch.no_grad():
            for tensor in self._module.hf_state().values():
                spread = float(tensor.float().std()) or LEAST_SPREAD
                noise = torch.randn(tensor.shape, generator=generator, device=self._device)
                tensor.add_((CHANGED * spread * noise).to(tensor.dtype))

    def packed(self, version: int) -> Any:
        """The weights for the object store."""
        from rllib_lmgame.inference.weights import pack_state

        state = self._module.hf_state()
        return pack_state(self._module.as_checkpoint(state), version, self._module.like_checkpoint(state))

    def send(self, push: Any, version: int) -> Any:
        """Send the weights over devices, with a learner's own push."""
        self._push = getattr(self, "_push", push)
        return self._push(self._module.as_checkpoint(self._module.hf_state(), self._device), version)

    def logprobs(self, prompts: Sequence[Sequence[int]], replies: Sequence[np.ndarray]) -> np.ndarray:
        """What the weights make of the replies' tokens, end to end: float32 ``[tokens]``."""
        import torch

        batch = batch_of(prompts, replies)
        found = np.zeros(batch.num_actions, np.float32)
        with torch.no_grad():
            for pack in batch.microbatches(4096):
                out = self._module(pack.to_torch(self._device))["logprobs"]
                found[pack.token_slot] = out.float().cpu().numpy()
        return found
