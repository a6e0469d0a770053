"""Supervised learning on an expert's episodes, as an RLlib algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.tune import register_trainable

from rllib_lmgame.algorithms.base import LMGameAlgorithm
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.supervised import SupervisedStage
from rllib_lmgame.config import algorithms as registry
from rllib_lmgame.datasets.options import SupervisedOptions

if TYPE_CHECKING:
    from typing import Self


class LMGameSFTConfig(LMGameConfig):
    """Configuration of :class:`LMGameSFT`."""

    entry = registry.SFT

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or LMGameSFT)

    def supervised(self, **options: Any) -> Self:
        """The supervised learning: :class:`~rllib_lmgame.datasets.options.SupervisedOptions`."""
        return self.set_section("supervised", options)


class LMGameSFT(LMGameAlgorithm):
    """Cross-entropy on the reply tokens of an expert (a solver, random legal moves, an episode log).

    ``done`` is reported after ``max_steps``, or when a stop criterion of ``supervised`` holds.
    """

    config: LMGameSFTConfig
    config_class = LMGameSFTConfig
    stage_class: type[SupervisedStage] = SupervisedStage

    def setup(self, config: LMGameSFTConfig) -> None:
        super().setup(config)
        self._stage = self.stage_class(self, self.config.run.supervised_stage or SupervisedOptions())

    def training_step(self) -> None:
        """One iteration of supervised learning."""
        self._stage.step()

    def is_done(self) -> bool:
        return self._stage.done

    def milestones(self) -> dict[str, dict[str, float]]:
        """Those of the stage."""
        return self._stage.milestones

    def lmgame_state(self) -> dict[str, Any]:
        return {**super().lmgame_state(), "supervised": self._stage.state()}

    def set_lmgame_state(self, state: dict[str, Any]) -> None:
        super().set_lmgame_state(state)
        self._stage.set_state(state["supervised"])


register_trainable(LMGameSFT.__name__, LMGameSFT)
