"""Forced tokens: where constrained decoding left a single id, nothing was decided and nothing can be learned.

They stay in the rows as context, out of the loss and out of the time that advantages run over.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rllib_lmgame.inference.choices import AllowedTokens
from rllib_lmgame.rollouts.records import Turn


def allowed_in_turns(turns: Iterable[Turn]) -> AllowedTokens | None:
    """What the sampled tokens of ``turns`` were chosen among, in their order; ``None`` if no turn was constrained."""
    return AllowedTokens.joined([(turn.allowed, len(turn.response_ids)) for turn in turns if len(turn.response_ids)])


def take_out_forced(
    loss_mask: np.ndarray, rewards: np.ndarray, owner: np.ndarray, allowed: AllowedTokens
) -> AllowedTokens:
    """Unmark forced tokens and move their rewards: to the last choice before them, or to the first after them if there
    is none.

    A trajectory without a single choice loses its rewards, and with them all there was to learn.

    Args:
        loss_mask: bool ``[T]``; changed in place.
        rewards: float64 ``[T]``; changed in place.
        owner: int ``[T]``; trajectory of each token, never falling.
        allowed: Of the marked tokens.

    Returns:
        ``allowed`` of the tokens that are still marked.
    """
    position = np.flatnonzero(loss_mask)
    forced = allowed.counts == 1
    loss_mask[position[forced]] = False
    choices = position[~forced]
    earned = position[forced & (rewards[position] != 0)]
    amounts = rewards[earned]
    rewards[earned] = 0.0
    after = np.searchsorted(choices, earned)
    for side in (after - 1, after):
        target = choices[np.clip(side, 0, len(choices) - 1)] if len(choices) else earned
        found = (side >= 0) & (side < len(choices)) & (owner[target] == owner[earned])
        np.add.at(rewards, target[found], amounts[found])
        amounts = np.where(found, 0.0, amounts)
    return AllowedTokens(allowed.counts[~forced], allowed.ids[np.repeat(~forced, allowed.counts)])
