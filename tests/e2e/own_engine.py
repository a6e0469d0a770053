"""An inference engine of somebody else's, in a file of its own: its process has no need of RLlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
from rllib_lmgame.settings.sections.inference import InferenceOptions


class CountingEngine(TransformersEngine):
    """Inference engine: writes how many requests came into the file ``engine_kwargs.count_in``, a line per batch."""

    def __init__(self, model_dir: str, options: InferenceOptions, **arguments: Any) -> None:
        own = dict(options.engine_kwargs)
        self.count_in = Path(own.pop("count_in"))
        super().__init__(model_dir, options.model_copy(update={"engine_kwargs": own}), **arguments)

    def submit(self, requests: Sequence[Any], on_done: Any) -> None:
        with self.count_in.open("a") as file:
            file.write(f"{len(requests)}\n")
        super().submit(requests, on_done)
