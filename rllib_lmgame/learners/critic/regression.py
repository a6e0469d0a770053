"""Ridge regression for the last layer of a value head, from sums over tokens, so that no hidden state is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

PENALTIES = 10.0 ** np.arange(-7.0, 2.0)
"""Ridge penalties that are tried, as multiples of the features' mean variance."""
_UNTESTED_PENALTY = 1e-2
"""Without anything held out."""
_ROUNDING = 1e-12
"""A difference of sums of squares below this multiple of these is what rounding left."""
_COUNT, _SUM, _SQUARES, _FIRST = range(4)
"""Places in a game's vector; from the last one on the features' sums, then those of features times targets."""


@dataclass(eq=False)
class RegressionSums:
    """Sums over tokens of the features ``f`` (``[h]``) and targets ``y`` of a regression.

    Attributes:
        gram: float64 ``[h, h]``; of ``f f^T``, over all games.
        games: By game, float64 ``[3 + 2 h]``: number of tokens, sums of ``y``, ``y^2``, ``f`` and ``f y``.
    """

    gram: np.ndarray
    games: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def empty(cls, features: int) -> RegressionSums:
        return cls(np.zeros((features, features)))

    def add(self, gram: np.ndarray, games: Sequence[str], vectors: np.ndarray) -> None:
        """Add sums of further tokens: ``gram`` ``[h, h]``, ``vectors`` ``[games, 3 + 2 h]``."""
        self.gram = self.gram + gram
        for game, vector in zip(games, vectors, strict=True):
            self.games[game] = self.games.get(game, 0.0) + vector

    def in_units(self, units: Mapping[str, tuple[float, float]]) -> _Moments:
        """Moments with ``(y - shift) / scale`` as target, ``(shift, scale)`` that of its game."""
        features = len(self.gram)
        total, sizes = np.zeros(3 + 2 * features), 0.0
        for game, vector in self.games.items():
            shift, scale = units[game]
            count, targets, squares = vector[:_FIRST]
            sums, products = np.split(vector[_FIRST:], 2)
            total[:_FIRST] += (
                count,
                (targets - shift * count) / scale,
                (squares - 2.0 * shift * targets + shift**2 * count) / scale**2,
            )
            sizes += (squares + 2.0 * abs(shift * targets) + shift**2 * count) / scale**2
            total[_FIRST:] += np.concatenate([sums, (products - shift * sums) / scale])
        count = max(total[_COUNT], 1.0)
        means, products = np.split(total[_FIRST:] / count, 2)
        mean = total[_SUM] / count
        variance = total[_SQUARES] / count - mean**2
        return _Moments(
            count=total[_COUNT],
            feature_means=means,
            target_mean=mean,
            covariance=self.gram / count - np.outer(means, means),
            with_target=products - means * mean,
            variance=variance if variance > _ROUNDING * sizes / count else 0.0,
        )


def token_sums(
    features: torch.Tensor, targets: torch.Tensor, game: torch.Tensor, chosen: torch.Tensor, games: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :meth:`RegressionSums.add` takes, of the ``chosen`` tokens (bool ``[A]``) and on their device.

    ``features`` are ``[A, h]``; ``game`` is int64 ``[A]``, the index of each token's game.
    """
    features = features[chosen].double()
    targets, game = targets[chosen].double(), game[chosen]
    ones = torch.ones_like(targets)
    columns = torch.cat([torch.stack([ones, targets, targets**2], dim=1), features, features * targets[:, None]], dim=1)
    vectors = columns.new_zeros(games, columns.shape[1]).index_add_(0, game, columns)
    return features.T @ features, vectors


@dataclass(frozen=True, eq=False)
class _Moments:
    """Means and centred second moments over tokens; a ``variance`` of the targets that is rounding alone is 0."""

    count: float
    feature_means: np.ndarray
    target_mean: float
    covariance: np.ndarray
    with_target: np.ndarray
    variance: float

    def explained_variance(self, weight: np.ndarray) -> float:
        """``1 - Var[y - w f] / Var[y]``; NaN if the targets do not vary."""
        if self.variance == 0.0:
            return float("nan")
        error = self.variance - 2.0 * weight @ self.with_target + weight @ self.covariance @ weight
        return float(1.0 - error / self.variance)


@dataclass(frozen=True, eq=False)
class LinearFit:
    """The layer ``weight f + bias``, ``weight`` float64 ``[h]``; variances are in each game's own units.

    The one held out is of a fit without these tokens, NaN where there are none.
    """

    weight: np.ndarray
    bias: float
    explained_variance: float
    held_out_explained_variance: float


def fit(fitted: RegressionSums, held_out: RegressionSums, units: Mapping[str, tuple[float, float]]) -> LinearFit:
    """The layer with the penalty that does best on what is held out, then fitted to everything.

    An infinite penalty, which leaves the mean of the targets, is tried too. ``units`` are ``(shift, scale)`` by game.
    """
    train, test = fitted.in_units(units), held_out.in_units(units)
    penalties, weights = _ridge(train)
    scores = np.array([test.explained_variance(weight) for weight in weights])
    tested = test.count > 0 and bool(np.isfinite(scores).all())
    best = int(np.argmax(scores)) if tested else int(np.abs(penalties - _UNTESTED_PENALTY).argmin())
    everything = RegressionSums(fitted.gram, dict(fitted.games))
    everything.add(held_out.gram, list(held_out.games), np.array(list(held_out.games.values())))
    moments = everything.in_units(units)
    _, weights = _ridge(moments)
    weight = weights[best]
    return LinearFit(
        weight=weight,
        bias=float(moments.target_mean - weight @ moments.feature_means),
        explained_variance=moments.explained_variance(weight),
        held_out_explained_variance=float(scores[best]) if tested else float("nan"),
    )


def _ridge(moments: _Moments) -> tuple[np.ndarray, list[np.ndarray]]:
    """All penalties, the last one infinite, and the weights of each: ``(C + penalty I)^-1 c`` by one decomposition."""
    spectrum, basis = np.linalg.eigh(moments.covariance)
    spectrum = np.maximum(spectrum, 0.0)
    unit = float(spectrum.mean())
    target = basis.T @ moments.with_target
    weights = [basis @ (target / np.maximum(spectrum + penalty * unit, 1e-300)) for penalty in PENALTIES]
    return np.append(PENALTIES, np.inf), [*weights, np.zeros(len(spectrum))]
