"""The value function of one policy, beside its parameters: its units, and the fit of its last layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from rllib_lmgame.base.json_files import mapping_of, number_of
from rllib_lmgame.learners.advantages import AdvantageInputs, Estimator
from rllib_lmgame.learners.critic.regression import RegressionSums, fit, token_sums
from rllib_lmgame.learners.data.batching import PackedBatch, TokenBatch
from rllib_lmgame.learners.engines.torch_engine import UpdateEngine, load_tensors, save_tensors
from rllib_lmgame.learners.process_group import ProcessGroup

DECAY = 0.9
"""Weight of the old statistics with every batch."""
SMALLEST_DEVIATION = 1e-4
"""As in the paper."""


@dataclass
class GameUnits:
    """Running means of the targets of one game (in scaled rewards) and of their squares.

    The head's output ``n`` means ``shift + scale * n``.
    """

    mean: float
    square: float
    shift: float
    scale: float

    @property
    def deviation(self) -> float:
        return max(float(np.sqrt(max(self.square - self.mean**2, 0.0))), SMALLEST_DEVIATION)


@dataclass(frozen=True)
class TokenUnits:
    """Units at tokens, float32 ``[A]``: see :class:`GameUnits`; targets are used as ``(y - mean) / deviation``."""

    mean: torch.Tensor
    deviation: torch.Tensor
    shift: torch.Tensor
    scale: torch.Tensor

    def normal(self, points: torch.Tensor) -> torch.Tensor:
        return (points - self.mean) / self.deviation

    def normal_output(self, output: torch.Tensor) -> torch.Tensor:
        """The head's output in units of the targets."""
        return (self.shift - self.mean) / self.deviation + self.scale / self.deviation * output


