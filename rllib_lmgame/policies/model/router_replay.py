"""Mixtures of experts: a learner sends each token to the experts of the engine (Ma et al. 2025, "R3").

Engine and learner round differently, so that where experts score nearly alike each takes another, and log-probabilities
differ by far more than rounding. Here the engine's choice is taken with the learner's own scores, so routers learn as
before. It works for any router that chooses by one ``torch.topk`` over all experts.
"""

from __future__ import annotations

import re
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rllib_lmgame.policies.model.attention import PackedRows, current_rows


def route_dtype(experts: int) -> Any:
    """What holds the number of an expert; the largest number is none of them, where it is not known."""
    return np.uint8 if experts < 256 else np.uint16


def routers_of(model: nn.Module) -> dict[int, Any]:
    named = ((name, module) for name, module in model.named_modules() if hasattr(module, "num_experts"))
    return {int(re.findall(r"\d+", name)[0]): module for name, module in named if hasattr(module, "top_k")}


def replay_in(model: nn.Module) -> None:
    """Let the routers of a model take the ``routes`` of the rows of a pass."""
    for layer, router in routers_of(model).items():
        router.forward = MethodType(partial(_forward, layer), router)


def _forward(layer: int, router: Any, *args: Any, **kwargs: Any) -> Any:
    rows = current_rows()
    if rows is None or rows.routes is None:
        return type(router).forward(router, *args, **kwargs)
    with _Choice(rows.routes[:, layer].long(), router.num_experts) as choice:
        out = type(router).forward(router, *args, **kwargs)
    if rows.notes_routes:
        rows.routes[:, layer] = choice.chosen
    return out


class _Choice(TorchFunctionMode):
    """Inside it the best of ``experts`` are those of ``routes``, int64 ``[tokens, k]``, where these are known."""

    chosen: Any = None

    def __init__(self, routes: Tensor, experts: int) -> None:
        super().__init__()
        self._routes, self._experts = routes, experts

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        of_all = getattr(function, "__name__", "") == "topk" and args[0].shape[-1] == self._experts
        if not of_all or found[1].shape != self._routes.shape:
            return found
        self.chosen = torch.where(self._routes < self._experts, self._routes, found[1])
        return torch.return_types.topk((args[0].gather(-1, self.chosen), self.chosen))


def replays(model: Any, ids: Tensor) -> bool | None:
    """Whether a model's routers can be given their choice; ``None``: it has no experts. It is tried, and stays so."""
    layers = {int(re.findall(r"\d+", name)[0]) for name, _ in model.named_parameters() if ".experts." in name}
    routers = routers_of(model)
    if not layers or routers.keys() != layers:
        return False if layers else None
    most = max(router.top_k for router in routers.values())
    replay_in(model)
    with PackedRows(torch.tensor([0, len(ids)])) as rows:
        rows.routes, rows.notes_routes = torch.full((len(ids), max(layers) + 1, most), 2**16 - 1), True
        try:
            model(ids[None], use_cache=False)
        except Exception:  # Routers of others fail in many ways.
            return False
        return all(bool((rows.routes[:, layer] < router.num_experts).all()) for layer, router in routers.items())
