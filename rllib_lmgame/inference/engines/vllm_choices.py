"""vLLM logits processor behind constrained decoding. Imported only where vLLM runs."""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from rllib_lmgame.inference.protocol import ChoiceCursor

EXTRA_ARG = "lmgame_choices"
"""Key of ``SamplingParams.extra_args`` that holds the choices of a request."""


class ChoicesLogitsProcessor(AdapterLogitsProcessor):
    """Leaves only tokens that continue a choice. It runs first, so log-probabilities are those under the constraint."""

    def is_argmax_invariant(self) -> bool:
        """The most likely token may be forbidden: greedy decoding needs the processor too."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        """The mask of one request, or ``None`` if it has no choices."""
        choices = (params.extra_args or {}).get(EXTRA_ARG)
        if not choices:
            return None
        cursor = ChoiceCursor(choices)

        def mask(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            allowed = torch.tensor(cursor.allowed(output_ids), dtype=torch.long, device=logits.device)
            kept = logits[allowed]
            logits.fill_(float("-inf"))
            logits[allowed] = kept
            return logits

        return mask
