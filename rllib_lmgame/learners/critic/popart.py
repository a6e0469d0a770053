"""Units of a value function's targets, one pair of mean and deviation per game, and what its last layer owes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch

from rllib_lmgame.learners.advantages.inputs import AdvantageInputs
from rllib_lmgame.saved_values import mapping_of, number_of

DECAY = 0.9
"""With every batch ``statistic = DECAY * statistic + (1 - DECAY) * the batch's``."""
SMALLEST_DEVIATION = 1e-4
"""As in the paper."""


@dataclass
class GameUnits:
    """Of one game.

    Attributes:
        mean: Running mean of the targets, in (scaled) rewards.
        square: Running mean of their squares.
        shift, scale: The head's output ``n`` means ``shift + scale * n`` in rewards.
    """

    mean: float
    square: float
    shift: float
    scale: float

    @property
    def deviation(self) -> float:
        """Running deviation of the targets."""
        return max(float(np.sqrt(max(self.square - self.mean**2, 0.0))), SMALLEST_DEVIATION)


@dataclass(frozen=True)
class TokenUnits:
    """Units at some tokens, each float32 ``[A]``: a target ``y`` counts as ``(y - mean) / deviation``, the head's
    output ``n`` means ``shift + scale * n``.
    """

    mean: torch.Tensor
    deviation: torch.Tensor
    shift: torch.Tensor
    scale: torch.Tensor

    def normal(self, points: torch.Tensor) -> torch.Tensor:
        """Rewards in units of the targets."""
        return (points - self.mean) / self.deviation

    def normal_output(self, output: torch.Tensor) -> torch.Tensor:
        """The head's output in units of the targets."""
        return (self.shift - self.mean) / self.deviation + self.scale / self.deviation * output


class ValueUnits:
    """PopArt (van Hasselt et al. 2016, arXiv 1602.07714) of one policy, which may play several games.

    The value loss is taken on targets less their running mean, divided by their running deviation, both per game. When
    these change, the last layer is changed so that no prediction does (:meth:`rescaling`). The head has one output for
    all games, and each game reads it by an affine map of its own: with one game that map is the mean and deviation
    themselves and all of a change goes into the layer, which is PopArt as in the paper; with several the change that
    they have in common does, and what is a game's own goes into its map. Either way predictions are kept exactly.

    Statistics are those of Monte-Carlo returns, discounted as the advantage estimator does, whatever the value function
    is trained on: they do not depend on it.
    """

    def __init__(self) -> None:
        self.games: dict[str, GameUnits] = {}

    @property
    def trivial(self) -> bool:
        """Values are the head's output as it is, and nothing is normalised."""
        return not self.games

    def observe(self, inputs: AdvantageInputs, returns: np.ndarray, *, head_is_new: bool) -> None:
        """Take in the returns of a batch. All learners take part.

        A game met for the first time begins at its own mean and deviation, unless the head has learned in rewards
        before there were any statistics: then its output goes on to mean what it meant.

        Args:
            inputs: The batch.
            returns: ``[A]``; its targets, in rewards.
            head_is_new: The last layer is zero.
        """
        returns = returns.astype(np.float64)
        game, count = inputs.per_token(inputs.games), len(inputs.game_names)
        sums = inputs.all_reduce(
            np.stack([np.bincount(game, weights=w, minlength=count) for w in (None, returns, returns**2)])
        )
        in_rewards = self.trivial and not head_is_new
        for name, (number, total, squares) in zip(inputs.game_names, sums.T.tolist(), strict=True):
            if number:
                self._take_in(name, total / number, squares / number, in_rewards)

    def _take_in(self, name: str, mean: float, square: float, in_rewards: bool) -> None:
        units = self.games.get(name)
        if units is None:
            units = self.games[name] = GameUnits(mean, square, 0.0, 1.0)
            if not in_rewards:
                units.shift, units.scale = mean, units.deviation
            return
        units.mean += (1.0 - DECAY) * (mean - units.mean)
        units.square += (1.0 - DECAY) * (square - units.square)

    def rescaling(self) -> tuple[float, float]:
        """``(offset, factor)``: the last layer has to give ``(n - offset) / factor`` where it gave ``n``, for the maps
        as they are after this call to give the same predictions. The maps are then as near to the statistics as one
        layer for all games allows.
        """
        if self.trivial:
            return 0.0, 1.0
        games = list(self.games.values())
        offset = float(np.mean([(g.mean - g.shift) / g.scale for g in games]))
        factor = float(np.exp(np.mean([np.log(g.deviation / g.scale) for g in games])))
        for g in games:
            g.shift, g.scale = g.shift + g.scale * offset, g.scale * factor
        return offset, factor

    def in_rewards(self, outputs: np.ndarray, games: Sequence[str], index: np.ndarray) -> np.ndarray:
        """The head's outputs as rewards, float32 ``[n]``; ``index`` into ``games`` says whose each is."""
        if self.trivial:
            return outputs
        shift, scale = self._columns(games, "shift", "scale")
        return (shift[index] + scale[index] * outputs).astype(np.float32)

    def at(self, games: Sequence[str], index: np.ndarray, device: torch.device) -> TokenUnits:
        """The units at tokens, whose games are ``index`` into ``games``."""
        columns = self._columns(games, "mean", "deviation", "shift", "scale")
        return TokenUnits(*(torch.from_numpy(column[index].astype(np.float32)).to(device) for column in columns))

    def maps(self, games: Sequence[str]) -> dict[str, tuple[float, float]]:
        """``(shift, scale)`` of each of these games."""
        known = ((game, self.games.get(game, _PLAIN)) for game in games)
        return {game: (units.shift, units.scale) for game, units in known}

    def _columns(self, games: Sequence[str], *names: str) -> list[np.ndarray]:
        """Each attribute of all of these games; a game never met has none, and its values are as they are."""
        known = [self.games.get(game, _PLAIN) for game in games]
        return [np.array([getattr(units, name) for units in known], np.float64) for name in names]

    def get_state(self) -> dict[str, Any]:
        """For the checkpoint; JSON can hold it."""
        return {game: asdict(units) for game, units in sorted(self.games.items())}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Undo :meth:`get_state`.

        Raises:
            ValueError: naming a number that is none or cannot be.
        """
        self.games = {str(game): _game_units(str(game), units) for game, units in state.items()}


def _game_units(game: str, saved: Any) -> GameUnits:
    names, saved = {field.name for field in fields(GameUnits)}, mapping_of(saved, f"the value units of {game}")
    if set(saved) != names:
        raise ValueError(f"the value units of {game} are {sorted(saved)}; they must be {sorted(names)}")
    limits: dict[str, dict[str, float]] = {"square": {"low": 0.0}, "scale": {"above": 0.0}}
    return GameUnits(
        **{name: number_of(saved[name], f"{name} of the values of {game}", **limits.get(name, {})) for name in names}
    )


_PLAIN = GameUnits(mean=0.0, square=1.0, shift=0.0, scale=1.0)
