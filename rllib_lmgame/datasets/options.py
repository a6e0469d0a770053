"""Options of the supervised stage and of data selection. Importing this loads neither Ray nor torch."""

from __future__ import annotations

import math
from typing import Annotated, Any

from rllib_lmgame.base.group import Group, Scheduled, given, option
from rllib_lmgame.base.registry import PREFERENCE_LOSSES
from rllib_lmgame.base.trust import is_data_set, is_name, is_number


class StopOptions(Group):
    """``warm_start.stop_at``: validation episodes, and what of them ends the stage; without a bound they only tell."""

    success: float | None = option(None, "Success rate to reach; not where policies play only each other.", gt=0, le=1)
    invalid_rate: float | None = option(None, "Share of invalid actions that is low enough.", ge=0, le=1)
    every: int = option(100, "Optimizer steps between validations.", ge=1)
    episodes: int = option(256, "Validation episodes.", ge=1, le=1e6)


WRITTEN = ("messages", "agentgym", "prompt_completion")
"""Forms in which ``rllib collect`` writes conversations, beside the episode log's."""

OF_DATA = ("successes_only", "min_return", "top_share", "one_per_level", "validation_share", "epochs", "shuffle_seed")
"""Options of a supervised stage that are about what is read of its ``data``."""


class SupervisedOptions(Group):
    """The ``warm_start`` section of ``LMGamePPO`` and the ``supervised`` section of ``LMGameSFT``.

    Supervised learning on episodes of an expert: the loss is taken on reply tokens, and on others only if asked.
    """

    expert: str = option(
        "solver", "Scripted player to imitate: `solver`, `random`, or `package.module:Class`.", stranger=is_name
    )
    data: str | list[str] | None = option(
        None,
        "Conversations to learn from instead of an expert: a file, directory, pattern (`runs/*.jsonl`), "
        "`data:NAME[:PART]` or `hf:OWNER/NAME[:SPLIT]`, or a list of these; JSON, JSONL or Parquet.",
        path=True,
        stranger=is_data_set,
    )
    successes_only: bool = option(False, "Learn from those alone that were a success.")
    min_return: float | None = option(None, "Least return of what is learnt from; null: any.", stranger=is_number)
    top_share: float | None = option(
        None, "Share of each game's conversations, of highest return, to learn.", gt=0, le=1
    )
    one_per_level: str | None = option(
        None, "Learn only the `first` or `best` conversation of each level.", choices=("first", "best")
    )
    validation_share: float = option(0.0, "Share of the data held out for `validation_loss`.", ge=0, lt=1)
    epochs: float | None = option(
        None, "Passes over the data; a `max_steps` that is given may end it earlier.", gt=0, le=1e6
    )
    shuffle_seed: int | None = option(0, "Seed of the order, another one in each pass; null: as in the files.", ge=0)
    episodes_per_step: int = option(32, "Episodes in one optimizer step.", ge=1, le=100_000)
    steps_per_iteration: int = option(50, "Optimizer steps per training iteration.", ge=1, le=100_000)
    max_steps: int = option(1000, "Most optimizer steps.", ge=1)
    stop_at: StopOptions | None = option(None, "Validations, and what in them ends the stage; null: none.")
    test_episodes: int = option(0, "Held-out test episodes before and after this stage, for the report.", ge=0, le=1e6)
    lr: float = option(2e-3, "Learning rate.", gt=0)
    lr_warmup_steps: int = option(50, "Optimizer steps of linear warm-up.", ge=0)
    lr_scheduler_type: str = option(
        "constant",
        "`constant`; from one training iteration to the next `linear` or `cosine` fall to 0 at the last step.",
        choices=("constant", "linear", "cosine"),
    )
    env_token_loss_weight: float = option(
        0.0, "Weight of the mean cross-entropy of the game's text after the first prompt.", ge=0
    )

    def last_step(self, conversations: int) -> int:
        """Optimizer steps in all, with data of so many conversations."""
        if self.epochs is None:
            return self.max_steps
        steps = max(1, math.ceil(self.epochs * conversations / self.episodes_per_step - 1e-9))
        return min(steps, self.max_steps) if "max_steps" in given(self) else steps

    def lr_after(self, share: float) -> float:
        """Learning rate after a ``share`` of all steps; its warm-up is not in it."""
        left = {"constant": 1.0, "linear": 1.0 - share, "cosine": 0.5 + 0.5 * math.cos(math.pi * share)}
        return self.lr * left[self.lr_scheduler_type]


class DPOOptions(Group):
    """The ``dpo`` section: what is compared, and how."""

    loss: Annotated[Any, PREFERENCE_LOSSES] = option("sigmoid", "`sigmoid` (DPO), `ipo` or `simpo` (no reference).")
    beta: Scheduled[float] = option(0.1, "How much a difference to the reference counts.", gt=0)
    sft_weight: Scheduled[float] = option(0.0, "Weight of the chosen trajectory's mean cross-entropy (RPO).", ge=0)
    data: str | list[str] | None = option(
        None, "Files, named as in `warm_start.data`; null: play now.", path=True, stranger=is_data_set
    )
    shuffle_seed: int | None = option(0, "Seed of the order, another one in each pass; null: as in the files.", ge=0)
    epochs: float | None = option(None, "Passes over the data, then the run is done; null: without end.", gt=0)
    pairs_per_iteration: int = option(64, "Pairs of the files per iteration.", ge=1, le=100_000)
    reward_gap: Scheduled[float] = option(0.1, "Least difference of a pair's returns, in points of the game.", gt=0)
    pairs_per_level: str = option(
        "one", "The best and the worst of a level, or all pairs of it.", choices=("one", "all")
    )

    @property
    def needs_reference(self) -> bool:
        """Whether the policy is compared with a reference model."""
        return bool(self.loss.asks_reference)

    @property
    def compares(self) -> str | None:
        """The option that compares the episodes of a group, if games are played."""
        return f"dpo.loss `{self.loss.type}`" if self.data is None else None
