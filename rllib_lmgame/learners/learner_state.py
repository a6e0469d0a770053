"""What a learner's checkpoint holds beside weights, so that a resumed run goes on as if never stopped.

:meth:`LearnerStateMixin.save_shard` writes it, which the algorithm calls on all learners at once. RLlib's ``get_state``
asks one learner, and holds nothing of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.json_files import read_mapping
from rllib_lmgame.learners.engines.deepspeed_engine import DeepSpeedEngine, shares_of
from rllib_lmgame.learners.engines.reference import (
    AdapterReference,
    DividedReference,
    Reference,
    WeightAverage,
    frozen_copy,
)
from rllib_lmgame.learners.engines.shards import SavedShares, parts_of_shares, save_shares
from rllib_lmgame.learners.engines.torch_engine import load_tensors, save_tensors
from rllib_lmgame.learners.objectives.base import StepCounts
from rllib_lmgame.learners.options import InitialReference

logger = logging.getLogger(__name__)

STATE_FILE = "learner.json"
"""Which policies there are, and which of them have a value function."""
REFERENCE_FILE = "reference.safetensors"
AVERAGE_FILE = "average.safetensors"
MAX_STATE_BYTES = 64 << 20


class LearnerStateMixin:
    def _get_optimizer_state(self) -> dict[str, Any]:
        return super()._get_optimizer_state() if not self._any_sharded() else {}

    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        if not self._any_sharded():
            super()._set_optimizer_state(state)

    def _any_sharded(self) -> bool:
        return any(getattr(self.module[mid], "sharded", False) for mid in self.engines)

    def counters(self) -> dict[str, Any]:
        return {
            "version": self._weights_seq_no,
            "timesteps": self._lifetime_timesteps,
            "kl_coefficients": {mid: float(value) for mid, value in self.curr_kl_coeffs_per_module.items()},
            "updates": dict(self.updates),
            "optimizer_steps": {mid: steps.applied for mid, steps in self._steps.items()},
            "nan_steps_in_a_row": {mid: steps.nan_in_a_row for mid, steps in self._steps.items()},
            "first_kl_coefficients": {mid: self._first_kl_coefficient(mid) for mid in self.engines},
            "microbatch_tokens": dict(self._microbatch_tokens),
            "critics": list(self.critics),
            "objectives": {mid: o.get_state() for mid, o in self._objectives.items()},
        }

    def set_counters(self, ours: Mapping[str, Any]) -> None:
        self._weights_seq_no, self._lifetime_timesteps = int(ours["version"]), int(ours["timesteps"])
        for mid in self.engines:
            self.module[mid].version = self._weights_seq_no
            self.updates[mid], *steps = (
                int(ours[name].get(mid, 0)) for name in ("updates", "optimizer_steps", "nan_steps_in_a_row")
            )
            self._steps[mid] = StepCounts(*steps)
            self.entropy_coeff_schedulers_per_module[mid].update(timestep=self._lifetime_timesteps)
            self._optimizer_lr_schedules[self.get_optimizer(mid)].update(timestep=self._lifetime_timesteps)
            if ours["objectives"].get(mid) is not None:
                self.objective(mid).set_state(ours["objectives"][mid])
        self._keep_microbatches(ours["microbatch_tokens"])
        self._set_coefficients(ours)

    def _set_coefficients(self, ours: Mapping[str, Any]) -> None:
        """As the run has moved them, unless they are set, or now begin with another number than in the checkpoint."""
        for mid, value in ours["kl_coefficients"].items():
            if mid not in self.engines or ours["first_kl_coefficients"].get(mid) == self._first_kl_coefficient(mid):
                self.curr_kl_coeffs_per_module[mid] = self._get_tensor_variable(float(value))
        for mid in self.engines:
            self._set_kl_coef(mid)

    def _keep_microbatches(self, saved: Mapping[str, Any]) -> None:
        """With ``auto`` go on with the saved sizes: sums in another order would round differently."""
        for mid in self._microbatch_tokens.keys() & saved.keys():
            tokens, found = int(saved[mid]), self._microbatch_tokens[mid]
            if tokens != found:
                logger.warning(
                    "%s goes on with the checkpoint's micro-batches of %d tokens; what is free here is for %d "
                    "(training.max_tokens_per_microbatch sets another number)",
                    *(mid, tokens, found),
                )
                self._microbatch_tokens[mid] = tokens
        self._settings.clear()

    def _first_kl_coefficient(self, module_id: str) -> float:
        return float(self.config.get_config_for_module(module_id).kl_coeff)

    def _make_reference(self, module_id: str, tensors: Mapping[str, torch.Tensor]) -> Reference:
        kl = self._configured(module_id).ppo.kl
        options = InitialReference() if kl is None else kl.reference
        engine = self.engines[module_id]
        if isinstance(engine, DeepSpeedEngine) and engine.divides_copies:
            return DividedReference(engine, options, self.ranks, tensors)
        if self.module[module_id].adapters is not None:
            return AdapterReference(engine, options, self.ranks, tensors)
        model = frozen_copy(self.module[module_id], tensors, self._device)
        return Reference(model, options, self.ranks, tensors)

    def save_shard(self, directory: str | Path) -> None:
        """Write this learner's part of a checkpoint, to storage that all learners share. All must be asked."""
        directory = Path(directory)
        with self.ranks.all_or_none():
            if self.ranks.rank == 0:
                directory.mkdir(parents=True, exist_ok=True)
        for mid, engine in self.engines.items():
            engine.save(directory / mid)
        for mid, reference in self.references.items():
            with reference.tensors() as tensors, self.ranks.all_or_none():
                self._save_copy(mid, tensors, directory / mid / REFERENCE_FILE)
        with self.ranks.all_or_none():
            for mid, average in self.averages.items():
                self._save_copy(mid, average.tensors, directory / mid / AVERAGE_FILE)
            if self.ranks.rank == 0:
                for mid in self.engines:
                    (directory / mid).mkdir(exist_ok=True)
                    if mid in self.critics:
                        self.critics[mid].save(directory / mid)
                counters = self.counters() | {"modules": list(self.engines), "learners": self.ranks.world}
                (directory / STATE_FILE).write_text(json.dumps(counters, indent=1))

    def _save_copy(self, module_id: str, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        if self.engines[module_id].divides_copies:
            parts = parts_of_shares(tensors, shares_of(self.module[module_id])[1], self.ranks)
            shares = ((name, begin, tensors[name].flatten()[:size]) for name, begin, size in parts)
            save_shares(shares, path.with_suffix(""), self.ranks, {})
        elif self.ranks.rank == 0:
            save_tensors(tensors, path)

    def _load_copy(self, module_id: str, path: Path) -> dict[str, torch.Tensor] | None:
        """What this learner needs of what :meth:`_save_copy` wrote, divided or not; ``None`` if that was nothing."""
        saved, whole = SavedShares(path.with_suffix("")), load_tensors(path) if path.exists() else {}
        if not self.engines[module_id].divides_copies:
            state = self.module[module_id].hf_state(True) if saved else {}
            return {name: saved.read(name, 0, t.numel()).view_as(t) for name, t in state.items()} or whole or None
        (tensors, like), found = shares_of(self.module[module_id]), {}
        for name, begin, size in parts_of_shares(tensors, like, self.ranks) if saved or whole else ():
            part = whole[name].flatten()[begin : begin + size] if whole else saved.read(name, begin, size)
            padding = (0, tensors[name].numel() - size)
            found[name] = torch.nn.functional.pad(part, padding).view_as(tensors[name])
        return found or None

    def load_shard(self, directory: str | Path) -> None:
        """Read a checkpoint of :meth:`save_shard`. All learners must be asked.

        Raises: CheckpointError: A file is missing or damaged, or of other policies, or other value functions.
        """
        directory = Path(directory)
        path = directory / STATE_FILE
        try:
            counters = read_mapping(path, MAX_STATE_BYTES)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error})") from error
        missing = sorted(set(self.engines) - set(counters.get("modules", ())))
        if missing:
            raise CheckpointError(f"{path}: holds no weights of {', '.join(missing)}")
        with _named(path):
            for mid in self.engines:
                there = mid in counters["critics"]
                if there != (mid in self.critics):
                    kinds = {True: "a value function", False: "no value function"}
                    say = f"{path}: {mid} has {kinds[there]} there and {kinds[not there]} here; set a"
                    alike = "training.advantage_estimator of the same kind"
                    raise CheckpointError(f"{say} {alike}, or begin with the checkpoint's hf/ as language_model.model")
        for mid, engine in self.engines.items():
            engine.load(directory / mid)
            if mid in self.critics:
                self.critics[mid].load(directory / mid)
        with _named(path):
            self.set_counters(counters)
        self.references, self.averages = {}, {}
        self._reference_known: dict[str, dict[str, np.ndarray]] = {}
        for mid in self.engines:
            reference = self._load_copy(mid, directory / mid / REFERENCE_FILE)
            if reference is not None:
                self.references[mid] = self._make_reference(mid, reference)
            decay, divided = self.settings(mid).ppo.ema_decay, self.engines[mid].divides_copies
            if decay is not None and (divided or self.ranks.rank == 0):  # One learner keeps it, for all.
                average = self._load_copy(mid, directory / mid / AVERAGE_FILE)
                if average is not None:
                    self.averages[mid] = WeightAverage(decay)
                    self.averages[mid].tensors = average

    def save_policy(self, directory: str | Path, module_id: str) -> None:
        """Write this learner's part of one policy and its optimizer, to storage they share. All must be asked."""
        self.engines[module_id].save(Path(directory))

    def begin_again(self, directory: str | Path, module_id: str) -> None:
        """Make a policy what it was when :meth:`save_policy` wrote it, as PPO began. All learners must be asked.

        Raises: CheckpointError: naming a file that is missing or damaged.
        """
        self.engines[module_id].load(Path(directory))
        self.module[module_id].version = self._weights_seq_no
        self._steps[module_id].nan_in_a_row = 0
        self._objectives.pop(module_id, None)
        self.curr_kl_coeffs_per_module[module_id] = self._get_tensor_variable(self._first_kl_coefficient(module_id))
        self._begin_module(module_id)


@contextmanager
def _named(origin: str | Path) -> Iterator[None]:
    """Errors inside become a :class:`CheckpointError` that names ``origin``; an objective's state may be anything."""
    try:
        yield
    except (CheckpointError, ConfigError):
        raise
    except Exception as error:
        cause = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{origin} is damaged: {cause}") from error
