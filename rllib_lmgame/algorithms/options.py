"""Options of the supervised stage. Importing this loads neither Ray nor torch."""

from __future__ import annotations

from dataclasses import dataclass

from rllib_lmgame.schema import option
from rllib_lmgame.trust import is_name


@dataclass(frozen=True)
class SupervisedOptions:
    """The ``warm_start`` section of ``LMGamePPO`` and the ``supervised`` section of ``LMGameSFT``.

    Supervised learning on episodes of an expert: the loss is taken on reply tokens only.
    """

    expert: str = option(
        "solver",
        "Scripted player whose replies are learnt: `solver`, `random` (uniform over legal moves), or "
        "`package.module:Class`.",
        stranger=is_name,
    )
    data: str | None = option(None, "Episode log (JSONL) to learn from instead of an expert.")
    episodes_per_step: int = option(32, "Episodes in one optimizer step.", low=1)
    steps_per_iteration: int = option(50, "Optimizer steps per training iteration.", low=1)
    max_steps: int = option(1000, "Most optimizer steps.", low=1)
    stop_success: float | None = option(
        None,
        "Stop once the success rate on validation episodes is this high; not where trained policies play only "
        "each other.",
        above=0,
        high=1,
    )
    stop_invalid_rate: float | None = option(None, "Stop once at most this share of actions is invalid.", low=0, high=1)
    evaluate_every: int = option(100, "Optimizer steps between validations (with a stop criterion).", low=1)
    evaluation_episodes: int = option(256, "Validation episodes.", low=1)
    test_episodes: int = option(
        0, "Held-out test episodes played before and after this stage, for the report at the end; 0 plays none.", low=0
    )
    lr: float = option(2e-3, "Learning rate.", above=0)
    lr_warmup_steps: int = option(50, "Optimizer steps of linear warm-up.", low=0)

    @property
    def validates(self) -> bool:
        """Whether validation episodes are played, because a criterion asks for them."""
        return self.stop_success is not None or self.stop_invalid_rate is not None
