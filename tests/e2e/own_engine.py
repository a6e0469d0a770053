"""An inference engine of somebody else's, in a file of its own: its process has no need of RLlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.base.group import REQUIRED, option
from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
from rllib_lmgame.inference.options import InferenceOptions, Transformers


class Counting(Transformers):
    """Inference engine with an option of its own."""

    count_in: str = option(REQUIRED, "File that gets the number of requests, a line per batch.")
    implementation = "own_engine:CountingEngine"


class CountingEngine(TransformersEngine):
    """Writes how many requests came."""

    def __init__(self, model_dir: str, options: InferenceOptions, **arguments: Any) -> None:
        self.count_in = Path(options.engine.count_in)
        super().__init__(model_dir, options, **arguments)

    def submit(self, requests: Sequence[Any], on_done: Any) -> None:
        with self.count_in.open("a") as file:
            file.write(f"{len(requests)}\n")
        super().submit(requests, on_done)
