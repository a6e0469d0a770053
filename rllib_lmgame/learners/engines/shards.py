"""Tensors that are divided among the learners: put together one by one, and saved so that any number can load them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.storage import follow_umask
from rllib_lmgame.learners.process import ProcessGroup

MAX_FILE_BYTES = 4 << 30
"""Of a learner's shares; as much is copied to main memory at a time."""


class GatheredTensors(Mapping[str, torch.Tensor]):
    """Complete tensors, each put together of all learners' shares when it is read; only the reader keeps it.

    Every learner reads the same names in the same order, or the first one alone inside :meth:`read_by_first`.

    Args:
        tensors: This learner's shares, flat and padded to one length on all; and tensors that are whole.
        like: Tensors on the meta device with shape and dtype of those that are divided.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor], ranks: ProcessGroup
    ) -> None:
        self._tensors, self._divided, self._ranks = tensors, like, ranks
        self._names = list(tensors)
        self._announces = False

    @property
    def like(self) -> dict[str, torch.Tensor]:
        """Tensors of the same names, shapes and dtypes; nothing is gathered."""
        return {name: self._divided.get(name, tensor) for name, tensor in self._tensors.items()}

    @torch.no_grad()
    def __getitem__(self, name: str) -> torch.Tensor:
        like = self._divided.get(name)
        if like is None:
            return self._tensors[name]
        if self._announces:
            self._next(self._names.index(name))
        share = self._tensors[name].to(self._ranks.device, like.dtype)
        whole = share.new_empty(share.numel() * self._ranks.world)
        dist.all_gather_into_tensor(whole, share)
        return whole[: like.numel()].view(like.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @contextmanager
    def read_by_first(self) -> Iterator[GatheredTensors]:
        """Inside, the first learner reads what it likes; the others give their shares when they leave the context."""
        self._announces = self._ranks.rank == 0 and self._ranks.world > 1
        try:
            yield self
        finally:
            if self._announces:
                self._next(-1)
            while self._ranks.rank and (number := self._next(-1)) >= 0:
                self[self._names[number]]
            self._announces = False

    def _next(self, number: int) -> int:
        """The tensor that the first learner reads next; -1: none."""
        told = torch.tensor([number], device=self._ranks.device)
        dist.broadcast(told, 0)
        return int(told)


def parts_of_shares(
    tensors: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor], ranks: ProcessGroup
) -> Iterator[tuple[str, int, int]]:
    """Name, first entry and size of this learner's shares without the padding, and of whole tensors."""
    for name, tensor in tensors.items():
        begin = tensor.numel() * ranks.rank if name in like else 0
        yield name, begin, max(0, min(tensor.numel(), like.get(name, tensor).numel() - begin))


def save_shares(
    shares: Iterable[tuple[str, int, torch.Tensor]], path: Path, ranks: ProcessGroup, about: Mapping[str, Any]
) -> None:
    """Write this learner's files beside those of the others: ``shares`` are names, first entries and flat tensors."""
    held: dict[str, torch.Tensor] = {}
    begins: dict[str, int] = {}
    number = 0

    def write() -> None:
        nonlocal number
        file = path.with_name(f"{path.name}-{ranks.rank:05}-of-{ranks.world:05}-{number:03}.safetensors")
        save_file(held, file, {"about": json.dumps({**about, "begins": begins})})
        follow_umask(file)
        held.clear()
        begins.clear()
        number += 1

    for name, begin, tensor in shares:
        held[name], begins[name] = tensor.detach().cpu().flatten().contiguous(), begin
        if sum(tensor.nbytes for tensor in held.values()) > MAX_FILE_BYTES:
            write()
    write()


class SavedShares:
    """What any number of learners wrote with :func:`save_shares`. Raises: CheckpointError: A file is damaged."""

    def __init__(self, path: Path) -> None:
        self._path, self.about = path, {}
        self._pieces: dict[str, list[tuple[int, Any]]] = {}
        try:
            for file in sorted(path.parent.glob(f"{path.name}-*.safetensors")):
                opened = safe_open(str(file), "pt")
                self.about = json.loads(opened.metadata()["about"])
                for name, begin in self.about.pop("begins").items():
                    self._pieces.setdefault(name, []).append((begin, opened.get_slice(name)))
        except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error})") from error

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def read(self, name: str, begin: int, size: int) -> torch.Tensor:
        """So many entries of a tensor, flat. Raises: CheckpointError: They are not all there."""
        found, end = [torch.empty(0)], begin
        while end < begin + size:
            there = [(b, p) for b, p in self._pieces.get(name, ()) if b <= end < b + p.get_shape()[0]]
            if not there:
                raise CheckpointError(f"{self._path}: lacks entries of {name}")
            first, piece = there[0]
            found.append(piece[end - first : begin + size - first])
            end += len(found[-1])
        return torch.cat([piece.to(found[-1].dtype) for piece in found])
