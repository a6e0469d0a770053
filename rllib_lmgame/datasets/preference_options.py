"""Options of learning from preferences. Importing this loads neither Ray nor torch."""

from __future__ import annotations

import math
from typing import Annotated, Any

from rllib_lmgame.base.group import Group, Scheduled, option
from rllib_lmgame.base.registry import PREFERENCE_LOSSES
from rllib_lmgame.base.trust import is_data_set, is_number
from rllib_lmgame.datasets.options import MESSAGES


class DPOOptions(Group):
    """The ``dpo`` section: what is compared, and how."""

    loss: Annotated[Any, PREFERENCE_LOSSES] = option(
        "sigmoid",
        "[What is made of a pair](algorithms.md#lmgamedpo): `sigmoid` (DPO), `ipo`, `hinge` (SLiC), `simpo` (means "
        "over tokens, no reference). `kto` takes trajectories one by one, good or bad.",
    )
    beta: Scheduled[float] = option(0.1, "How much a difference to the reference counts.", gt=0)
    sft_weight: Scheduled[float] = option(
        0.0, "Weight of the chosen trajectory's own mean cross-entropy beside it (RPO).", ge=0
    )
    data: str | list[str] | None = option(
        None,
        "Files to learn from: [pairs, conversations or a log](algorithms.md#lmgamedpo), named as in "
        "`warm_start.data`; null: groups of episodes that are played now.",
        path=True,
        stranger=is_data_set,
    )
    rejected: str | list[str] | None = option(
        None,
        "Files of worse conversations: those of `data` are compared with those of the same level here.",
        path=True,
        stranger=is_data_set,
    )
    format: str = option(
        "auto",
        "How conversations of `data` are written down, as `warm_start.format`.",
        choices=("auto", "log", *MESSAGES),
    )
    on_overlong: str = option(
        "drop",
        "What becomes of a pair in which a trajectory has a row that is too long: `drop`, or `error`, before anything "
        "starts.",
        choices=("drop", "error"),
    )
    shuffle_seed: int | None = option(0, "Seed of the order, another one in each pass; null: as in the files.", ge=0)
    epochs: float | None = option(None, "Passes over the data, then the run is done; null: without end.", gt=0)
    pairs_per_iteration: int = option(
        64, "Pairs (with `kto`: trajectories) of the files in an iteration.", ge=1, le=100_000
    )
    reward_gap: Scheduled[float] = option(
        0.1, "Least difference of the returns of a pair, in points of the game.", gt=0
    )
    chosen_min: float | None = option(
        None,
        "Least return of what is chosen; null: any. With `kto` it parts good from bad; null: the mean of the level's "
        "episodes does.",
        stranger=is_number,
    )
    pairs_per_level: str = option(
        "one",
        "Of a level: the best and the worst trajectory are `one` pair, or `all` that differ enough are.",
        choices=("one", "all"),
    )

    def last_iteration(self, records: int) -> int | None:
        """Iterations until so many records were passed over ``epochs`` times; ``None``: without end."""
        if self.epochs is None:
            return None
        return max(1, math.ceil(self.epochs * records / self.pairs_per_iteration - 1e-9))
