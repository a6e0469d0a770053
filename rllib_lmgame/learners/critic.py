"""The warm-up ``fit`` of a critic: ridge regression for the last layer of its head, from sums over tokens."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch

from rllib_lmgame.learners.advantages import AdvantageInputs
from rllib_lmgame.learners.data.batching import PackedBatch
from rllib_lmgame.learners.engines.torch_engine import TorchEngine, load_tensors, save_tensors
from rllib_lmgame.learners.process import ProcessGroup

SUMS_FILE = "critic_sums.safetensors"
PENALTIES = 10.0 ** np.arange(-7.0, 2.0)
"""Ridge penalties that are tried, as multiples of the features' mean variance."""
_UNTESTED_PENALTY = 1e-2
"""Without anything held out."""
_ROUNDING = 1e-12
"""A difference of sums of squares below this multiple of these is what rounding left."""
_HELD_OUT = 10
"""One trajectory in so many is held out."""
_PARTS = ("fitted", "held_out")


class Sums(NamedTuple):
    """Sums over tokens of features ``f`` and targets ``y``, float64.

    Attributes:
        gram: ``[h, h]``; of ``f f^T``.
        vector: ``[3 + 2 h]``; number of tokens, sums of ``y``, ``y^2``, ``f`` and ``f y``.
    """

    gram: np.ndarray
    vector: np.ndarray


class Critic:
    """The fit of a policy's value head, over the updates of its warm-up. The same on all learners."""

    def __init__(self, engine: TorchEngine, ranks: ProcessGroup) -> None:
        self._engine = engine
        self._ranks = ranks
        self.sums: dict[str, Sums] = {}
        """Of a fit that is not finished; empty otherwise."""

    def begin_fit(self, inputs: AdvantageInputs, targets: np.ndarray, device: torch.device) -> None:
        """Begin to sum up a batch with these targets, in rewards, ``[A]``."""
        self._targets, self._device = targets, device
        self._held_out = inputs.per_token(np.array([is_held_out(e) for e in inputs.episodes], bool))
        size = self._engine.value_output()[0].shape[1]
        shapes = ((size, size), (3 + 2 * size,))
        self._batch = {part: [torch.zeros(s, dtype=torch.float64, device=device) for s in shapes] for part in _PARTS}

    def add(self, pack: PackedBatch, features: torch.Tensor) -> None:
        """Add the action tokens of a micro-batch, with the features ``[A, h]`` of the head's last layer."""
        targets, held_out = (
            torch.from_numpy(array[pack.token_slot]).to(self._device) for array in (self._targets, self._held_out)
        )
        for part, chosen in zip(_PARTS, (~held_out, held_out), strict=True):
            for total, found in zip(self._batch[part], token_sums(features, targets, chosen), strict=True):
                total.add_(found)

    def finish_fit(self, *, last: bool) -> dict[str, float]:
        """Set the last layer to the best fit of all batches so far; ``last``: no batch follows. All learners must call.

        Returns the explained variance of the fitted tokens, and of those held out by a fit without them.
        """
        for part, sums in self._batch.items():
            found = Sums(*(self._ranks.sum(tensor.cpu().numpy()) for tensor in sums))
            self.sums[part] = _together(self.sums[part], found) if part in self.sums else found
        fitted = fit(self.sums["fitted"], self.sums["held_out"])
        old = self._engine.value_output()[0]
        weight = torch.from_numpy(fitted.weight[None]).float().to(old.device)
        self._engine.set_value_output(weight, torch.tensor([fitted.bias], device=old.device))
        if last:
            self.sums.clear()
        return {
            "critic_fit_explained_var": fitted.explained_variance,
            "critic_fit_explained_var_held_out": fitted.held_out_explained_variance,
        }

    def save(self, directory: Path) -> None:
        if self.sums:
            parts = [(f"{part}.{name}", getattr(self.sums[part], name)) for part in self.sums for name in Sums._fields]
            save_tensors({name: torch.from_numpy(array) for name, array in parts}, directory / SUMS_FILE)

    def load(self, directory: Path) -> None:
        path = directory / SUMS_FILE
        named = load_tensors(path) if path.exists() else {}
        parts = [part for part in _PARTS if f"{part}.gram" in named]
        self.sums = {part: Sums(*(named[f"{part}.{name}"].numpy() for name in Sums._fields)) for part in parts}


