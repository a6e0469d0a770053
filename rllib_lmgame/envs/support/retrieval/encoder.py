"""E5: from texts to vectors whose inner products say how well a passage fits a query."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.downloads import hub
from rllib_lmgame.downloads.places import path_of
from rllib_lmgame.telemetry.quiet import no_bars_for

QUERY, PASSAGE = "query: ", "passage: "
MOST_TOKENS = 256
AT_ONCE = 64
"""Texts of one pass through the model."""


class Encoder:
    """An E5 model (Wang et al., "Text Embeddings by Weakly-Supervised Contrastive Pre-training", 2022).

    A text gets a prefix, its first 256 tokens count, and the mean of their last hidden states is scaled to length 1.
    In float32, on a GPU if there is one. Code that comes with a model is not run. Safe to use from several threads.

    Args:
        model: Hub id or directory, of the BERT family.
        key: Option that named it, for messages.

    Raises:
        ConfigError: the model cannot be loaded.
    """

    def __init__(self, model: str, key: str) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        name = str(path_of(model, key)) if model.startswith("data:") or Path(model).exists() else model
        silent = None if Path(name).is_dir() else hub.silence(name)
        how: Any = {"trust_remote_code": False, "local_files_only": silent is not None}
        try:
            with no_bars_for(name):
                self._tokenizer: Any = AutoTokenizer.from_pretrained(name, **how)
                self._model: Any = AutoModel.from_pretrained(name, dtype=torch.float32, **how)
        except Exception as error:
            why = silent or first_line(error)[:300].rstrip(".")
            message = f"{model!r} cannot be loaded: {why}; give a directory, or a model of the hub"
            raise ConfigError(key, message) from error
        self.size = int(self._model.config.hidden_size)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model.eval().to(self._device)
        self._lock = threading.Lock()

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, float32 ``[texts, size]``."""
        return self._vectors([QUERY + text for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of passages' contents, float32 ``[texts, size]``."""
        return self._vectors([PASSAGE + text for text in texts])

    def _vectors(self, texts: list[str]) -> np.ndarray:
        import torch

        vectors = np.zeros((len(texts), self.size), dtype=np.float32)
        with self._lock, torch.inference_mode():
            for start in range(0, len(texts), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                tokens = self._tokenizer(
                    texts[part], padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt"
                ).to(self._device)
                hidden = self._model(**tokens).last_hidden_state
                mask = tokens["attention_mask"].unsqueeze(-1)
                mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
                vectors[part] = torch.nn.functional.normalize(mean, dim=1).cpu().numpy()
        return vectors