class ValueUnits:
    """PopArt (van Hasselt et al. 2016, arXiv 1602.07714) of one policy, which may play several games.

    The value loss is taken on targets normalised by their game's running mean and deviation. When these change, the
    last layer is changed so that no prediction does (:meth:`rescaling`). The head has one output for all games; each
    game reads it by an affine map. With one game all of a change goes into the layer, as in the paper. With several
    only the common part does, and the rest goes into the maps.

    Statistics are those of Monte-Carlo returns, so they do not depend on the value function.
    """

    def __init__(self) -> None:
        self.games: dict[str, GameUnits] = {}

    @property
    def trivial(self) -> bool:
        """Values are the head's output as it is, and nothing is normalised."""
        return not self.games

    def observe(self, inputs: AdvantageInputs, returns: np.ndarray, *, head_is_new: bool) -> None:
        """Take in the returns of a batch, ``[A]`` in rewards. All learners must call.

        A game met for the first time begins at its own mean and deviation. Where the head has learned in rewards before
        (its last layer is not zero: ``head_is_new`` is false), its output keeps its meaning.
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
        """``(offset, factor)``: the last layer must now give ``(n - offset) / factor`` in place of ``n``.

        The maps are changed with it, as near to the statistics as one layer for all games allows.
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
        columns = self._columns(games, "mean", "deviation", "shift", "scale")
        return TokenUnits(*(torch.from_numpy(column[index].astype(np.float32)).to(device) for column in columns))

    def maps(self, games: Sequence[str]) -> dict[str, tuple[float, float]]:
        known = ((game, self.games.get(game, _PLAIN)) for game in games)
        return {game: (units.shift, units.scale) for game, units in known}

    def _columns(self, games: Sequence[str], *names: str) -> list[np.ndarray]:
        """Each attribute of all of these games; a game never met has none, and its values are as they are."""
        known = [self.games.get(game, _PLAIN) for game in games]
        return [np.array([getattr(units, name) for units in known], np.float64) for name in names]

    def get_state(self) -> dict[str, Any]:
        return {game: asdict(units) for game, units in sorted(self.games.items())}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Undo :meth:`get_state`. Raises: ValueError: names a number that cannot be."""
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


SUMS_FILE = "critic_sums.safetensors"
_HELD_OUT = 10
"""One trajectory in so many is held out."""
_PARTS = ("fitted", "held_out")


class Critic:
    """What of a value function the optimizer does not know. The same on all learners."""

    def __init__(self, engine: UpdateEngine, ranks: ProcessGroup) -> None:
        self._engine = engine
        self._ranks = ranks
        self.units = ValueUnits()
        self._sums: dict[str, RegressionSums] = {}

    # Units of the values.

    def prepare(self, batch: TokenBatch, inputs: AdvantageInputs, estimator: Estimator, *, normalize: bool) -> None:
        """Turn the recorded outputs of the head into rewards, in place. All learners must call.

        ``inputs`` are views of the arrays of ``batch``; with ``normalize`` its returns first go into the statistics.
        """
        raw = batch.values, batch.bootstrap_values
        if normalize and not self.units.trivial:
            raw = (raw[0].copy(), raw[1].copy())  # They are turned twice.
        self._to_rewards(batch, raw)
        if normalize:
            returns = estimator.value_targets(inputs, monte_carlo=True)
            zero = self.units.trivial and not any(bool(tensor.any()) for tensor in self._engine.value_output())
            self.units.observe(inputs, returns, head_is_new=zero)
            self._to_rewards(batch, raw)  # A game met for the first time has units only now.

    def token_units(self, batch: TokenBatch, pack: PackedBatch, device: torch.device) -> TokenUnits | None:
        """Units at the action tokens of a micro-batch; ``None`` where values are plain rewards."""
        if self.units.trivial:
            return None
        return self.units.at(batch.games, batch.game[batch.trajectory[pack.token_slot]], device)

    def rescale(self) -> None:
        """Change the last layer with the units, after an update, so that no prediction changes. All must call."""
        offset, factor = self.units.rescaling()
        if (offset, factor) != (0.0, 1.0):
            weight, bias = (tensor.double() for tensor in self._engine.value_output())
            self._engine.set_value_output((weight / factor).float(), ((bias - offset) / factor).float())

    def _to_rewards(self, batch: TokenBatch, raw: tuple[np.ndarray, np.ndarray]) -> None:
        if self.units.trivial:
            return
        values, bootstraps = raw
        cut = np.flatnonzero(batch.needs_bootstrap)
        batch.values[:] = self.units.in_rewards(values, batch.games, batch.game[batch.trajectory])
        batch.bootstrap_values[cut] = self.units.in_rewards(bootstraps[cut], batch.games, batch.game[cut])

    # The fit.

    def begin_fit(self, inputs: AdvantageInputs, targets: np.ndarray, device: torch.device) -> BatchSums:
        """Collects the features of a batch, whose targets ``[A]`` are in rewards."""
        return BatchSums(inputs, targets, self._engine.value_output()[0].shape[1], device)

    def finish_fit(self, batch: BatchSums, *, last: bool) -> dict[str, float]:
        """Set the last layer to the best fit of all batches so far; ``last``: no batch follows. All learners must call.

        Returns the explained variance of the fitted tokens, and of those held out by a fit without them.
        """
        for part in _PARTS:
            gram, vectors = (self._ranks.sum(tensor.cpu().numpy()) for tensor in batch.sums[part])
            sums = self._sums.setdefault(part, RegressionSums.empty(len(gram)))
            seen = vectors[:, 0] > 0
            sums.add(gram, [game for game, s in zip(batch.games, seen, strict=True) if s], vectors[seen])
        games = sorted({game for sums in self._sums.values() for game in sums.games})
        found = fit(self._sums["fitted"], self._sums["held_out"], self.units.maps(games))
        old = self._engine.value_output()[0]
        weight = torch.from_numpy(found.weight[None]).float().to(old.device)
        self._engine.set_value_output(weight, torch.tensor([found.bias], device=old.device))
        if last:
            self._sums.clear()
        return {
            "critic_fit_explained_var": found.explained_variance,
            "critic_fit_explained_var_held_out": found.held_out_explained_variance,
        }

    def forget_fit(self) -> None:
        """Begin a fit anew: hidden states have changed."""
        self._sums.clear()

    # The checkpoint.

    def get_state(self) -> dict[str, Any]:
        return self.units.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.units.set_state(state)

    def sums(self) -> dict[str, torch.Tensor]:
        """Sums of a fit that is not finished, by name; empty otherwise."""
        named: dict[str, torch.Tensor] = {}
        for part, sums in self._sums.items():
            named[f"{part}.gram"] = torch.from_numpy(sums.gram)
            named |= {f"{part}.game.{game}": torch.from_numpy(vector) for game, vector in sums.games.items()}
        return named

    def save(self, directory: Path) -> None:
        """Write what JSON cannot hold, if there is any."""
        if self._sums:
            save_tensors(self.sums(), directory / SUMS_FILE)

    def load(self, directory: Path) -> None:
        path = directory / SUMS_FILE
        named = load_tensors(path) if path.exists() else {}
        arrays = {name: np.array(tensor, np.float64) for name, tensor in named.items()}
        self._sums = {
            part: RegressionSums(arrays[f"{part}.gram"], _below(f"{part}.game.", arrays))
            for part in _PARTS
            if f"{part}.gram" in arrays
        }


class BatchSums:
    """Sums over the tokens of one batch on one learner; ``targets`` ``[A]`` are in rewards."""

    def __init__(self, inputs: AdvantageInputs, targets: np.ndarray, features: int, device: torch.device) -> None:
        self.games = inputs.game_names
        self._targets = targets
        self._game = inputs.per_token(inputs.games)
        self._held_out = inputs.per_token(np.array([is_held_out(e) for e in inputs.episodes], bool))
        self._device = device
        shapes = ((features, features), (len(self.games), 3 + 2 * features))
        self.sums = {
            part: [torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes] for part in _PARTS
        }

    def add(self, pack: PackedBatch, features: torch.Tensor) -> None:
        slot = pack.token_slot
        targets, game, held_out = (
            torch.from_numpy(array[slot]).to(self._device) for array in (self._targets, self._game, self._held_out)
        )
        for part, chosen in zip(_PARTS, (~held_out, held_out), strict=True):
            found = token_sums(features, targets, game, chosen, len(self.games))
            for total, part_sum in zip(self.sums[part], found, strict=True):
                total.add_(part_sum)


def is_held_out(episode: str) -> bool:
    """Whether the trajectories of an episode are held out: by its id alone, whichever learner has them."""
    return crc32(episode.encode("utf-8", "surrogatepass")) % _HELD_OUT == 0


def _below(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
