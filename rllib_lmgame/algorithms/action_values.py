"""Offline learning of values of tokens, by which the policy then plays: Monte-Carlo returns, CQL and ILQL."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ray.tune import register_trainable

from rllib_lmgame.algorithms.sft import LMGameSFT, LMGameSFTConfig, SupervisedStage
from rllib_lmgame.config import algorithms as registry
from rllib_lmgame.learners.objectives import ActionValueObjective, SupervisedObjective
from rllib_lmgame.learners.options import ExpectileValueOptions, TargetValueOptions

if TYPE_CHECKING:
    from typing import Self

    from rllib_lmgame.algorithms.base import LMGameAlgorithm
    from rllib_lmgame.datasets.options import SupervisedOptions


class LMGameMCConfig(LMGameSFTConfig):
    """Configuration of :class:`LMGameMC`; the engine is the one that plays by values."""

    entry = registry.MC

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class)
        self.inference(engine="transformers")

    def action_values(self, **options: Any) -> Self:
        """The values, and what they count: :mod:`rllib_lmgame.learners.options`."""
        return self.change({"action_values": options})

    def values_of(self, policy: str) -> dict[str, Any] | None:
        if policy not in self.trained_policies():
            return None
        own = self.run.action_values
        slow = isinstance(own, TargetValueOptions)
        state = isinstance(own, ExpectileValueOptions)
        return {"heads": 1 + slow, "state": state, "targets": slow, "q_init": own.q_init, "beta": own.beta}


class LMGameCQLConfig(LMGameMCConfig):
    """Configuration of :class:`LMGameCQL`."""

    entry = registry.CQL


class LMGameILQLConfig(LMGameMCConfig):
    """Configuration of :class:`LMGameILQL`."""

    entry = registry.ILQL


class ActionValueStage(SupervisedStage):
    """Supervised learning with the losses of values beside it."""

    def __init__(self, algorithm: LMGameAlgorithm, options: SupervisedOptions) -> None:
        super().__init__(algorithm, options)
        if self.data is not None:
            self.data.check_rewarded()

    def objective(self, steps: int) -> SupervisedObjective:
        plain = super().objective(steps)
        own = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
        return ActionValueObjective(**own, options=self.algorithm.config.run.action_values)


class LMGameMC(LMGameSFT):
    """Supervised learning, and beside it values of tokens from the returns of what is imitated (LMGameMC).

    It plays by logits and values together.
    """

    config: LMGameMCConfig
    config_class = LMGameMCConfig
    stage_class = ActionValueStage


class LMGameCQL(LMGameMC):
    """The same with values that are learnt from each other, of actions that were taken (CQL)."""

    config_class = LMGameCQLConfig


class LMGameILQL(LMGameMC):
    """The same with values of states between them, which are expectiles of those of actions (ILQL)."""

    config_class = LMGameILQLConfig


register_trainable(LMGameMC.__name__, LMGameMC)
register_trainable(LMGameCQL.__name__, LMGameCQL)
register_trainable(LMGameILQL.__name__, LMGameILQL)
