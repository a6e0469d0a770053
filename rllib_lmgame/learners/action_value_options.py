"""Options of learning values of tokens from what was logged. Importing this loads neither Ray nor torch."""

from __future__ import annotations

from rllib_lmgame.base.group import Group, option


class ReturnValueOptions(Group):
    """The ``action_values`` section of ``LMGameMC``."""

    gamma: float = option(0.99, "Discount per token of a reply.", ge=0, le=1)
    cql_weight: float = option(
        0.01, "Weight of the cross-entropy that keeps values of tokens low that were not taken.", ge=0
    )
    policy_weight: float = option(
        1.0,
        "Weight of the policy's own cross-entropy beside the losses of values; 0: it stays what it is, as after "
        "`LMGameSFT`, and shares nothing with the values but a frozen backbone.",
        ge=0,
    )
    q_init: float = option(0.0, "What values of tokens begin at.")
    beta: float = option(
        8.0,
        "What values count where the policy plays: logits + `beta` (Q - V). 0: the policy plays alone, on any engine.",
        ge=0,
    )


class TargetValueOptions(ReturnValueOptions):
    """The ``action_values`` section of ``LMGameCQL``."""

    target_rate: float = option(
        0.005, "Share of the way to the values that their slow copies go in each optimizer step.", gt=0, le=1
    )


class ExpectileValueOptions(TargetValueOptions):
    """The ``action_values`` section of ``LMGameILQL``."""

    tau: float = option(
        0.7, "Expectile of the values of actions that the value of a state is; 0.5 is their mean.", gt=0, lt=1
    )
