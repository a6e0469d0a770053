"""A model's weights as its checkpoint has them, which is how engines take them.

Transformers holds ``experts.gate_up_proj`` of all experts; the checkpoint, and vLLM, have
``experts.0.gate_proj.weight``, ``experts.0.up_proj.weight`` and so on. This takes that back as ``save_pretrained``
does, but a few tensors at a time, since each is a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Part:
    """Tensors in memory (``names``), and those of the checkpoint that come of them alone (``shapes`` by name).

    ``renamed``: they differ in nothing but the name.
    """

    names: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    renamed: bool


def unique_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, each once (tied ones under their first name), and persistent buffers."""
    named = dict(module.named_parameters())
    aliases = {name for name, _ in module.named_parameters(remove_duplicate=False)} - named.keys()
    for name, tensor in module.state_dict().items():
        if name not in named and name not in aliases:
            named[name] = tensor
    return {name: tensor.detach() for name, tensor in named.items()}


def parts_of(model: Any, state: Mapping[str, torch.Tensor]) -> tuple[Part, ...]:
    """``state`` in the smallest parts that Transformers can take back one by one; only names, shapes and dtypes count.

    Raises: ValueError: if Transformers cannot take back what it did.
    """
    like = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    whole = _part(model, like, tuple(like))
    try:
        parts = [_part(model, like, names) for names in _together(model, like)]
    except Exception:  # What is made of several tensors may fail in any way where one of them is missing.
        return (whole,)
    shapes = {name: shape for part in parts for name, shape in part.shapes.items()}
    return tuple(parts) if shapes == whole.shapes else (whole,)


class CheckpointTensors(Mapping[str, torch.Tensor]):
    """The tensors of a checkpoint, made of those in memory (``state``) when they are read, on ``device`` if given.

    In the order of the keys only one :class:`Part` is there at a time, unless the reader keeps it.
    """

    def __init__(
        self, model: Any, parts: tuple[Part, ...], state: Mapping[str, torch.Tensor], device: torch.device | None = None
    ) -> None:
        self._model, self._state, self._device = model, state, device
        self._parts = {name: part for part in parts for name in part.shapes}
        self._last: tuple[Part | None, Mapping[str, torch.Tensor]] = (None, {})

    def __getitem__(self, name: str) -> torch.Tensor:
        part = self._parts[name]
        if self._last[0] is not part:
            self._last = (None, {})
            own = {name: self._state[name] for name in part.names}
            if self._device is not None:
                own = {name: tensor.to(self._device) for name, tensor in own.items()}
            self._last = part, _taken_back(self._model, own)
        return self._last[1][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@torch.no_grad()
def load_checkpoint_tensors(
    model: Any, parts: tuple[Part, ...], own: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Copy a checkpoint's ``tensors`` into a model's ``own``, in place. Parts that lack a tensor stay as they are.

    Others than renamed ones need 16 bytes an entry, one part at a time, to find where each entry goes.
    """
    for part in parts:
        if not part.shapes.keys() <= tensors.keys():
            continue
        if part.renamed:
            own[part.names[0]].copy_(tensors[next(iter(part.shapes))])
            continue
        sizes = [own[name].numel() for name in part.names]
        first = own[part.names[0]]
        numbers = torch.arange(sum(sizes), device=first.device).split(sizes)
        numbered = {name: ids.view_as(own[name]) for name, ids in zip(part.names, numbers, strict=True)}
        flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        for name, places in _taken_back(model, numbered).items():
            flat[places.reshape(-1)] = tensors[name].to(flat).reshape(-1)
        for name, values in zip(part.names, flat.split(sizes), strict=True):
            own[name].copy_(values.view_as(own[name]))


def _together(model: Any, like: Mapping[str, torch.Tensor]) -> list[tuple[str, ...]]:
    """Names in memory, those together that have a part in one tensor of the checkpoint."""
    home: dict[str, list[str]] = {}
    for name, tensor in like.items():
        made = list(_taken_back(model, {name: tensor}))
        own = next((home[other] for other in made if other in home), [])
        own.append(name)
        home |= dict.fromkeys(made, own)
    return [tuple(names) for names in {id(names): names for names in home.values()}.values()]


def _part(model: Any, like: Mapping[str, torch.Tensor], names: tuple[str, ...]) -> Part:
    own = {name: like[name] for name in names}
    made = _taken_back(model, own)
    shapes = {name: tuple(tensor.shape) for name, tensor in made.items()}
    return Part(names, shapes, len(names) == 1 and list(map(id, made.values())) == [id(own[names[0]])])


def _taken_back(model: Any, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, dict(own))
