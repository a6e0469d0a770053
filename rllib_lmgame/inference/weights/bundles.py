"""Weights on their way from a learner to the engines: one buffer, its layout, its checksum.

A *state* is a mapping from the names in a model's Hugging Face checkpoint to numpy arrays or torch tensors. bfloat16,
which numpy does not know, travels as its bytes with the dtype's name beside it.
"""

from __future__ import annotations

import ctypes
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64
"""Bytes every tensor's offset is a multiple of."""


@dataclass(frozen=True)
class WeightBundle:
    """All weights in one contiguous buffer.

    Attributes:
        names, shapes, dtypes, offsets: Of each tensor; dtypes as ``float32``, ``bfloat16``, ...; offsets in bytes.
        buffer: uint8 ``[bytes]``.
        version: Version of the weights.
        checksum: :func:`state_checksum` of the state, computed by the sender.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    offsets: tuple[int, ...]
    buffer: np.ndarray
    version: int
    checksum: str

    @property
    def num_bytes(self) -> int:
        """Size of the buffer."""
        return int(self.buffer.nbytes)


def pack_state(state: Mapping[str, Any], version: int) -> WeightBundle:
    """Copy ``state`` into one buffer, tensor by tensor, and compute its checksum."""
    offsets, end = [], 0
    for value in state.values():
        offsets.append(end)
        end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
    buffer = np.zeros(end, np.uint8)
    arrays = {}
    for offset, (name, value) in zip(offsets, state.items(), strict=True):
        raw, shape, dtype = _as_bytes(value)
        packed = buffer[offset : offset + raw.nbytes]
        packed[:] = raw
        arrays[name] = (packed, shape, dtype)  # ``raw`` may be a copy from a GPU, of which only one exists at a time
    return WeightBundle(
        names=tuple(arrays),
        shapes=tuple(shape for _, shape, _ in arrays.values()),
        dtypes=tuple(dtype for _, _, dtype in arrays.values()),
        offsets=tuple(offsets),
        buffer=buffer,
        version=version,
        checksum=_checksum(arrays),
    )


@dataclass(frozen=True)
class SharedBundle:
    """A bundle in the object store: whoever holds this holds no copy.

    Attributes:
        reference: Ray's reference to the :class:`WeightBundle`. The process that made this owns it: with that process
            it goes.
        checksum, num_bytes: Of the bundle.
    """

    reference: Any
    checksum: str
    num_bytes: int

    @classmethod
    def put(cls, bundle: WeightBundle) -> SharedBundle:
        """Copy a bundle into the object store."""
        import ray

        return cls(ray.put(bundle), bundle.checksum, bundle.num_bytes)


def unpack_state(bundle: WeightBundle) -> dict[str, torch.Tensor]:
    """Tensors that are views of the bundle's buffer. Read them, never write them."""
    import torch

    buffer = bundle.buffer
    if not buffer.flags.writeable:  # from the object store; torch would warn on every tensor
        buffer = np.ctypeslib.as_array((ctypes.c_uint8 * buffer.nbytes).from_address(buffer.ctypes.data))
    flat = torch.from_numpy(buffer)
    state = {}
    for name, shape, dtype_name, offset in zip(bundle.names, bundle.shapes, bundle.dtypes, bundle.offsets, strict=True):
        dtype = getattr(torch, dtype_name)
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        state[name] = flat[offset : offset + num_bytes].view(dtype).view(shape)
    return state


def state_checksum(state: Mapping[str, Any]) -> str:
    """Digest over names, dtypes, shapes and bytes, whatever the order of the names.

    CRC-32 of each tensor's bytes (several GB/s), BLAKE2b over the sorted list of them.
    """
    return _checksum({name: _as_bytes(value) for name, value in state.items()})


def tensors_of(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The state as torch tensors, sharing memory where it can."""
    import torch

    return {
        name: value if isinstance(value, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(value))
        for name, value in state.items()
    }


def misfit(state: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]], tied_head: bool) -> str | None:
    """Why ``state`` cannot be loaded into a model with the ``expected`` parameters, or ``None``.

    Args:
        state: Named tensors.
        expected: Name to shape, as in the model's own checkpoint.
        tied_head: ``lm_head.weight`` is the input embedding: it may be missing from, or stand in, either.
    """
    optional = {name for name in {*state, *expected} if tied_head and name.endswith("lm_head.weight")}
    missing = sorted(set(expected) - set(state) - optional)
    unknown = sorted(set(state) - set(expected) - optional)
    if missing:
        return f"{len(missing)} weights are missing, e.g. {missing[0]}"
    if unknown:
        return f"{len(unknown)} weights are unknown to the model, e.g. {unknown[0]}"
    for name, tensor in state.items():
        shape = tuple(tensor.shape)
        if name in expected and shape != tuple(expected[name]):
            return f"{name} has shape {shape}, the model's is {tuple(expected[name])}"
    return None


def not_finite(state: Mapping[str, torch.Tensor]) -> str | None:
    """Name of the first tensor that holds NaN or infinity, or ``None``. Extremes show both, without the copies that
    ``isfinite`` makes.
    """
    import torch

    for name, tensor in state.items():
        if (
            tensor.is_floating_point()
            and tensor.numel()
            and not all(torch.isfinite(extreme) for extreme in torch.aminmax(tensor))
        ):
            return name
    return None


def _as_bytes(value: Any) -> tuple[np.ndarray, tuple[int, ...], str]:
    """Bytes uint8 ``[n]``, shape and dtype name of an array or tensor."""
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        return array.reshape(-1).view(np.uint8), tuple(value.shape), str(value.dtype)
    import torch

    tensor = value.detach().cpu().contiguous()
    raw = tensor.reshape(-1).view(torch.uint8).numpy()
    return raw, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _checksum(arrays: Mapping[str, tuple[np.ndarray, tuple[int, ...], str]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        raw, shape, dtype = arrays[name]
        digest.update(f"{name}|{dtype}|{shape}|{zlib.crc32(raw.data):08x};".encode())
    return digest.hexdigest()