def is_held_out(episode: str) -> bool:
    """Whether the trajectories of an episode are held out: by its id alone, whichever learner has them."""
    return crc32(episode.encode("utf-8", "surrogatepass")) % _HELD_OUT == 0


def token_sums(
    features: torch.Tensor, targets: torch.Tensor, chosen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """:class:`Sums` of the ``chosen`` tokens (bool ``[A]``), as tensors; ``features`` are ``[A, h]``."""
    features, targets = features[chosen].double(), targets[chosen].double()
    ones = torch.ones_like(targets)
    columns = torch.cat([torch.stack([ones, targets, targets**2], dim=1), features, features * targets[:, None]], dim=1)
    first = torch.zeros(len(columns), dtype=torch.int64, device=columns.device)
    return features.T @ features, columns.new_zeros(1, columns.shape[1]).index_add_(0, first, columns)[0]


class LinearFit(NamedTuple):
    """The layer ``weight f + bias``, ``weight`` float64 ``[h]``; what is held out is explained by a fit without it."""

    weight: np.ndarray
    bias: float
    explained_variance: float
    held_out_explained_variance: float


def fit(fitted: Sums, held_out: Sums) -> LinearFit:
    """The layer with the penalty that does best on what is held out, then fitted to everything.

    An infinite penalty, which leaves the mean of the targets, is tried too.
    """
    train, test, moments = (_Moments(each) for each in (fitted, held_out, _together(fitted, held_out)))
    penalties, weights = _ridge(train)
    scores = np.array([test.explained_variance(weight) for weight in weights])
    tested = test.count > 0 and bool(np.isfinite(scores).all())
    best = int(np.argmax(scores)) if tested else int(np.abs(penalties - _UNTESTED_PENALTY).argmin())
    weight = _ridge(moments)[1][best]
    return LinearFit(
        weight=weight,
        bias=float(moments.target_mean - weight @ moments.feature_means),
        explained_variance=moments.explained_variance(weight),
        held_out_explained_variance=float(scores[best]) if tested else float("nan"),
    )


def _together(a: Sums, b: Sums) -> Sums:
    return Sums(a.gram + b.gram, a.vector + b.vector)


class _Moments:
    """Means and centred second moments over tokens; a variance of the targets that is rounding alone is 0."""

    def __init__(self, sums: Sums) -> None:
        self.count, targets, squares = sums.vector[:3]
        count = max(self.count, 1.0)
        self.feature_means, products = np.split(sums.vector[3:] / count, 2)
        self.target_mean = targets / count
        self.covariance = sums.gram / count - np.outer(self.feature_means, self.feature_means)
        self.with_target = products - self.feature_means * self.target_mean
        variance = squares / count - self.target_mean**2
        self.variance = variance if variance > _ROUNDING * squares / count else 0.0

    def explained_variance(self, weight: np.ndarray) -> float:
        """``1 - Var[y - w f] / Var[y]``; NaN if the targets do not vary."""
        if self.variance == 0.0:
            return float("nan")
        error = self.variance - 2.0 * weight @ self.with_target + weight @ self.covariance @ weight
        return float(1.0 - error / self.variance)


def _ridge(moments: _Moments) -> tuple[np.ndarray, list[np.ndarray]]:
    """All penalties, the last one infinite, and the weights of each: ``(C + penalty I)^-1 c`` by one decomposition."""
    spectrum, basis = np.linalg.eigh(moments.covariance)
    spectrum = np.maximum(spectrum, 0.0)
    unit = float(spectrum.mean())
    target = basis.T @ moments.with_target
    weights = [basis @ (target / np.maximum(spectrum + penalty * unit, 1e-300)) for penalty in PENALTIES]
    return np.append(PENALTIES, np.inf), [*weights, np.zeros(len(spectrum))]
