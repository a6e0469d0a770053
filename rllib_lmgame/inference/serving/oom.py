"""Summarise reports of memory that ran out: Ray's of a process that it killed, PyTorch's of a GPU."""

from __future__ import annotations

import re

_REPORT = "killed due to the node running low on memory"
_KILLED = re.compile(r"Selected to kill: .*?task name=([^,]*), .*?pid=(\d+), actual memory used=([\d.]+)GB", re.DOTALL)

LEARNER_KEYS = (
    "config.training.max_tokens_per_microbatch, config.training.head_chunk_tokens, or set "
    "config.language_model.gradient_checkpointing"
)
ENGINE_KEYS = "config.inference.kv_cache_memory_mb, config.inference.max_num_seqs or config.inference.num_engines"
"""Keys that lower the memory of learners and of engines, for messages."""

_LOWER = {
    "EngineActor": ("an engine", ENGINE_KEYS),
    "EnvRunner": ("an env runner", "config.num_env_runners or config.num_envs_per_env_runner"),
    "Learner": ("a learner", LEARNER_KEYS),
    "_WrappedExecutable": ("a learner", LEARNER_KEYS),
    "LMGame": ("the trial's own process", LEARNER_KEYS),
}
"""What a task's name holds -> what the process is, and the keys that lower its memory."""


def oom_line(text: str) -> str | None:
    """One line: which process Ray killed as memory ran out, or how full a GPU was, and what to lower; else ``None``."""
    if (on_gpu := re.search(r"CUDA out of memory[^\n]*? is free", text)) is not None:
        return f"{on_gpu[0]}; lower {LEARNER_KEYS}, or of an engine config.inference.gpu_memory_utilization"
    if _REPORT not in text:
        return None
    killed = _KILLED.search(text)
    if killed is None:
        return f"the node ran out of memory and Ray killed a process; lower {LEARNER_KEYS}"
    task, pid, held = killed.groups()
    what, keys = next((entry for part, entry in _LOWER.items() if part in task), (task, "what it holds"))
    return f"the node ran out of memory: Ray killed {what} (pid {pid}), which held {held} GB; lower {keys}"
